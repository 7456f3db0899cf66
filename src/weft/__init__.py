"""Incomplete multimodal time series, woven into one latent state."""

from weft.batch import Batch
from weft.columns import DataError
from weft.estimator import MDMM, NotFittedError, load
from weft.gaussian import Gaussian, ImproperGaussianError
from weft.inference import BFVI, Recurrent
from weft.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Pixels, Poisson, StudentT
from weft.modality import Modality
from weft.model import MarkovModel
from weft.objective import ObjectiveConfig
from weft.particles import Antithetic, Cubature, MonteCarlo, Particles
from weft.persistence import FileError
from weft.prediction import Prediction
from weft.results import Inference, Posterior, Sampled
from weft.schedules import TrainingConfig
from weft.sequences import Sequences
from weft.streaming import Stream
from weft.training import TrainingError

__version__ = "0.1.0"

__all__ = [
    "BFVI",
    "MDMM",
    "Antithetic",
    "Batch",
    "Bernoulli",
    "Categorical",
    "Cubature",
    "DataError",
    "FileError",
    "Gaussian",
    "ImproperGaussianError",
    "Inference",
    "Likelihood",
    "MarkovModel",
    "Modality",
    "MonteCarlo",
    "Normal",
    "NotFittedError",
    "ObjectiveConfig",
    "Particles",
    "Pixels",
    "Poisson",
    "Posterior",
    "Prediction",
    "Recurrent",
    "Sampled",
    "Sequences",
    "Stream",
    "StudentT",
    "TrainingConfig",
    "TrainingError",
    "load",
]

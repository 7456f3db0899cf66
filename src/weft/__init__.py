"""Incomplete multimodal time series, woven into one latent state."""

from weft.columns import DataError
from weft.gaussian import Gaussian, ImproperGaussianError
from weft.inference.bfvi import BFVI
from weft.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Poisson, StudentT
from weft.modality import Modality
from weft.model import MarkovModel
from weft.particles import Antithetic, Cubature, MonteCarlo, Particles
from weft.sequences import Batch, Sequences

__version__ = "0.1.0"

__all__ = [
    "BFVI",
    "Antithetic",
    "Batch",
    "Bernoulli",
    "Categorical",
    "Cubature",
    "DataError",
    "Gaussian",
    "ImproperGaussianError",
    "Likelihood",
    "MarkovModel",
    "Modality",
    "MonteCarlo",
    "Normal",
    "Particles",
    "Poisson",
    "Sequences",
    "StudentT",
]

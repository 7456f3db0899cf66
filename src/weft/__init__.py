"""Incomplete multimodal time series, woven into one latent state.

Names are imported when they are first used, so that ``import weft`` and the command line start
without waiting for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.batch import Batch
    from weft.columns import DataError
    from weft.estimator import MDMM, NotFittedError, load
    from weft.evaluation import Score, evaluate
    from weft.gaussian import Gaussian, ImproperGaussianError
    from weft.imputer import Imputer
    from weft.inference import BFVI, Recurrent
    from weft.likelihoods import (
        Bernoulli,
        Categorical,
        Likelihood,
        Normal,
        Pixels,
        Poisson,
        StudentT,
    )
    from weft.modality import Modality, infer_modalities
    from weft.model import MarkovModel
    from weft.objective import ObjectiveConfig
    from weft.particles import Antithetic, Cubature, MonteCarlo, Particles
    from weft.persistence import FileError
    from weft.prediction import Prediction
    from weft.report import write_report
    from weft.results import Inference, Posterior, Sampled
    from weft.schedules import TrainingConfig
    from weft.sequences import Sequences
    from weft.streaming import Stream
    from weft.tables import beyond_frame, predictions_frame
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
    "Imputer",
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
    "Score",
    "Sequences",
    "Stream",
    "StudentT",
    "TrainingConfig",
    "TrainingError",
    "beyond_frame",
    "evaluate",
    "infer_modalities",
    "load",
    "predictions_frame",
    "write_report",
]

PLACES = {
    "Antithetic": "weft.particles",
    "BFVI": "weft.inference",
    "Batch": "weft.batch",
    "Bernoulli": "weft.likelihoods",
    "Categorical": "weft.likelihoods",
    "Cubature": "weft.particles",
    "DataError": "weft.columns",
    "FileError": "weft.persistence",
    "Gaussian": "weft.gaussian",
    "ImproperGaussianError": "weft.gaussian",
    "Imputer": "weft.imputer",
    "Inference": "weft.results",
    "Likelihood": "weft.likelihoods",
    "MDMM": "weft.estimator",
    "MarkovModel": "weft.model",
    "Modality": "weft.modality",
    "MonteCarlo": "weft.particles",
    "Normal": "weft.likelihoods",
    "NotFittedError": "weft.estimator",
    "ObjectiveConfig": "weft.objective",
    "Particles": "weft.particles",
    "Pixels": "weft.likelihoods",
    "Poisson": "weft.likelihoods",
    "Posterior": "weft.results",
    "Prediction": "weft.prediction",
    "Recurrent": "weft.inference",
    "Sampled": "weft.results",
    "Score": "weft.evaluation",
    "Sequences": "weft.sequences",
    "Stream": "weft.streaming",
    "StudentT": "weft.likelihoods",
    "TrainingConfig": "weft.schedules",
    "TrainingError": "weft.training",
    "beyond_frame": "weft.tables",
    "evaluate": "weft.evaluation",
    "infer_modalities": "weft.modality",
    "load": "weft.estimator",
    "predictions_frame": "weft.tables",
    "write_report": "weft.report",
}
"""Module of every public name."""


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    found = getattr(import_module(PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *PLACES])

"""What inference gives back."""

from __future__ import annotations

from dataclasses import dataclass

from weft.columns import Array
from weft.prediction import Prediction

__all__ = ["Inference", "Posterior", "Sampled"]


@dataclass(frozen=True, eq=False)
class Posterior:
    """Latent mean and standard deviation, ``(sequence, time, latent)``, NaN beyond the ends.

    Of streams, which are at one step, they are ``(stream, latent)``.
    """

    mean: Array
    std: Array


@dataclass(frozen=True, eq=False)
class Inference:
    """A posterior over states and, by name, what it predicts for every modality."""

    posterior: Posterior
    predictions: dict[str, Prediction]

    def __getitem__(self, name: str) -> Prediction:
        return self.predictions[name]


@dataclass(frozen=True, eq=False)
class Sampled:
    """Latent trajectories ``(sample, sequence, time, latent)`` and what they predict."""

    latents: Array
    predictions: dict[str, Prediction]

    def __getitem__(self, name: str) -> Prediction:
        return self.predictions[name]

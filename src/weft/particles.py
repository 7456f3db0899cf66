"""Equally weighted points that stand for a standard normal.

A scheme gives standard points; ``gaussian.at(points)`` places them, and plain averages over them
estimate expectations. `MonteCarlo` is unbiased, `Antithetic` besides exact for odd functions, and
`Cubature` exact for every polynomial of degree three or less.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["Antithetic", "Cubature", "MonteCarlo", "Particles", "RandomParticles"]


class Particles(ABC):
    """A rule for placing points."""

    @abstractmethod
    def noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Standard-normal points ``(particle, …, latent)`` for parameters shaped like ``like``.

        The result may keep axes of length one where all points are shared.
        """


@dataclass(frozen=True)
class RandomParticles(Particles):
    """A number of random points; `mirrored` ones come in pairs."""

    count: int
    mirrored: ClassVar[bool] = False

    def seed(self, generator: torch.Generator | None) -> int:
        """Draw a seed, from which compiled code draws the points themselves."""
        return int(torch.randint(2**62, (), generator=self._require(generator)))

    def _normal(self, count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        shape = (count, *like.shape)
        return torch.randn(
            shape, generator=self._require(generator), dtype=like.dtype, device=like.device
        )

    def _require(self, generator: torch.Generator | None) -> torch.Generator:
        if generator is None:
            raise ValueError(
                "Random particles need a generator: pass generator="
                "torch.Generator().manual_seed(0), or use Cubature(), which is deterministic."
            )
        return generator


@dataclass(frozen=True)
class MonteCarlo(RandomParticles):
    """Independent draws (the paper's choice: 25 to train, 200 to evaluate)."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"MonteCarlo needs at least one particle, got {self.count}.")

    def noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw ``count`` independent points."""
        return self._normal(self.count, like, generator)


@dataclass(frozen=True)
class Antithetic(RandomParticles):
    """Draws in mirrored pairs: the mean is exact, variances of means are halved or better."""

    mirrored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.count < 2 or self.count % 2:
            raise ValueError(f"Antithetic needs an even number of particles, got {self.count}.")

    def noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw ``count / 2`` points and mirror them."""
        half = self._normal(self.count // 2, like, generator)
        return torch.cat([half, -half])


@dataclass(frozen=True)
class Cubature(Particles):
    """The ``2 · latent`` deterministic points ``±√latent · eᵢ``.

    Examples
    --------
    >>> Cubature().noise(torch.zeros(1)).tolist()
    [[1.0], [-1.0]]
    """

    def noise(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Place the points; they are the same for every element of the batch."""
        latent = like.shape[-1]
        half = latent**0.5 * torch.eye(latent, dtype=like.dtype, device=like.device)
        points = torch.cat([half, -half])
        return points.reshape(2 * latent, *(1,) * (like.dim() - 1), latent)

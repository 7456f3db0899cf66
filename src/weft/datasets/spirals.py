"""The paper's synthetic data: noisy two-dimensional spirals, x and y as two modalities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weft.sequences import Sequences

__all__ = ["Spirals", "make_spirals"]


@dataclass(frozen=True)
class Spirals:
    """Noisy observations and the noise-free curves behind them, with the same ids and steps."""

    noisy: Sequences
    clean: Sequences

    def __getitem__(self, index: slice) -> Spirals:
        return Spirals(self.noisy[index], self.clean[index])


def make_spirals(
    generator: torch.Generator, count: int = 1000, steps: int = 100, noise: float = 0.1
) -> Spirals:
    """Draw spirals, every other one clockwise.

    Radius and angle are linear in time. The radius starts in U(0.25, 0.75) and stops in
    U(2.25, 2.75); the angle starts in U(0, π) and stops in U(4π, 5π), both signed by direction;
    the aspect ratio is a = 2^U(-1, 1), with x = √a · r cos θ and y = r sin θ / √a.

    Examples
    --------
    >>> make_spirals(torch.Generator().manual_seed(0), count=4).noisy
    Sequences(4 sequences, 100 steps, x (1,) 100% observed, y (1,) 100% observed)
    """

    def uniform(low: float, high: float) -> torch.Tensor:
        drawn = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        return low + (high - low) * drawn

    clock = torch.linspace(0, 1, steps, dtype=torch.float64)
    sign = 1.0 - 2.0 * (torch.arange(count)[:, None] % 2)
    radius = torch.lerp(uniform(0.25, 0.75), uniform(2.25, 2.75), clock)
    start, stop = uniform(0, math.pi), uniform(4 * math.pi, 5 * math.pi)
    angle = sign * torch.lerp(start, stop, clock)
    stretch = 2.0 ** uniform(-0.5, 0.5)
    curves = {"x": stretch * radius * angle.cos(), "y": radius * angle.sin() / stretch}
    noisy = {
        name: curve + noise * torch.randn(curve.shape, generator=generator, dtype=torch.float64)
        for name, curve in curves.items()
    }
    return Spirals(Sequences.from_arrays(noisy), Sequences.from_arrays(curves))

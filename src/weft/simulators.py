"""Latent states of a batch, step by step, by one way of inference or another.

Nothing is kept: a pass yields the states of one step of all trajectories after the other, and the
same seed gives the same pass again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.batch import Batch
from weft.columns import Array
from weft.gaussian import Gaussian
from weft.inference.linearized import Linearized
from weft.inference.method import Guide
from weft.modality import Modality
from weft.model import MarkovModel
from weft.randomness import stream
from weft.sequences import Sequences

__all__ = [
    "ROWS",
    "Marginals",
    "Onward",
    "Paths",
    "Refined",
    "Several",
    "Simulator",
    "Window",
    "batches",
    "predicted_moments",
]

ROWS = 40_000
"""Trajectories times sequences walked at once; bounds the memory of a step."""


@dataclass(frozen=True, eq=False)
class Window:
    """Which steps of a batch go where: sequence ``index[b]``, steps ``first[b]`` to ``stop[b]``."""

    index: Array
    first: Array
    stop: Array


def batches(source: Sequences, samples: int, dtype: torch.dtype) -> Iterator[tuple[Window, Batch]]:
    """Batches of similar length, as many sequences as trajectories allow."""
    for index in source.groups(max(1, ROWS // max(samples, 1)), bucket=True):
        stop = source.lengths[index]
        yield Window(index, np.zeros_like(stop), stop), source.batch(index, dtype)


class Simulator(ABC):
    """Latent states of one batch, step by step."""

    window: Window

    @abstractmethod
    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Yield states ``(trajectory, batch, latent)`` for each step."""


@torch.no_grad()
def predicted_moments(
    modality: Modality, model: MarkovModel, simulator: Simulator, samples: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance ``(time, batch, *shape)`` of a modality, of all trajectories together."""
    steps = []
    for z in simulator.states(samples, seed):
        raw = model.decode(modality.name, z).double()
        mean, variance = modality.likelihood.moments(raw, modality.shape)
        steps.append((mean.mean(0), variance.mean(0) + mean.var(0, correction=0)))
    means, variances = zip(*steps, strict=True)
    return torch.stack(means), torch.stack(variances)


def _noise(
    shape: torch.Size, dtype: torch.dtype, count: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Standard-normal numbers ``(count, …)`` for each step of states ``(time, …)``."""
    steps, *rest = shape
    for _ in range(steps):
        yield torch.randn((count, *rest), generator=generator, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Paths(Simulator):
    """Joint trajectories through the conditional posteriors of a guide.

    ``spread=0`` follows the posterior means: the paper's MAP recursion.
    """

    guide: Guide
    window: Window
    spread: float = 1.0

    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Walk ``count`` trajectories forward."""
        count = count if self.spread else 1
        generator = stream(seed, int(self.window.index[0]))
        dtype = self.guide.model.prior_mean.dtype
        noise = (self.spread * n for n in _noise(self.guide.shape, dtype, count, generator))
        for step in self.guide.walk(noise):
            yield step.latents[:, 0]


@dataclass(frozen=True, eq=False)
class Marginals(Simulator):
    """Independent draws from each step's own distribution."""

    posterior: Gaussian
    window: Window

    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Draw ``count`` states per step."""
        generator = stream(seed, int(self.window.index[0]))
        for step in self.posterior.unbind():
            yield step.sample(generator, count)


@dataclass(frozen=True, eq=False)
class Onward(Simulator):
    """Trajectories from a state ``(batch, latent)`` on, by the transition."""

    model: MarkovModel
    posterior: Gaussian
    window: Window

    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Walk ``count`` trajectories forward; the first step is the state's own."""
        generator = stream(seed, int(self.window.index[0]))
        z = self.posterior.sample(generator, count)
        yield z
        for _ in range(1, int(self.window.stop.max())):
            z = self.model.step_forward(z).sample(generator)[0]
            yield z


@dataclass(frozen=True, eq=False)
class Refined(Simulator):
    """Trajectories of a guide up to each sequence's first observation, and of a chain from there.

    ``spread=0`` follows the means of both.
    """

    paths: Paths
    chain: Linearized
    window: Window

    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Walk ``count`` trajectories forward."""
        generator = stream(seed, int(self.window.index[0]), 3)
        noise = _noise(self.chain.mean.shape, self.chain.mean.dtype, count, generator)
        refined = self.chain.walk(self.paths.spread * n for n in noise)
        coarse = self.paths.states(count, seed)
        for begun, before, after in zip(self.chain.begun, coarse, refined, strict=True):
            yield torch.where(begun[:, None], after[: len(before)].to(before.dtype), before)


@dataclass(frozen=True, eq=False)
class Several(Simulator):
    """Trajectories through the same sequences in several ways, an equal share by each."""

    parts: Sequence[Simulator]
    window: Window

    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Walk ``count`` trajectories forward, those of one part behind those of another."""
        shares = [len(share) for share in np.array_split(np.arange(count), len(self.parts))]
        walks = [
            part.states(share, int(torch.randint(2**31, (), generator=stream(seed, 6, i))))
            for i, (part, share) in enumerate(zip(self.parts, shares, strict=True))
            if share
        ]
        for steps in zip(*walks, strict=True):
            yield torch.cat(steps)

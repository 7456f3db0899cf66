r"""Clocks: by how many steps a modality is early or late in a sequence.

Devices are seldom started at the same moment, so one and the same movement is a few steps earlier
in one stream than in another. A modality with a clock of its own shows at step t the state of step
t + lag, where the lag stays what it is throughout a sequence,

.. math::
    p(\mathrm{lag} \mid x) \propto p(\mathrm{lag})
        \prod_t p(x^m_t \mid z_{t + \mathrm{lag}})^{1 / \mathrm{lasting}} ,

where states are those that the other modalities tell of. Errors of neighbouring steps are alike, so
as many as errors last count as one. Where nothing was observed, a lag is any that is usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from weft.columns import Array
from weft.modality import Modality
from weft.model import MarkovModel
from weft.sequences import Sequences
from weft.simulators import Paths, predicted_moments

__all__ = ["Clock", "Evidence", "Lags", "Readings", "listen"]

Lags: TypeAlias = Mapping[str, Array]
"""Lag of every sequence, by modality."""

ROUNDS = 50
"""Of expectation and maximisation, for the chances of lags."""
LASTING = 20
"""Steps up to which errors are compared."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What observations say of each lag, ``(sequence, lag)`` log-densities up to a constant.

    ``lasting`` is how many errors of neighbouring steps count as one.
    """

    density: Array
    lasting: float


@dataclass(frozen=True, eq=False)
class Clock:
    """How far a modality is off.

    Attributes
    ----------
    chances : Array
        ``(lag,)``, how many sequences are off by ``-reach, …, reach`` steps.
    lasting : float
        How many errors of neighbouring steps count as one.
    """

    chances: Array
    lasting: float

    @property
    def reach(self) -> int:
        """The largest lag."""
        return len(self.chances) // 2

    @classmethod
    def learn(cls, evidence: Evidence) -> Clock:
        """Find the chances that make the evidence likeliest; each lag is seen once besides."""
        count = evidence.density.shape[1]
        clock = cls(np.full(count, 1 / count), evidence.lasting)
        for _ in range(ROUNDS):
            seen = clock.read(evidence).sum(0) + 1
            clock = cls(seen / seen.sum(), clock.lasting)
        return clock

    def read(self, evidence: Evidence) -> Array:
        """Probability ``(sequence, lag)`` of every lag."""
        logs = evidence.density / self.lasting + np.log(self.chances)
        found = np.exp(logs - logs.max(1, keepdims=True))
        chances: Array = found / found.sum(1, keepdims=True)
        return chances


@dataclass(frozen=True, eq=False)
class Readings:
    """Probability ``(sequence, lag)`` of every lag of some sequences, by modality."""

    chances: Mapping[str, Array]

    @property
    def margin(self) -> int:
        """Steps by which modalities may be apart."""
        reaches = sorted(chances.shape[1] // 2 for chances in self.chances.values())
        return sum(reaches[-2:])

    def best(self) -> Lags:
        """Take the likeliest lags."""
        return {name: p.argmax(1) - p.shape[1] // 2 for name, p in self.chances.items()}

    def draw(self, count: int, generator: torch.Generator) -> list[Lags]:
        """Draw lags so many times, as evenly as chances allow; once where there are no clocks."""
        if not self.chances:
            return [{}]
        found = {name: _spread(p, count, generator) for name, p in self.chances.items()}
        return [{name: lags[i] for name, lags in found.items()} for i in range(count)]

    def lay_out(self, data: Sequences, lags: Lags, target: str | None = None) -> Sequences:
        """Move modalities to when they happen by the clock of a target, with margins at both ends.

        Modalities without a clock, and ``None``, share one.
        """
        margin = self.margin
        if not margin:
            return data
        none = np.zeros(len(data), np.int64)
        ours = none if target is None else lags.get(target, none)
        steps = {name: lags.get(name, none) - ours for name in data.names}
        return data.extend(margin, margin).shift(
            {name: by for name, by in steps.items() if by.any()}
        )


def listen(
    modality: Modality,
    model: MarkovModel,
    paths: Sequence[Paths],
    data: Sequences,
    samples: int,
    seed: int,
) -> Evidence:
    """Compare what was observed with what states of other modalities predict some steps off.

    Paths lead through data, which have margins of at least the modality's reach. Means are those of
    the likeliest states, which do not scatter; variances are of many trajectories, and of all steps
    of a sequence, since it is not by them that lags are to be told. A modality with a level may be
    off by a constant besides.
    """
    reach = modality.clock
    density = np.zeros((len(data), 2 * reach + 1))
    products, pairs = np.zeros(LASTING + 1), np.zeros(LASTING + 1)
    for path in paths:
        index = path.window.index
        batch = data.batch(index, model.prior_mean.dtype)
        values, seen = batch.values[modality.name], batch.observed[modality.name]
        mean, _ = predicted_moments(modality, model, replace(path, spread=0.0), 1, seed)
        _, variance = predicted_moments(modality, model, path, samples, seed)
        count = seen.sum(0).clamp(min=1)
        spread = torch.where(seen.any(0), (variance * seen).sum(0) / count, 1).sqrt()
        for place, lag in enumerate(range(-reach, reach + 1)):
            errors = values - mean.roll(-lag, 0)
            if modality.level:
                errors = errors - (errors * seen).sum(0) / count
            errors = errors / spread * seen
            density[index, place] = -0.5 * errors.square().transpose(0, 1).flatten(1).sum(1).numpy()
            if lag == 0:
                found = _products(errors, seen)
                products, pairs = products + found[0], pairs + found[1]
    correlations = products / np.maximum(pairs, 1)
    ratios = np.maximum(correlations[1:], 0) / max(correlations[0], 1e-12)
    return Evidence(density, float(1 + 2 * ratios.sum()))


def _products(errors: Tensor, seen: Tensor) -> tuple[Array, Array]:
    """Sums of products of errors ``(time, …)`` some steps apart, and of how many pairs."""
    products, pairs = np.zeros(LASTING + 1), np.zeros(LASTING + 1)
    for lag in range(min(LASTING + 1, len(errors))):
        stop = len(errors) - lag
        products[lag] = float((errors[:stop] * errors[lag:]).sum())
        pairs[lag] = float((seen[:stop] & seen[lag:]).sum())
    return products, pairs


def _spread(chances: Array, count: int, generator: torch.Generator) -> Array:
    """Draw lags ``(draw, sequence)``, one from each of ``count`` equal parts of their chances."""
    rows, width = chances.shape
    shape = (count, rows)
    part = torch.rand(shape, generator=generator).argsort(0)
    place = (part + torch.rand(shape, generator=generator)).double().numpy() / count
    below = np.cumsum(chances, 1)[:, :-1]
    found: Array = (place[:, :, None] > below).sum(-1) - width // 2
    return found

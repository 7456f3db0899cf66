"""Levels of sequences: predictions move by what they are off by where there are observations.

Numbers have errors that last for a while (`weft.errors`), pixels, switches and counts one offset
for a whole sequence. States that have seen a number hardly err there, which says little of a gap.
So numbers are looked at twice, along states inferred from everything and from other modalities.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from weft.columns import Array
from weft.errors import TRUSTS, Errors, Views, closest_trust
from weft.modality import Modality
from weft.model import MarkovModel
from weft.sequences import Sequences
from weft.simulators import Simulator, predicted_moments

__all__ = ["Correct", "Levels"]

Moments: TypeAlias = tuple[Tensor, Tensor]
Correct: TypeAlias = Callable[[Tensor, int, Array], Tensor]
"""Changes raw numbers ``(trajectory, row, outputs)`` of a step, for rows of a batch."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Where the levels of a modality lie, by what was given of it.

    ``simulators()`` have the states of its batches, ``others()`` those that are inferred without
    the modality. ``errors`` say how long what predictions are off by lasts; without them it is
    taken to stay. Moments of predictions are those of ``samples`` trajectories.
    """

    modality: Modality
    model: MarkovModel
    simulators: Callable[[], Sequence[Simulator]]
    others: Callable[[], Sequence[Simulator]]
    given: Sequences
    errors: Views | None
    samples: int
    seed: int

    def correction(self, place: int, count: int) -> Correct:
        """How raw numbers of the steps of a batch are moved, along ``count`` trajectories."""
        likelihood = self.modality.likelihood
        if self.errors is None:
            offset = self._offset(place, count)
            return lambda raw, t, inside: likelihood.moved(raw, offset[:, inside])
        shift, share = self._changes[place]

        def correct(raw: Tensor, t: int, inside: Array) -> Tensor:
            raw = likelihood.moved(raw, shift[t, None, inside].to(raw))
            return likelihood.narrowed(raw, share[t, inside].to(raw))

        return correct

    def _offset(self, place: int, count: int) -> Tensor:
        """One offset ``(trajectory, batch, *shape)`` of each trajectory for a whole sequence."""
        values, observed = self._observations(place, self.given)
        likelihood, shape = self.modality.likelihood, self.modality.shape
        raw = self._decoded(self.simulators()[place], count)
        means = (likelihood.moments(x, shape)[0] * m for x, m in zip(raw, observed, strict=True))
        expected = functools.reduce(torch.add, means)
        return likelihood.offset(values.sum(0), expected, observed.sum(0))

    @cached_property
    def _changes(self) -> list[tuple[Tensor, Tensor]]:
        """Shifts of the mean at every step of every batch, and the share of the variance known."""
        assert self.errors is not None
        found = []
        for before, ours, theirs in self._views():
            mean, std = meet(ours, theirs, torch.from_numpy(self.errors.trust))
            found.append((mean - before[0], 1 - std.square() / before[1]))
        return found

    @torch.no_grad()
    def learn_trust(self, truth: Sequences) -> Array:
        """How much to trust the others' view, by the truth of what was not given."""
        losses, counts = (
            np.zeros((len(TRUSTS), *self.modality.shape)),
            np.zeros(self.modality.shape),
        )
        for place, (_, ours, theirs) in enumerate(self._views()):
            values, known = self._observations(place, truth)
            hidden = known & ~self._observations(place, self.given)[1]
            for i, trust in enumerate(TRUSTS):
                error = meet(ours, theirs, torch.tensor(trust))[0] - values
                losses[i] += (error.square() * hidden).sum((0, 1)).numpy()
            counts += hidden.sum((0, 1)).numpy()
        return closest_trust(losses, counts)

    def _views(self) -> Iterator[tuple[Moments, Moments, Moments]]:
        """Mean and variance of every batch, and what errors say of them by either view."""
        assert self.errors is not None
        for place, simulators in enumerate(zip(self.simulators(), self.others(), strict=True)):
            before, theirs = (self._moments(simulator) for simulator in simulators)
            yield (
                before,
                self._expected(place, before, self.errors.everything),
                self._expected(place, theirs, self.errors.others),
            )

    def _expected(self, place: int, moments: Moments, errors: Errors) -> Moments:
        """Mean and standard deviation of each step by the errors at others."""
        mean, variance = moments
        values, observed = self._observations(place, self.given)
        known = torch.where(observed, values - mean, torch.nan)
        expected, share = (torch.from_numpy(x).to(mean) for x in errors.expect(known.numpy()))
        return mean + expected, (variance * (1 - share)).sqrt()

    def _observations(self, place: int, data: Sequences) -> tuple[Tensor, Tensor]:
        """Values and mask of a batch, ``(time, batch, *shape)``."""
        index = self.simulators()[place].window.index
        batch = data.batch(index, self.model.prior_mean.dtype)
        return batch.values[self.modality.name], batch.observed[self.modality.name]

    def _moments(self, simulator: Simulator) -> Moments:
        return predicted_moments(self.modality, self.model, simulator, self.samples, self.seed)

    def _decoded(self, simulator: Simulator, count: int) -> Iterator[Tensor]:
        """Raw numbers ``(trajectory, batch, outputs)`` of each step."""
        for z in simulator.states(count, self.seed):
            yield self.model.decode(self.modality.name, z)


def meet(one: Moments, other: Moments, trust: Tensor) -> Moments:
    """Mean and standard deviation of two views together, each of which counts by its precision.

    Trust, from 0 to 1, favours the other view. Both err together, for all that is known: so
    deviations add up, and two views are never surer than the surer of them.
    """
    (mean, std), (other_mean, other_std) = one, other
    weight, other_weight = (1 - trust) * other_std.square(), trust * std.square()
    share = other_weight / (weight + other_weight)
    return torch.lerp(mean, other_mean, share), torch.lerp(std, other_std, share)

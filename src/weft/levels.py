"""Levels of sequences: predictions move by what they are off by where there are observations.

Numbers have errors that last for a while (`weft.errors`), pixels, switches and counts one offset
for a whole sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from weft.columns import Array
from weft.errors import Errors
from weft.modality import Modality
from weft.model import MarkovModel
from weft.sequences import Sequences
from weft.simulators import Simulator

__all__ = ["Correct", "Levels"]

Correct: TypeAlias = Callable[[Tensor, int, Array], Tensor]
"""Changes raw numbers ``(trajectory, row, outputs)`` of a step, for rows of a batch."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Where the levels of a modality lie, by what was given of it.

    ``simulators`` have the states of its batches. ``errors`` say how long what predictions are off
    by lasts; without them it is taken to stay. Means of predictions are those of ``samples``
    trajectories.
    """

    modality: Modality
    model: MarkovModel
    simulators: Sequence[Simulator]
    given: Sequences
    errors: Errors | None
    samples: int
    seed: int

    def correction(self, place: int, count: int) -> Correct:
        """How raw numbers of the steps of a batch are moved, along ``count`` trajectories."""
        likelihood = self.modality.likelihood
        if self.errors is None:
            offset = self._offset(place, count)
            return lambda raw, t, inside: likelihood.moved(raw, offset[:, inside])
        expected, share = self._expected[place]

        def correct(raw: Tensor, t: int, inside: Array) -> Tensor:
            raw = likelihood.moved(raw, expected[t, None, inside].to(raw))
            return likelihood.narrowed(raw, share[t, inside].to(raw))

        return correct

    def _offset(self, place: int, count: int) -> Tensor:
        """One offset ``(trajectory, batch, *shape)`` of each trajectory for a whole sequence."""
        values, observed = self._observations(place)
        expected = functools.reduce(torch.add, self._means(place, count))
        return self.modality.likelihood.offset(values.sum(0), expected, observed.sum(0))

    @cached_property
    def _expected(self) -> list[list[Tensor]]:
        """Errors expected of every step of every batch, and which share of theirs is known."""
        assert self.errors is not None
        found = []
        for place in range(len(self.simulators)):
            values, observed = self._observations(place)
            means = [mean.mean(0) for mean in self._means(place, self.samples)]
            known = torch.where(observed, values - torch.stack(means), torch.nan)
            found.append([torch.tensor(x) for x in self.errors.expect(known.double().numpy())])
        return found

    def _observations(self, place: int) -> tuple[Tensor, Tensor]:
        """Values and mask of a batch, ``(time, batch, *shape)``."""
        index = self.simulators[place].window.index
        batch = self.given.batch(index, self.model.prior_mean.dtype)
        return batch.values[self.modality.name], batch.observed[self.modality.name]

    def _means(self, place: int, count: int) -> Iterator[Tensor]:
        """Predicted means ``(trajectory, batch, *shape)`` of each step, zero if not observed."""
        _, observed = self._observations(place)
        states = self.simulators[place].states(count, self.seed)
        for z, known in zip(states, observed, strict=True):
            rows = known.flatten(1).any(1).nonzero()[:, 0]
            raw = self.model.decode(self.modality.name, z[:, rows])
            mean = self.modality.likelihood.moments(raw, self.modality.shape)[0] * known[rows]
            yield mean.new_zeros(len(z), *known.shape).index_copy(1, rows, mean)

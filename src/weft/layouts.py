"""Trajectories through sequences, laid out by the clock of one modality or another.

Where a modality has a clock of its own, predictions of it are made in its own time: all others are
moved there, by lags that differ from trajectory to trajectory as far as they are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from weft.batch import Batch
from weft.clocks import Evidence, Lags, Readings, listen
from weft.columns import Array
from weft.gaussian import Gaussian
from weft.inference import Method
from weft.inference.linearized import Linearized, linearize
from weft.inference.method import Guide
from weft.modality import Modality
from weft.particles import Particles
from weft.randomness import stream
from weft.sequences import Sequences
from weft.simulators import Paths, Refined, Several, Simulator, Window, batches

__all__ = ["Inferring", "Layouts", "hear"]

DRAWN = 10
"""Lags that are drawn for a sequence, and shared by its trajectories."""
SYNCHRONOUS = Readings({})
HEARD = 10
"""Trajectories that a modality is compared with."""


@dataclass(frozen=True)
class Inferring:
    """How states are inferred: by ``samples`` trajectories, or (``spread=0``) the likeliest one."""

    particles: Particles
    refine: int = 0
    samples: int = 1
    seed: int = 0
    spread: float = 1.0

    def guide(self, method: Method, batch: Batch, place: int) -> Guide:
        """The joint posterior of the batch at a place."""
        generator = stream(self.seed, place)
        return method.guide(batch, particles=self.particles, generator=generator)

    def chain(self, method: Method, batch: Batch, guide: Guide) -> Linearized:
        """Refine the posterior around the MAP sequence."""
        found = guide.sequence(method.model.prior_mean.new_zeros(1, *guide.shape))
        start = Gaussian.from_moments(found.latents[0, :, 0], found.posterior.std[0, :, 0])
        return linearize(method.model, batch, start, self.refine)


@dataclass(frozen=True, eq=False)
class Layouts:
    """Sequences whose states are to be inferred, and what is known of their clocks.

    ``first`` and ``width`` choose the steps that are asked for; all, if not given.
    """

    method: Method
    source: Sequences
    how: Inferring
    readings: Readings = SYNCHRONOUS
    first: Array | None = None
    width: int | None = None
    _known: dict[tuple[str | None, str | None], list[Simulator]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Sequences, and the most steps that are asked for."""
        longest = int(self.source.lengths.max())
        return len(self.source), longest if self.width is None else self.width

    @cached_property
    def given(self) -> Sequences:
        """The source in its own time, with the margins of all layouts."""
        return self.readings.lay_out(self.source, {})

    def simulators(self, target: str | None = None, without: str | None = None) -> list[Simulator]:
        """Trajectories in the time of a target, inferred without a modality or from all of them."""
        key = target if target in self.readings.chances else None, without
        if key not in self._known:
            parts = [list(self._simulated(lags, *key)) for lags in self._lags]
            self._known[key] = (
                parts[0]
                if len(parts) == 1
                else [Several(each, each[0].window) for each in zip(*parts, strict=True)]
            )
        return self._known[key]

    def settled(self) -> Iterator[tuple[Window, Batch]]:
        """Batches of the source by the likeliest lags, in the time of what has no clock."""
        return self._batches(self.readings.best(), None, None)

    @cached_property
    def _lags(self) -> Sequence[Lags]:
        if not self.how.spread:
            return [self.readings.best()]
        count = min(self.how.samples, DRAWN)
        return self.readings.draw(count, stream(self.how.seed, 7))

    def _batches(
        self, lags: Lags, target: str | None, without: str | None
    ) -> Iterator[tuple[Window, Batch]]:
        source = self.source if without is None else self.source.hide(without)
        laid = self.readings.lay_out(source, lags, target)
        margin = self.readings.margin
        dtype = self.method.model.prior_mean.dtype
        for window, batch in batches(laid, self.how.samples, dtype):
            index = window.index
            first = np.zeros_like(index) if self.first is None else self.first[index]
            stop = self.source.lengths[index] if self.width is None else first + self.width
            yield Window(index, first + margin, stop + margin), batch

    @torch.no_grad()
    def _simulated(
        self, lags: Lags, target: str | None, without: str | None
    ) -> Iterator[Simulator]:
        for place, (window, batch) in enumerate(self._batches(lags, target, without)):
            guide = self.how.guide(self.method, batch, place)
            paths = Paths(guide, window, self.how.spread)
            if self.how.refine:
                yield Refined(paths, self.how.chain(self.method, batch, guide), window)
            else:
                yield paths


@torch.no_grad()
def hear(method: Method, modality: Modality, source: Sequences, how: Inferring) -> Evidence:
    """What a modality says of its clock, by what the others tell of it."""
    data = source.extend(modality.clock, modality.clock)
    left = data.hide(modality.name)
    how = replace(how, samples=HEARD)
    paths = [
        Paths(how.guide(method, batch, place), window)
        for place, (window, batch) in enumerate(Layouts(method, left, how).settled())
    ]
    return listen(modality, method.model, paths, data, how.samples, how.seed)

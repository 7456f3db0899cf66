"""Predictive distributions: mixtures of emissions over latent trajectories.

Nothing here is kept per trajectory: a pass walks along time, decodes one step of all trajectories,
reduces it to what was asked, and forgets it. Passes are repeatable, so quantiles and samples can be
asked later without having been stored.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from weft.columns import Array
from weft.errors import Errors
from weft.gaussian import Gaussian
from weft.inference.linearized import Linearized
from weft.inference.method import Guide
from weft.modality import Modality
from weft.model import MarkovModel
from weft.randomness import stream
from weft.scaling import Scale
from weft.sequences import Sequences

__all__ = [
    "ROWS",
    "Marginals",
    "Onward",
    "Paths",
    "Prediction",
    "Refined",
    "Simulator",
    "Window",
]

Correct: TypeAlias = Callable[[Tensor, int, Array], Tensor]
"""Changes raw numbers ``(trajectory, row, outputs)`` of a step, for rows of a batch."""

EMISSIONS = 5
"""Values drawn per trajectory where quantiles are wanted."""
ROWS = 40_000
"""Trajectories times sequences walked at once; bounds the memory of a step."""


@dataclass(frozen=True, eq=False)
class Window:
    """Which steps of a batch go where: sequence ``index[b]``, steps ``first[b]`` to ``stop[b]``."""

    index: Array
    first: Array
    stop: Array


class Simulator(ABC):
    """Latent states of one batch, step by step."""

    window: Window

    @abstractmethod
    def states(self, count: int, seed: int) -> Iterator[Tensor]:
        """Yield states ``(trajectory, batch, latent)`` for each step."""


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


class Prediction:
    """The predictive distribution of one modality at every step, in the user's units.

    Arrays are ``(sequence, time, *shape)``, NaN (``None`` among labels) beyond a sequence's end.
    The spread includes the noise of the observations and the uncertainty of the state. If
    the modality has levels, what was ``given`` says where they lie, and ``errors`` how long what
    predictions are off by lasts; without them it is taken to stay.
    """

    def __init__(
        self,
        modality: Modality,
        model: MarkovModel,
        simulators: Sequence[Simulator],
        shape: tuple[int, int],
        scale: Scale | None,
        samples: int,
        seed: int,
        given: Sequences | None = None,
        errors: Errors | None = None,
    ) -> None:
        self.modality = modality
        self._model = model
        self._simulators = simulators
        self._shape = shape
        self._scale = scale
        self._samples = samples
        self._seed = seed
        self._given = given
        self._errors = errors

    @property
    def mean(self) -> Array:
        """Predictive mean; the probability of 1 for binary data, not defined for labels."""
        self._require_numbers("mean")
        return self._in_user_units(self._moments[0])

    @property
    def std(self) -> Array:
        """Predictive standard deviation."""
        self._require_numbers("standard deviation")
        mean, square = self._moments
        std: Array = np.sqrt(np.maximum(square - np.square(mean), 0))
        return std if self._scale is None else np.multiply(std, self._scale.scale)

    @property
    def probabilities(self) -> Array:
        """Probability of every category, ``(sequence, time, category)``."""
        if self.modality.categories is None:
            raise ValueError(
                f"Modality {self.modality.name!r} has no categories; ask for its mean."
            )
        return self._moments[0]

    @property
    def codes(self) -> Array:
        """Most probable category as its code, -1 beyond a sequence's end."""
        missing = np.isnan(self.probabilities).any(-1)
        found: Array = np.where(missing, -1, np.nan_to_num(self.probabilities).argmax(-1))
        return found

    @property
    def labels(self) -> Array:
        """Most probable category as its label."""
        return self._as_labels(self.codes)

    def quantile(self, q: float) -> Array:
        """Value below which the modality lies with probability ``q``."""
        self._require_numbers("quantiles")
        if not 0 <= q <= 1:
            raise ValueError(f"A quantile lies between 0 and 1, got {q}.")

        def reduce(raw: Tensor, generator: torch.Generator) -> list[Tensor]:
            draws = self.modality.likelihood.sample(raw, self.modality.shape, EMISSIONS, generator)
            return [torch.quantile(draws.flatten(0, 1), q, dim=0)]

        return self._in_user_units(self._collect(reduce, [self.modality.shape], self._samples)[0])

    def sample(self, count: int) -> Array:
        """Draw ``(count, sequence, time, *shape)`` values, each along one latent trajectory."""

        def reduce(raw: Tensor, generator: torch.Generator) -> list[Tensor]:
            each = count // len(raw)  # the MAP recursion has one trajectory for all draws
            draws = self.modality.likelihood.sample(raw, self.modality.shape, each, generator)
            return [draws.flatten(0, 1).movedim(0, 1)]

        shape = (count, *self.modality.shape)
        values = np.moveaxis(self._collect(reduce, [shape], count)[0], 2, 0)
        if self.modality.categories is not None:
            return self._as_labels(np.where(np.isnan(values), -1, values).astype(np.int64))
        return self._in_user_units(values)

    def point(self) -> Array:
        """One value per entry to fill a gap with: mean, more probable value, count or code."""
        if self.modality.categories is not None:
            return self.codes
        mean = torch.from_numpy(self._moments[0])
        return self._in_user_units(self.modality.likelihood.point(mean).numpy())

    # Passes

    @cached_property
    def _moments(self) -> list[Array]:
        """First and second moment in the model's units; those of indicators, for categories."""
        likelihood, shape = self.modality.likelihood, self.modality.shape
        categories = self.modality.categories
        entries = shape if categories is None else (*shape, len(categories))

        def moments(raw: Tensor, generator: torch.Generator) -> list[Tensor]:
            mean, variance = likelihood.moments(raw, shape)
            return [mean.mean(0), (variance + mean.square()).mean(0)]

        return self._collect(moments, [entries, entries], self._samples)

    @torch.no_grad()
    def _collect(
        self,
        reduce: Callable[[Tensor, torch.Generator], list[Tensor]],
        shapes: list[tuple[int, ...]],
        count: int,
    ) -> list[Array]:
        """Walk all batches and reduce each step, ``(trajectory, batch, …)`` to ``(batch, …)``."""
        found = [np.full((*self._shape, *shape), np.nan) for shape in shapes]
        for place, simulator in enumerate(self._simulators):
            window = simulator.window
            generator = stream(self._seed, int(window.index[0]), 1)
            correct = self._correction(place, count)
            for t, z in enumerate(simulator.states(count, self._seed)):
                inside = np.flatnonzero((window.first <= t) & (t < window.stop))
                if not len(inside):
                    continue
                raw = self._model.decode(self.modality.name, z[:, inside])
                if correct is not None:
                    raw = correct(raw, t, inside)
                rows, steps = window.index[inside], t - window.first[inside]
                for array, value in zip(found, reduce(raw, generator), strict=True):
                    array[rows, steps] = value.double().cpu().numpy()
        return found

    # Levels

    def _correction(self, place: int, count: int) -> Correct | None:
        """How raw numbers of the steps of a batch are moved, for a modality that has levels."""
        if self._given is None:
            return None
        if self._errors is None:
            return self._constant(place, count)
        likelihood = self.modality.likelihood
        expected, share = self._expected[place]

        def correct(raw: Tensor, t: int, inside: Array) -> Tensor:
            raw = likelihood.moved(raw, expected[t, None, inside].to(raw))
            return likelihood.narrowed(raw, share[t, inside].to(raw))

        return correct

    def _constant(self, place: int, count: int) -> Correct:
        """Move each trajectory by one offset per sequence and entry."""
        likelihood = self.modality.likelihood
        values, observed = self._observations(place)
        expected = functools.reduce(torch.add, self._means(place, count))
        offset = likelihood.offset(values.sum(0), expected, observed.sum(0))
        return lambda raw, t, inside: likelihood.moved(raw, offset[:, inside])

    @cached_property
    def _expected(self) -> list[list[Tensor]]:
        """Errors expected of every step of every batch, and which share of theirs is known."""
        assert self._errors is not None
        found = []
        for place in range(len(self._simulators)):
            values, observed = self._observations(place)
            means = [mean.mean(0) for mean in self._means(place, self._samples)]
            known = torch.where(observed, values - torch.stack(means), torch.nan)
            found.append([torch.tensor(x) for x in self._errors.expect(known.double().numpy())])
        return found

    def _observations(self, place: int) -> tuple[Tensor, Tensor]:
        """Values and mask of a batch, ``(time, batch, *shape)``."""
        assert self._given is not None
        index = self._simulators[place].window.index
        batch = self._given.batch(index, self._model.prior_mean.dtype)
        return batch.values[self.modality.name], batch.observed[self.modality.name]

    def _means(self, place: int, count: int) -> Iterator[Tensor]:
        """Predicted means ``(trajectory, batch, *shape)`` of each step, zero if not observed."""
        _, observed = self._observations(place)
        states = self._simulators[place].states(count, self._seed)
        for z, known in zip(states, observed, strict=True):
            rows = known.flatten(1).any(1).nonzero()[:, 0]
            raw = self._model.decode(self.modality.name, z[:, rows])
            mean = self.modality.likelihood.moments(raw, self.modality.shape)[0] * known[rows]
            yield mean.new_zeros(len(z), *known.shape).index_copy(1, rows, mean)

    # Units

    def _in_user_units(self, values: Array) -> Array:
        if self._scale is None:
            return values
        scaled: Array = values * self._scale.scale + self._scale.shift
        return scaled

    def _as_labels(self, codes: Array) -> Array:
        assert self.modality.categories is not None
        lookup: Array = np.empty(len(self.modality.categories) + 1, object)
        kinds: list[Hashable | None] = [*self.modality.categories, None]
        lookup[:] = kinds
        found: Array = lookup[codes]
        return found

    def _require_numbers(self, what: str) -> None:
        if self.modality.categories is not None:
            raise ValueError(
                f"Modality {self.modality.name!r} is categorical and has no {what}; ask for its "
                "probabilities or labels."
            )

"""What every inference method offers, so that no one above asks which one it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from weft.batch import Batch
from weft.inference.recursions import Filtered, Smoothed, Trajectories
from weft.inference.stream import Tracker
from weft.modality import Modality
from weft.model import MarkovModel
from weft.particles import Cubature, MonteCarlo, Particles
from weft.sequences import Sequences

__all__ = ["Draw", "Guide", "Method", "read_rows"]

Draw: TypeAlias = Callable[[], Trajectories]
"""Draws what was prepared."""


def read_rows(modality: Modality, batch: Batch, network: nn.Module) -> tuple[Tensor, Tensor]:
    """Rows of ``(time · batch)`` of which a modality's network says something, and what it says.

    These are the steps at which it was observed, by themselves or with their context; or, of
    sequences read as a whole, those with gaps as well, if it was asked to speak there.
    """
    name, rows = modality.name, batch.rows(modality.name)
    if not modality.whole:
        return rows, network(modality.encoder_input(*batch.window(name, rows, modality.context)))
    inside = batch.span(name)
    if modality.gaps:
        inside = batch.span(*batch.values)
        rows = (inside & batch.seen(name).any(0)).flatten().nonzero()[:, 0]
    read = modality.encoder_input(batch.values[name], batch.observed[name])
    return rows, network(read, inside).flatten(0, 1)[rows]


class Guide(ABC):
    """The joint posterior over the states of one batch, ready to be drawn from.

    Attributes
    ----------
    model : MarkovModel
    """

    model: MarkovModel

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """``(time, subset, batch, latent)``."""

    @abstractmethod
    def sequence(self, noise: Tensor) -> Trajectories:
        """Draw trajectories with numbers ``(trajectory, time, subset, batch, latent)``.

        The numbers are standard-normal; with zeros every state is its posterior's mean.
        """

    @abstractmethod
    def walk(self, noise: Iterable[Tensor]) -> Iterator[Trajectories]:
        """Do what `sequence` does one step at a time, forgetting the steps before.

        ``noise`` gives ``(trajectory, subset, batch, latent)`` for each step; so have the results.
        """

    @abstractmethod
    def step(self, t: int, past: Tensor | None, noise: Tensor) -> Trajectories:
        """Do step ``t`` alone, from states of the one before it; there are none at the first.

        States, noise and results are ``(trajectory, subset, batch, latent)``.
        """

    def outlook(self, t: int, states: Tensor) -> Tensor:
        """How much what is observed after step ``t`` speaks for its states, as a logarithm.

        ``(trajectory, subset, batch)``, zero where the guide cannot tell, and up to a factor.
        """
        return states.new_zeros(states.shape[:-1])


class Method(nn.Module, ABC):
    """A multimodal deep Markov model with networks to infer its states.

    Each verb takes a `Batch` and, as ``subsets``, the groups of modalities to infer from (all
    together if not given), which become the ``subset`` axis of the result.
    """

    each_alone: ClassVar[bool]
    """Whether training by default also infers from each modality alone."""

    def __init__(self, model: MarkovModel) -> None:
        super().__init__()
        self.model = model

    @property
    @abstractmethod
    def name(self) -> str:
        """What the method is called where one is chosen."""

    def require_single_steps(self, verb: str) -> None:
        """Refuse what only encoders can do that know nothing of later steps."""
        for modality in self.model.modalities:
            if modality.whole:
                raise ValueError(
                    f"Modality {modality.name!r} has an encoder that reads whole sequences "
                    f"(whole=True) and knows what comes later, so this model cannot {verb}. Use "
                    "smooth, or declare it with context=… instead."
                )

    @abstractmethod
    def filter(
        self,
        batch: Batch,
        *,
        backward: bool = False,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Filtered:
        """Infer each state from the past and present, or from the present and future."""

    @abstractmethod
    def smooth(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Smoothed:
        """Infer each state from everything."""

    @abstractmethod
    def guide(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Guide:
        """Prepare to draw joint trajectories."""

    @abstractmethod
    def track(self, count: int) -> Tracker:
        """Prepare to filter so many streams forward, one step at a time."""

    @abstractmethod
    def chains(
        self, batch: Batch, members: Tensor, particles: Particles, generator: torch.Generator
    ) -> dict[str, Draw]:
        """Prepare the single trajectories that training scores, by name; each is drawn if called.

        A ``filter`` chain infers a state from one side of time, a ``smooth`` chain from both;
        ``members`` ``(subset, modality)`` says what each subset is inferred from.
        """

    def sequence(
        self,
        batch: Batch,
        *,
        samples: int = 0,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Trajectories:
        """Draw joint trajectories, or with ``samples=0`` the one of the MAP recursion."""
        guide = self.guide(batch, subsets=subsets, particles=particles, generator=generator)
        nothing = self.model.prior_mean.new_zeros(guide.shape)
        noise = MonteCarlo(samples).noise(nothing, generator) if samples else nothing[None]
        return guide.sequence(noise)

    def batch(self, data: Sequences) -> Batch:
        """Check data against the model and lay them out in its precision, on its device."""
        like = self.model.prior_mean
        return data.conform(self.model.fields).batch(dtype=like.dtype).to(like.device)

    def members(self, subsets: Sequence[Collection[str]] | None) -> Tensor:
        """Membership ``(subset, modality)`` of named subsets; all modalities if none are named."""
        names = self.model.names
        members = torch.zeros(len(subsets) if subsets else 1, len(names), dtype=torch.bool)
        for row, subset in enumerate(subsets or [names]):
            for name in subset:
                members[row, self.model.position(name)] = True
        return members.to(self.model.prior_mean.device)

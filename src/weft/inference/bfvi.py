"""Backward–forward variational inference: encoders, and the recursions run on what they give."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference import recursions
from weft.inference.method import Draw, Guide, Method, read_rows
from weft.inference.recursions import Filtered, Smoothed, Trajectories
from weft.inference.stream import Tracker, unseen
from weft.modality import Modality
from weft.model import MarkovModel
from weft.networks import GaussianHead
from weft.particles import Cubature, Particles

__all__ = ["BFVI", "Encoder", "fuse_subsets"]


class Encoder(nn.Module):
    """Map one modality's observations to Gaussian quotients ``q(z | x) / p(z)``."""

    def __init__(self, modality: Modality, latent: int, hidden: int) -> None:
        super().__init__()
        self.modality = modality
        self.features = modality.build_features(hidden)
        self.head = GaussianHead(modality.features_width(self.features), latent)

    def forward(self, batch: Batch) -> tuple[Tensor, Gaussian]:
        """Rows of ``(time · batch)`` of which there is something to say, and their factors."""
        rows, features = read_rows(self.modality, batch, self.features)
        return rows, self.head(features)


def fuse_subsets(factors: Gaussian, members: Tensor) -> Gaussian:
    """Turn factors ``(modality, time, …)`` into those of subsets, ``(time, subset, …)``."""
    return factors.subset_products(members).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Smoother(Guide):
    """Conditional smoothing posteriors: factors, and the message of the backward filter."""

    model: MarkovModel
    factors: Gaussian
    future: Gaussian

    @property
    def shape(self) -> torch.Size:
        """``(time, subset, batch, latent)``."""
        return self.factors.shape

    def sequence(self, noise: Tensor) -> Trajectories:
        """See `recursions.sequence`."""
        return recursions.sequence(self.model, self.factors, self.future, noise)

    def walk(self, noise: Iterable[Tensor]) -> Iterator[Trajectories]:
        """See `recursions.walk`."""
        return recursions.walk(self.model, self.factors, self.future, noise)

    def step(self, t: int, past: Tensor | None, noise: Tensor) -> Trajectories:
        """Fuse what the state before says with a step's factors and the message of its future."""
        prior = self.model.prior()
        before = prior.expand(*noise.shape) if past is None else self.model.step_forward(past)
        posterior = recursions.fuse(before, self.factors[t], self.future[t], prior).posterior
        return Trajectories(posterior.at(noise), posterior, before)

    def outlook(self, t: int, states: Tensor) -> Tensor:
        """The backward filter's message over the prior: ``p(x_{t+1:T} | z_t)``, up to a factor."""
        return self.future[t].log_prob(states) - self.model.prior().log_prob(states)


@dataclass(frozen=True, eq=False)
class Messages(Tracker):
    """The forward filter: a message times factors; it begins at a stream's first observation."""

    method: BFVI

    def update(
        self, batch: Batch, particles: Particles, generator: torch.Generator | None
    ) -> Messages:
        """Take in one step."""
        factors = self.method.encode(batch).product()[0]
        return replace(
            self,
            posterior=self.message(particles, generator) * factors,
            begun=self.begun | factors.is_proper.any(-1, keepdim=True),
        )


class BFVI(Method):
    """Backward–forward variational inference, with one encoder per modality.

    Examples
    --------
    >>> from weft.sequences import Sequences
    >>> _ = torch.manual_seed(0)
    >>> module = BFVI([Modality("x"), Modality("y")], latent=5, hidden=20)
    >>> sum(parameter.numel() for parameter in module.parameters())
    1854
    >>> data = Sequences.from_arrays({"x": [[0.1, float("nan"), 0.3]]})
    >>> module.smooth(module.batch(data)).posterior.shape
    torch.Size([3, 1, 1, 5])
    """

    each_alone = True
    name = "bfvi"

    def __init__(self, modalities: Sequence[Modality], latent: int, hidden: int) -> None:
        super().__init__(MarkovModel(modalities, latent, hidden))
        self.encoders = nn.ModuleList(Encoder(m, latent, hidden) for m in modalities)

    def encode(self, batch: Batch) -> Gaussian:
        """Encode every modality once: factors ``(modality, time, batch, latent)``.

        Only observed rows reach the networks; everywhere else the factor is empty.
        """
        shape = (batch.steps, len(batch.lengths), self.model.latent)
        empty = self.model.prior_mean.new_zeros(batch.steps * len(batch.lengths), shape[-1])
        factors = []
        for modality, encoder in zip(self.model.modalities, self.encoders, strict=True):
            parameters = (empty, empty)
            if modality.name in batch.values:
                rows, found = encoder(batch)
                parameters = (
                    empty.index_copy(0, rows, found.precision),
                    empty.index_copy(0, rows, found.information),
                )
            factors.append(Gaussian(*(parameter.reshape(shape) for parameter in parameters)))
        return Gaussian.stack(factors)

    def factors(self, batch: Batch, subsets: Sequence[Collection[str]] | None = None) -> Gaussian:
        """Fuse the modalities of each subset: factors ``(time, subset, batch, latent)``."""
        return fuse_subsets(self.encode(batch), self.members(subsets))

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
        self.require_single_steps("filter")
        run = recursions.backward_filter if backward else recursions.forward_filter
        return run(self.model, self.factors(batch, subsets), particles, generator)

    def smooth(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Smoothed:
        """Infer each state from everything, by two filters."""
        return recursions.smooth(self.model, self.factors(batch, subsets), particles, generator)

    def smooth_forward(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Smoothed:
        """Infer each state from everything, by the paper's Algorithm 2."""
        factors = self.factors(batch, subsets)
        future = recursions.backward_filter(self.model, factors, particles, generator).message
        return recursions.smooth_forward(self.model, factors, future, particles, generator)

    def guide(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Smoother:
        """Run the backward filter, which joint trajectories need."""
        return self._smoother(self.factors(batch, subsets), particles, generator)

    def track(self, count: int) -> Messages:
        """Prepare to filter so many streams forward, one step at a time."""
        self.require_single_steps("follow a stream")
        return Messages(*unseen(self.model, count), self)

    def chains(
        self, batch: Batch, members: Tensor, particles: Particles, generator: torch.Generator
    ) -> dict[str, Draw]:
        """Prepare a backward filtering and a smoothing chain over the same encoded factors."""
        factors = fuse_subsets(self.encode(batch), members)
        noise = torch.randn(
            (2, *factors.shape),
            generator=generator,
            dtype=factors.precision.dtype,
            device=factors.precision.device,
        )
        smoother = self._smoother(factors, particles, generator)
        return {
            "filter": partial(recursions.backward_sequence, self.model, factors, noise[:1]),
            "smooth": partial(smoother.sequence, noise[1:]),
        }

    def _smoother(
        self, factors: Gaussian, particles: Particles, generator: torch.Generator | None
    ) -> Smoother:
        future = recursions.backward_filter(self.model, factors, particles, generator).message
        return Smoother(self.model, factors, future)

"""Backward–forward variational inference: encoders, and the recursions run on what they give."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference import recursions
from weft.inference.recursions import Filtered, Smoothed, Trajectories
from weft.modality import Modality
from weft.model import MarkovModel
from weft.networks import GaussianHead
from weft.particles import Cubature, MonteCarlo, Particles
from weft.sequences import Sequences

__all__ = ["BFVI", "Encoder", "fuse_subsets"]


class Encoder(nn.Module):
    """Map one modality's observations to Gaussian quotients ``q(z | x) / p(z)``."""

    def __init__(self, modality: Modality, latent: int, hidden: int) -> None:
        super().__init__()
        self.modality = modality
        self.features = modality.build_features(hidden)
        self.head = GaussianHead(modality.features_width(self.features), latent)

    def forward(self, values: Tensor, observed: Tensor) -> Gaussian:
        """Encode ``(rows, *shape)``, of which something was observed in every row."""
        factor: Gaussian = self.head(self.features(self.modality.encoder_input(values, observed)))
        return factor


def fuse_subsets(factors: Gaussian, members: Tensor) -> Gaussian:
    """Turn factors ``(modality, time, …)`` into those of subsets, ``(time, subset, …)``."""
    return factors.subset_products(members).transpose(0, 1)


class BFVI(nn.Module):
    """A multimodal deep Markov model with encoders, ready for inference.

    Each verb takes a `Batch` and, as ``subsets``, the groups of modalities to infer from (all
    together if not given), which become the ``subset`` axis of the result.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> module = BFVI([Modality("x"), Modality("y")], latent=5, hidden=20)
    >>> sum(parameter.numel() for parameter in module.parameters())
    1854
    >>> data = Sequences.from_arrays({"x": [[0.1, float("nan"), 0.3]]})
    >>> module.smooth(module.batch(data)).posterior.shape
    torch.Size([3, 1, 1, 5])
    """

    def __init__(self, modalities: Sequence[Modality], latent: int, hidden: int) -> None:
        super().__init__()
        self.model = MarkovModel(modalities, latent, hidden)
        self.encoders = nn.ModuleList(Encoder(m, latent, hidden) for m in modalities)

    def batch(self, data: Sequences) -> Batch:
        """Check data against the model and lay them out in its precision, on its device."""
        like = self.model.prior_mean
        return data.conform(self.model.fields).batch(dtype=like.dtype).to(like.device)

    def encode(self, batch: Batch) -> Gaussian:
        """Encode every modality once: factors ``(modality, time, batch, latent)``.

        Only observed rows reach the networks; everywhere else the factor is empty.
        """
        shape = (batch.steps, len(batch.lengths), self.model.latent)
        empty = self.model.prior_mean.new_zeros(batch.steps * len(batch.lengths), shape[-1])
        factors = []
        for name, encoder in zip(self.model.names, self.encoders, strict=True):
            parameters = (empty, empty)
            if name in batch.values:
                rows = batch.rows(name)
                values, observed = batch.values[name], batch.observed[name]
                found = encoder(values.flatten(0, 1)[rows], observed.flatten(0, 1)[rows])
                parameters = (
                    empty.index_copy(0, rows, found.precision),
                    empty.index_copy(0, rows, found.information),
                )
            factors.append(Gaussian(*(parameter.reshape(shape) for parameter in parameters)))
        return Gaussian.stack(factors)

    def members(self, subsets: Sequence[Collection[str]] | None) -> Tensor:
        """Membership ``(subset, modality)`` of named subsets; all modalities if none are named."""
        names = self.model.names
        members = torch.zeros(len(subsets) if subsets else 1, len(names), dtype=torch.bool)
        for row, subset in enumerate(subsets or [names]):
            for name in subset:
                members[row, self.model.position(name)] = True
        return members.to(self.model.prior_mean.device)

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
        factors = self.factors(batch, subsets)
        future = recursions.backward_filter(self.model, factors, particles, generator).message
        if samples:
            noise = MonteCarlo(samples).noise(factors.precision, generator)
        else:
            noise = torch.zeros_like(factors.precision)[None]
        return recursions.sequence(self.model, factors, future, noise)

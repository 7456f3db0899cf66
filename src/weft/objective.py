r"""The multimodal bidirectional training loss (supplement, section of that name).

.. math::
    L = \lambda_f \sum_S L^S_\mathrm{filter} + \lambda_s \sum_S L^S_\mathrm{smooth}
        + \lambda_m \beta\, L_\mathrm{match}

over the subsets S = all modalities together and each alone, where

.. math::
    L^S_\mathrm{filter} &= \sum_t -\mathbb{E} \sum_{m \in S} \lambda_m \log p(x^m_t | z_t)
        + \beta\, \mathrm{KL}(q(z_t | z_{t+1}, x^S_t) \| p(z_t | z_{t+1})) \\
    L^S_\mathrm{smooth} &= \sum_t -\mathbb{E} \sum_{m \in S} \lambda_m \log p(x^m_t | z_t)
        + \beta\, \mathrm{KL}(q(z_t | z_{t-1}, x^S_{t:T}) \| p(z_t | z_{t-1})) \\
    L_\mathrm{match} &= \mathrm{KL}(p(z) \| \mathbb{E}\, p(z_t | z_{t-1}))
        + \mathrm{KL}(p(z) \| \mathbb{E}\, p(z_t | z_{t+1}))

Sums over time are averaged over the real steps of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference import recursions
from weft.inference.bfvi import BFVI, fuse_subsets
from weft.inference.recursions import Trajectories
from weft.modality import Modality
from weft.particles import MonteCarlo, Particles

__all__ = ["Loss", "Objective", "ObjectiveConfig", "Temperature"]


CHAINS = ("filter", "smooth")
LARGE = 2**22
"""Decoder outputs beyond which chains and subsets are decoded one by one."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """Weights and approximations of the loss; the defaults are the paper's.

    Attributes
    ----------
    filter_weight, smooth_weight, match_weight : float
        Multipliers λ of the three parts (the last also takes β).
    particles, match_particles : Particles
        Points of the backward filter (K_b) and of prior matching (K_p).
    most_subsets : int
        With many modalities, score all together and a random handful of single ones, reweighted
        so that the loss is the same on average; never more subsets than this.
    free_bits : float
        Divergence per step (in nats) that costs nothing.
    balance : float, optional
        Share of the divergence's gradient that trains the prior side; the rest trains the
        posterior. Not given: both sides get all of it.
    """

    filter_weight: float = 0.5
    smooth_weight: float = 0.5
    match_weight: float = 0.01
    particles: Particles = MonteCarlo(25)
    match_particles: Particles = MonteCarlo(50)
    most_subsets: int = 8
    free_bits: float = 0.0
    balance: float | None = None


@dataclass(frozen=True)
class Temperature:
    """What the schedule changes from step to step: β and a multiplier of the filtering part."""

    beta: float = 1.0
    filter_scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Loss:
    """The total, and its terms by name, per real time step.

    Terms are ``nll/<chain>/<modality>``, ``kl/<chain>`` (summed over subsets, without multipliers)
    and ``match``; chains are ``filter`` and ``smooth``.
    """

    total: Tensor
    terms: dict[str, Tensor]


class Objective(nn.Module):
    """The loss of a batch: one encode per modality, then scans for all subsets together."""

    def __init__(self, module: BFVI, config: ObjectiveConfig) -> None:
        super().__init__()
        self.module = module
        self.config = config

    def forward(
        self,
        batch: Batch,
        generator: torch.Generator,
        target: Batch | None = None,
        temperature: Temperature = Temperature(),
    ) -> Loss:
        """Infer from ``batch`` and score ``target`` (the same data before deletion, if given)."""
        config, model = self.config, self.module.model
        target = batch if target is None else target
        members, weights = self._subsets(generator)
        factors = fuse_subsets(self.module.encode(batch), members)
        noise = torch.randn(
            (2, *factors.shape),
            generator=generator,
            dtype=factors.precision.dtype,
            device=factors.precision.device,
        )
        future = recursions.backward_filter(model, factors, config.particles, generator).message
        backward = recursions.backward_sequence(model, factors, noise[:1])
        forward = recursions.sequence(model, factors, future, noise[1:])
        terms = self._terms({"filter": backward, "smooth": forward}, target, members, weights)
        terms["match"] = self._match(generator)
        filtering, smoothing = (self._elbo(chain, terms, temperature.beta) for chain in CHAINS)
        total = (
            config.filter_weight * temperature.filter_scale * filtering
            + config.smooth_weight * smoothing
            + config.match_weight * temperature.beta * terms["match"]
        )
        return Loss(total, {name: term.detach() for name, term in terms.items()})

    def _subsets(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Membership ``(subset, modality)`` and weight ``(subset,)`` of what is scored."""
        device = self.module.model.prior_mean.device
        count = len(self.module.model.names)
        everything = torch.ones(1, count, dtype=torch.bool)
        if count == 1:
            return everything.to(device), torch.ones(1, device=device)
        singles = torch.eye(count, dtype=torch.bool)
        few = min(count, max(self.config.most_subsets - 1, 1))
        if few < count:
            singles = singles[torch.randperm(count, generator=generator)[:few]]
        weights = torch.tensor([1.0] + [count / few] * few)
        return torch.cat([everything, singles]).to(device), weights.to(device)

    def _terms(
        self, paths: dict[str, Trajectories], target: Batch, members: Tensor, weights: Tensor
    ) -> dict[str, Tensor]:
        """Divergences and reconstruction errors per real step of both chains, over all subsets.

        Only states with something to score reach a decoder: the rest would cost time and enter the
        statistics of its normalisation layers.
        """
        steps = target.lengths.sum()
        terms: dict[str, Tensor] = {}
        for chain, path in paths.items():
            divergence = self._divergence(path.posterior[0], path.prior[0])
            divergence = (divergence * target.valid[:, None]).sum((0, 2)) / steps
            terms[f"kl/{chain}"] = (weights * divergence).sum()
        latents = torch.stack([path.latents[0] for path in paths.values()])
        # (chain, time, subset, batch, latent) to rows of (time, batch), so that one index takes all
        latents = latents.permute(1, 3, 0, 2, 4).flatten(0, 1)
        for i, modality in enumerate(self.module.model.modalities):
            scored = members[:, i].nonzero()[:, 0]
            if modality.name not in target.values or not len(scored):
                continue
            rows = target.rows(modality.name)
            value = target.values[modality.name].flatten(0, 1)[rows]
            observed = target.observed[modality.name].flatten(0, 1)[rows]
            z = latents.index_select(2, scored).index_select(0, rows)
            score = self._score(modality, z.flatten(1, 2), value, observed)
            score = score.reshape(len(rows), len(paths), len(scored))
            errors = -(score.sum(0) * weights[scored]).sum(1) / steps
            for chain, error in zip(paths, errors, strict=True):
                terms[f"nll/{chain}/{modality.name}"] = error
        return terms

    def _score(self, modality: Modality, z: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-likelihood ``(row, column)`` of values ``(row, *shape)`` under states of each column.

        Large outputs are decoded column by column, or they would not fit a processor's caches.
        """
        log_prob = self.module.model.log_prob
        if z.shape[:2].numel() * modality.likelihood.outputs(modality.shape) <= LARGE:
            return log_prob(modality.name, z, value[:, None], observed[:, None])
        columns = [log_prob(modality.name, each, value, observed) for each in z.unbind(1)]
        return torch.stack(columns, 1)

    def _elbo(self, chain: str, terms: dict[str, Tensor], beta: float) -> Tensor:
        """Negative ELBO of one chain, from its terms."""
        total = beta * terms[f"kl/{chain}"]
        for modality in self.module.model.modalities:
            error = terms.get(f"nll/{chain}/{modality.name}")
            if error is not None:
                total = total + modality.weight * error
        return total

    def _divergence(self, posterior: Gaussian, prior: Gaussian) -> Tensor:
        """``KL(posterior ‖ prior)`` with free bits and balanced gradients, ``(…)``."""
        share = self.config.balance
        if share is None:
            divergence = posterior.kl(prior)
        else:
            divergence = share * posterior.detach().kl(prior) + (1 - share) * posterior.kl(
                prior.detach()
            )
        return divergence.clamp(min=self.config.free_bits)

    def _match(self, generator: torch.Generator) -> Tensor:
        """Divergence of the prior from where each transition takes it."""
        model = self.module.model
        prior = model.prior()
        swarm = prior.at(self.config.match_particles.noise(prior.precision, generator))
        moved = [step(swarm).moment_match() for step in (model.step_forward, model.step_backward)]
        return prior.kl(Gaussian.stack(moved)).sum()

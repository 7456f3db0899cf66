r"""The multimodal bidirectional training loss (supplement, section of that name).

.. math::
    L = \lambda_f \sum_S L^S_\mathrm{filter} + \lambda_s \sum_S L^S_\mathrm{smooth}
        + \lambda_m \beta\, L_\mathrm{match}

over the subsets S = all modalities together and each alone (or some), where

.. math::
    L^S_\mathrm{filter} &= \sum_t -\mathbb{E} \sum_{m \in S} \lambda_m \log p(x^m_t | z_t)
        + \beta\, \mathrm{KL}(q(z_t | z_{t+1}, x^S_t) \| p(z_t | z_{t+1})) \\
    L^S_\mathrm{smooth} &= \sum_t -\mathbb{E} \sum_{m \in S} \lambda_m \log p(x^m_t | z_t)
        + \beta\, \mathrm{KL}(q(z_t | z_{t-1}, x^S_{t:T}) \| p(z_t | z_{t-1})) \\
    L_\mathrm{match} &= \mathrm{KL}(p(z) \| \mathbb{E}\, p(z_t | z_{t-1}))
        + \mathrm{KL}(p(z) \| \mathbb{E}\, p(z_t | z_{t+1}))

Sums over time are averaged over the real steps of the batch. With ``cross`` sums over m run over
all modalities, so that a subset is asked for what it does not see, too: all together by what is
left of the batch, each alone by all that there was of it, at steps where it was there to tell.

Which chains there are is the method's to say. The above is BFVI; a recurrent method has one chain,
whose negative ELBO is the whole loss, by default for all modalities together only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference.method import Draw, Method
from weft.inference.recursions import Trajectories
from weft.modality import Modality
from weft.particles import MonteCarlo, Particles

__all__ = ["Loss", "Objective", "ObjectiveConfig", "Temperature"]


LARGE = 2**22
"""Decoder outputs beyond which chains and subsets are decoded one by one."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """Weights and approximations of the loss; the defaults are the paper's.

    Attributes
    ----------
    filter_weight, smooth_weight, match_weight : float
        Multipliers λ of the three parts (the last also takes β). They weigh a filtering against a
        smoothing chain; a method with one chain trains it at weight 1.
    particles, match_particles : Particles
        Points of the backward filter (K_b) and of prior matching (K_p).
    each_alone : bool or names, optional
        Whether to add the losses of each modality alone to that of all together (the multimodal
        paradigm), or the names of those to add. Not given: as the method was published, so yes for
        BFVI, no for recurrent ones.
    cross : bool
        Whether every subset is asked for all modalities, and not only for those that it sees, so
        that each step of training practises to tell any modality from any other. What training
        takes from the batch is for all together to do without: a modality alone sees all of its
        own, and is asked only at steps where there was any.
    most_subsets : int
        With many modalities, score all together and a random handful of single ones, reweighted
        so that the loss is the same on average; never more subsets than this.
    frames : float
        Share of a batch's frames that are scored in modalities of images, drawn at random and
        reweighted, so that the loss is the same on average. Neighbouring frames tell much the same,
        and decoding them is most of the work.
    free_bits : float
        Divergence per step (in nats) that costs nothing.
    balance : float, optional
        Share of the divergence's gradient that trains the prior side; the rest trains the
        posterior. Not given: both sides get all of it.
    temper : float
        From 0 to 1: gradients of the error of a number are multiplied by σ^(2 · temper), where σ is
        the standard deviation that the decoder gives it. At 0 they are those of the likelihood,
        which cares most for what it is surest of; at 1 the means learn as from squared errors,
        however uncertain they are. It helps where modalities are inferred from others that tell
        only so much. The loss keeps its value; weights λ should grow to keep pace with divergences.
    """

    filter_weight: float = 0.5
    smooth_weight: float = 0.5
    match_weight: float = 0.01
    particles: Particles = MonteCarlo(25)
    match_particles: Particles = MonteCarlo(50)
    each_alone: bool | Collection[str] | None = None
    cross: bool = False
    most_subsets: int = 8
    frames: float = 1.0
    free_bits: float = 0.0
    balance: float | None = None
    temper: float = 0.0


@dataclass(frozen=True)
class Temperature:
    """What the schedule changes from step to step: β and a multiplier of the filtering part.

    The multiplier lets a smoothing chain take over. Where there is none, it does nothing.
    """

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
    """The loss of a batch: one encode per modality, then chains for all subsets together."""

    def __init__(self, module: Method, config: ObjectiveConfig) -> None:
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
        config, beta = self.config, temperature.beta
        target = batch if target is None else target
        members, weights = self._subsets(generator)
        chains = self._chains(batch, target, members, generator)
        shares = {
            "filter": config.filter_weight * temperature.filter_scale,
            "smooth": config.smooth_weight,
        }
        if len(chains) == 1:  # nothing to weigh it against
            shares = dict.fromkeys(chains, 1.0)
        weighed = [chain for chain in chains if shares[chain]] or list(chains)
        paths = {chain: Trajectories.cat([draw() for draw in chains[chain]]) for chain in weighed}
        asked = self._asked(target, members)
        terms = self._terms(paths, target, members, weights, asked, generator)
        total = torch.stack([shares[c] * self._elbo(c, terms, beta) for c in paths]).sum()
        if not self.module.model.one_way:  # a fixed prior is not for transitions to match
            terms["match"] = self._match(generator)
            total = total + config.match_weight * beta * terms["match"]
        return Loss(total, {name: term.detach() for name, term in terms.items()})

    def _subsets(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Membership ``(subset, modality)`` and weight ``(subset,)`` of what is scored."""
        model = self.module.model
        device = model.prior_mean.device
        everything = torch.ones(1, len(model.names), dtype=torch.bool)
        singles = torch.eye(len(model.names), dtype=torch.bool)[self._alone()]
        count = len(singles)
        few = min(count, max(self.config.most_subsets - 1, 1))
        if few < count:
            singles = singles[torch.randperm(count, generator=generator)[:few]]
        weights = torch.ones(1 + few)
        weights[1:] = count / max(few, 1)
        return torch.cat([everything, singles]).to(device), weights.to(device)

    def _alone(self) -> list[int]:
        """Positions of the modalities whose losses alone are added."""
        model, chosen = self.module.model, self.config.each_alone
        if chosen is None:
            chosen = self.module.each_alone
        if len(model.names) == 1 or chosen is False:
            return []
        return [model.position(name) for name in (model.names if chosen is True else chosen)]

    def _chains(
        self, batch: Batch, target: Batch, members: Tensor, generator: torch.Generator
    ) -> dict[str, list[Draw]]:
        """Prepare the chains of all subsets, in parts that are given the same."""
        parts = [(batch, members)]
        if self.config.cross and target is not batch:
            parts = [(batch, members[:1]), (target, members[1:])]
        prepared = [
            self.module.chains(given, some, self.config.particles, generator)
            for given, some in parts
            if len(some)
        ]
        return {chain: [part[chain] for part in prepared] for chain in prepared[0]}

    def _asked(self, batch: Batch, members: Tensor) -> Tensor:
        """Whether to ask each subset at each step, ``(time · batch, subset)``."""
        together = members.all(1)
        if not self.config.cross:
            return torch.ones_like(together).expand(batch.valid.numel(), -1)
        seen = torch.stack([batch.seen(name) for name in self.module.model.names], -1)
        return (seen.flatten(0, 1)[:, None] & members).any(-1) | together

    def _terms(
        self,
        paths: dict[str, Trajectories],
        target: Batch,
        members: Tensor,
        weights: Tensor,
        asked: Tensor,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Divergences and reconstruction errors per real step of all chains, over all subsets.

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
            scored = (members[:, i] | self.config.cross).nonzero()[:, 0]
            if modality.name not in target.values or not len(scored):
                continue
            rows, multiplier = self._rows(modality, target, generator)
            value = target.values[modality.name].flatten(0, 1)[rows]
            observed = target.observed[modality.name].flatten(0, 1)[rows]
            z = latents.index_select(2, scored).index_select(0, rows)
            score = self._score(modality, z.flatten(1, 2), value, observed)
            score = score.reshape(len(rows), len(paths), len(scored))
            score = score * asked[rows][:, None, scored]
            errors = -multiplier * (score.sum(0) * weights[scored]).sum(1) / steps
            for chain, error in zip(paths, errors, strict=True):
                terms[f"nll/{chain}/{modality.name}"] = error
        return terms

    def _rows(
        self, modality: Modality, target: Batch, generator: torch.Generator
    ) -> tuple[Tensor, float]:
        """Rows ``(time, batch)`` of a modality to score, and how many each of them stands for."""
        rows = target.rows(modality.name)
        if not modality.is_image or self.config.frames >= 1 or not len(rows):
            return rows, 1.0
        few = max(round(self.config.frames * len(rows)), 1)
        chosen = torch.randperm(len(rows), generator=generator)[:few].sort().values
        return rows[chosen.to(rows.device)], len(rows) / few

    def _score(self, modality: Modality, z: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-likelihood ``(row, column)`` of values ``(row, *shape)`` under states of each column.

        Large outputs are decoded column by column, or they would not fit a processor's caches.
        """
        if z.shape[:2].numel() * modality.likelihood.outputs(modality.shape) <= LARGE:
            return self._log_prob(modality, z, value[:, None], observed[:, None])
        columns = [self._log_prob(modality, each, value, observed) for each in z.unbind(1)]
        return torch.stack(columns, 1)

    def _log_prob(self, modality: Modality, z: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-likelihood of values under states, with tempered gradients."""
        raw = self.module.model.decode(modality.name, z)
        raw = modality.likelihood.tempered(raw, modality.shape, self.config.temper)
        return modality.likelihood.log_prob(raw, value, observed, len(modality.shape))

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

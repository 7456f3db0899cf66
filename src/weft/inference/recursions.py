r"""The recursions of backward–forward variational inference.

Everything here is a function of a model and of *factors*: the product of the encoders' Gaussian
quotients :math:`\prod_m \tilde q(z_t \mid x_t^m)` for each step, modality subset and sequence,
with zero precision where nothing was observed. Axes are ``(time, subset, batch, latent)``.

A *message* is what one side of time knows about a state. It carries only what was observed on
that side: before the first observation it *is* the prior. So ragged ends, padding and empty
sequences need no treatment of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.gaussian import Gaussian
from weft.model import MarkovModel
from weft.particles import Particles

__all__ = [
    "Chains",
    "Filtered",
    "Smoothed",
    "Trajectories",
    "backward_chains",
    "backward_filter",
    "forward_filter",
    "fuse",
    "sequence",
    "smooth",
    "smooth_forward",
    "walk",
]

Transition = Callable[[Tensor, Gaussian], Gaussian]


@dataclass(frozen=True, eq=False)
class Filtered:
    """Filtering distributions ``(time, subset, batch, latent)``.

    ``message`` is what the steps already passed say about ``z_t``; ``posterior`` adds the step's
    own observations.
    """

    message: Gaussian
    posterior: Gaussian


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Smoothing marginals ``(time, subset, batch, latent)``.

    ``tempered`` marks where the prior could not be divided out whole; see `fuse`.
    """

    posterior: Gaussian
    tempered: Tensor


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Joint latent sequences ``(trajectory, time, subset, batch, latent)``.

    ``posterior`` is the conditional posterior each state was drawn from and ``prior`` the
    conditional prior it met: ``p(z_t | z_{t-1})``, or ``p(z_t | z_{t+1})`` in backward chains.
    """

    latents: Tensor
    posterior: Gaussian
    prior: Gaussian


@dataclass(frozen=True, eq=False)
class Chains:
    """The many-particle and the one-particle chains of one backward scan."""

    filtered: Filtered
    trajectories: Trajectories


def fuse(past: Gaussian, present: Gaussian, future: Gaussian, prior: Gaussian) -> Smoothed:
    r"""Combine what past, present and future say: ``past · present · future / prior^α``.

    ``α = min(1, max(Λ_past, Λ_future) / Λ_prior)`` per dimension. It is 1, and the result the
    paper's, unless *both* messages are wider than the prior; then dividing by the whole prior
    might leave nothing normalisable, and dividing by that much of it leaves the result at least as
    precise as the wider message. Such places are marked, not hidden.
    """
    share = torch.maximum(past.precision, future.precision) / prior.precision
    posterior = past / prior ** share.clamp(max=1.0) * future * present
    return Smoothed(posterior, share < 1 - 1e-6)


def backward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1: ``q(z_t | x_{t:T})``, from the last step to the first."""
    return backward_chains(model, factors, particles, _no_noise(factors), generator).filtered


def forward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1 with time reversed: ``q(z_t | x_{1:t})``."""
    noise = _no_noise(factors)
    return _chains(model.prior(), model.step_forward, factors, particles, noise, generator).filtered


def backward_chains(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    noise: Tensor,
    generator: torch.Generator | None = None,
) -> Chains:
    """Algorithm 1 with many particles and with one, in one scan.

    The one-particle chains, one for each row of ``noise`` ``(trajectory, time, subset, batch,
    latent)``, draw each state from the conditional filtering posterior ``q(z_t | z_{t+1}, x_t)``.
    """
    found = _chains(
        model.prior(), model.step_backward, factors.flip(0), particles, noise.flip(1), generator
    )
    filtered, paths = found.filtered, found.trajectories
    return Chains(
        Filtered(filtered.message.flip(0), filtered.posterior.flip(0)),
        Trajectories(paths.latents.flip(1), paths.posterior.flip(1), paths.prior.flip(1)),
    )


def smooth(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Smoothed:
    """Two-filter marginals ``q(z_t | x_{1:T})``: forward message · factors · backward message / p.

    Exact for stationary linear-Gaussian models, where `smooth_forward` counts the future twice.
    """
    past = forward_filter(model, factors, particles, generator).message
    future = backward_filter(model, factors, particles, generator).message
    return fuse(past, factors, future, model.prior())


def smooth_forward(
    model: MarkovModel,
    factors: Gaussian,
    future: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Smoothed:
    """Algorithm 2: marginals whose forward particles come from the smoothing distribution.

    ``future`` is the backward filter's message. Kept as the paper states it; prefer `smooth`.
    """
    prior = model.prior()
    steps = []
    past = prior.expand(*factors.shape[1:])
    rows = zip(factors.unbind(), future.unbind(), _seen(factors).unbind(), strict=True)
    for factor, ahead, seen in rows:
        steps.append(fuse(past, factor, ahead, prior))
        swarm = steps[-1].posterior.at(particles.noise(factor.precision, generator))
        past = model.step_forward(swarm, prior).moment_match().where(seen, prior)
    return Smoothed(
        Gaussian.stack([step.posterior for step in steps]),
        torch.stack([step.tempered for step in steps]),
    )


def sequence(
    model: MarkovModel, factors: Gaussian, future: Gaussian, noise: Tensor
) -> Trajectories:
    """Draw joint trajectories through the conditional smoothing posteriors (eq. 9).

    ``future`` is the backward filter's message, ``noise`` standard-normal numbers of shape
    ``(trajectory, time, subset, batch, latent)``. With zero noise every state is its posterior's
    mean: the paper's MAP recursion.
    """
    steps = list(walk(model, factors, future, noise.unbind(1)))
    return Trajectories(
        torch.stack([step.latents for step in steps], 1),
        Gaussian.stack([step.posterior for step in steps], 1),
        Gaussian.stack([step.prior for step in steps], 1),
    )


def walk(
    model: MarkovModel, factors: Gaussian, future: Gaussian, noise: Iterable[Tensor]
) -> Iterator[Trajectories]:
    """Do what `sequence` does one step at a time, keeping nothing of the steps before.

    ``noise`` gives ``(trajectory, subset, batch, latent)`` for each step, and so have the results.
    """
    prior = model.prior()
    past = None
    for factor, ahead, draw in zip(factors.unbind(), future.unbind(), noise, strict=True):
        past = prior.expand(*draw.shape) if past is None else past
        posterior = fuse(past, factor, ahead, prior).posterior
        latents = posterior.at(draw)
        yield Trajectories(latents, posterior, past)
        past = model.step_forward(latents, prior)


def _chains(
    prior: Gaussian,
    transition: Transition,
    factors: Gaussian,
    particles: Particles,
    noise: Tensor,
    generator: torch.Generator | None,
) -> Chains:
    """Filter, and draw trajectories beside it, in the order of the first axis of the factors.

    Both kinds of state go through the transition in one call.
    """
    messages, posteriors, latents, conditionals, priors = [], [], [], [], []
    message = prior.expand(*factors.shape[1:])
    past = prior.expand(len(noise), *factors.shape[1:])
    rows = zip(factors.unbind(), _seen(factors).unbind(), noise.unbind(1), strict=True)
    for factor, seen, draw in rows:
        messages.append(message)
        posteriors.append(message * factor)
        priors.append(past)
        conditionals.append(past * factor)
        latents.append(conditionals[-1].at(draw))
        swarm = posteriors[-1].at(particles.noise(factor.precision, generator))
        pushed = transition(torch.cat([swarm, latents[-1]]), prior)
        message = pushed[: len(swarm)].moment_match().where(seen, prior)
        past = pushed[len(swarm) :].where(seen, prior)
    return Chains(
        Filtered(Gaussian.stack(messages), Gaussian.stack(posteriors)),
        Trajectories(
            torch.stack(latents, 1), Gaussian.stack(conditionals, 1), Gaussian.stack(priors, 1)
        ),
    )


def _seen(factors: Gaussian) -> Tensor:
    """Whether anything was observed up to each step: ``(time, subset, batch, 1)``."""
    return factors.is_proper.any(-1, keepdim=True).cumsum(0) > 0


def _no_noise(factors: Gaussian) -> Tensor:
    """Noise for no trajectories at all."""
    return factors.precision.new_empty(0, *factors.shape)

r"""The recursions of backward–forward variational inference.

Everything here is a function of a model and of *factors*: the product of the encoders' Gaussian
quotients :math:`\prod_m \tilde q(z_t \mid x_t^m)` for each step, modality subset and sequence,
with zero precision where nothing was observed. Axes are ``(time, subset, batch, latent)``.

A *message* is what one side of time knows about a state. It carries only what was observed on
that side: before the first observation it *is* the prior. So ragged ends, padding and empty
sequences need no treatment of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.gaussian import Gaussian
from weft.model import MarkovModel
from weft.particles import Particles

__all__ = [
    "Filtered",
    "Smoothed",
    "Trajectories",
    "backward_filter",
    "forward_filter",
    "fuse",
    "sequence",
    "smooth",
    "smooth_forward",
]

Transition = Callable[[Tensor], Gaussian]


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

    ``posterior`` is the conditional smoothing posterior each state was drawn from and ``prior``
    the conditional prior ``p(z_t | z_{t-1})`` it met (``p(z)`` at the first step).
    """

    latents: Tensor
    posterior: Gaussian
    prior: Gaussian


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
    found = _filter(model.prior(), model.step_backward, factors.flip(0), particles, generator)
    return Filtered(found.message.flip(0), found.posterior.flip(0))


def forward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1 with time reversed: ``q(z_t | x_{1:t})``."""
    return _filter(model.prior(), model.step_forward, factors, particles, generator)


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
        pushed = _push(model.step_forward, steps[-1].posterior, particles, generator)
        past = pushed.where(seen, prior)
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
    prior = model.prior()
    latents, posteriors, priors = [], [], []
    past = prior.expand(len(noise), *factors.shape[1:])
    rows = zip(factors.unbind(), future.unbind(), noise.unbind(1), strict=True)
    for factor, ahead, draw in rows:
        posterior = fuse(past, factor, ahead, prior).posterior
        latents.append(posterior.at(draw))
        posteriors.append(posterior)
        priors.append(past)
        past = model.step_forward(latents[-1])
    return Trajectories(
        torch.stack(latents, 1), Gaussian.stack(posteriors, 1), Gaussian.stack(priors, 1)
    )


def _filter(
    prior: Gaussian,
    transition: Transition,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None,
) -> Filtered:
    """Filter in the order of the first axis."""
    messages, posteriors = [], []
    message = prior.expand(*factors.shape[1:])
    for factor, seen in zip(factors.unbind(), _seen(factors).unbind(), strict=True):
        messages.append(message)
        posteriors.append(message * factor)
        message = _push(transition, posteriors[-1], particles, generator).where(seen, prior)
    return Filtered(Gaussian.stack(messages), Gaussian.stack(posteriors))


def _push(
    transition: Transition,
    state: Gaussian,
    particles: Particles,
    generator: torch.Generator | None,
) -> Gaussian:
    """Send a state through a transition by particles and match moments (eq. 7, 8)."""
    noise = particles.noise(state.precision, generator)
    return transition(state.at(noise)).moment_match()


def _seen(factors: Gaussian) -> Tensor:
    """Whether anything was observed up to each step: ``(time, subset, batch, 1)``."""
    return factors.is_proper.any(-1, keepdim=True).cumsum(0) > 0

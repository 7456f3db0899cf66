r"""The recursions of backward–forward variational inference.

Everything here is a function of a model and of *factors*: the product of the encoders' Gaussian
quotients :math:`\prod_m \tilde q(z_t \mid x_t^m)` for each step, modality subset and sequence,
with zero precision where nothing was observed. Axes are ``(time, subset, batch, latent)``.

A *message* is what one side of time knows about a state. It carries only what was observed on
that side: before the first observation it *is* the prior. So ragged ends, padding and empty
sequences need no treatment of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from weft.gaussian import Gaussian
from weft.inference.scan import Drawn, Given, Smoothed, fuse, scan
from weft.model import MarkovModel
from weft.particles import Particles

__all__ = [
    "Filtered",
    "Smoothed",
    "Trajectories",
    "backward_filter",
    "backward_sequence",
    "forward_filter",
    "fuse",
    "sequence",
    "smooth",
    "smooth_forward",
    "walk",
]

STRETCH = 2**18
"""Numbers per parameter that `walk` holds at once, as far as a single step allows."""


@dataclass(frozen=True, eq=False)
class Filtered:
    """Filtering distributions ``(time, subset, batch, latent)``.

    ``message`` is what the steps already passed say about ``z_t``; ``posterior`` adds the step's
    own observations.
    """

    message: Gaussian
    posterior: Gaussian


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Joint latent sequences ``(trajectory, time, subset, batch, latent)``.

    ``posterior`` is the conditional posterior each state was drawn from and ``prior`` the
    conditional prior it met: ``p(z_t | z_{t-1})``, or ``p(z_t | z_{t+1})`` in backward chains.
    """

    latents: Tensor
    posterior: Gaussian
    prior: Gaussian


def forward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1 with time reversed: ``q(z_t | x_{1:t})``."""
    message = _filter(model, model.forward_factor, factors, particles, generator)
    return Filtered(message, message * factors)


def backward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1: ``q(z_t | x_{t:T})``, from the last step to the first."""
    message = _filter(model, model.backward_factor, factors.flip(0), particles, generator).flip(0)
    return Filtered(message, message * factors)


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
    noise = Drawn(particles, factors.precision, generator)
    start = prior.expand(*factors.shape[1:])
    past = scan(model, model.forward_factor, start, factors, future, _seen(factors), noise)[:-1]
    return fuse(past, factors, future, prior)


def sequence(
    model: MarkovModel, factors: Gaussian, future: Gaussian, noise: Tensor
) -> Trajectories:
    """Draw joint trajectories through the conditional smoothing posteriors (eq. 9).

    ``future`` is the backward filter's message, ``noise`` standard-normal numbers of shape
    ``(trajectory, time, subset, batch, latent)``. With zero noise every state is its posterior's
    mean: the paper's MAP recursion.
    """
    start = model.prior().expand(len(noise), *factors.shape[1:])
    everywhere = torch.ones_like(_seen(factors))
    return _draw(model, model.forward_factor, start, factors, future, everywhere, noise)[0]


def backward_sequence(model: MarkovModel, factors: Gaussian, noise: Tensor) -> Trajectories:
    """Draw trajectories from the last step to the first, through ``q(z_t | z_{t+1}, x_t)``.

    They are what the filtering ELBO is an expectation over: Algorithm 1 with one particle.
    """
    prior = model.prior()
    start, future = prior.expand(len(noise), *factors.shape[1:]), prior.expand(*factors.shape)
    turned = factors.flip(0)
    seen = _seen(turned)
    found = _draw(model, model.backward_factor, start, turned, future, seen, noise.flip(1))[0]
    return Trajectories(found.latents.flip(1), found.posterior.flip(1), found.prior.flip(1))


def walk(
    model: MarkovModel, factors: Gaussian, future: Gaussian, noise: Iterable[Tensor]
) -> Iterator[Trajectories]:
    """Do what `sequence` does one step at a time, forgetting the steps before.

    ``noise`` gives ``(trajectory, subset, batch, latent)`` for each step, and so have the results.
    """
    draws = iter(noise)
    past = None
    first = 0
    while first < len(factors.precision):
        stretch = [next(draws)]
        stretch += islice(draws, max(STRETCH // stretch[0].numel(), 1) - 1)
        here = slice(first, first + len(stretch))
        first = here.stop
        if past is None:
            past = model.prior().expand(*stretch[0].shape)
        everywhere = torch.ones_like(_seen(factors[here]))
        found, past = _draw(
            model,
            model.forward_factor,
            past,
            factors[here],
            future[here],
            everywhere,
            torch.stack(stretch, 1),
        )
        for t in range(len(stretch)):
            yield Trajectories(found.latents[:, t], found.posterior[:, t], found.prior[:, t])


def _filter(
    model: MarkovModel,
    network: nn.Module,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None,
) -> Gaussian:
    """Messages in the order of the first axis of the factors: nothing is known of what is ahead."""
    prior = model.prior()
    start, future = prior.expand(*factors.shape[1:]), prior.expand(*factors.shape)
    noise = Drawn(particles, factors.precision, generator)
    return scan(model, network, start, factors, future, _seen(factors), noise)[:-1]


def _draw(
    model: MarkovModel,
    network: nn.Module,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    noise: Tensor,
) -> tuple[Trajectories, Gaussian]:
    """Trajectories in the order of the first axis of the factors, and the message after them."""
    points = noise.transpose(0, 1)
    messages = scan(model, network, start, factors, future, seen, Given(points))
    past = messages[:-1]
    # Each step's posterior again, for all steps at once: the scan keeps messages only.
    posterior = fuse(past, factors[:, None], future[:, None], model.prior()).posterior
    found = Trajectories(
        posterior.at(points).transpose(0, 1), posterior.transpose(0, 1), past.transpose(0, 1)
    )
    return found, messages[-1]


def _seen(factors: Gaussian) -> Tensor:
    """Whether anything was observed up to each step: ``(time, subset, batch, 1)``."""
    return factors.is_proper.any(-1, keepdim=True).cumsum(0) > 0

r"""The recursions of backward–forward variational inference.

Everything here is a function of a model and of *factors*: the product of the encoders' Gaussian
quotients :math:`\prod_m \tilde q(z_t \mid x_t^m)` for each step, modality subset and sequence,
with zero precision where nothing was observed. Axes are ``(time, subset, batch, latent)``.

A *message* is what one side of time knows about a state. It carries only what was observed on
that side: before the first observation it *is* the prior. So ragged ends, padding and empty
sequences need no treatment of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from weft.gaussian import Gaussian
from weft.inference.scan import Link, Passage, Smoothed, carry, draw, fuse
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
    "stretches",
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

    @classmethod
    def cat(cls, parts: Sequence[Trajectories]) -> Trajectories:
        """Put the subsets of several side by side."""
        return cls(
            torch.cat([part.latents for part in parts], 2),
            Gaussian.cat([part.posterior for part in parts], 2),
            Gaussian.cat([part.prior for part in parts], 2),
        )


def forward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1 with time reversed: ``q(z_t | x_{1:t})``."""
    return _filter(Link.forward(model), factors, particles, generator)


def backward_filter(
    model: MarkovModel,
    factors: Gaussian,
    particles: Particles,
    generator: torch.Generator | None = None,
) -> Filtered:
    """Algorithm 1: ``q(z_t | x_{t:T})``, from the last step to the first."""
    return _filter(Link.backward(model), factors, particles, generator)


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
    link = Link.forward(model)
    past = carry(link, factors, future, _seen(link, factors), particles, generator)
    return fuse(past, factors, future, model.prior())


def sequence(
    model: MarkovModel, factors: Gaussian, future: Gaussian, noise: Tensor
) -> Trajectories:
    """Draw joint trajectories through the conditional smoothing posteriors (eq. 9).

    ``future`` is the backward filter's message, ``noise`` standard-normal numbers of shape
    ``(trajectory, time, subset, batch, latent)``. With zero noise every state is its posterior's
    mean: the paper's MAP recursion.
    """
    start = model.prior().expand(len(noise), *factors.shape[1:])
    points = noise.transpose(0, 1)
    return _trajectories(
        draw(Link.forward(model), start, factors, future, _everywhere(factors), points)
    )


def backward_sequence(model: MarkovModel, factors: Gaussian, noise: Tensor) -> Trajectories:
    """Draw trajectories from the last step to the first, through ``q(z_t | z_{t+1}, x_t)``.

    They are what the filtering ELBO is an expectation over: Algorithm 1 with one particle.
    """
    link, prior = Link.backward(model), model.prior()
    start, future = prior.expand(len(noise), *factors.shape[1:]), prior.expand(*factors.shape)
    points = noise.transpose(0, 1)
    return _trajectories(draw(link, start, factors, future, _seen(link, factors), points))


def walk(
    model: MarkovModel, factors: Gaussian, future: Gaussian, noise: Iterable[Tensor]
) -> Iterator[Trajectories]:
    """Do what `sequence` does one step at a time, forgetting the steps before.

    ``noise`` gives ``(trajectory, subset, batch, latent)`` for each step, and so have the results.
    """
    link = Link.forward(model)
    past = None
    for here, points in stretches(noise):
        start = model.prior().expand(*points.shape[1:]) if past is None else past
        passage = draw(link, start, factors[here], future[here], _everywhere(factors[here]), points)
        past = passage.last
        for t in range(len(points)):
            yield Trajectories(passage.states[t], passage.posterior[t], passage.message[t])


def stretches(noise: Iterable[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Gather the noise of consecutive steps, ``(time, …)``, in pieces of bounded size."""
    draws = iter(noise)
    stop = 0
    for first in draws:
        points = torch.stack([first, *islice(draws, max(STRETCH // first.numel(), 1) - 1)])
        start, stop = stop, stop + len(points)
        yield slice(start, stop), points


def _filter(
    link: Link, factors: Gaussian, particles: Particles, generator: torch.Generator | None
) -> Filtered:
    """Messages of one side of time: nothing is known of what is ahead."""
    future = link.prior.expand(*factors.shape)
    message = carry(link, factors, future, _seen(link, factors), particles, generator)
    return Filtered(message, message * factors)


def _trajectories(passage: Passage) -> Trajectories:
    """Put trajectories before time."""
    return Trajectories(
        passage.states.transpose(0, 1),
        passage.posterior.transpose(0, 1),
        passage.message.transpose(0, 1),
    )


def _seen(link: Link, factors: Gaussian) -> Tensor:
    """Whether anything was observed on the way up to each step: ``(time, subset, batch, 1)``."""
    observed = factors.is_proper.any(-1, keepdim=True)
    if link.reverse:
        return observed.flip(0).cumsum(0).flip(0) > 0
    return observed.cumsum(0) > 0


def _everywhere(factors: Gaussian) -> Tensor:
    """A mask like `_seen` that is true throughout."""
    return torch.ones_like(factors.precision[..., :1], dtype=torch.bool)

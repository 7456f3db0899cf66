r"""One recursion for every pass along time.

A message :math:`m_t` about the state, and what follows it:

.. math::
    q_t = m_t \cdot \phi_t \cdot m^\mathrm{ahead}_t / p^\alpha, \qquad
    z_k = \mu(q_t) + \sigma(q_t)\, \epsilon_k, \qquad
    m_{t+1} = \mathrm{match}_k\; p \cdot f(z_k)

Filtering has the prior for what is ahead, and many particles (`carry`); the paper's Algorithm 2
has the backward filter's message; trajectories have one particle (`draw`), and so moments that
match themselves. `reference` says it in PyTorch; the compiled scan does the same where it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.gaussian import Gaussian
from weft.inference import native
from weft.inference.moments import PIECE, moments
from weft.inference.native import Draws, Way
from weft.model import MarkovModel
from weft.networks import GatedTransition
from weft.particles import Cubature, Particles, RandomParticles

T = TypeVar("T")

__all__ = ["Link", "Passage", "Smoothed", "Step", "carry", "draw", "fuse", "lead", "reference"]


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Smoothing marginals ``(time, subset, batch, latent)``.

    ``tempered`` marks where the prior could not be divided out whole; see `fuse`.
    """

    posterior: Gaussian
    tempered: Tensor


def fuse(past: Gaussian, present: Gaussian, future: Gaussian, prior: Gaussian) -> Smoothed:
    r"""Combine what past, present and future say: ``past · present · future / prior^α``.

    ``α = min(1, max(Λ_past, Λ_future) / Λ_prior)`` per dimension. It is 1, and the result the
    paper's, unless *both* messages are wider than the prior; then dividing by the whole prior
    might leave nothing normalisable, and dividing by that much of it leaves the result at least as
    precise as the wider message. Such places are marked, not hidden.
    """
    share = torch.maximum(past.precision, future.precision) / prior.precision
    power = torch.where(share < 1, share, 1.0)
    return Smoothed(past / prior**power * future * present, share < 1 - 1e-6)


@dataclass(frozen=True, eq=False)
class Link:
    """A way along time: a model's network for it, and whether it leads from last step to first.

    What scans need of the weights is computed once for each link, so one is made for each pass.
    """

    model: MarkovModel
    network: nn.Module
    reverse: bool

    @classmethod
    def forward(cls, model: MarkovModel) -> Link:
        """Follow ``p(z_t | z_{t-1})``."""
        return cls(model, model.forward_factor, reverse=False)

    @classmethod
    def backward(cls, model: MarkovModel) -> Link:
        """Follow ``p(z_t | z_{t+1})``."""
        return cls(model, model.backward_factor, reverse=True)

    @cached_property
    def prior(self) -> Gaussian:
        """The model's prior."""
        return self.model.prior()

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Network, prior and bounds as the compiled scan takes them."""
        assert isinstance(self.network, GatedTransition)
        prior = torch.stack([self.prior.precision, self.prior.information])
        return self.network.packed(), prior, self.model.bounds(self.prior)

    def order(self, steps: Sequence[T]) -> Sequence[T]:
        """Turn steps of time into steps of the way, or back."""
        return steps[::-1] if self.reverse else steps


@dataclass(frozen=True, eq=False)
class Passage:
    """What a scan saw at each step, ``(time, …, row, latent)``.

    ``states`` were drawn from ``posterior``, which fused ``message`` with the step's factors and
    what lies ahead; ``last`` ``(…, row, latent)`` is the message that follows all steps.
    """

    message: Gaussian
    posterior: Gaussian
    states: Tensor
    last: Gaussian


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a scan: the message that reached it, and the one that follows it."""

    message: Gaussian
    posterior: Gaussian
    points: Tensor
    last: Gaussian

    @property
    def states(self) -> Tensor:
        """Particles ``(particle, …, row, latent)`` of the posterior."""
        return self.posterior.at(self.points)


def carry(
    link: Link,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    particles: Particles,
    generator: torch.Generator | None,
) -> Gaussian:
    """Carry the prior along time with many particles: the message that reaches each step.

    Parameters
    ----------
    link : Link
    factors, future : Gaussian
        ``(time, row, latent)`` with any number of row axes: what each step observed, and what lies
        ahead of it.
    seen : Tensor
        ``(time, row, 1)``, false where nothing has been observed yet and the next message is the
        prior.
    particles : Particles
    generator : torch.Generator, optional
    """
    start = link.prior.expand(*factors.shape[1:])
    found = _messages(link, start, factors, future, seen, particles, generator)
    return found[1:] if link.reverse else found[:-1]


def lead(
    link: Link,
    state: Gaussian,
    begun: Tensor,
    particles: Particles,
    generator: torch.Generator | None,
) -> Gaussian:
    """Carry a state ``(row, latent)`` on by one step: the message that reaches the next.

    It is the prior where ``begun`` ``(row, 1)`` is false.
    """
    nothing = Gaussian.empty(state.precision[None])
    ahead = link.prior.expand(*nothing.shape)
    found = _messages(link, state, nothing, ahead, begun[None], particles, generator)
    return found[0 if link.reverse else 1]


def _messages(
    link: Link,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    particles: Particles,
    generator: torch.Generator | None,
) -> Gaussian:
    """Messages ``(time + 1, …)``, in the order of time: the first is given, the last follows."""
    kernels = _kernels(link, factors)
    points = None
    if kernels and isinstance(particles, RandomParticles):
        draws = Draws(particles.count, particles.seed(generator), particles.mirrored)
    elif kernels and isinstance(particles, Cubature):
        fixed = particles.noise(factors.precision.new_empty(factors.shape[-1]))
        points = fixed[None, :, None].expand(len(seen), -1, start.shape[:-1].numel(), -1)
        draws = Draws(len(fixed))
    else:
        noise = (particles.noise(start.precision, generator) for _ in seen)
        way = reference(link, start, factors, future, seen, noise)
        return Gaussian.stack(link.order([start, *(step.last for step in way)]))
    return _compiled(kernels, draws, link, start, factors, future, seen, points, states=False)[0]


def draw(
    link: Link,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    points: Tensor,
) -> Passage:
    """Carry single particles along time from a message, as `carry` does many from the prior.

    ``points`` are standard-normal numbers ``(time, …, row, latent)``; axes before those of the
    factors are trajectories, and ``start`` ``(…, row, latent)`` has them too.
    """
    kernels = _kernels(link, factors)
    if not kernels:
        noise = link.order(points[:, None].unbind())
        steps = list(reference(link, start, factors, future, seen, noise))
        ordered = link.order(steps)
        return Passage(
            Gaussian.stack([step.message for step in ordered]),
            Gaussian.stack([step.posterior for step in ordered]),
            torch.cat([step.states for step in ordered]),
            steps[-1].last,
        )
    rows = points.reshape(len(points), 1, -1, points.shape[-1])
    message, posterior, states = _compiled(
        kernels, Draws(1), link, start, factors, future, seen, rows, states=True
    )
    if link.reverse:
        return Passage(message[1:], posterior, states, message[0])
    return Passage(message[:-1], posterior, states, message[-1])


def reference(
    link: Link,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    noise: Iterable[Tensor],
) -> Iterator[Step]:
    """Go along time in PyTorch, step by step of the way: the scan as it is meant.

    ``noise`` gives ``(particle, …, row, latent)`` for each step.
    """
    prior = link.prior
    message = start
    inputs = (factors.unbind(), future.unbind(), seen.unbind())
    for factor, ahead, visible, points in zip(*map(link.order, inputs), noise, strict=True):
        posterior = fuse(message, factor, ahead, prior).posterior
        last = expect(link, posterior, points, prior, len(seen)).where(visible, prior)
        yield Step(message, posterior, points, last)
        message = last


def expect(link: Link, state: Gaussian, points: Tensor, prior: Gaussian, steps: int) -> Gaussian:
    """Moments of where a link leads from a state ``(…, row, latent)``, over particles.

    Compiled passes do it where they fit. Many other large particles go in pieces of rows, and their
    gradient computes each piece again: so they stay in the processor's cache, and memory does not
    grow with their number. ``steps`` is how many such steps the whole pass has.
    """
    kernels = _passes(link, state)
    if kernels:
        assert isinstance(link.network, GatedTransition)
        how = (kernels, link.network.hidden, steps)
        return Gaussian(*moments(*how, link.weights, (state.precision, state.information), points))

    def match(mean: Tensor, std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        found = link.model.step(link.network, mean + std * noise, prior).moment_match()
        return found.precision, found.information

    mean, std = state.mean, state.std
    size = len(points) * state.shape.numel()
    if size <= PIECE:
        return Gaussian(*match(mean, std, points))
    rows = max(PIECE * state.shape[-2] // size, 1)
    shared = points.shape[-2] == 1
    pieces = []
    for first in range(0, state.shape[-2], rows):
        here = slice(first, first + rows)
        noise = points if shared else points[..., here, :]
        inputs = (mean[..., here, :], std[..., here, :], noise)
        pieces.append(checkpoint(match, *inputs, use_reentrant=False, preserve_rng_state=False))
    precision, information = (torch.cat(part, -2) for part in zip(*pieces, strict=True))
    return Gaussian(precision, information)


def _kernels(link: Link, factors: Gaussian) -> str | None:
    """Compiled kernels for a scan, if it fits them."""
    network = link.network
    small = isinstance(network, GatedTransition) and network.largest <= native.LARGEST
    return native.active() if small and factors.precision.device.type == "cpu" else None


def _passes(link: Link, state: Gaussian) -> str | None:
    """Compiled passes for a step, if it fits them and not the compiled scan."""
    network = link.network
    large = isinstance(network, GatedTransition) and network.largest > native.LARGEST
    return native.active() if large and state.precision.device.type == "cpu" else None


def _compiled(
    kernels: str,
    draws: Draws,
    link: Link,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    points: Tensor | None,
    states: bool,
) -> tuple[Gaussian, Gaussian, Tensor]:
    """Run the compiled scan on flattened rows: messages ``(time + 1, …)``, posteriors, states."""
    assert isinstance(link.network, GatedTransition)
    shape, latent = start.shape, start.shape[-1]

    def flat(factor: Gaussian, first: int) -> tuple[Tensor, Tensor]:
        size = (*factor.shape[:first], -1, latent)
        return factor.precision.reshape(size), factor.information.reshape(size)

    found = native.scan(
        Way(link.network.hidden, draws, link.reverse, states, kernels),
        *link.weights,
        flat(start, 0),
        flat(factors, 1),
        flat(future, 1),
        seen.reshape(len(seen), -1),
        points,
    )
    steps = len(seen) if states else 0
    sizes = [len(seen) + 1] * 2 + [steps] * 3
    full = [x.reshape(size, *shape) for x, size in zip(found, sizes, strict=True)]
    return Gaussian(full[0], full[1]), Gaussian(full[2], full[3]), full[4]

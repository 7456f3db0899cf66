r"""One recursion for every pass along time.

A message :math:`m_t` about the state, and what follows it:

.. math::
    q_t = m_t \cdot \phi_t \cdot m^\mathrm{ahead}_t / p^\alpha, \qquad
    z_k = \mu(q_t) + \sigma(q_t)\, \epsilon_k, \qquad
    m_{t+1} = \mathrm{match}_k\; p \cdot f(z_k)

Filtering has the prior for what is ahead and many particles; the paper's Algorithm 2 has the
backward filter's message; trajectories have one particle, and so moments that match themselves.
`reference` says it in PyTorch; the compiled scan does the same where it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.gaussian import Gaussian
from weft.inference import native
from weft.model import MarkovModel
from weft.networks import GatedTransition
from weft.particles import Cubature, Particles, RandomParticles

__all__ = ["Drawn", "Given", "Noise", "Smoothed", "fuse", "reference", "scan"]


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


class Noise(ABC):
    """Standard-normal points for every step of a scan."""

    @abstractmethod
    def __iter__(self) -> Iterator[Tensor]:
        """Yield points ``(particle, …, latent)`` step by step, for the reference."""

    @abstractmethod
    def compiled(self, rows: int) -> tuple[native.Draws, Tensor | None] | None:
        """Say the same to the compiled scan; none if it cannot be said."""


@dataclass(frozen=True, eq=False)
class Given(Noise):
    """One point per row, ``(time, …, latent)``."""

    points: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield from self.points[:, None]

    def compiled(self, rows: int) -> tuple[native.Draws, Tensor | None]:
        """Pass the points on."""
        shape = (len(self.points), 1, rows, self.points.shape[-1])
        return native.Draws(1), self.points.reshape(shape)


@dataclass(frozen=True, eq=False)
class Drawn(Noise):
    """A scheme's particles for states shaped like ``like`` ``(time, …, latent)``."""

    particles: Particles
    like: Tensor
    generator: torch.Generator | None

    def __iter__(self) -> Iterator[Tensor]:
        for row in self.like:
            yield self.particles.noise(row, self.generator)

    def compiled(self, rows: int) -> tuple[native.Draws, Tensor | None] | None:
        """Let the scan draw random points for itself; pass fixed ones on."""
        if isinstance(self.particles, RandomParticles):
            seed = self.particles.seed(self.generator)
            return native.Draws(self.particles.count, seed, self.particles.mirrored), None
        if isinstance(self.particles, Cubature):
            steps, latent = len(self.like), self.like.shape[-1]
            points = self.particles.noise(self.like.new_empty(latent))
            shape = (steps, len(points), rows, latent)
            return native.Draws(len(points)), points[None, :, None].expand(shape)
        return None


def scan(
    model: MarkovModel,
    network: nn.Module,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    noise: Noise,
) -> Gaussian:
    """Carry a message along the first axis, in the compiled scan if it fits.

    Parameters
    ----------
    model : MarkovModel
    network : nn.Module
        Its forward or backward factor.
    start : Gaussian
        First message ``(…, row, latent)``; axes before those of the factors are trajectories.
    factors, future : Gaussian
        ``(time, row, latent)`` with any number of row axes: what each step observed, and what lies
        ahead of it.
    seen : Tensor
        ``(time, row, 1)``, false where nothing has been observed yet and the next message is the
        prior.
    noise : Noise

    Returns
    -------
    Gaussian
        Messages ``(time + 1, …, row, latent)``: ``start`` is the first, and the last is what all
        steps say about the one after them.
    """
    small = isinstance(network, GatedTransition) and network.largest <= native.LARGEST
    fits = small and native.active() is not None and factors.precision.device.type == "cpu"
    said = noise.compiled(start.shape[:-1].numel()) if fits else None
    if said is None:
        return reference(model, network, start, factors, future, seen, noise)
    assert isinstance(network, GatedTransition)
    prior = model.prior()
    shape, latent = start.shape, start.shape[-1]

    def flat(factor: Gaussian, first: int) -> tuple[Tensor, Tensor]:
        lead = factor.shape[:first]
        return (
            factor.precision.reshape(*lead, -1, latent),
            factor.information.reshape(*lead, -1, latent),
        )

    precision, information = native.scan(
        network.hidden,
        network.packed(),
        torch.stack([prior.precision, prior.information]),
        model.bounds(prior),
        flat(start, 0),
        flat(factors, 1),
        flat(future, 1),
        seen.reshape(len(seen), -1),
        *said,
    )
    return Gaussian(precision.reshape(-1, *shape), information.reshape(-1, *shape))


def reference(
    model: MarkovModel,
    network: nn.Module,
    start: Gaussian,
    factors: Gaussian,
    future: Gaussian,
    seen: Tensor,
    noise: Noise,
) -> Gaussian:
    """Do what `scan` does, a step at a time in PyTorch."""
    prior = model.prior()
    messages = [start]
    for factor, ahead, visible, points in zip(
        factors.unbind(), future.unbind(), seen.unbind(), noise, strict=True
    ):
        posterior = fuse(messages[-1], factor, ahead, prior).posterior
        pushed = model.step(network, posterior.at(points), prior)
        messages.append(pushed.moment_match().where(visible, prior))
    return Gaussian.stack(messages)

r"""Joint posteriors that are chains: ``q(z_1) q(z_2 | z_1) … q(z_T | z_{T-1})``.

Every conditional is a network of the previous state and of what is known at the step. After the
last observation of a sequence nothing is known that the previous state does not say, and the
posterior is the transition :math:`p(z_t \mid z_{t-1})` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.gaussian import Gaussian
from weft.inference.method import Guide
from weft.inference.recursions import Filtered, Trajectories, stretches
from weft.inference.scan import Link, lead
from weft.model import MarkovModel
from weft.networks import GaussianHead
from weft.particles import Particles

__all__ = ["Chain"]


@dataclass(frozen=True, eq=False)
class Chain(Guide):
    """The joint posterior of one batch.

    Attributes
    ----------
    model : MarkovModel
    head : GaussianHead
        From the combiner's hidden layer to the posterior.
    weight : Tensor
        ``(hidden, latent)``: how the previous state enters that layer; the prior's mean stands
        before the first.
    context : Tensor
        ``(time, subset, batch, hidden)``: what enters it besides.
    observed : Tensor
        ``(time, subset, batch, 1)``, true where something was observed.
    """

    model: MarkovModel
    head: GaussianHead
    weight: Tensor
    context: Tensor
    observed: Tensor

    @cached_property
    def beyond(self) -> Tensor:
        """``(time, subset, batch, 1)``, true after the last observation."""
        return self.observed.flip(0).cumsum(0).flip(0) == 0

    @property
    def shape(self) -> torch.Size:
        """``(time, subset, batch, latent)``."""
        return torch.Size((*self.context.shape[:-1], self.model.latent))

    def sequence(self, noise: Tensor) -> Trajectories:
        """Draw trajectories with numbers ``(trajectory, time, subset, batch, latent)``."""
        found = self._draw(slice(None), noise.transpose(0, 1), None)
        return Trajectories(
            found.latents.transpose(0, 1),
            found.posterior.transpose(0, 1),
            found.prior.transpose(0, 1),
        )

    def walk(self, noise: Iterable[Tensor]) -> Iterator[Trajectories]:
        """Do what `sequence` does one step at a time, forgetting the steps before."""
        past = None
        for here, points in stretches(noise):
            found = self._draw(here, points, past)
            past = found.latents[-1]
            for t in range(len(points)):
                yield Trajectories(found.latents[t], found.posterior[t], found.prior[t])

    def step(self, t: int, past: Tensor | None, noise: Tensor) -> Trajectories:
        """Combine a state with what is known at a step."""
        found = self._draw(slice(t, t + 1), noise[None], past)
        return Trajectories(found.latents[0], found.posterior[0], found.prior[0])

    def marginals(self, particles: Particles, generator: torch.Generator | None) -> Gaussian:
        """Distribution of each state, ``(time, subset, batch, latent)``.

        As in the filters, particles of one state lead to a mixture for the next, whose moments are
        matched.
        """
        return Gaussian.stack(self._marginals(_ends(self.beyond), particles, generator))

    def filter(self, particles: Particles, generator: torch.Generator | None) -> Filtered:
        """Distribution of each state given what was observed up to it.

        Whether more will be observed is not known then: a step without observations is as if
        beyond all of them, and follows the transition.
        """
        link, prior = Link.forward(self.model), self.model.prior().expand(*self.shape[1:])
        combined = self._marginals([None] * len(self.context), particles, generator)
        message, posterior = [prior], []
        for own, seen in zip(combined, self.observed, strict=True):
            posterior.append(own.where(seen, message[-1]))
            message.append(lead(link, posterior[-1], torch.ones_like(seen), particles, generator))
        return Filtered(Gaussian.stack(message[:-1]), Gaussian.stack(posterior))

    def combine(self, context: Tensor, z: Tensor | None, end: Tensor | None = None) -> Gaussian:
        """Distribution of a state, given particles of the one before it if there is one."""
        return Gaussian.from_moments(*self._step(context[None], end, z)).moment_match()

    def _marginals(
        self,
        ends: Sequence[Tensor | None],
        particles: Particles,
        generator: torch.Generator | None,
    ) -> list[Gaussian]:
        found: list[Gaussian] = []
        z = None
        for context, end in zip(self.context, ends, strict=True):
            if found:
                z = found[-1].at(particles.noise(found[-1].precision, generator))
            found.append(self.combine(context, z, end))
        return found

    def _draw(self, here: slice, noise: Tensor, past: Tensor | None) -> Trajectories:
        """Go along the steps ``here`` from a state, or from the start; time comes first."""
        beyond = self.beyond[here]
        z = past
        steps = []
        for context, end, points in zip(self.context[here], _ends(beyond), noise, strict=True):
            mean, std = (x.expand_as(points) for x in self._step(context, end, z))
            z = torch.addcmul(mean, std, points)
            steps.append((mean, std, z))
        mean, std, latents = (torch.stack(part) for part in zip(*steps, strict=True))
        prior = self._prior(latents, past)
        # Taken from one computation, posterior and prior are the same beyond, not nearly so
        posterior = prior.where(beyond[:, None], Gaussian.from_moments(mean, std))
        return Trajectories(latents, posterior, prior)

    def _step(self, context: Tensor, end: Tensor | None, z: Tensor | None) -> tuple[Tensor, Tensor]:
        """Moments of a state's conditional posterior, given the state before it if there is one.

        ``end`` ``(subset, batch, 1)`` is true for sequences beyond their observations.
        """
        before = self.model.prior_mean.expand(*context.shape[:-1], -1) if z is None else z
        mean, std = self.head.moments(torch.relu(context + F.linear(before, self.weight)))
        if end is None:
            return mean, std
        follow = self.model.prior() if z is None else self.model.step_forward(z)
        return torch.where(end, follow.mean, mean), torch.where(end, follow.std, std)

    def _prior(self, latents: Tensor, past: Tensor | None) -> Gaussian:
        """``p(z_t | z_{t-1})`` of all states ``(time, …, latent)`` at once."""
        if past is not None:
            return self.model.step_forward(torch.cat([past[None], latents[:-1]]))
        first = self.model.prior().expand(1, *latents.shape[1:])
        return Gaussian.cat([first, self.model.step_forward(latents[:-1])])


def _ends(beyond: Tensor) -> list[Tensor | None]:
    """``beyond`` step by step; nothing where no sequence is, which saves the transition there."""
    anywhere = beyond.flatten(1).any(1).tolist()
    return [end if some else None for end, some in zip(beyond, anywhere, strict=True)]

r"""Recurrent inference (supplement, "Inference Networks"): F-Mask, F-Skip, B-Mask, B-Skip.

One GRU per modality reads the features of its observations along time, forward or backward, and a
combiner turns the previous state and all hidden states into the posterior of the next:

.. math::
    q(z_t \mid z_{t-1}, x) = N(\mu, \sigma), \qquad
    \mu, \sigma = \mathrm{heads} \circ \mathrm{ReLU} \circ
        \mathrm{Linear}(z_{t-1}, h_t^1, \dots, h_t^M [, f_t^1, \dots, f_t^M])

Hidden states at step t include its own observations. Where a modality is missing, its GRU reads
zeros (Mask) or keeps its state (Skip).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference.chain import Chain
from weft.inference.method import Draw, Method, read_rows
from weft.inference.recursions import Filtered, Smoothed
from weft.inference.stream import Tracker, unseen
from weft.modality import Modality
from weft.model import MarkovModel
from weft.networks import GaussianHead, GRUs
from weft.particles import Cubature, Particles

__all__ = ["Recurrent"]


@dataclass(frozen=True, eq=False)
class Heard:
    """What the networks hear of a batch, with zeros where nothing was observed.

    Attributes
    ----------
    gates : Tensor
        ``(time, modality, batch, 3 · hidden)``: features as they enter the gates of their GRU.
    direct : Tensor, optional
        ``(time, modality, batch, hidden)``: features as they enter the combiner, if they do.
    seen, valid : Tensor
        ``(time, modality, batch)``, true where something was observed; and off the padding.
    """

    gates: Tensor
    direct: Tensor | None
    seen: Tensor
    valid: Tensor

    def until(self, stop: int) -> Heard:
        """Only the first steps."""
        direct = None if self.direct is None else self.direct[:stop]
        return Heard(self.gates[:stop], direct, self.seen[:stop], self.valid[:stop])


@dataclass(frozen=True, eq=False)
class Memories(Tracker):
    """The forward filter of forward GRUs; it begins at a stream's first step.

    Attributes
    ----------
    combined : Gaussian
        ``(stream, latent)``: the state by the combiner throughout, from which the next combination
        starts. The posterior leaves it where nothing is observed, and comes back to it.
    hidden : Tensor
        ``(modality, stream, hidden)``: states of the GRUs.
    """

    method: Recurrent
    combined: Gaussian
    hidden: Tensor

    def update(
        self, batch: Batch, particles: Particles, generator: torch.Generator | None
    ) -> Memories:
        """Take in one step."""
        hidden, chain = self.method.follow(batch, self.hidden)
        z = self.combined.at(particles.noise(self.combined.precision, generator))
        before = torch.where(self.begun, z, self.method.model.prior_mean)
        combined = chain.combine(chain.context[0], before[:, None])[0]
        return replace(
            self,
            posterior=combined.where(chain.observed[0, 0], self.message(particles, generator)),
            begun=torch.ones_like(self.begun),
            combined=combined,
            hidden=hidden,
        )


class Recurrent(Method):
    """Inference by one GRU per modality and a combiner.

    A method with forward GRUs knows no future but that there is one: where nothing was observed and
    something follows, it smooths by the combiner and filters by the transition; else alike.

    Parameters
    ----------
    modalities : sequence of Modality
    latent, hidden : int
        Width of the state, and of the GRUs and all built-in networks' hidden layers.
    backward : bool
        Whether GRUs run from the last step to the first.
    skip : bool
        Whether a GRU skips steps at which its modality is missing, instead of reading zeros.
    direct : bool
        Whether the combiner also sees the features of the step.

    Examples
    --------
    >>> module = Recurrent([Modality("x"), Modality("y")], 5, 20, backward=True, skip=False)
    >>> module.name, sum(parameter.numel() for parameter in module.parameters())
    ('b-mask', 7124)
    """

    each_alone = False

    def __init__(
        self,
        modalities: Sequence[Modality],
        latent: int,
        hidden: int,
        *,
        backward: bool,
        skip: bool,
        direct: bool = False,
    ) -> None:
        super().__init__(MarkovModel(modalities, latent, hidden, one_way=True))
        self.backward = backward
        self.skip = skip
        self.direct = direct
        self.encoders = nn.ModuleList(m.build_features(hidden) for m in modalities)
        self.widths = [
            m.features_width(features)
            for m, features in zip(modalities, self.encoders, strict=True)
        ]
        self.memory = GRUs(self.widths, hidden)
        self.combiner = nn.Linear(sum(self._combined), hidden)
        self.head = GaussianHead(hidden, latent)

    @property
    def name(self) -> str:
        """What the method is called where one is chosen."""
        name = f"{'b' if self.backward else 'f'}-{'skip' if self.skip else 'mask'}"
        return f"{name}-direct" if self.direct else name

    @property
    def _combined(self) -> list[int]:
        """Widths of what the combiner sees: the previous state, hidden states, features."""
        model = self.model
        widths = self.widths if self.direct else []
        return [model.latent, len(model.names) * model.hidden, *widths]

    # Verbs

    def filter(
        self,
        batch: Batch,
        *,
        backward: bool = False,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Filtered:
        """Infer each state from the past and present.

        Backward GRUs have to read the past anew from each step, so they take a pass per step.
        """
        if backward:
            raise ValueError(
                f"Inference by {self.name!r} derives each state from the one before and cannot "
                "filter backward. Use a model with inference='bfvi'."
            )
        self.require_single_steps("filter")
        heard, members = self.encode(batch), self.members(subsets)
        if not self.backward:
            return self._chain(heard, members).filter(particles, generator)
        passes = [self._chain(heard.until(t + 1), members) for t in range(batch.steps)]
        posterior = Gaussian.stack([p.marginals(particles, generator)[-1] for p in passes])
        z = posterior[:-1].at(particles.noise(posterior[:-1].precision, generator))
        first = self.model.prior().expand(1, *posterior.shape[1:])
        message = Gaussian.cat([first, self.model.step_forward(z).moment_match()])
        return Filtered(message, posterior)

    def smooth(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Smoothed:
        """Infer each state from all that the GRUs know of: everything, if they run backward."""
        posterior = self.guide(batch, subsets=subsets).marginals(particles, generator)
        return Smoothed(posterior, torch.zeros_like(posterior.precision, dtype=torch.bool))

    def guide(
        self,
        batch: Batch,
        *,
        subsets: Sequence[Collection[str]] | None = None,
        particles: Particles = Cubature(),
        generator: torch.Generator | None = None,
    ) -> Chain:
        """Run the GRUs, which joint trajectories need."""
        return self._chain(self.encode(batch), self.members(subsets))

    def track(self, count: int) -> Memories:
        """Prepare to filter so many streams forward, one step at a time."""
        if self.backward:
            raise ValueError(
                f"Inference by {self.name!r} reads each sequence from its end and cannot follow a "
                "stream. Use a model with inference='bfvi', 'f-mask' or 'f-skip'."
            )
        self.require_single_steps("follow a stream")
        link, prior, begun = unseen(self.model, count)
        hidden = self.memory.initial[:, None].expand(-1, count, -1)
        return Memories(link, prior, begun, self, prior, hidden)

    def follow(self, batch: Batch, hidden: Tensor) -> tuple[Tensor, Chain]:
        """Go on from hidden states ``(modality, batch, hidden)``: the last of them, and a chain."""
        heard, members = self.encode(batch), self.members(None)
        memory = self._remember(heard, members, hidden)
        return memory[-1], self._combine(heard, members, memory)

    def chains(
        self, batch: Batch, members: Tensor, particles: Particles, generator: torch.Generator
    ) -> dict[str, Draw]:
        """Prepare the one chain there is: of filtering or, with backward GRUs, of smoothing."""
        chain = self._chain(self.encode(batch), members)
        like = chain.context
        noise = torch.randn(
            (1, *chain.shape), generator=generator, dtype=like.dtype, device=like.device
        )
        return {"smooth" if self.backward else "filter": partial(chain.sequence, noise)}

    # Networks

    def encode(self, batch: Batch) -> Heard:
        """Encode every modality once; only observed rows reach the networks."""
        shape, size = batch.valid.shape, self.model.hidden
        directly = torch.split(self.combiner.weight, self._combined, 1)[2:]
        heard, seen = [], []
        for i, (modality, network) in enumerate(
            zip(self.model.modalities, self.encoders, strict=True)
        ):
            inward = torch.cat([self.memory.weight_ih(i), *directly[i : i + 1]])
            found = inward.new_zeros(shape.numel(), len(inward))
            visible = torch.zeros_like(batch.valid).flatten()
            if modality.name in batch.values:
                rows, known = read_rows(modality, batch, network)
                found = found.index_copy(0, rows, F.linear(known, inward))
                visible[rows] = True
            heard.append(found.reshape(*shape, -1))
            seen.append(visible.reshape(shape))
        together = torch.stack(heard, 1)
        direct = together[..., 3 * size :] if self.direct else None
        visible = torch.stack(seen, 1)
        return Heard(
            together[..., : 3 * size], direct, visible, batch.valid[:, None].expand_as(visible)
        )

    def _chain(self, heard: Heard, members: Tensor) -> Chain:
        """Bring what was heard to the combiner, for every subset."""
        return self._combine(heard, members, self._remember(heard, members))

    def _remember(self, heard: Heard, members: Tensor, start: Tensor | None = None) -> Tensor:
        """Run the GRUs: states ``(time, modality, case · batch, hidden)``.

        A GRU knows two cases, its modality being in a subset or not; each that occurs is run once.
        Padding is no input to anyone: states stay.
        """
        gates, update = heard.gates, heard.seen if self.skip else heard.valid
        if not members.all():
            absent = torch.zeros_like(update) if self.skip else heard.valid
            gates = torch.cat([gates, torch.zeros_like(gates)], 2)
            update = torch.cat([update, absent], 2)
        states: Tensor = self.memory(gates, update, backward=self.backward, start=start)
        return states

    def _combine(self, heard: Heard, members: Tensor, memory: Tensor) -> Chain:
        """Bring to the combiner what the GRUs remember; subsets add up what they consist of."""
        shares = [members] if members.all() else [members, ~members]
        from_state, from_memory = torch.split(self.combiner.weight, self._combined, 1)[:2]
        weight = from_memory.reshape(-1, len(self.widths), self.model.hidden)
        cases = list(torch.einsum("tmrh,omh->tmro", memory, weight).chunk(len(shares), 2))
        if heard.direct is not None:
            cases[0] = cases[0] + heard.direct
        context: Tensor = self.combiner.bias
        for share, case in zip(shares, cases, strict=True):
            context = context + torch.einsum("sm,tmbo->tsbo", share.to(case.dtype), case)
        observed = (members[:, :, None] & heard.seen[:, None]).any(2)
        return Chain(self.model, self.head, from_state, context, observed[..., None])

"""Where large particles lead: one differentiable operation for a step of many.

It does what `weft.inference.scan.expect` says, for the gated transition at sizes beyond the
compiled scan's. Matrix products are PyTorch's, of all particles of a piece at once; everything
between two products is one compiled pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:
    from weft import _moments
except ImportError:  # installed without a compiler
    _moments = None  # type: ignore[assignment]

__all__ = ["PIECE", "moments"]

PIECE = 2**17
"""Numbers of particles' states that go through a network at once."""

KEPT = 2**24
"""Numbers of particles' states in a whole pass up to which its gradient finds them kept.

It finds six others for each of them when hidden layers are as wide as states. With more particles
than that, the gradient computes them again, piece by piece.
"""

THREADED = 2**15
"""Numbers of particles' states from which passes use threads."""


class Layers(NamedTuple):
    """A gated transition's packed weights, or their gradient, as matrices and biases."""

    inward: Tensor
    inward_bias: Tensor
    gate: Tensor
    gate_bias: Tensor
    candidate: Tensor
    candidate_bias: Tensor
    spread: Tensor
    spread_bias: Tensor

    @classmethod
    def of(cls, packed: Tensor, latent: int, hidden: int) -> Layers:
        """Views of one row of numbers, in the order of `GatedTransition.packed`."""
        sizes = [
            (2 * hidden + latent, latent),
            (latent, hidden),
            (latent, hidden),
            (latent, latent),
        ]
        parts = torch.split(packed, [n for a, b in sizes for n in (a * b, a)])
        shaped = [x.view(size) for x, size in zip(parts[::2], sizes, strict=True)]
        return cls(*(x for pair in zip(shaped, parts[1::2], strict=True) for x in pair))


@dataclass(frozen=True, eq=False)
class Problem:
    """Weights, prior and bounds as `Link.weights` has them, and states ``(row, latent)``.

    ``points`` are ``(particle, row, latent)``, ``steps`` the number of such problems in a pass.
    """

    kernels: str
    hidden: int
    steps: int
    weights: Tensor
    prior: Tensor
    bounds: Tensor
    points: Tensor
    precision: Tensor
    information: Tensor

    @property
    def latent(self) -> int:
        """Size of the state."""
        return self.precision.shape[1]

    @property
    def size(self) -> int:
        """Numbers of all particles' states."""
        return len(self.points) * self.precision.numel()

    @property
    def fits(self) -> bool:
        """Whether a pass of such problems may keep all its particles."""
        return self.steps * self.size <= KEPT

    @property
    def rows(self) -> int:
        """Rows of a piece."""
        return max(min(PIECE // (len(self.points) * self.latent), len(self.precision)), 1)

    @property
    def pieces(self) -> list[slice]:
        """Rows that go together."""
        count = len(self.precision)
        return [slice(a, min(a + self.rows, count)) for a in range(0, count, self.rows)]

    @property
    def way(self) -> tuple[str, int]:
        """Kernels and threads."""
        return self.kernels, torch.get_num_threads() if self.size >= THREADED else 1

    def placing(self, here: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What some rows' particles are placed by."""
        return self.precision[here], self.information[here], self.points[:, here], self.bounds

    def room(self, rows: int) -> Room:
        """Room for the particles of so many rows."""
        sizes = (self.latent, 2 * self.hidden + self.latent, *(self.latent,) * 3)
        shape = (rows, len(self.points))
        return Room(*(self.weights.new_empty(*shape, size) for size in sizes))

    def push(self, here: slice, into: Room) -> None:
        """Place some rows' particles and push them through the network.

        Hidden layers are rectified; other products but the candidate's still lack their biases.
        """
        layers = Layers.of(self.weights, self.latent, self.hidden)
        _moments.place(*self.placing(here), into.state, *self.way)
        torch.mm(flat(into.state), layers.inward.T, out=flat(into.inward))
        _moments.rectify(self.weights, into.inward, self.hidden, *self.way)
        to_gate, to_candidate = into.hidden(self.hidden)
        torch.mm(to_gate, layers.gate.T, out=flat(into.gate))
        bias = layers.candidate_bias
        torch.addmm(bias, to_candidate, layers.candidate.T, out=flat(into.candidate))
        torch.mm(flat(into.candidate), layers.spread.T, out=flat(into.spread))


class Room(NamedTuple):
    """States of particles ``(row, particle, latent)`` and what layers make of them, or gradients.

    What the three layers that read the state make of it lies together in ``inward``.
    """

    state: Tensor
    inward: Tensor
    gate: Tensor
    candidate: Tensor
    spread: Tensor

    def __call__(self, here: slice) -> Room:
        """Room of some rows, or of as many if there is room for no more than a piece."""
        fits = here.stop <= len(self.state)
        rows = here if fits else slice(here.stop - here.start)
        return Room(*(x[rows] for x in self))

    def hidden(self, size: int) -> tuple[Tensor, Tensor]:
        """Hidden layers of gate and candidate, as matrices."""
        return flat(self.inward)[:, :size], flat(self.inward)[:, size : 2 * size]


class Gradient:
    """The gradient of everything a mixture depends on, added up over pieces."""

    def __init__(self, problem: Problem) -> None:
        latent, hidden = problem.latent, problem.hidden
        self.problem = problem
        self.network = Layers.of(problem.weights, latent, hidden)
        self.weights = torch.empty_like(problem.weights)
        self.layers = Layers.of(self.weights, latent, hidden)
        self.sums = problem.weights.new_zeros(6, latent)
        self.hidden_sums = problem.weights.new_zeros(2 * hidden)
        self.precision = torch.empty_like(problem.precision)
        self.information = torch.empty_like(problem.information)
        self.room = problem.room(problem.rows)

    def pull(self, here: slice, precision: Tensor, information: Tensor, pushed: Room) -> None:
        """Follow some rows' cotangents back through their particles."""
        problem, network, into = self.problem, self.network, self.layers
        to = self.room(slice(here.stop - here.start))
        _moments.unsettle(
            *(problem.weights, problem.prior, *pushed[1:], precision[here], information[here]),
            *(*to[1:], self.sums, *problem.way),
        )
        state, inward, gate, candidate, spread = map(flat, to)
        to_gate, to_candidate = to.hidden(problem.hidden)
        candidate.addmm_(spread, network.spread)
        torch.mm(gate, network.gate, out=to_gate)
        torch.mm(candidate, network.candidate, out=to_candidate)
        _moments.unrectify(pushed.inward, to.inward, self.hidden_sums, *problem.way)
        torch.mm(inward, network.inward, out=state)
        _moments.unplace(
            *(*problem.placing(here), to.state),
            *(self.precision[here], self.information[here], *problem.way),
        )
        for_gate, for_candidate = pushed.hidden(problem.hidden)
        beta = int(here.start > 0)  # the first piece finds nothing to add to
        into.inward.addmm_(inward.T, flat(pushed.state), beta=beta)
        into.gate.addmm_(gate.T, for_gate, beta=beta)
        into.candidate.addmm_(candidate.T, for_candidate, beta=beta)
        into.spread.addmm_(spread.T, flat(pushed.candidate), beta=beta)

    def finish(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of weights, prior and state, once those of the biases are in their places."""
        prior, (gate, linear, spread, candidate) = self.sums[:2], self.sums[2:]
        torch.cat([self.hidden_sums, linear], out=self.layers.inward_bias)
        self.layers.gate_bias.copy_(gate)
        self.layers.spread_bias.copy_(spread)
        bias = self.layers.candidate_bias
        torch.addmv(candidate, self.network.spread.T, spread, out=bias)
        return self.weights, prior, self.precision, self.information


def flat(particles: Tensor) -> Tensor:
    """Particles of all rows as rows of a matrix, without a copy."""
    return particles.view(-1, particles.shape[-1])


class _Moments(torch.autograd.Function):
    """Precision and information ``(row, latent)`` of the mixture over a row's particles."""

    @staticmethod
    def forward(
        ctx: Any, kernels: str, hidden: int, steps: int, *arrays: Tensor
    ) -> tuple[Tensor, Tensor]:
        problem = Problem(kernels, hidden, steps, *arrays)
        keep = problem.fits and any(ctx.needs_input_grad)
        room = problem.room(len(problem.precision) if keep else problem.rows)
        precision = torch.empty_like(problem.precision)
        information = torch.empty_like(problem.precision)
        for here in problem.pieces:
            pushed = room(here)
            problem.push(here, pushed)
            found = (precision[here], information[here])
            _moments.settle(problem.weights, problem.prior, *pushed[1:], *found, *problem.way)
        ctx.way = kernels, hidden, steps
        ctx.save_for_backward(*arrays, *(room if keep else ()))
        return precision, information

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        arrays, kept = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        problem = Problem(*ctx.way, *arrays)
        room = Room(*kept) if kept else problem.room(problem.rows)
        precision, information = (x.contiguous() for x in cotangents)
        gradient = Gradient(problem)
        for here in problem.pieces:
            pushed = room(here)
            if not kept:
                problem.push(here, pushed)
            gradient.pull(here, precision, information, pushed)
        weights, prior, *state = gradient.finish()
        return None, None, None, weights, prior, None, None, *state


def moments(
    kernels: str,
    hidden: int,
    steps: int,
    weights: tuple[Tensor, Tensor, Tensor],
    state: tuple[Tensor, Tensor],
    points: Tensor,
) -> tuple[Tensor, Tensor]:
    """Find the mixture's precision and information, shaped like the state's.

    Parameters
    ----------
    kernels : str
    hidden : int
        Width of the transition's hidden layers.
    steps : int
        Steps of the whole pass, of which this is one: what they keep for the gradient adds up.
    weights
        Packed weights of a `GatedTransition`, prior and bounds, as in `Link.weights`.
    state
        Precision and information ``(…, row, latent)``.
    points : Tensor
        Standard points ``(particle, …, row, latent)``; axes of length one are shared.
    """
    shape = state[0].shape
    count, latent = len(points), shape[-1]
    if points.numel() == count * latent:
        rows = points.reshape(count, 1, latent).expand(-1, shape[:-1].numel(), -1)
    else:
        rows = points.expand(count, *shape).reshape(count, -1, latent)
    packed, prior, bounds = (x.contiguous() for x in weights)
    precision, information = (x.reshape(-1, latent).contiguous() for x in state)
    found = _Moments.apply(  # type: ignore[no-untyped-call]
        kernels, hidden, steps, packed, prior, bounds, rows, precision, information
    )
    return found[0].view(shape), found[1].view(shape)

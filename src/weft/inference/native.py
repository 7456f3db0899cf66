"""The compiled scan: one differentiable operation for a whole pass along time.

It does what `weft.inference.scan.reference` does, for the gated transition at small sizes, without
keeping anything per particle. `weft.native` says whether it is in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.native import KERNELS, active

try:
    from weft import _scan
except ImportError:  # installed without a compiler
    _scan = None  # type: ignore[assignment]

__all__ = ["KERNELS", "LARGEST", "Draws", "Way", "active", "normal", "scan"]

LARGEST = 64
"""Latent and hidden sizes up to which the compiled scan is used."""


@dataclass(frozen=True)
class Draws:
    """Particles of a scan: so many, drawn from a seed (in mirrored pairs) unless given."""

    count: int
    seed: int = 0
    mirrored: bool = False


@dataclass(frozen=True)
class Way:
    """How a scan goes: the transition's width, its particles, and whether time runs backward.

    With ``states``, a scan of one particle also gives its posteriors and states.
    """

    hidden: int
    draws: Draws
    reverse: bool
    states: bool
    kernels: str


def normal(
    shape: tuple[int, int, int, int], draws: Draws, dtype: torch.dtype, kernels: str | None = None
) -> Tensor:
    """Numbers the scan would draw for itself, ``(time, particle, row, latent)``."""
    out = torch.empty(shape, dtype=dtype)
    _scan.normal(out, draws.seed, draws.mirrored, kernels or KERNELS[0])
    return out


class _Scan(torch.autograd.Function):
    """Messages of a scan, and posteriors and states (without elements if not wanted)."""

    @staticmethod
    def forward(ctx: Any, way: Way, points: Tensor, *arrays: Tensor) -> tuple[Tensor, ...]:
        start, steps = arrays[3], arrays[5].shape[0]
        shapes = [(steps + 1, *start.shape)] * 2 + [
            (steps, *start.shape) if way.states else (0,)
        ] * 3
        found = tuple(start.new_empty(shape) for shape in shapes)
        drift = start.new_empty(shapes[0] if any(ctx.needs_input_grad) else 0)
        problem = _problem(way, points, arrays)
        _scan.forward(problem, _found(*found, drift), way.kernels, torch.get_num_threads())
        ctx.way = way
        ctx.save_for_backward(points, *found[:2], drift, *arrays)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        points, precision, information, drift, *arrays = ctx.saved_tensors
        weights, prior, _, start = arrays[:4]
        none = start.new_empty(0)
        gradients = [torch.empty_like(x) for x in (weights, prior, start, start)]
        data = [start.new_empty(len(precision) - 1, *start.shape) for _ in range(4)]
        _scan.backward(
            _problem(ctx.way, points, arrays),
            _found(precision, information, none, none, none, drift),
            _found(*(d.contiguous() for d in cotangents), none),
            *gradients,
            *data,
            ctx.way.kernels,
            torch.get_num_threads(),
        )
        rows = arrays[5].shape[1]
        if len(start) != rows:  # gradients of data shared between rows add up
            data = [d.unflatten(1, (-1, rows)).sum(1) for d in data]
        return None, None, *gradients[:2], None, *gradients[2:], *data, None


def _problem(way: Way, points: Tensor, arrays: Sequence[Tensor]) -> _scan.Problem:
    make = _scan.SingleProblem if arrays[0].dtype == torch.float32 else _scan.DoubleProblem
    draws = way.draws
    options = (way.hidden, draws.count, draws.seed, draws.mirrored, way.reverse)
    return make(*arrays, points, *options)


def _found(*arrays: Tensor) -> _scan.Found:
    make = _scan.SingleFound if arrays[0].dtype == torch.float32 else _scan.DoubleFound
    return make(*arrays)


def scan(
    way: Way,
    weights: Tensor,
    prior: Tensor,
    bounds: Tensor,
    start: tuple[Tensor, Tensor],
    factors: tuple[Tensor, Tensor],
    future: tuple[Tensor, Tensor],
    seen: Tensor,
    points: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Carry a message along time; Gaussians are pairs of precision and information.

    Parameters
    ----------
    way : Way
    weights : Tensor
        Packed weights of a `GatedTransition`.
    prior, bounds : Tensor
        ``(2, latent)``: its precision and information; where states are clamped.
    start
        First message ``(row, latent)``.
    factors, future
        ``(time, row, latent)``; if there are fewer rows than in ``start`` they are repeated.
    seen : Tensor
        ``(time, row)``, false where the message that follows is the prior.
    points : Tensor, optional
        Standard points ``(time, particle, row, latent)``; drawn if not given.

    Returns
    -------
    tuple of Tensor
        Messages ``(time + 1, row, latent)``, the one that follows all steps at the end (in front
        if time runs backward); posteriors and states ``(time, row, latent)``, if wanted.
    """
    arrays = (
        *(weights.contiguous(), prior.contiguous(), bounds.contiguous()),
        *(x.contiguous() for x in start),
        *(x.contiguous() for x in factors),
        *future,
        seen.contiguous(),
    )
    points = weights.new_empty(0) if points is None else points
    found: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _Scan.apply(way, points, *arrays)  # type: ignore[no-untyped-call]
    return found

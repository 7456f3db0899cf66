"""The compiled scan: one differentiable operation for a whole pass along time.

It does what `weft.inference.scan.reference` does, for the gated transition at small sizes, without
keeping anything per particle. Built with the package where there is a compiler; elsewhere, or with
the environment variable ``WEFT_NATIVE=off``, everything runs in PyTorch. ``WEFT_NATIVE`` may also
name one of `KERNELS`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:
    from weft import _scan
except ImportError:  # installed without a compiler
    _scan = None  # type: ignore[assignment]

__all__ = ["KERNELS", "LARGEST", "Draws", "active", "normal", "scan"]

KERNELS: tuple[str, ...] = () if _scan is None else tuple(_scan.kernels())
"""Instruction sets this processor has kernels for, the fastest first."""

LARGEST = 64
"""Latent and hidden sizes up to which the compiled scan is used."""


def _choose(wish: str | None) -> str | None:
    if wish == "off" or not KERNELS:
        return None
    if wish is not None and wish not in KERNELS:
        raise ValueError(f"WEFT_NATIVE is {wish!r}; it may be 'off' or one of {KERNELS}.")
    return wish or KERNELS[0]


_ACTIVE = _choose(os.environ.get("WEFT_NATIVE") or None)


def active() -> str | None:
    """Name the kernels in use; none if everything runs in PyTorch."""
    return _ACTIVE


@dataclass(frozen=True)
class Draws:
    """Particles of a scan: so many, drawn from a seed (in mirrored pairs) unless given."""

    count: int
    seed: int = 0
    mirrored: bool = False


def normal(
    shape: tuple[int, int, int, int], draws: Draws, dtype: torch.dtype, kernels: str | None = None
) -> Tensor:
    """Numbers the scan would draw for itself, ``(time, particle, row, latent)``."""
    out = torch.empty(shape, dtype=dtype)
    _scan.normal(out, draws.seed, draws.mirrored, kernels or KERNELS[0])
    return out


class _Scan(torch.autograd.Function):
    """Messages ``(time + 1, row, latent)`` of a scan."""

    @staticmethod
    def forward(
        ctx: Any, hidden: int, draws: Draws, kernels: str, points: Tensor, *arrays: Tensor
    ) -> tuple[Tensor, Tensor]:
        problem = _problem(hidden, draws, points, arrays)
        start, steps = arrays[3], arrays[5].shape[0]
        precision = start.new_empty(steps + 1, *start.shape)
        information = torch.empty_like(precision)
        _scan.forward(problem, precision, information, kernels, torch.get_num_threads())
        ctx.hidden, ctx.draws, ctx.kernels = hidden, draws, kernels
        ctx.save_for_backward(points, precision, information, *arrays)
        return precision, information

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_precision: Tensor, d_information: Tensor) -> tuple[Tensor | None, ...]:
        points, precision, information, *arrays = ctx.saved_tensors
        problem = _problem(ctx.hidden, ctx.draws, points, arrays)
        weights, prior, _, start = arrays[:4]
        d_weights, d_prior = torch.empty_like(weights), torch.empty_like(prior)
        d_start = [torch.empty_like(start) for _ in range(2)]
        d_data = [start.new_empty(len(precision) - 1, *start.shape) for _ in range(4)]
        _scan.backward(
            problem,
            precision,
            information,
            d_precision.contiguous(),
            d_information.contiguous(),
            d_weights,
            d_prior,
            *d_start,
            *d_data,
            ctx.kernels,
            torch.get_num_threads(),
        )
        rows = arrays[5].shape[1]  # gradients of data shared between rows add up
        d_data = [d.unflatten(1, (-1, rows)).sum(1) for d in d_data]
        return None, None, None, None, d_weights, d_prior, None, *d_start, *d_data, None


def _problem(hidden: int, draws: Draws, points: Tensor, arrays: Any) -> Any:
    make = _scan.SingleProblem if arrays[0].dtype == torch.float32 else _scan.DoubleProblem
    return make(*arrays, points, hidden, draws.count, draws.seed, draws.mirrored)


def scan(
    hidden: int,
    weights: Tensor,
    prior: Tensor,
    bounds: Tensor,
    start: tuple[Tensor, Tensor],
    factors: tuple[Tensor, Tensor],
    future: tuple[Tensor, Tensor],
    seen: Tensor,
    draws: Draws,
    points: Tensor | None = None,
    kernels: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Carry a message along time; Gaussians are pairs of precision and information.

    Parameters
    ----------
    hidden, weights
        Width and packed weights of a `GatedTransition`.
    prior, bounds : Tensor
        ``(2, latent)``: its precision and information; where states are clamped.
    start
        First message ``(row, latent)``.
    factors, future
        ``(time, row, latent)``; if there are fewer rows than in ``start`` they are repeated.
    seen : Tensor
        ``(time, row)``, false where the message that follows is the prior.
    draws, points
        The particles, and, if they are not drawn, the standard points
        ``(time, particle, row, latent)``.
    kernels : str, optional
        One of `KERNELS`; the active ones if not given.
    """
    chosen = kernels or active()
    if chosen is None:
        raise RuntimeError("The compiled scan is not available.")
    arrays = (
        *(weights.contiguous(), prior.contiguous(), bounds.contiguous()),
        *(x.contiguous() for x in start),
        *(x.contiguous() for x in factors),
        *future,
        seen.contiguous(),
    )
    points = weights.new_empty(0) if points is None else points
    messages: tuple[Tensor, Tensor] = _Scan.apply(  # type: ignore[no-untyped-call]
        hidden, draws, chosen, points, *arrays
    )
    return messages

"""How likely data are under a model: a particle bound on ``log p(x)``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.batch import Batch
from weft.columns import Array
from weft.inference.method import Guide

__all__ = ["importance_bound", "resample"]


@torch.no_grad()
def importance_bound(guide: Guide, batch: Batch, count: int, generator: torch.Generator) -> Array:
    r"""Bound ``log p(x)`` of every sequence of a batch, with ``count`` trajectories of a guide.

    Each trajectory gathers a weight step by step,

    .. math::
        w_t = w_{t-1} \frac{p(x_t | z_t)\, p(z_t | z_{t-1})}{q(z_t | z_{t-1}, x)}

    and the bound is the logarithm of the weights' mean. A trajectory's prospects are its weight
    times what the future promises a state, ``guide.outlook``. Where few trajectories have most of
    them (an effective number below half of all), a sequence's mean so far is banked, and the
    trajectories are drawn anew in proportion, so that all have the same prospects again. Whatever
    the outlook, the exponential of the bound has the mean ``p(x)``: so the bound lies below
    ``log p(x)`` on average.
    """
    model = guide.model
    shape = (count, len(batch.lengths))
    weights, banked = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape[1:]).double()
    z = None
    for t in range(batch.steps):
        points = torch.randn(
            (count, *guide.shape[1:]), generator=generator, dtype=model.prior_mean.dtype
        )
        step = guide.step(t, z, points)
        z = step.latents
        gain = (step.prior.log_prob(z) - step.posterior.log_prob(z))[:, 0]
        for name in model.names:
            seen = batch.seen(name)[t]
            value, observed = batch.values[name][t, seen], batch.observed[name][t, seen]
            gain[:, seen] += model.log_prob(name, z[:, 0, seen], value, observed)
        weights += torch.where(batch.valid[t], gain, 0.0).double()
        outlook = guide.outlook(t, z)[:, 0].double()
        prospects = weights + outlook
        poor = _effective(prospects) < count / 2
        if poor.any():
            banked += torch.where(poor, _log_mean(prospects), 0.0)
            kept = torch.arange(count)[:, None].where(~poor, resample(prospects, generator))
            z = z.gather(0, kept[:, None, :, None].expand_as(z))
            weights = torch.where(poor, -outlook.gather(0, kept), weights)
    bound: Array = (banked + _log_mean(weights)).numpy()
    return bound


def resample(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Which trajectories to go on with, by log-weights ``(trajectory, sequence)``.

    Each is taken in proportion to its weight, up to rounding: systematic resampling.

    Examples
    --------
    >>> weights = torch.tensor([[0.5], [0.0], [0.25], [0.25]]).log()
    >>> resample(weights, torch.Generator().manual_seed(0)).flatten().tolist()
    [0, 0, 2, 3]
    """
    count, sequences = weights.shape
    ends = torch.softmax(weights, 0).cumsum(0)
    offset = torch.rand(sequences, generator=generator, dtype=weights.dtype)
    rungs = (torch.arange(count)[:, None] + offset) / count
    found = torch.searchsorted(ends.T.contiguous(), rungs.T.contiguous(), right=True)
    return found.T.clamp(max=count - 1)


def _log_mean(weights: Tensor) -> Tensor:
    return torch.logsumexp(weights, 0) - math.log(len(weights))


def _effective(weights: Tensor) -> Tensor:
    """How many equal weights would scatter as much as these."""
    return torch.softmax(weights, 0).square().sum(0).reciprocal()

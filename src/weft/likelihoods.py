"""Emission heads: what a decoder's raw output means.

A likelihood says how many raw numbers a decoder must give per step, turns them into a
`torch.distributions` object, and knows which values it can score. Everything else (masking,
summing) is shared.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft import native_images
from weft.columns import Support
from weft.gaussian import inverse_softplus, positive_std, raw_std

__all__ = ["Bernoulli", "Categorical", "Likelihood", "Normal", "Pixels", "Poisson", "StudentT"]

RATE_FLOOR = 1e-6


REAL = Support("any finite number", np.isfinite)
BINARY = Support("0 or 1", lambda values: (values == 0) | (values == 1))
UNIT = Support("a number from 0 to 1", lambda values: (values >= 0) & (values <= 1))
COUNT = Support(
    "a whole number of at least 0", lambda values: (values >= 0) & (values == np.round(values))
)


PIECE = 2**18
"""Raw numbers scored at once: as many as stay in a processor's cache with what is made of them."""


class Likelihood(ABC):
    """How the entries of one modality are distributed given the decoder's raw output."""

    parameters_per_entry: int = 1
    support: Support = REAL
    location_scale: bool = False
    """Whether data are standardised before they are modelled."""

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Count the raw numbers per step for an observation of ``shape``."""
        return self.parameters_per_entry * math.prod(shape)

    @abstractmethod
    def distribution(self, raw: Tensor, shape: tuple[int, ...]) -> D.Distribution:
        """Turn raw output ``(…, outputs)`` into a distribution over ``(…, *shape)``."""

    def log_prob(self, raw: Tensor, value: Tensor, observed: Tensor, event_dims: int) -> Tensor:
        """Log-density of the observed entries, summed over the last ``event_dims`` axes.

        Missing entries contribute nothing to the value or to any gradient; they must hold a finite
        number in the support (`Batch` fills zeros). Large outputs are scored in pieces.
        """
        if raw.numel() <= PIECE or value.shape[0] != raw.shape[0]:
            return self._score(raw, value, observed, event_dims)
        score: Tensor = _Pieces.apply(self, raw, value, observed, event_dims)  # type: ignore[no-untyped-call]
        return score

    def _score(self, raw: Tensor, value: Tensor, observed: Tensor, event_dims: int) -> Tensor:
        shape = tuple(value.shape[value.dim() - event_dims :])
        entries = self.distribution(raw, shape).log_prob(value)
        scored = torch.where(observed, entries, torch.zeros_like(entries))
        return scored.flatten(scored.dim() - event_dims).sum(-1) if event_dims else scored

    def sample(
        self, raw: Tensor, shape: tuple[int, ...], count: int, generator: torch.Generator
    ) -> Tensor:
        """Draw ``(count, …, *shape)`` values given raw output ``(…, outputs)``."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):  # distributions only know the global generator
            torch.default_generator.manual_seed(seed)  # and no other device’s
            return self.distribution(raw, shape).sample((count,))

    def point(self, mean: Tensor) -> Tensor:
        """Turn a predictive mean into a value of the support, to fill a gap with."""
        return mean

    def moments(self, raw: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Mean and variance of each entry, ``(…, *shape)``, given raw output."""
        found = self.distribution(raw, shape)
        return found.mean, found.variance

    def link(self, mean: Tensor) -> Tensor:
        """Raw number that stands for a mean: what the first of an entry's raw numbers is."""
        return mean

    def offset(self, seen: Tensor, expected: Tensor, count: Tensor) -> Tensor:
        """How far raw numbers ``(…, *shape)`` lie off, by sums over ``count`` steps.

        ``seen`` sums what was observed and ``expected`` the predicted means. Both count one more
        step, at a raw number of zero, so that nothing seen gives no offset.
        """
        middle = self.moments(torch.zeros(self.parameters_per_entry).to(seen), (1,))[0]
        seen, expected = ((total + middle) / (count + 1) for total in (seen, expected))
        return self.link(seen) - self.link(expected)

    def moved(self, raw: Tensor, offset: Tensor) -> Tensor:
        """Add an offset ``(…, *shape)`` to the first of each entry's raw numbers."""
        offset = offset.flatten(raw.dim() - 1)
        return raw + F.pad(offset, (0, raw.shape[-1] - offset.shape[-1]))

    def narrowed(self, raw: Tensor, share: Tensor) -> Tensor:
        """Take a share of the variance of all trajectories together away, around their mean.

        Raw numbers ``(trajectory, …, outputs)`` are locations, and behind them scales; ``share`` is
        ``(…, *shape)``.
        """
        left = (1 - share).sqrt().flatten(raw.dim() - 2)
        location, scale = raw.chunk(2, -1)
        middle = location.mean(0)
        scale = raw_std(left * positive_std(scale))
        return torch.cat([middle + left * (location - middle), scale], -1)

    def entries(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Flatten values ``(time, batch, *shape)`` as `moments` has them; and which are known."""
        return value.flatten(2), observed.flatten(2)

    def tempered(self, raw: Tensor, shape: tuple[int, ...], temper: float) -> Tensor:
        """Keep raw output as it is, and multiply an entry's gradient by its scale^(2 · temper).

        Only where values have a location and a scale: elsewhere nothing changes.
        """
        if not temper or not self.location_scale:
            return raw
        with torch.no_grad():
            scale = self.distribution(raw, shape).scale  # type: ignore[attr-defined]
            share = scale.flatten(scale.dim() - len(shape)) ** (2 * temper)
            share = torch.cat([share] * self.parameters_per_entry, -1)
        return raw.detach() + share * (raw - raw.detach())

    def _split(self, raw: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        parts = raw.reshape(*raw.shape[:-1], self.parameters_per_entry, *shape)
        return parts.unbind(-1 - len(shape))


class _Pieces(torch.autograd.Function):
    """`Likelihood.log_prob` along the first axis, piece by piece, keeping only its inputs.

    Scores are cheap to compute and large to keep: the gradient computes each piece again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        likelihood: Likelihood,
        raw: Tensor,
        value: Tensor,
        observed: Tensor,
        event_dims: int,
    ) -> Tensor:
        ctx.likelihood, ctx.event_dims = likelihood, event_dims
        ctx.save_for_backward(raw, value, observed)
        pieces = _split(raw, value, observed)
        return torch.cat([likelihood._score(r, v, o, event_dims) for r, v, o in pieces])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_score: Tensor) -> tuple[Tensor | None, ...]:
        d_raw = torch.empty_like(ctx.saved_tensors[0])
        pieces = _split(*ctx.saved_tensors, d_score, d_raw)
        for raw, value, observed, cotangent, into in pieces:
            with torch.enable_grad():
                leaf = raw.detach().requires_grad_()
                score = ctx.likelihood._score(leaf, value, observed, ctx.event_dims)
            into.copy_(torch.autograd.grad(score, leaf, cotangent)[0])
        return None, d_raw, None, None, None


def _split(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut all along the first axis, so that a piece of the first has `PIECE` numbers."""
    rows = max(PIECE * len(tensors[0]) // tensors[0].numel(), 1)
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)


@dataclass(frozen=True)
class Normal(Likelihood):
    """Real values with learned mean and standard deviation."""

    parameters_per_entry = 2
    location_scale = True

    def distribution(self, raw: Tensor, shape: tuple[int, ...]) -> D.Normal:
        """Read mean and raw standard deviation."""
        mean, raw_std = self._split(raw, shape)
        return D.Normal(mean, positive_std(raw_std), validate_args=False)


@dataclass(frozen=True)
class StudentT(Likelihood):
    """Real values with outliers: heavy tails of fixed degrees of freedom."""

    df: float = 4.0
    parameters_per_entry = 2
    location_scale = True

    def __post_init__(self) -> None:
        if not self.df > 2:
            raise ValueError(f"StudentT needs df > 2 to have a variance, got {self.df}.")

    def distribution(self, raw: Tensor, shape: tuple[int, ...]) -> D.StudentT:
        """Read location and raw scale."""
        loc, raw_scale = self._split(raw, shape)
        return D.StudentT(self.df, loc, positive_std(raw_scale), validate_args=False)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Values 0 or 1."""

    support = BINARY

    def distribution(self, raw: Tensor, shape: tuple[int, ...]) -> D.Bernoulli:
        """Read log-odds."""
        (logits,) = self._split(raw, shape)
        return D.Bernoulli(logits=logits, validate_args=False)

    def link(self, mean: Tensor) -> Tensor:
        """Log-odds."""
        return torch.logit(mean)

    def log_prob(self, raw: Tensor, value: Tensor, observed: Tensor, event_dims: int) -> Tensor:
        """Log-density of the observed entries, by a compiled operation if there are many."""
        kernels = native_images.fitting(raw, value)
        rows = value.shape[: value.dim() - event_dims]
        if kernels is None or raw.numel() <= PIECE or raw.shape[:-1] != rows or not event_dims:
            return super().log_prob(raw, value, observed, event_dims)
        given, known, seen = (x.reshape(-1, raw.shape[-1]) for x in (raw, value, observed))
        return native_images.density(given, known, seen, kernels).reshape(rows)

    def point(self, mean: Tensor) -> Tensor:
        """Choose the more probable value."""
        return (mean >= 0.5).to(mean.dtype)


@dataclass(frozen=True)
class Pixels(Bernoulli):
    r"""Brightness from 0 to 1, scored by binary cross-entropy.

    A pixel of brightness x counts as one that is lit with probability x:

    .. math::
        x \log p + (1 - x) \log(1 - p), \qquad p = \mathrm{sigmoid}(\mathrm{raw})

    which is largest at p = x. For x of 0 or 1 this is `Bernoulli`; in between it is not a density
    in x, but lies below that of a continuous Bernoulli (by at least log 2), so that bounds stay
    bounds. The predictive mean is the brightness. Spread, quantiles and draws are those of a pixel
    that is lit or dark.
    """

    support = UNIT

    def point(self, mean: Tensor) -> Tensor:
        """Keep the brightness."""
        return mean


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts; the rate is a softplus, so that no input makes it overflow."""

    support = COUNT

    def distribution(self, raw: Tensor, shape: tuple[int, ...]) -> D.Poisson:
        """Read the raw rate."""
        (raw_rate,) = self._split(raw, shape)
        return D.Poisson(F.softplus(raw_rate) + RATE_FLOOR, validate_args=False)

    def link(self, mean: Tensor) -> Tensor:
        """Raw rate."""
        return inverse_softplus(mean - RATE_FLOOR)

    def point(self, mean: Tensor) -> Tensor:
        """Round to a count."""
        return mean.round()


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of ``count`` categories per step, coded 0 … count-1."""

    count: int
    support = COUNT

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"Categorical needs at least two categories, got {self.count}.")

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Count one logit per category and entry."""
        return self.count * math.prod(shape)

    def distribution(self, raw: Tensor, shape: tuple[int, ...]) -> D.Categorical:
        """Read logits."""
        logits = raw.reshape(*raw.shape[:-1], *shape, self.count)
        return D.Categorical(logits=logits, validate_args=False)

    def moments(self, raw: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Mean and variance of each category's indicator, ``(…, *shape, count)``."""
        probability = self.distribution(raw, shape).probs
        return probability, probability * (1 - probability)

    def entries(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Indicators of the categories."""
        indicators = F.one_hot(value.long(), self.count).to(torch.get_default_dtype())
        known = observed[..., None].expand_as(indicators)
        return indicators.flatten(2), known.flatten(2)

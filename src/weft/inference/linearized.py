r"""Posterior linearisation: smoothing with whole covariances, by the generative model alone.

BFVI keeps one variance per dimension, so it forgets how errors of different dimensions hang
together, and with that how a run of positions tells of a speed. Here transitions and decoders are
replaced by the linear functions that fit them best where the posterior lies (statistical linear
regression over cubature points), and the linear-Gaussian model this gives is smoothed exactly.
Its posterior can take the place of the first, and so on; for linear models one round is exact.

The model is :math:`p(z_s) \prod_{t > s} p(z_t \mid z_{t-1}) \prod_m p(x_t^m \mid z_t)` from a
sequence's first observation, at step s, on. What came before is for the backward transition to say,
which with the encoders has no part here but to tell where to begin.

García-Fernández, Svensson and Särkkä (2017) smooth so; Tronarp, García-Fernández and Särkkä (2018)
go by conditional moments, which serve any likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.modality import Modality
from weft.model import MarkovModel
from weft.particles import Cubature

__all__ = ["Linearized", "linearize"]

Moments = tuple[Tensor, Tensor]
"""Mean and covariance of a Gaussian, or mean and variance of what it leads to."""

JITTER, TINY = 1e-10, 1e-14
"""Share of its diagonal, and amount, added to a covariance before it is factorised."""


@dataclass(frozen=True, eq=False)
class Linearized:
    """A Gaussian over whole trajectories that is a Markov chain.

    Attributes
    ----------
    mean, covariance : Tensor
        ``(time, batch, latent)`` and ``(time, batch, latent, latent)``: each state's own.
    slope, spread : Tensor
        ``(time, batch, latent, latent)``: a state's mean given the one before it lies ``slope``
        times that one's deviation off its own; ``spread`` is a root of its covariance then.
    begun : Tensor
        ``(time, batch)``: whether the chain has begun. It does at a sequence's first observation;
        of the states before, which are not its to say, the rest means nothing.
    """

    mean: Tensor
    covariance: Tensor
    slope: Tensor
    spread: Tensor
    begun: Tensor

    def walk(self, noise: Iterable[Tensor]) -> Iterator[Tensor]:
        """Draw trajectories step by step from standard-normal ``(trajectory, batch, latent)``."""
        deviation = torch.zeros_like(self.mean[0])
        for mean, slope, spread, points in zip(
            self.mean, self.slope, self.spread, noise, strict=True
        ):
            deviation = _times(slope, deviation) + _times(spread, points.to(mean.dtype))
            yield mean + deviation

    @property
    def marginals(self) -> Gaussian:
        """Distribution of each state by itself, ``(time, batch, latent)``, dimensions apart."""
        variance = self.covariance.diagonal(dim1=-2, dim2=-1)
        return Gaussian.from_moments(self.mean, variance.sqrt())


@dataclass(frozen=True, eq=False)
class Linear:
    """``y = slope · z + offset + noise`` with noise of covariance ``noise``; axes go before."""

    slope: Tensor
    offset: Tensor
    noise: Tensor

    def __getitem__(self, t: int) -> Linear:
        return Linear(self.slope[t], self.offset[t], self.noise[t])

    def push(self, mean: Tensor, covariance: Tensor) -> Moments:
        """Moments of y for a Gaussian z."""
        spread = self.slope @ covariance @ self.slope.mT + self.noise
        return _times(self.slope, mean) + self.offset, _symmetric(spread)

    def reverse(self, mean: Tensor, covariance: Tensor) -> Linear:
        """Give z as a linear function of y, for a Gaussian z.

        The noise is written as a sum of squares (Joseph's form), which rounding leaves positive.
        """
        moved, spread = self.push(mean, covariance)
        gain = torch.linalg.solve(spread, self.slope @ covariance).mT
        rest = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device) - gain @ self.slope
        noise = rest @ covariance @ rest.mT + gain @ self.noise @ gain.mT
        return Linear(gain, mean - _times(gain, moved), _symmetric(noise))


@torch.no_grad()
def linearize(model: MarkovModel, batch: Batch, start: Gaussian, rounds: int) -> Linearized:
    """Refine a posterior ``(time, batch, latent)`` by so many rounds of linearisation.

    What counts of ``start`` is where it lies and how wide it is; a MAP sequence with the widths of
    its conditional posteriors serves well.
    """
    mean, covariance = start.mean.double(), torch.diag_embed(start.std.double().square())
    if rounds < 1:
        raise ValueError(f"Linearisation needs at least one round, got {rounds}.")
    begun = _begun(batch)
    for _ in range(rounds):
        found = _smooth(model, batch, mean, covariance, begun)
        mean = torch.where(begun[..., None], found.mean, mean)
        covariance = torch.where(begun[..., None, None], found.covariance, covariance)
    return found


def _begun(batch: Batch) -> Tensor:
    """Whether anything was observed by each step, ``(time, batch)``; true if nothing ever is."""
    seen = torch.stack([batch.seen(name) for name in batch.values]).any(0).cumsum(0) > 0
    return seen | ~seen[-1]


def _smooth(
    model: MarkovModel, batch: Batch, mean: Tensor, covariance: Tensor, begun: Tensor
) -> Linearized:
    """Linearise around a posterior and smooth the linear model: filter, then back."""
    precision, information = _evidence(model, batch, mean, covariance)
    ahead = _transition(model, mean[:-1], covariance[:-1])
    prior = model.prior()
    centre = prior.mean.double().expand_as(mean[0])
    width = torch.diag_embed(prior.variance.double()).expand_as(covariance[0])
    one = torch.eye(model.latent, dtype=width.dtype, device=width.device)
    m, p, back = centre, width, []
    for t in range(len(mean)):
        if t:
            back.append(ahead[t - 1].reverse(m, p))
            m, p = _where(begun[t - 1], ahead[t - 1].push(m, p), (centre, width))
        p = _symmetric(torch.linalg.solve(one + p @ precision[t], p))
        m = m + _times(p, information[t] - _times(precision[t], m))
    chain = []
    for t in range(len(mean) - 1, -1, -1):
        forth = (torch.zeros_like(p), p)
        if t:
            link = back[t - 1].reverse(m, p)
            forth = _where(begun[t - 1], (link.slope, link.noise), forth)
        chain.append((m, p, forth[0], _root(forth[1])))
        if t:
            m, p = _where(begun[t - 1], back[t - 1].push(m, p), (centre, width))
    m, p, slope, spread = (torch.stack(part) for part in zip(*reversed(chain), strict=True))
    return Linearized(m, p, slope, spread, begun)


def _where(condition: Tensor, these: Moments, those: Moments) -> Moments:
    """Take one or the other for each sequence; ``condition`` is ``(batch,)``."""
    first, second = (
        torch.where(condition.reshape(-1, *[1] * (this.dim() - 1)), this, that)
        for this, that in zip(these, those, strict=True)
    )
    return first, second


def _evidence(
    model: MarkovModel, batch: Batch, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor]:
    """What observations say of states, by linearised decoders: precision and information."""
    precision, information = torch.zeros_like(covariance), torch.zeros_like(mean)
    for modality in model.modalities:
        if modality.name not in batch.values:
            continue
        fit = _regress(partial(_emission, model, modality), mean, covariance)
        value, observed = batch.values[modality.name], batch.observed[modality.name]
        target, known = modality.likelihood.entries(value, observed)
        weight = known / (fit.left.square().mean(0) + fit.variance)
        weighted = (fit.slope * weight[..., None]).mT
        precision += weighted @ fit.slope
        information += _times(weighted, target - fit.offset)
    return precision, information


def _emission(model: MarkovModel, modality: Modality, z: Tensor) -> Moments:
    raw = model.decode(modality.name, z.to(model.prior_mean.dtype))
    mean, variance = modality.likelihood.moments(raw, modality.shape)
    return mean.reshape(*z.shape[:-1], -1), variance.reshape(*z.shape[:-1], -1)


def _move(model: MarkovModel, z: Tensor) -> Moments:
    found = model.step_forward(z.to(model.prior_mean.dtype))
    return found.mean, found.variance


def _transition(model: MarkovModel, mean: Tensor, covariance: Tensor) -> Linear:
    """The transition ``p(z_t | z_{t-1})`` as a linear function with noise."""
    fit = _regress(partial(_move, model), mean, covariance)
    noise = torch.einsum("k...i,k...j->...ij", fit.left, fit.left) / len(fit.left)
    return Linear(fit.slope, fit.offset, noise + torch.diag_embed(fit.variance))


@dataclass(frozen=True, eq=False)
class _Fit:
    """A linear fit ``slope · z + offset`` over points of a Gaussian, what it leaves, and noise.

    ``left`` is ``(point, …, entry)``: how far the function lies off the fit at each point;
    ``variance`` the mean of the noise that the function itself has.
    """

    slope: Tensor
    offset: Tensor
    left: Tensor
    variance: Tensor


def _regress(function: Callable[[Tensor], Moments], mean: Tensor, covariance: Tensor) -> _Fit:
    """Fit the mean of a random function by least squares over cubature points of a Gaussian."""
    root = _root(covariance)
    standard = Cubature().noise(mean)
    away = _times(root, standard)
    value, variance = (part.double() for part in function(mean + away))
    centre = value.mean(0)
    off = value - centre
    # Standard points have covariance one, so their covariance with the values is the slope
    whitened = torch.einsum("k...i,k...j->...ij", off, standard.expand_as(away)) / len(off)
    slope = torch.linalg.solve_triangular(root.mT, whitened.mT, upper=True).mT
    left = off - _times(slope, away)
    return _Fit(slope, centre - _times(slope, mean), left, variance.mean(0))


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _root(covariance: Tensor) -> Tensor:
    """Lower triangular root, of a covariance that rounding may have left on the edge."""
    size = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)
    lifted = _symmetric(covariance) + torch.diag_embed(JITTER * size + TINY)
    root: Tensor = torch.linalg.cholesky(lifted)
    return root

r"""What predictions are off by, and how long it lasts.

An error of a prediction is often still there at the next step: a sensor sits askew, a person holds
the arm lower than most. Errors of an entry are taken for a stationary process,

.. math::
    e_t = c + a_t + n_t, \qquad a_t = \rho\, a_{t-1} + \dots

of a level that stays, a part that fades and white noise. Where errors are known, because something
was observed, the process says what to expect of them elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.columns import Array

__all__ = ["TRUSTS", "Errors", "Views", "closest_trust"]

LAGS = 20
"""Steps up to which errors are compared."""
DECAYS = np.linspace(0.02, 0.98, 49)
COMMON = 100
"""Pairs of errors by which an entry is taken to be like all others until it has more of its own."""
TRUSTS = np.linspace(0, 1, 11)
TINY = 1e-12
LEAST = 1e-3
"""Smallest share of the variance that a part of the process has."""
BLOCK = 2**22
"""Errors that are expected at once; bounds the memory."""


@dataclass(frozen=True, eq=False)
class Errors:
    r"""Errors in time: correlation ``level + fading · decay^lag`` at a lag above zero.

    Attributes
    ----------
    level, fading : Array
        Shares of the variance of every entry, ``(*shape)``, that stay and that fade; the rest is
        white.
    decay : Array
        What is left of the fading part after a step.
    """

    level: Array
    fading: Array
    decay: Array

    @classmethod
    def estimate(cls, errors: Array) -> Errors:
        """Learn from errors ``(sequence, time, *shape)``, NaN where they are not known.

        Correlations of each entry at every lag are to be those of the process, by least squares.
        """
        shape, errors = errors.shape[2:], errors.reshape(*errors.shape[:2], -1)
        known = np.isfinite(errors)
        errors = np.where(known, errors, 0)
        variance = np.square(errors).sum((0, 1)) / np.maximum(known.sum((0, 1)), 1)
        errors = errors / np.sqrt(np.maximum(variance, TINY))
        lags = np.arange(1, max(min(LAGS, errors.shape[1] - 1), 1) + 1)
        pairs = np.array([(known[:, :-lag] & known[:, lag:]).sum((0, 1)) for lag in lags])
        products = np.array([(errors[:, :-lag] * errors[:, lag:]).sum((0, 1)) for lag in lags])
        usual = products.sum(1, keepdims=True) / np.maximum(pairs.sum(1, keepdims=True), 1)
        products, pairs = products + COMMON * usual, pairs + COMMON
        level, fading, decay = _closest(lags, products / pairs, pairs)
        most = np.maximum(level + fading + LEAST, 1)
        return cls(*(x.reshape(shape) for x in (level / most, fading / most, decay)))

    def expect(self, errors: Array) -> tuple[Array, Array]:
        """What the errors known of other steps say of each: its mean, and the share explained.

        Errors are ``(time, batch, *shape)``, NaN where they are not known; an error that is known
        says nothing of its own step.
        """
        flat = errors.reshape(*errors.shape[:2], -1)
        process = [np.ravel(x) for x in (self.level, self.fading, self.decay)]
        width = max(BLOCK // max(flat[..., 0].size, 1), 1)
        blocks = [
            _meet(flat[..., i : i + width], *(x[i : i + width] for x in process))
            for i in range(0, flat.shape[-1], width)
        ]
        expected, explained = (np.concatenate(x, -1) for x in zip(*blocks, strict=True))
        return expected.reshape(errors.shape), explained.reshape(errors.shape)


@dataclass(frozen=True, eq=False)
class Views:
    """How long errors of a modality last, by what its predictions were made from.

    Attributes
    ----------
    everything : Errors
        Of predictions from all that was observed, the modality itself included.
    others : Errors
        Of predictions from the other modalities alone.
    trust : Array
        From 0 to 1, ``(*shape)``: how much the others' view counts; at a half by its precision.
    """

    everything: Errors
    others: Errors
    trust: Array


def closest_trust(losses: Array, counts: Array) -> Array:
    """Trust ``(*shape)`` with the least sum of squared errors, ``(trust, *shape)``.

    Each is of ``counts`` errors; without any, everything is trusted.
    """
    entries = tuple(range(1, losses.ndim))
    scale = np.maximum(losses[0], TINY)  # entries have units of their own
    usual = (losses / scale * counts).sum(entries, keepdims=True) / max(counts.sum(), 1)
    found: Array = TRUSTS[(losses / scale * counts + COMMON * usual).argmin(0)]
    return found


def _closest(lags: Array, correlations: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Level, fading part and decay of every entry that come closest to ``(lag, entry)`` numbers.

    Of each decay's shares, both or one of which are free, those of at least zero with the smallest
    weighted sum of squares.
    """
    powers = DECAYS[:, None] ** lags
    ones, mixed, squares = weights.sum(0), powers @ weights, np.square(powers) @ weights
    wanted, faded = (weights * correlations).sum(0), powers @ (weights * correlations)
    level_alone = np.broadcast_to(np.maximum(wanted, 0) / np.maximum(ones, TINY), faded.shape)
    fading_alone = np.maximum(faded, 0) / np.maximum(squares, TINY)
    determinant = np.maximum(ones * squares - np.square(mixed), TINY)
    none = np.zeros_like(faded)
    level = np.stack([(squares * wanted - mixed * faded) / determinant, level_alone, none])
    fading = np.stack([(ones * faded - mixed * wanted) / determinant, none, fading_alone])
    losses = ones * level**2 + 2 * mixed * level * fading + squares * fading**2
    losses = losses - 2 * (wanted * level + faded * fading)
    losses[(level < 0) | (fading < 0)] = np.inf
    best = losses.reshape(-1, losses.shape[-1]).argmin(0)
    way, decay = np.unravel_index(best, losses.shape[:2])
    entry = np.arange(len(best))
    return level[way, decay, entry], fading[way, decay, entry], DECAYS[decay]


def _meet(errors: Array, level: Array, fading: Array, decay: Array) -> tuple[Array, Array]:
    """Let two filters of errors ``(time, batch, entry)``, one from either end, meet at every step.

    The prior, which is in both, is divided out.
    """
    errors, known = np.nan_to_num(errors), np.isfinite(errors)
    white = np.maximum(1 - level - fading, LEAST)
    prior = np.maximum(np.stack([level, fading], -1), LEAST)
    precision, information = -np.eye(2) / prior[:, None], np.zeros(2)
    for way in (slice(None), slice(None, None, -1)):
        found = _predict(errors[way], known[way], white, prior, decay)
        mean, covariance = (part[way] for part in found)
        inverse = _inverse(covariance)
        precision = precision + inverse
        information = information + (inverse @ mean[..., None])[..., 0]
    covariance = _inverse(precision)
    expected = (covariance.sum(-2) * information).sum(-1)
    return expected, np.clip(prior.sum(-1) - covariance.sum((-1, -2)), 0, 1 - LEAST)


def _predict(
    errors: Array, known: Array, white: Array, prior: Array, decay: Array
) -> tuple[Array, Array]:
    """Level and fading part of each step, by the errors before it: a Kalman filter's view.

    Means are ``(time, batch, entry, 2)``, covariances ``(time, batch, entry, 2, 2)`` in units of
    the variance.
    """
    stay = np.stack([np.ones_like(decay), decay], -1)
    fresh = (prior * (1 - np.square(stay)))[..., None] * np.eye(2)
    mean = np.zeros((*errors.shape[1:], 2))
    covariance = np.broadcast_to(prior[..., None] * np.eye(2), (*mean.shape, 2))
    means, covariances = [], []
    for error, seen in zip(errors, known, strict=True):
        means.append(mean)
        covariances.append(covariance)
        shared = covariance.sum(-1)  # with the sum of both parts, which is what is seen
        gain = shared * (seen / (shared.sum(-1) + white))[..., None]
        mean = stay * (mean + gain * (error - mean.sum(-1))[..., None])
        covariance = covariance - gain[..., :, None] * shared[..., None, :]
        covariance = covariance * (stay[..., :, None] * stay[..., None, :]) + fresh
    return np.stack(means), np.stack(covariances)


def _inverse(matrix: Array) -> Array:
    """Invert symmetric matrices ``(…, 2, 2)``."""
    determinant = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
    turned = matrix[..., ::-1, ::-1] * np.array([[1, -1], [-1, 1]])
    found: Array = turned / determinant[..., None, None]
    return found

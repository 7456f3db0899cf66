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

__all__ = ["Errors"]

LAGS = 20
"""Steps up to which errors are compared."""
DECAYS = np.linspace(0.02, 0.98, 49)
TINY = 1e-12
LEAST = 1e-3
"""Smallest share of the variance that a part of the process has."""


@dataclass(frozen=True, eq=False)
class Errors:
    r"""Errors in time: covariance ``variance · (level + fading · decay^lag)`` at a lag above zero.

    Attributes
    ----------
    variance : Array
        Of every entry, ``(*shape)``.
    level, fading : float
        Shares of the variance that stay and that fade; the rest is white.
    decay : float
        What is left of the fading part after a step.
    """

    variance: Array
    level: float
    fading: float
    decay: float

    @classmethod
    def estimate(cls, errors: Array) -> Errors:
        """Learn from errors ``(sequence, time, *shape)``, NaN where they are not known.

        Means of products at every lag are to be those of the process, by least squares.
        """
        known = np.isfinite(errors)
        errors = np.where(known, errors, 0)
        variance = np.square(errors).sum((0, 1)) / np.maximum(known.sum((0, 1)), 1)
        errors = errors / np.sqrt(np.maximum(variance, TINY))
        lags = np.arange(1, min(LAGS, errors.shape[1] - 1) + 1)
        pairs = np.array([(known[:, :-lag] & known[:, lag:]).sum() for lag in lags])
        products = np.array([(errors[:, :-lag] * errors[:, lag:]).sum() for lag in lags])
        weight = np.sqrt(np.maximum(pairs, TINY))  # a mean of many products counts more
        fits = []
        for decay in DECAYS:
            basis = weight[:, None] * np.stack([np.ones(len(lags)), decay**lags], 1)
            shares = _nonnegative(basis, products / weight)
            left = np.square(basis @ shares - products / weight).sum()
            fits.append((float(left), float(decay), shares))
        _, decay, shares = min(fits, key=lambda fit: fit[0])
        level, fading = shares / max(shares.sum() + LEAST, 1.0)
        return cls(variance, float(level), float(fading), decay)

    def expect(self, errors: Array) -> tuple[Array, Array]:
        """What the errors known of other steps say of each: its mean, and the share explained.

        Errors are ``(time, batch, *shape)``, NaN where they are not known; an error that is known
        says nothing of its own step. Two filters, one from either end, meet at every step, and the
        prior, which is in both, is divided out.
        """
        flat = errors.reshape(*errors.shape[:2], -1)
        known = np.isfinite(flat)
        if (known == known[..., :1]).all():  # whole steps are missing: one covariance for all
            known = known[..., :1]
        flat = np.nan_to_num(flat)
        prior = np.diag(1 / np.array([self._level, self._fading]))
        before = self._predict(flat, known)
        after = [part[::-1] for part in self._predict(flat[::-1], known[::-1])]
        precision, information = -prior, np.zeros(())
        for mean, covariance in (before, after):
            inverse = np.linalg.inv(covariance)
            precision = precision + inverse
            information = information + (inverse @ mean[..., None])[..., 0]
        covariance = np.linalg.inv(precision)
        expected = (covariance @ information[..., None])[..., 0].sum(-1)
        explained = self._level + self._fading - covariance.sum((-1, -2))
        explained = np.clip(explained, 0, 1 - LEAST)
        shape = (*errors.shape[:2], *self.variance.shape)
        return expected.reshape(shape), np.broadcast_to(explained, flat.shape).reshape(shape)

    @property
    def _level(self) -> float:
        return max(self.level, LEAST)

    @property
    def _fading(self) -> float:
        return max(self.fading, LEAST)

    def _predict(self, errors: Array, known: Array) -> tuple[Array, Array]:
        """Level and fading part of each step, by the errors before it: a Kalman filter's view.

        Means are ``(time, batch, entry, 2)``, covariances ``(time, batch, entry, 2, 2)`` in units
        of the variance.
        """
        white = max(1 - self.level - self.fading, LEAST)
        stay = np.array([1.0, self.decay])
        fresh = np.diag([0.0, self._fading * (1 - self.decay**2)])
        mean = np.zeros((*errors.shape[1:], 2))
        covariance = np.broadcast_to(np.diag([self._level, self._fading]), (*known.shape[1:], 2, 2))
        means, covariances = [], []
        for error, seen in zip(errors, known, strict=True):
            means.append(mean)
            covariances.append(covariance)
            shared = covariance.sum(-1)  # with the sum of both parts, which is what is seen
            gain = seen[..., None] * shared / (shared.sum(-1, keepdims=True) + white)
            mean = stay * (mean + gain * (error - mean.sum(-1))[..., None])
            covariance = covariance - gain[..., :, None] * shared[..., None, :]
            covariance = covariance * np.outer(stay, stay) + fresh
        return np.stack(means), np.stack(covariances)


def _nonnegative(basis: Array, wanted: Array) -> Array:
    """Two numbers of at least zero by which two columns come closest to what is wanted."""
    both: Array = np.linalg.lstsq(basis, wanted, rcond=None)[0]
    if (both >= 0).all():
        return both
    either = np.diag(np.maximum(basis.T @ wanted, 0) / np.square(basis).sum(0))
    best: Array = min(either, key=lambda one: float(np.square(basis @ one - wanted).sum()))
    return best

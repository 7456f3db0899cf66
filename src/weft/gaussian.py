r"""Diagonal Gaussian factors in natural parameters.

A factor over the last axis is :math:`\phi(z) \propto \exp(-\tfrac12 Λ z^2 + η z)` with precision
``Λ`` and information ``η = Λμ``. Products add, quotients subtract, a missing factor is ``(0, 0)``.
Improper factors (``Λ ≤ 0`` somewhere) are legal operands; asking one for a density or a sample is
an error.

Axes, here and everywhere: ``(…, latent)``; batched recursions use ``(time, subset, batch, latent)``
and put particles or trajectories first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "STD_FLOOR",
    "Gaussian",
    "ImproperGaussianError",
    "inverse_softplus",
    "positive_std",
    "raw_std",
]

STD_FLOOR = 1e-3
"""Smallest standard deviation a network may emit (supplement, "Transition Functions")."""


def positive_std(raw: Tensor) -> Tensor:
    """Standard deviation from an unconstrained number: ``softplus(raw) + STD_FLOOR``."""
    return F.softplus(raw) + STD_FLOOR


def raw_std(std: Tensor) -> Tensor:
    """Undo `positive_std`; what lies at the floor or below becomes as good as the floor."""
    return inverse_softplus((std - STD_FLOOR).clamp(min=STD_FLOOR**2))


def inverse_softplus(value: Tensor) -> Tensor:
    """Undo ``softplus``, for values above zero."""
    return value + torch.log(-torch.expm1(-value))


class ImproperGaussianError(ValueError):
    """A density or sample was asked of a factor that cannot be normalised."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A batch of diagonal Gaussian factors.

    Attributes
    ----------
    precision, information : Tensor
        ``Λ`` and ``η = Λμ``, of one shape ``(…, latent)``.

    Examples
    --------
    >>> a = Gaussian.from_moments(torch.tensor([0.0]), torch.tensor([1.0]))
    >>> b = Gaussian.from_moments(torch.tensor([2.0]), torch.tensor([1.0]))
    >>> (a * b).mean.item(), (a * b).variance.item()
    (1.0, 0.5)
    >>> (a * b / b).mean.item()
    0.0
    """

    precision: Tensor
    information: Tensor

    # Construction

    @classmethod
    def from_moments(cls, mean: Tensor, std: Tensor) -> Gaussian:
        """Build the proper factor with this mean and standard deviation."""
        precision = std.square().reciprocal()
        return cls(precision, precision * mean)

    @classmethod
    def empty(cls, like: Tensor) -> Gaussian:
        """Return the identity of the product: ``x * Gaussian.empty(x.precision) == x``."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    @classmethod
    def stack(cls, factors: Sequence[Gaussian], dim: int = 0) -> Gaussian:
        """Stack factors of equal shape along a new axis."""
        return cls(
            torch.stack([f.precision for f in factors], dim),
            torch.stack([f.information for f in factors], dim),
        )

    @classmethod
    def cat(cls, factors: Sequence[Gaussian], dim: int = 0) -> Gaussian:
        """Join factors along an axis they have."""
        return cls(
            torch.cat([f.precision for f in factors], dim),
            torch.cat([f.information for f in factors], dim),
        )

    # Shape

    @property
    def shape(self) -> torch.Size:
        """Shape of the parameters, ``(…, latent)``."""
        return self.precision.shape

    def __getitem__(self, index: object) -> Gaussian:
        return Gaussian(self.precision[index], self.information[index])  # type: ignore[index]

    def expand(self, *shape: int) -> Gaussian:
        """Broadcast both parameters to ``shape``."""
        return Gaussian(self.precision.expand(*shape), self.information.expand(*shape))

    def flip(self, dim: int) -> Gaussian:
        """Reverse one axis."""
        return Gaussian(self.precision.flip(dim), self.information.flip(dim))

    def transpose(self, one: int, other: int) -> Gaussian:
        """Exchange two axes."""
        return Gaussian(
            self.precision.transpose(one, other), self.information.transpose(one, other)
        )

    def detach(self) -> Gaussian:
        """Cut both parameters off the gradient."""
        return Gaussian(self.precision.detach(), self.information.detach())

    def unbind(self) -> list[Gaussian]:
        """Split along the first axis, without copies."""
        pairs = zip(self.precision.unbind(0), self.information.unbind(0), strict=True)
        return [Gaussian(precision, information) for precision, information in pairs]

    def where(self, condition: Tensor, other: Gaussian) -> Gaussian:
        """Take this factor where ``condition`` holds and ``other`` elsewhere."""
        return Gaussian(
            torch.where(condition, self.precision, other.precision),
            torch.where(condition, self.information, other.information),
        )

    # Algebra

    def __mul__(self, other: Gaussian) -> Gaussian:
        """Product: ``(x * y).log_factor(z) == x.log_factor(z) + y.log_factor(z)``."""
        return Gaussian(self.precision + other.precision, self.information + other.information)

    def __truediv__(self, other: Gaussian) -> Gaussian:
        """Quotient, the inverse of the product: ``x * y / y == x``."""
        return Gaussian(self.precision - other.precision, self.information - other.information)

    def __pow__(self, exponent: Tensor | float) -> Gaussian:
        """Power: ``(x ** a).log_factor(z) == a * x.log_factor(z)``, per dimension if ``a`` is."""
        return Gaussian(self.precision * exponent, self.information * exponent)

    def product(self) -> Gaussian:
        """Multiply stacked factors ``(modality, …, latent)``: the subset of all."""
        return Gaussian(self.precision.sum(0), self.information.sum(0))

    def subset_products(self, members: Tensor) -> Gaussian:
        """Multiply stacked factors ``(modality, …, latent)`` within subsets.

        ``members`` is ``(subset, modality)``, true where the modality belongs to the subset;
        the result is ``(subset, …, latent)``. An empty subset gives the empty factor.
        """
        weights = members.to(self.precision.dtype)
        return Gaussian(
            torch.einsum("sm,m...->s...", weights, self.precision),
            torch.einsum("sm,m...->s...", weights, self.information),
        )

    # Moments

    @property
    def is_proper(self) -> Tensor:
        """Where the precision is positive."""
        return self.precision > 0

    @property
    def mean(self) -> Tensor:
        """Mean ``η / Λ``; meaningful where the factor is proper."""
        return self.information / self.precision

    @property
    def variance(self) -> Tensor:
        """Variance ``1 / Λ``; meaningful where the factor is proper."""
        return self.precision.reciprocal()

    @property
    def std(self) -> Tensor:
        """Standard deviation; meaningful where the factor is proper."""
        return self.precision.rsqrt()

    def moment_match(self) -> Gaussian:
        """Collapse an equally weighted mixture over the first axis to one Gaussian.

        The result has the mixture's mean and (per dimension) its variance, the mean of the
        variances plus the variance of the means. The latter is summed in centred form, so it
        cannot come out negative however large the means are.
        """
        means = self.mean
        mean = means.mean(0)
        variance = self.variance.mean(0) + (means - mean).square().mean(0)
        precision = variance.reciprocal()
        return Gaussian(precision, precision * mean)

    # Densities and samples

    def log_factor(self, z: Tensor) -> Tensor:
        """Unnormalised log-density ``Σ -½Λz² + ηz`` over the last axis; defined for any factor."""
        return (self.information * z - 0.5 * self.precision * z.square()).sum(-1)

    def log_prob(self, z: Tensor) -> Tensor:
        """Normalised log-density at ``z``, summed over the last axis."""
        self._require_proper("has no density")
        squared = self.precision * (z - self.mean).square()
        return 0.5 * (self.precision.log() - squared - math.log(2 * math.pi)).sum(-1)

    def at(self, noise: Tensor) -> Tensor:
        """Map standard-normal points to this Gaussian: ``mean + std * noise``, differentiably."""
        return self.mean + self.std * noise

    def sample(self, generator: torch.Generator, count: int = 1) -> Tensor:
        """Draw reparameterised samples ``(count, …, latent)``."""
        self._require_proper("cannot be sampled")
        noise = torch.randn(
            (count, *self.shape),
            generator=generator,
            dtype=self.precision.dtype,
            device=self.precision.device,
        )
        return self.at(noise)

    def kl(self, other: Gaussian) -> Tensor:
        """Divergence ``KL(self ‖ other)``, summed over the last axis."""
        self._require_proper("has no divergence")
        other._require_proper("has no divergence")
        ratio = other.precision / self.precision
        squared = other.precision * (self.mean - other.mean).square()
        return 0.5 * (ratio - ratio.log() + squared - 1).sum(-1)

    def _require_proper(self, consequence: str) -> None:
        if not bool(self.is_proper.all()):
            index = tuple(torch.nonzero(~self.is_proper)[0].tolist())
            raise ImproperGaussianError(
                f"A Gaussian factor {consequence} because its precision at index {index} is "
                f"{self.precision[index].item():g}, not positive. Multiply it by a proper factor "
                "(such as the prior) first."
            )

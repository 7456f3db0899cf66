"""The gated transition function (supplement, "Transition Functions")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.gaussian import STD_FLOOR, Gaussian, positive_std

__all__ = ["GatedTransition"]


class GatedTransition(nn.Module):
    r"""Map a latent state to the Gaussian quotient factor of its neighbour in time.

    .. math::
        g = \mathrm{sigmoid}(\mathrm{MLP}_g(z)),\quad
        \tilde\mu = \mathrm{MLP}_c(z),\quad
        \mu = g \odot \tilde\mu + (1 - g) \odot \mathrm{Linear}(z),\quad
        \sigma = \mathrm{softplus}(\mathrm{Linear}(\tilde\mu)) + 0.001

    It starts as a slow process that keeps the standard-normal prior: with the gate nearly shut,
    ``prior × factor`` is close to ``z' = a z + noise`` with ``a = 0.95`` and unit stationary
    variance. So messages travel along time, and the prior is matched, before anything is learned.

    Parameters
    ----------
    latent, hidden : int
        Sizes of the state and of each perceptron's hidden layer.
    """

    MEMORY = 0.95
    SHUT = -2.0

    def __init__(self, latent: int, hidden: int) -> None:
        super().__init__()
        self.latent = latent
        self.hidden = hidden
        self.gate_hidden = nn.Linear(latent, hidden)
        self.gate = nn.Linear(hidden, latent)
        self.candidate_hidden = nn.Linear(latent, hidden)
        self.candidate = nn.Linear(hidden, latent)
        self.linear = nn.Linear(latent, latent)
        self.spread = nn.Linear(latent, latent)
        self._start_slow()

    @torch.no_grad()
    def _start_slow(self) -> None:
        """Set the linear path and the spread to p(z'|z) / p(z') of a stationary AR(1)."""
        std = math.sqrt(1 - self.MEMORY**2) / self.MEMORY
        nn.init.constant_(self.gate.bias, self.SHUT)
        nn.init.eye_(self.linear.weight).div_(self.MEMORY)
        nn.init.zeros_(self.linear.bias)
        self.spread.weight.mul_(0.1)
        nn.init.constant_(self.spread.bias, math.log(math.expm1(std - STD_FLOOR)))

    @property
    def largest(self) -> int:
        """The larger of the two sizes."""
        return max(self.latent, self.hidden)

    def packed(self) -> Tensor:
        """All parameters in one row, for the compiled scan.

        Three layers read the state and lie together; then come gate, candidate and spread. Each
        matrix is followed by its bias.
        """
        inward = (self.gate_hidden, self.candidate_hidden, self.linear)
        parts = [layer.weight for layer in inward] + [layer.bias for layer in inward]
        for layer in (self.gate, self.candidate, self.spread):
            parts += [layer.weight, layer.bias]
        return torch.cat([part.flatten() for part in parts])

    def forward(self, z: Tensor) -> Gaussian:
        """Map ``(…, latent)`` to a factor of the same shape."""
        inward = (self.gate_hidden, self.candidate_hidden, self.linear)
        weight = torch.cat([layer.weight for layer in inward])
        bias = torch.cat([layer.bias for layer in inward])
        sizes = [self.hidden, self.hidden, self.latent]
        to_gate, to_candidate, linear = torch.split(F.linear(z, weight, bias), sizes, -1)
        gate = torch.sigmoid(self.gate(torch.relu(to_gate)))
        candidate = self.candidate(torch.relu(to_candidate))
        mean = torch.lerp(linear, candidate, gate)
        return Gaussian.from_moments(mean, positive_std(self.spread(candidate)))

"""The gated transition function (supplement, "Transition Functions")."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.gaussian import Gaussian, positive_std

__all__ = ["GatedTransition"]


class GatedTransition(nn.Module):
    r"""Map a latent state to the Gaussian quotient factor of its neighbour in time.

    .. math::
        g = \mathrm{sigmoid}(\mathrm{MLP}_g(z)),\quad
        \tilde\mu = \mathrm{MLP}_c(z),\quad
        \mu = g \odot \tilde\mu + (1 - g) \odot \mathrm{Linear}(z),\quad
        \sigma = \mathrm{softplus}(\mathrm{Linear}(\tilde\mu)) + 0.001

    Parameters
    ----------
    latent, hidden : int
        Sizes of the state and of each perceptron's hidden layer.
    """

    def __init__(self, latent: int, hidden: int) -> None:
        super().__init__()
        self.gate_hidden = nn.Linear(latent, hidden)
        self.gate = nn.Linear(hidden, latent)
        self.candidate_hidden = nn.Linear(latent, hidden)
        self.candidate = nn.Linear(hidden, latent)
        self.linear = nn.Linear(latent, latent)
        self.spread = nn.Linear(latent, latent)

    def forward(self, z: Tensor) -> Gaussian:
        """Map ``(…, latent)`` to a factor of the same shape."""
        gate = torch.sigmoid(self.gate(torch.relu(self.gate_hidden(z))))
        candidate = self.candidate(torch.relu(self.candidate_hidden(z)))
        mean = torch.lerp(self.linear(z), candidate, gate)
        return Gaussian.from_moments(mean, positive_std(self.spread(candidate)))

"""Perceptron encoders and decoders (supplement, "Encoders and Decoders").

An encoder is a *features* network, ``(rows, *input) → (rows, features)``, followed by a
`GaussianHead`. The split lets recurrent inference use the features alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.gaussian import Gaussian, positive_std

__all__ = ["Embedding", "GaussianHead", "MLPDecoder", "MLPFeatures"]


class MLPFeatures(nn.Module):
    """One hidden ReLU layer over a flattened observation; with ``skip`` the observation as well."""

    def __init__(self, inputs: int, hidden: int, *, skip: bool = False) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(rows, *input)`` to ``(rows, hidden)``, or ``(rows, hidden + inputs)``."""
        flat = x.flatten(1)
        found = torch.relu(self.hidden(flat))
        return torch.cat([found, flat], 1) if self.skip else found


class Embedding(nn.Module):
    """Embed a category, then one hidden ReLU layer."""

    def __init__(self, categories: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(categories, hidden)
        self.hidden = nn.Linear(hidden, hidden)

    def forward(self, codes: Tensor) -> Tensor:
        """Map integer codes ``(rows,)`` to ``(rows, hidden)``."""
        return torch.relu(self.hidden(torch.relu(self.embedding(codes))))


class GaussianHead(nn.Module):
    """Map features to a Gaussian: in encoders the quotient factor ``q(z | x) / p(z)``."""

    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        self.mean = nn.Linear(features, latent)
        self.spread = nn.Linear(features, latent)

    def forward(self, features: Tensor) -> Gaussian:
        """Map ``(…, features)`` to Gaussians ``(…, latent)``."""
        return Gaussian.from_moments(*self.moments(features))

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of those Gaussians."""
        return self.mean(features), positive_std(self.spread(features))


class MLPDecoder(nn.Module):
    """One hidden ReLU layer from a latent state to a likelihood's raw output.

    With ``skip`` a linear map of the state is added to it.
    """

    def __init__(self, latent: int, hidden: int, outputs: int, *, skip: bool = False) -> None:
        super().__init__()
        self.hidden = nn.Linear(latent, hidden)
        self.output = nn.Linear(hidden, outputs)
        self.straight = nn.Linear(latent, outputs, bias=False) if skip else None

    def forward(self, z: Tensor) -> Tensor:
        """Map ``(rows, latent)`` to ``(rows, outputs)``."""
        raw: Tensor = self.output(torch.relu(self.hidden(z)))
        return raw if self.straight is None else raw + self.straight(z)

"""What one would use instead of a joint model: each fills gaps or names a class, for one task.

Arrays are ``(sequence, time, channel)`` in standardised units, NaN where nothing was observed or a
sequence has ended. What knows nothing about a channel answers 0, its mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["GRU", "interpolate", "last_value", "mean_or_zero", "ridge", "windows"]

Array = NDArray[np.float64]


def last_value(values: Array) -> Array:
    """Hold each channel's last value."""
    filled = values.copy()
    for t in range(1, filled.shape[1]):
        gap = np.isnan(filled[:, t])
        filled[:, t][gap] = filled[:, t - 1][gap]
    return mean_or_zero(filled)


def interpolate(values: Array) -> Array:
    """Draw straight lines between each channel's values; hold the first and last beyond them."""
    time = np.arange(values.shape[1])
    filled = values.swapaxes(1, 2).copy()
    for series in filled.reshape(-1, len(time)):
        seen = ~np.isnan(series)
        if seen.any():
            series[:] = np.interp(time, time[seen], series[seen])
    return mean_or_zero(filled.swapaxes(1, 2))


def mean_or_zero(values: Array) -> Array:
    """Fill what is left with the mean."""
    return np.nan_to_num(values, nan=0.0)


def windows(values: Array, reach: int) -> Array:
    """Lay each step's neighbours up to ``reach`` steps away beside it."""
    padded = np.pad(mean_or_zero(values), ((0, 0), (reach, reach), (0, 0)), mode="edge")
    steps = values.shape[1]
    return np.concatenate([padded[:, lag : lag + steps] for lag in range(2 * reach + 1)], -1)


def ridge(given: Array, wanted: Array, asked: Array, *, reach: int = 10, penalty: float) -> Array:
    """Regress a step's channels linearly on a window of others, and answer for new ones."""
    inputs, targets = windows(given, reach), wanted
    known = ~np.isnan(targets).any(-1)
    design, targets = inputs[known], targets[known]
    shift, offset = design.mean(0), targets.mean(0)
    design, targets = design - shift, targets - offset
    gram = design.T @ design + penalty * len(design) * np.eye(design.shape[1])
    weights = np.linalg.solve(gram, design.T @ targets)
    answer: Array = (windows(asked, reach) - shift) @ weights + offset
    return answer


class GRU(nn.Module):
    """Two layers of a bidirectional GRU, trained for one task: numbers per step, or one class."""

    def __init__(self, channels: int, outputs: int, hidden: int = 128, dropout: float = 0.3):
        super().__init__()
        self.gru = nn.GRU(
            2 * channels, hidden, 2, batch_first=True, bidirectional=True, dropout=dropout
        )
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * hidden, outputs))

    def forward(self, values: Tensor) -> Tensor:
        """Map ``(sequence, time, channel)`` with gaps to ``(sequence, time, output)``."""
        seen = ~values.isnan()
        found: Tensor = self.head(self.gru(torch.cat([values.nan_to_num(), seen], -1))[0])
        return found

    def train_on(
        self,
        given: Array,
        wanted: NDArray[Any],
        lengths: NDArray[np.int64],
        *,
        epochs: int,
        seed: int,
        rate: float = 1e-3,
        batch: int = 20,
    ) -> GRU:
        """Minimise squared errors, or with one code per sequence the cross-entropy of its mean."""
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.from_numpy(given).float()
        targets = torch.from_numpy(wanted)
        inside = torch.arange(inputs.shape[1]) < torch.from_numpy(lengths)[:, None]
        optimizer = torch.optim.Adam(self.parameters(), rate)
        steps = epochs * -(-len(inputs) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        self.train()
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(inputs), generator=generator), batch):
                longest = int(lengths[rows].max())
                found = self(inputs[rows, :longest])
                loss = _loss(found, targets[rows], inside[rows, :longest])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(self.parameters(), 5.0)
                optimizer.step()
                schedule.step()
        return self.eval()

    @torch.no_grad()
    def answer(self, given: Array) -> Array:
        """Numbers per step."""
        found: Array = self(torch.from_numpy(given).float()).double().numpy()
        return found

    @torch.no_grad()
    def classify(self, given: Array, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """One class per sequence."""
        inputs = torch.from_numpy(given).float()
        inside = torch.arange(inputs.shape[1]) < torch.from_numpy(lengths)[:, None]
        found: NDArray[np.int64] = _pool(self(inputs), inside).argmax(-1).numpy()
        return found


def _pool(found: Tensor, inside: Tensor) -> Tensor:
    return (found * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)


def _loss(found: Tensor, wanted: Tensor, inside: Tensor) -> Tensor:
    if wanted.dim() == 1:
        return F.cross_entropy(_pool(found, inside), wanted)
    wanted = wanted[:, : found.shape[1]].float()
    known = inside[..., None] & ~wanted.isnan()
    return ((found - wanted.nan_to_num()).square() * known).sum() / known.sum()

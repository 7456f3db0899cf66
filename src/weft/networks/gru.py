"""Gated recurrent units: of several modalities side by side, and of one in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

__all__ = ["GRUFeatures", "GRUs", "differences"]

SHUT = 1e4
"""Input of an update gate at which it keeps a state exactly."""


class GRUs(nn.Module):
    r"""One GRU per modality, in PyTorch's parameters, each with a learned initial state.

    .. math::
        r, u = \mathrm{sigmoid}(W_{ru} f + V_{ru} h + b_{ru}), \quad
        n = \tanh(W_n f + b_n + r \odot (V_n h + c_n)), \quad
        h' = (1 - u) \odot n + u \odot h

    Parameters
    ----------
    widths : sequence of int
        Width of each modality's features.
    hidden : int
        Width of every state.
    """

    def __init__(self, widths: Sequence[int], hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cells = nn.ModuleList(nn.GRUCell(width, hidden) for width in widths)
        self.initial = nn.Parameter(torch.zeros(len(widths), hidden))

    def weight_ih(self, position: int) -> Tensor:
        """How one modality's features enter its gates, ``(3 · hidden, features)``."""
        return self._cells[position].weight_ih

    def forward(
        self, gates: Tensor, update: Tensor, *, backward: bool, start: Tensor | None = None
    ) -> Tensor:
        """States ``(time, modality, row, hidden)`` after each step, in either direction of time.

        Parameters
        ----------
        gates : Tensor
            ``(time, modality, row, 3 · hidden)``: features times ``weight_ih`` of their cell.
        update : Tensor
            ``(time, modality, row)``, false where a state stays as it is.
        backward : bool
            Whether to go from the last step to the first.
        start : Tensor, optional
            States ``(modality, row, hidden)`` to go on from; the initial ones if not given.
        """
        size = self.hidden
        parts = [2 * size, size]
        weight = torch.stack([cell.weight_hh for cell in self._cells]).transpose(1, 2)
        bias = torch.stack([cell.bias_hh for cell in self._cells])[:, None]
        gates = gates + torch.stack([cell.bias_ih for cell in self._cells])[:, None]
        if not update.all():  # a GRU keeps its state where its update gate is 1
            kept = torch.zeros_like(gates)
            kept[..., size : 2 * size] = SHUT * ~update[..., None]
            gates = gates + kept
        switches, candidates = (part.unbind() for part in torch.split(gates, parts, -1))
        state = self.initial[:, None].expand(-1, gates.shape[2], -1) if start is None else start
        states = [state] * len(gates)
        for t in reversed(range(len(gates))) if backward else range(len(gates)):
            memory, recalled = torch.split(torch.baddbmm(bias, state, weight), parts, -1)
            reset, keep = torch.sigmoid(switches[t] + memory).chunk(2, -1)
            candidate = torch.tanh(torch.addcmul(candidates[t], reset, recalled))
            state = torch.lerp(candidate, state, keep)
            states[t] = state
        return torch.stack(states)

    @property
    def _cells(self) -> list[nn.GRUCell]:
        return [cell for cell in self.cells if isinstance(cell, nn.GRUCell)]


class GRUFeatures(nn.Module):
    """What a step's past and future say, by a GRU in each direction, beside the step itself.

    It reads whole sequences ``(time, batch, …)``: values, and behind them the mask. A sequence
    ends with its last observation, so padding says nothing.

    Parameters
    ----------
    entries : int
        Numbers per step.
    hidden : int
        Width of the states of each direction.
    layers, dropout : int, float
        GRUs upon one another, and the share of states dropped between them in training.
    differences : bool
        Whether the GRUs see speed and acceleration as well (`differences`). Positions of one
        sensor are often what another one measures the motion of, and a motion is more alike from
        one subject to the next than the place where it happens.
    """

    def __init__(
        self,
        entries: int,
        hidden: int,
        *,
        layers: int = 1,
        dropout: float = 0.0,
        differences: bool = False,
    ) -> None:
        super().__init__()
        self.entries = entries
        self.differences = differences
        inputs = (4 if differences else 2) * entries
        self.gru = nn.GRU(inputs, hidden, layers, dropout=dropout, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(time, batch, …)`` to ``(time, batch, 2 · hidden + 2 · entries)``."""
        x = x.flatten(2)
        values, seen = torch.split(x, self.entries, -1)
        steps = torch.arange(1, len(x) + 1, device=x.device)[:, None]
        ends = (steps * seen.bool().any(-1)).amax(0).clamp(min=1).cpu()
        read = torch.cat([x, differences(values, seen)], -1) if self.differences else x
        packed = pack_padded_sequence(read, ends, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], total_length=len(x))
        return torch.cat([states, x], -1)


def differences(values: Tensor, seen: Tensor) -> Tensor:
    """How ``(time, batch, entries)`` change: first and second differences, ``(…, 2 · entries)``.

    Twice ``x[t + 1] - x[t - 1]`` and ``x[t + 2] - 2 x[t] + x[t - 2]``, so that numbers of unit
    variance that change little between steps give numbers of a like size. A difference is zero
    where one of its steps is missing.
    """

    def later(x: Tensor, steps: int) -> Tensor:
        padded = F.pad(x, (0, 0, 0, 0, abs(steps), abs(steps)))
        return padded[abs(steps) + steps :][: len(x)]

    speed = later(values, 1) - later(values, -1)
    bend = later(values, 2) - 2 * values + later(values, -2)
    known = later(seen, 1) * later(seen, -1), later(seen, 2) * seen * later(seen, -2)
    return 2 * torch.cat([known[0] * speed, known[1] * bend], -1)

"""Gated recurrent units: of several modalities side by side, and of one in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["GRUFeatures", "GRUs", "bridged", "differences"]

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
        weight = torch.stack([cell.weight_hh for cell in self._cells])
        bias = torch.stack([cell.bias_hh for cell in self._cells])
        gates = gates + torch.stack([cell.bias_ih for cell in self._cells])[:, None]
        if start is None:
            start = self.initial[:, None].expand(-1, gates.shape[2], -1)
        if not backward:
            return run_units(gates, update, weight, bias, start)
        return run_units(gates.flip(0), update.flip(0), weight, bias, start).flip(0)

    @property
    def _cells(self) -> list[nn.GRUCell]:
        return [cell for cell in self.cells if isinstance(cell, nn.GRUCell)]


def run_units(gates: Tensor, update: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
    """States ``(time, unit, row, hidden)`` of several GRUs after each step.

    Parameters
    ----------
    gates : Tensor
        ``(time, unit, row, 3 · hidden)``: what inputs say to resetting, updating and the candidate.
    update : Tensor
        ``(time, unit, row)``, false where a state stays as it is.
    weight, bias : Tensor
        ``(unit, 3 · hidden, hidden)`` and ``(unit, 3 · hidden)``: what states say to the same.
    start : Tensor
        ``(unit, row, hidden)``.
    """
    size = start.shape[-1]
    if not update.all():  # a GRU keeps its state where its update gate is 1
        kept = torch.zeros_like(gates)
        kept[..., size : 2 * size] = SHUT * ~update[..., None]
        gates = gates + kept
    states: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
        gates, weight.transpose(1, 2), bias[:, None], start
    )
    return states


class _Recurrence(torch.autograd.Function):
    """The loop along time and its gradient; all that need not be in the loop is outside.

    A state's gradient reaches the gates through slopes that the forward pass knows already. So the
    loop back carries it along, and the gradients of gates and weights are products of what it left.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
        size = start.shape[-1]
        states = gates.new_empty(len(gates) + 1, *start.shape)
        states[0] = start
        switches, candidates = (part.clone() for part in torch.split(gates, [2 * size, size], -1))
        recalled = torch.empty_like(candidates)
        for t, (switch, new) in enumerate(zip(switches, candidates, strict=True)):
            memory = torch.baddbmm(bias, states[t], weight)
            recalled[t] = memory[..., 2 * size :]
            switch.add_(memory[..., : 2 * size]).sigmoid_()
            new.addcmul_(switch[..., :size], recalled[t]).tanh_()
            torch.lerp(new, states[t], switch[..., size:], out=states[t + 1])
        ctx.save_for_backward(weight, states, recalled, switches, candidates)
        return states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, states, recalled, switches, new = ctx.saved_tensors
        before, (reset, keep) = states[:-1], switches.chunk(2, -1)
        candidate = (1 - keep) * (1 - new.square())
        slopes = torch.stack(
            [
                candidate * recalled * reset * (1 - reset),
                (before - new) * keep * (1 - keep),
                candidate * reset,
            ],
            -2,
        )
        back, onward = weight.transpose(1, 2).contiguous(), torch.zeros_like(states[0])
        arrived, memory = torch.empty_like(before), torch.empty_like(slopes)
        for t in reversed(range(len(before))):
            torch.add(onward, gradient[t], out=arrived[t])
            torch.mul(slopes[t], arrived[t].unsqueeze(-2), out=memory[t])
            onward = torch.baddbmm(arrived[t] * keep[t], memory[t].flatten(-2), back)
        gates = torch.cat([memory[..., :2, :].flatten(-2), candidate * arrived], -1)
        through = memory.flatten(-2)
        to_weight = torch.einsum("turh,turg->uhg", before, through)
        return gates, to_weight, through.sum((0, 2))[:, None], onward


class GRUFeatures(nn.Module):
    """What a step's past and future say, by a GRU in each direction, beside the step itself.

    It reads whole sequences ``(time, batch, …)``: values, and behind them the mask. Gaps are
    `bridged` by straight lines. What lies outside of a sequence says nothing.

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

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        """Map ``(time, batch, …)`` to ``(time, batch, 2 · hidden + 2 · entries)``.

        ``inside`` ``(time, batch)`` is true from the first to the last step to be read.
        """
        values, seen = torch.split(x.flatten(2), self.entries, -1)
        values = bridged(values, seen.bool())
        own = torch.cat([values, seen], -1)
        read = torch.cat([own, differences(values)], -1) if self.differences else own
        return torch.cat([self._states(read, inside), own], -1)

    def _states(self, x: Tensor, inside: Tensor) -> Tensor:
        """What the last layer remembers, both ways; zero outside of a sequence.

        The two directions are two units, one of which meets time turned round. Their states stay at
        zero until each comes to the sequence.
        """
        update = torch.stack([inside, inside.flip(0)], 1)
        start = x.new_zeros(2, x.shape[1], self.gru.hidden_size)
        for layer in range(self.gru.num_layers):
            inward, weight, bias_in, bias = (
                torch.stack(
                    [getattr(self.gru, f"{part}_l{layer}{way}") for way in ("", "_reverse")]
                )
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            gates = torch.einsum("tbi,ugi->tubg", x, inward) + bias_in[:, None]
            gates = torch.stack([gates[:, 0], gates[:, 1].flip(0)], 1)
            ahead, back = run_units(gates, update, weight, bias, start).unbind(1)
            x = torch.cat([ahead, back.flip(0)], -1) * inside[..., None]
            if layer + 1 < self.gru.num_layers:
                x = F.dropout(x, self.gru.dropout, self.training)
        return x


def bridged(values: Tensor, seen: Tensor) -> Tensor:
    """Draw straight lines between what was seen of ``(time, batch, entry)``.

    Before the first and after the last value that was seen, these are held.
    """
    steps = torch.arange(len(values), device=values.device)[:, None, None].expand_as(values)
    past = torch.where(seen, steps, -1).cummax(0).values
    coming = torch.where(seen, steps, len(values)).flip(0).cummin(0).values.flip(0)
    before = torch.where(past < 0, coming, past).clamp(max=len(values) - 1)
    after = torch.where(coming == len(values), past, coming).clamp(min=0)
    share = (steps - before).to(values.dtype) / (after - before).clamp(min=1)
    return torch.lerp(values.gather(0, before), values.gather(0, after), share)


def differences(values: Tensor) -> Tensor:
    """How ``(time, batch, entry)`` change: first and second differences, ``(…, 2 · entries)``.

    Twice ``x[t + 1] - x[t - 1]`` and ``x[t + 2] - 2 x[t] + x[t - 2]``, so that numbers of unit
    variance that change little between steps give numbers of a like size. Beyond both ends the
    outermost values are held.
    """
    steps = torch.arange(len(values), device=values.device)

    def shifted(by: int) -> Tensor:
        return values[(steps + by).clamp(0, len(values) - 1)]

    speed = shifted(1) - shifted(-1)
    bend = shifted(2) - 2 * values + shifted(-2)
    return 2 * torch.cat([speed, bend], -1)

"""What a model sees of several sequences at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Batch"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Time-major tensors of several sequences, padded to the longest.

    Attributes
    ----------
    values, observed : dict[str, Tensor]
        ``(time, batch, *shape)`` per modality; values are zero where not observed.
    lengths : Tensor
        ``(batch,)`` steps of each sequence.
    index : Tensor
        ``(batch,)`` position of each sequence in the `Sequences` it came from.
    past : Batch, optional
        Steps before the first, which `window` sees and nothing else does.
    """

    values: dict[str, Tensor]
    observed: dict[str, Tensor]
    lengths: Tensor
    index: Tensor
    past: Batch | None = None

    @property
    def steps(self) -> int:
        """Length of the longest sequence."""
        return int(self.lengths.max())

    @property
    def valid(self) -> Tensor:
        """``(time, batch)``: false on padding."""
        clock = torch.arange(self.steps, device=self.lengths.device)
        return clock[:, None] < self.lengths

    def seen(self, name: str) -> Tensor:
        """``(time, batch)``: where anything of a modality was observed; false on padding."""
        observed = self.observed[name]
        return observed if observed.dim() == 2 else observed.flatten(2).any(-1)

    def span(self, *names: str) -> Tensor:
        """``(time, batch)``: from the first to the last step at which any of them was observed."""
        seen = torch.stack([self.seen(name) for name in names]).any(0)
        begun, goes_on = seen.cummax(0).values, seen.flip(0).cummax(0).values.flip(0)
        return begun & goes_on

    def rows(self, name: str) -> Tensor:
        """Where `seen` is true, as numbers of rows of the flattened ``(time · batch)``."""
        return self.seen(name).flatten().nonzero()[:, 0]

    def window(self, name: str, rows: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Values and masks of flattened rows, behind those of the ``context`` steps before each.

        Steps lie side by side along the first axis of one, the earliest first: ``(row, (context +
        1) · shape[0], …)``. Before a sequence's start nothing was observed.
        """
        if not context:
            return self.values[name].flatten(0, 1)[rows], self.observed[name].flatten(0, 1)[rows]
        parts = [self] if self.past is None else [self.past, self]

        def wide(known: list[Tensor]) -> Tensor:
            series = torch.cat(known)
            earlier = series.new_zeros(context, *series.shape[1:])
            lags = len(series) - self.steps + torch.arange(context + 1, device=rows.device)
            steps = rows[:, None] + lags * len(self.lengths)
            return torch.cat([earlier, series]).flatten(0, 1)[steps].flatten(1, 2)

        return (
            wide([part.values[name] for part in parts]),
            wide([part.observed[name] for part in parts]),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Move all tensors to a device."""
        return Batch(
            {name: value.to(device) for name, value in self.values.items()},
            {name: seen.to(device) for name, seen in self.observed.items()},
            self.lengths.to(device),
            self.index.to(device),
        )

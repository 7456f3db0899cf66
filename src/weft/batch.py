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
    """

    values: dict[str, Tensor]
    observed: dict[str, Tensor]
    lengths: Tensor
    index: Tensor

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

    def rows(self, name: str) -> Tensor:
        """Where `seen` is true, as numbers of rows of the flattened ``(time · batch)``."""
        return self.seen(name).flatten().nonzero()[:, 0]

    def to(self, device: torch.device | str) -> Batch:
        """Move all tensors to a device."""
        return Batch(
            {name: value.to(device) for name, value in self.values.items()},
            {name: seen.to(device) for name, seen in self.observed.items()},
            self.lengths.to(device),
            self.index.to(device),
        )

"""Encoders of films: what single frames show, and how they follow one another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.networks.gru import GRUFeatures
from weft.networks.image import ImageFeatures

__all__ = ["FilmFeatures"]


class FilmFeatures(nn.Module):
    """Convolutions over every frame, and a GRU in each direction over a summary of each.

    It reads whole sequences ``(time, batch, 2 · channels, size, size)``: frames, and behind them
    the mask. Only frames that were seen reach the convolutions; the GRUs see summaries, `bridged`
    where frames are missing, and how these change.

    Parameters
    ----------
    channels, size : int
        Channels of a frame without its mask, and its height and width.
    hidden : int
        Width of a summary, and of the states of each direction.
    dropout : float
        Share of what the GRUs say that is dropped in training, so that single frames go on to be
        read as well.

    Examples
    --------
    >>> import torch
    >>> film, inside = torch.zeros(7, 2, 2, 28, 28), torch.ones(7, 2, dtype=torch.bool)
    >>> FilmFeatures(1, 28, 16)(film, inside).shape
    torch.Size([7, 2, 1088])
    """

    def __init__(self, channels: int, size: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.channels = channels
        self.frames = ImageFeatures(channels, size)
        self.summary = nn.Linear(self.frames.width, hidden)
        self.motion = GRUFeatures(hidden, hidden, differences=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        """Map ``(time, batch, 2 · channels, size, size)`` to ``(time, batch, features)``.

        ``inside`` ``(time, batch)`` is true from the first to the last step to be read.
        """
        frames, mask = torch.split(x, self.channels, 2)
        seen = mask.flatten(2).any(-1)
        shown = self._shown(frames, seen)
        summaries = torch.tanh(self.summary(F.relu(shown)))
        known = seen[..., None].expand_as(summaries).to(summaries)
        motion = self.motion(torch.cat([summaries, known], -1), inside)
        return torch.cat([self.dropout(motion), shown], -1)

    def _shown(self, frames: Tensor, seen: Tensor) -> Tensor:
        """What the frames that were seen show, ``(time, batch, width)``; zero elsewhere."""
        rows = seen.flatten().nonzero()[:, 0]
        nothing = frames.new_zeros(seen.numel(), self.frames.width)
        found = nothing.index_copy(0, rows, self.frames(frames.flatten(0, 1)[rows]))
        return found.reshape(*seen.shape, -1)

"""Training images of the video experiment, moved about so that a few clips show more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from weft.columns import Array
from weft.sequences import Sequences

__all__ = ["move_images"]


def move_images(
    data: Sequences,
    generator: torch.Generator,
    most: int,
    mirror: bool,
    stretch: float = 0.0,
) -> Sequences:
    """Move all images of a sequence by the same few pixels, and mirror about every other one.

    They may be stretched both ways by a share of their size, and slanted by half as much. Pixels
    are taken as they are, for mixing them would blur edges; what enters at an edge repeats it.
    """
    count = len(data)
    moves = torch.randint(-most, most + 1, (count, 2), generator=generator).numpy()
    mirrored = torch.rand(count, generator=generator).numpy() < 0.5 * mirror
    bends = stretch * (2 * torch.rand(count, 3, generator=generator).numpy() - 1)
    columns = dict(data.columns)
    for name, column in data.columns.items():
        if len(column.shape) != 3:
            continue
        values = column.values.copy()
        for i, (first, length) in enumerate(zip(data.starts, data.lengths, strict=True)):
            frames = slice(first, first + length)
            places = _places(column.shape[1], moves[i], bends[i], mirrored[i])
            values[frames] = values[frames][:, :, *places]
        columns[name] = replace(column, values=np.where(column.observed, values, 0))
    return replace(data, columns=columns)


def _places(side: int, move: Array, bend: Array, mirrored: bool) -> tuple[Array, Array]:
    """Row and column ``(side, side)`` that each pixel of a moved image comes from."""
    centre = (side - 1) / 2
    down, right = np.meshgrid(np.arange(side) - centre, np.arange(side) - centre, indexing="ij")
    rows = (1 + bend[0]) * down + centre + move[0]
    columns = (1 + bend[1]) * right + bend[2] / 2 * down + centre + move[1]
    if mirrored:
        columns = columns[:, ::-1]
    nearest = np.rint([rows, columns]).astype(int).clip(0, side - 1)
    return nearest[0], nearest[1]

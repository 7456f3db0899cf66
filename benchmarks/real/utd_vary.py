"""Clips of UTD-MHAD as they might have been: of other bodies, other straps, another pace.

Four people are few to learn from. Each clip of a batch is varied as a whole, anew every time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.real.utd_data import SENSORS
from weft import Sequences

__all__ = ["vary"]

Array = NDArray[np.float64]

PACE = 0.4
"""Share by which a movement is slower or faster at times."""
TURN, STRETCH, JOINT = 0.2, 0.16, 0.1
"""Of a body: radians about the vertical, share along an axis, torsos of each joint."""
STRAP, SWING = 0.15, 0.1
"""Of a sensor: radians about any axis, share of the speed of rotation."""


def vary(data: Sequences, generator: torch.Generator) -> Sequences:
    """Vary every clip."""

    def normal(*shape: int) -> Array:
        return torch.randn(len(data), *shape, generator=generator, dtype=torch.float64).numpy()

    clip, paces = data.sequence_of_row, normal(4)
    taken = np.concatenate(
        [
            first + warped(steps, pace)
            for first, steps, pace in zip(data.starts, data.lengths, paces, strict=True)
        ]
    )
    bodies = rotations(normal(3) * (0.0, TURN, 0.0)) * np.exp(STRETCH * normal(1, 3))
    joints = JOINT * normal(20, 3)
    straps = rotations(STRAP * normal(3))
    swings = np.concatenate([np.zeros((len(data), 1, 1)), SWING * normal(1, 1)], 1)

    def varied(name: str, values: Array) -> Array:
        points = values.reshape(len(values), -1, 3)
        if name == "skeleton":
            points = turned(points, bodies[clip]) + joints[clip]
        else:  # acceleration keeps its gravity, rotation may be faster
            points = turned(points, straps[clip]) * np.exp(swings[clip])
        return points.reshape(values.shape)

    columns = {}
    for name, column in data.columns.items():
        values, seen = column.values[taken], column.observed[taken]
        if name in SENSORS:
            values = np.where(seen, varied(name, values), 0).astype(values.dtype)
        columns[name] = replace(column, values=values, observed=seen)
    return replace(data, columns=columns)


def warped(steps: int, pace: Array) -> NDArray[np.int64]:
    """Which steps to take one after the other, from first to last, at a pace that changes."""
    speed = np.interp(np.linspace(0, 1, steps), np.linspace(0, 1, len(pace)), np.exp(PACE * pace))
    way = np.cumsum(speed) - speed[0]
    found: NDArray[np.int64] = np.rint(way / max(way[-1], 1e-12) * (steps - 1)).astype(np.int64)
    return found


def rotations(vectors: Array) -> Array:
    """Matrices ``(clip, 3, 3)`` of turns about vectors ``(clip, 3)`` by their lengths."""
    x, y, z = vectors.T
    none = np.zeros_like(x)
    generators = np.array([[none, -z, y], [z, none, -x], [-y, x, none]]).transpose(2, 0, 1)
    found: Array = torch.linalg.matrix_exp(torch.from_numpy(generators)).numpy()
    return found


def turned(points: Array, matrices: Array) -> Array:
    """Points ``(row, point, 3)``, each row by a matrix of its own."""
    return points @ matrices.swapaxes(1, 2)

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
from weft.columns import Column

__all__ = ["vary"]

Array = NDArray[np.float64]

PACE = 0.4
"""Share by which a movement is slower or faster at times."""
TURN, STRETCH, JOINT = 0.4, 0.06, 0.03
"""Of a body: radians about the vertical, share along an axis, torsos of each joint."""
STRAP, SWING = 0.3, 0.1
"""Of a sensor: radians about any axis, share of the speed of rotation."""


def vary(data: Sequences, generator: torch.Generator) -> Sequences:
    """Vary every clip."""

    def normal(*shape: int) -> Array:
        return torch.randn(len(data), *shape, generator=generator, dtype=torch.float64).numpy()

    clip = data.sequence_of_row
    place, speed = walk(data, normal(4))
    bodies = rotations(normal(3) * (0.0, TURN, 0.0)) * np.exp(STRETCH * normal(1, 3))
    joints = JOINT * normal(20, 3)
    straps = rotations(STRAP * normal(3))
    swings = speed * np.exp(SWING * normal(1))[clip, 0]

    def varied(name: str, values: Array) -> Array:
        points = values.reshape(len(values), -1, 3)
        if name == "skeleton":
            points = turned(points, bodies[clip]) + joints[clip]
        else:  # acceleration is mostly gravity, rotation is as fast as the movement
            points = turned(points, straps[clip])
            points[:, 1] *= swings[:, None]
        return points.reshape(values.shape)

    columns = {}
    for name, column in data.columns.items():
        if name in SENSORS:
            values, seen = between(column, place)
            values = np.where(seen, varied(name, values), 0)
            columns[name] = replace(column, values=values, observed=seen)
        else:
            columns[name] = column.take(np.rint(place).astype(np.int64))
    return replace(data, columns=columns)


def walk(data: Sequences, paces: Array) -> tuple[Array, Array]:
    """Walk through clips from first to last row at a pace that changes: places, and speeds there.

    A place between two rows is a fraction.
    """
    places, speeds = [], []
    for first, steps, pace in zip(data.starts, data.lengths, paces, strict=True):
        knots = np.linspace(0, steps - 1, len(pace))
        speed = np.interp(np.arange(steps), knots, np.exp(PACE * pace))
        way = np.cumsum(speed) - speed[0]
        scale = (steps - 1) / max(way[-1], 1e-12)
        places.append(first + np.minimum(way * scale, steps - 1))
        speeds.append(speed * scale)
    return np.concatenate(places), np.concatenate(speeds)


def between(column: Column, place: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Values on the straight lines between rows, and where both of their ends were observed."""
    low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
    share = (place - low)[:, None]
    values = (1 - share) * column.values[low] + share * column.values[high]
    return values, column.observed[low] & column.observed[high]


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

"""The paper's inference tasks as data: what is taken away, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from weft.columns import Array
from weft.corruption import delete_between, delete_steps
from weft.prediction import Prediction
from weft.sequences import Sequences

__all__ = ["SPIRAL_TASKS", "Task", "squared_distance"]


@dataclass(frozen=True)
class Task:
    """One way of losing data, and the error (mean, SD over the test set) the paper reports."""

    name: str
    title: str
    corrupt: Callable[[Sequences, torch.Generator], Sequences]
    paper: tuple[float, float]


SPIRAL_TASKS = (
    Task("recon", "reconstruction", lambda data, _: data, (0.02, 0.01)),
    Task(
        "half",
        "half missing",
        lambda data, generator: delete_steps(data, 0.5, generator),
        (0.04, 0.01),
    ),
    Task(
        "forward",
        "forward extrapolation",
        lambda data, _: delete_between(data, 0.75, 1.0),
        (0.12, 0.10),
    ),
    Task(
        "backward",
        "backward extrapolation",
        lambda data, _: delete_between(data, 0.0, 0.25),
        (0.07, 0.03),
    ),
    Task(
        "conditional",
        "y from x",
        lambda data, _: delete_between(data, 0.25, 1.0, ["y"]),
        (0.26, 0.26),
    ),
)
"""Spirals: reconstruction, drop half, both extrapolations, conditional generation."""


def squared_distance(predictions: dict[str, Prediction], truth: Sequences) -> Array:
    """Squared distance per time step, summed over modalities and averaged over each sequence."""
    squares = sum(
        np.square(predictions[name].mean - truth.padded(name)).sum(-1) for name in truth.names
    )
    found: Array = np.nanmean(squares, axis=1)
    return found

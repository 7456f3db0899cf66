"""The paper's inference tasks as data: what is taken away, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from weft.columns import Array
from weft.corruption import delete_between, delete_steps
from weft.metrics import structural_similarity
from weft.prediction import Prediction
from weft.sequences import Sequences

__all__ = ["SPIRAL_TASKS", "VIDEO_TASKS", "Task", "accuracy", "similarity", "squared_distance"]


@dataclass(frozen=True)
class Task:
    """One way of losing data, and the figure (mean, SD over the test set) the paper reports.

    ``target`` is the modality to look at, where it is not all of them or what was given.
    """

    name: str
    title: str
    corrupt: Callable[[Sequences, torch.Generator], Sequences]
    paper: tuple[float, float]
    target: str | None = None


def _whole(data: Sequences, generator: torch.Generator) -> Sequences:
    return data


def _half(data: Sequences, generator: torch.Generator) -> Sequences:
    return delete_steps(data, 0.5, generator)


def _start(data: Sequences, generator: torch.Generator) -> Sequences:
    return delete_between(data, 0.75, 1.0)


def _end(data: Sequences, generator: torch.Generator) -> Sequences:
    return delete_between(data, 0.0, 0.25)


SPIRAL_TASKS = (
    Task("recon", "reconstruction", _whole, (0.02, 0.01)),
    Task("half", "half missing", _half, (0.04, 0.01)),
    Task("forward", "forward extrapolation", _start, (0.12, 0.10)),
    Task("backward", "backward extrapolation", _end, (0.07, 0.03)),
    Task(
        "conditional",
        "y from x",
        lambda data, _: delete_between(data, 0.25, 1.0, ["y"]),
        (0.26, 0.26),
    ),
)
"""Spirals: reconstruction, drop half, both extrapolations, conditional generation."""

VIDEO_TASKS = (
    Task("recon", "reconstruction", _whole, (0.85, 0.03)),
    Task("half", "half missing", _half, (0.84, 0.04)),
    Task("forward", "forward extrapolation", _start, (0.84, 0.04)),
    Task("backward", "backward extrapolation", _end, (0.83, 0.05)),
    Task("silhouette", "silhouettes", _whole, (0.85, 0.03), "silhouette"),
    Task("action", "action", _whole, (0.69, 0.33), "action"),
    Task("action_half", "action, half missing", _half, (np.nan, np.nan), "action"),
)
"""Video, after all other modalities were hidden: the same four, then what is inferred from it."""


def squared_distance(predictions: dict[str, Prediction], truth: Sequences) -> Array:
    """Squared distance per time step, summed over modalities and averaged over each sequence."""
    squares = sum(
        np.square(predictions[name].mean - truth.padded(name)).sum(-1) for name in truth.names
    )
    found: Array = np.nanmean(squares, axis=1)
    return found


def similarity(prediction: Prediction, truth: Sequences, name: str) -> Array:
    """Structural similarity to the frames of a modality, averaged over each sequence."""
    means = []
    for predicted, frames in zip(prediction.mean, truth.arrays(name), strict=True):
        images = torch.from_numpy(predicted[: len(frames)]).float()
        found = structural_similarity(images, torch.from_numpy(frames).float())
        means.append(float(found.mean()))
    return np.array(means)


def accuracy(prediction: Prediction, truth: Sequences, name: str) -> Array:
    """Share of the steps of each sequence at which the most probable label is the true one."""
    labels = prediction.labels
    return np.array(
        [
            np.mean(predicted[: len(true)] == true)
            for predicted, true in zip(labels, truth.arrays(name), strict=True)
        ]
    )

"""UTD-MHAD on one grid: 27 actions, a sensor worn at the wrist or thigh, and a skeleton.

A clip's grid is that of its skeleton frames. The sensor has 2.67 samples per frame; a frame takes
their mean over its share of the clip. Joints are relative to where the hips are in the first frame,
in lengths of the torso.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import Sequences

__all__ = ["ACTIONS", "SENSORS", "read_clips", "subjects"]

SENSORS = ("inertial", "skeleton")
ACTIONS = tuple(f"a{i:02}" for i in range(1, 28))
NECK, HIPS = 1, 3
NAME = re.compile(r"a(\d+)_s(\d+)_t(\d+)")


def read_clips(folder: Path) -> Sequences:
    """All clips, with ids like ``a1_s2_t3``: action, subject, trial."""
    with np.load(folder / "utd_mhad_inertial_skeleton.npz") as file:
        names = sorted({key.split("/")[0] for key in file.files}, key=_numbers)
        skeletons = [_relative(file[f"{name}/skeleton"]) for name in names]
        sensors = [file[f"{name}/inertial"] for name in names]
    steps = [len(skeleton) for skeleton in skeletons]
    actions = [ACTIONS[_numbers(name)[0] - 1] for name in names]
    return Sequences.from_arrays(
        {
            "inertial": [binned(s, count) for s, count in zip(sensors, steps, strict=True)],
            "skeleton": skeletons,
            "action": [
                np.full(count, action, object) for action, count in zip(actions, steps, strict=True)
            ],
        },
        categories={"action": ACTIONS},
        ids=names,
    )


def subjects(clips: Sequences) -> NDArray[np.int64]:
    """Who is in each clip."""
    return np.array([_numbers(str(name))[1] for name in clips.ids])


def binned(samples: NDArray[np.floating], bins: int) -> NDArray[np.float64]:
    """Means of ``(time, channel)`` over so many equal spans, samples at an edge shared out."""
    edges = np.linspace(0, len(samples), bins + 1)
    running = np.concatenate([np.zeros((1, samples.shape[1])), samples.cumsum(0, np.float64)])
    at_edges = [np.interp(edges, np.arange(len(running)), channel) for channel in running.T]
    means: NDArray[np.float64] = np.diff(np.stack(at_edges, 1), axis=0) / np.diff(edges)[:, None]
    return means


def _relative(joints: NDArray[np.floating]) -> NDArray[np.float64]:
    """Joints ``(time, joint, 3)`` from where the hips began, in torsos: ``(time, 60)``."""
    torso = np.linalg.norm(joints[:, NECK] - joints[:, HIPS], axis=-1).mean()
    moved: NDArray[np.float64] = (joints.astype(np.float64) - joints[0, HIPS]) / torso
    return moved.reshape(len(joints), -1)


def _numbers(name: str) -> tuple[int, int, int]:
    """Action, subject and trial of a clip."""
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"The clip {name!r} is not named like a1_s2_t3.")
    action, subject, trial = map(int, found.groups())
    return action, subject, trial

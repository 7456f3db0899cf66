"""What is asked of UTD-MHAD: what is lost of the test clips, and what is to be told of them.

Every approach answers the same questions about the same clips. Errors are in standard deviations of
a channel over the training clips, at the steps that were lost and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.real.study import recordings
from benchmarks.real.utd_data import ACTIONS, SENSORS, read_clips, subjects
from weft import Sequences
from weft.corruption import delete_between, delete_steps
from weft.randomness import stream

__all__ = ["LABELS", "VALUES", "Clips", "Filled", "Question", "errors"]

Array = NDArray[np.float64]
Lose = Callable[[Sequences, torch.Generator], Sequences]


@dataclass(frozen=True)
class Question:
    """What is lost, after the action was hidden, and what is wanted: a sensor or the action."""

    name: str
    lose: Lose
    target: str


def _without(*names: str) -> Lose:
    return lambda clips, _: clips.hide(*names)


def _halves(clips: Sequences, generator: torch.Generator) -> Sequences:
    return delete_steps(clips, 0.5, generator)


def _dies(name: str) -> Lose:
    return lambda clips, _: delete_between(clips, 0.5, 1.0, [name])


def _nothing(clips: Sequences, generator: torch.Generator) -> Sequences:
    return clips


def _ends(clips: Sequences, generator: torch.Generator) -> Sequences:
    return delete_between(clips, 0.5, 1.0)


VALUES = (
    Question("skeleton from inertial", _without("skeleton"), "skeleton"),
    Question("inertial from skeleton", _without("inertial"), "inertial"),
    Question("skeleton dies halfway", _dies("skeleton"), "skeleton"),
    Question("inertial dies halfway", _dies("inertial"), "inertial"),
    Question("half of the skeleton", _halves, "skeleton"),
    Question("half of the inertial", _halves, "inertial"),
)
LABELS = (
    Question("inertial alone", _without("skeleton"), "action"),
    Question("skeleton alone", _without("inertial"), "action"),
    Question("both", _nothing, "action"),
    Question("first half of both", _ends, "action"),
)


@dataclass(frozen=True, eq=False)
class Filled:
    """A mean for every entry ``(clip, step, channel)``; with 5 and 95 % quantiles if known."""

    mean: Array
    low: Array | None = None
    high: Array | None = None


@dataclass(frozen=True, eq=False)
class Clips:
    """Training clips (of odd subjects, unless told otherwise) and test clips, in standard units."""

    train: Sequences
    test: Sequences

    @classmethod
    def read(
        cls, learn: tuple[int, ...] = (1, 3, 5, 7), test: tuple[int, ...] = (2, 4, 6, 8)
    ) -> Clips:
        """Read the recordings and share them out by subject."""
        clips = read_clips(recordings("utd_mhad"))
        who = subjects(clips)
        return cls(clips[np.isin(who, learn)], clips[np.isin(who, test)])

    @cached_property
    def units(self) -> dict[str, tuple[Array, Array]]:
        """Mean and standard deviation of every channel over the training clips."""
        stacked = {name: np.concatenate(self.train.arrays(name)) for name in SENSORS}
        return {name: (x.mean(0), x.std(0)) for name, x in stacked.items()}

    def standard(self, clips: Sequences, name: str) -> Array:
        """A sensor in standard units, ``(clip, step, channel)``; NaN where it is missing."""
        mean, deviation = self.units[name]
        found: Array = (clips.padded(name) - mean) / deviation
        return found

    def both(self, clips: Sequences) -> Array:
        """All sensors side by side."""
        return np.concatenate([self.standard(clips, name) for name in SENSORS], -1)

    def asked(self, question: Question, clips: Sequences, seed: int = 0) -> Sequences:
        """What a question leaves of clips; the same of the same clips every time."""
        return question.lose(clips.hide("action"), stream(seed, 7))

    def codes(self, clips: Sequences) -> NDArray[np.int64]:
        """The number of each clip's action."""
        return np.array([ACTIONS.index(str(labels[0])) for labels in clips.arrays("action")])

    def judge(self, question: Question, filled: Filled) -> dict[str, float]:
        """Error of an answer about the test clips, and the coverage of its intervals."""
        truth = self.standard(self.test, question.target)
        lost = ~np.isnan(truth)
        lost &= np.isnan(self.standard(self.asked(question, self.test), question.target))
        return errors(filled, truth, lost)


def errors(filled: Filled, truth: Array, where: NDArray[np.bool_]) -> dict[str, float]:
    """Root mean square error, mean absolute error and coverage of 90 % intervals."""
    off = filled.mean[where] - truth[where]
    found = {"rmse": float(np.sqrt(np.square(off).mean())), "mae": float(np.abs(off).mean())}
    if filled.low is not None and filled.high is not None:
        inside = (filled.low[where] <= truth[where]) & (truth[where] <= filled.high[where])
        found["coverage"] = float(inside.mean())
    return found

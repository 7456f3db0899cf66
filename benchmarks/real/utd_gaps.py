"""Gaps in training clips of UTD-MHAD, of the kinds that questions are asked about."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.real.utd_data import SENSORS
from weft import Sequences

__all__ = ["lose"]

WHOLE, INERTIAL_DIES, SKELETON_DIES, ENDS, HALF = range(5)
CHANCES = (0.3, 0.2, 0.2, 0.15, 0.15)
DIES = {"inertial": (INERTIAL_DIES, ENDS), "skeleton": (SKELETON_DIES, ENDS)}
"""Kinds of clips in which a sensor is lost from some step on."""
LEAST, MOST = 0.3, 0.7
"""Share of a clip after which a sensor dies, or of the steps that are lost."""


def lose(clips: Sequences, generator: torch.Generator) -> Sequences:
    """Let sensors die in some clips, lose single steps of others, and leave the rest whole."""

    def uniform(count: int) -> NDArray[np.float64]:
        return torch.rand(count, generator=generator, dtype=torch.float64).numpy()

    whose = clips.sequence_of_row
    kind = np.searchsorted(np.cumsum(CHANCES[:-1]), uniform(len(clips)), "right")[whose]
    share = (LEAST + (MOST - LEAST) * uniform(len(clips)))[whose]
    late = clips.step_of_row >= np.round(share * clips.lengths[whose])
    lost = {}
    for name in SENSORS:
        single = uniform(clips.rows) < share
        lost[name] = np.isin(kind, DIES[name]) & late | (kind == HALF) & single
    return clips.delete(lost)

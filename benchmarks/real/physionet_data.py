"""PhysioNet/CinC Challenge 2012, set A: 4,000 stays in intensive care on an hourly grid.

A step takes the mean of a variable's values within the hour; negative values mark what could not be
measured and are left out, and so is mechanical ventilation, which is recorded only where it is on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["GROUPS", "Split", "Stays", "read_stays"]

HOURS = 48
CONSTANT = "MechVent"
GROUPS = {
    "circulation": ("HR", "DiasABP", "MAP", "SysABP", "NIDiasABP", "NIMAP", "NISysABP"),
    "general": ("GCS", "RespRate", "Temp", "Urine", "Weight"),
    "gases": ("pH", "PaCO2", "PaO2", "FiO2", "SaO2", "Lactate"),
    "kidney": ("BUN", "Creatinine", "Glucose", "HCO3", "Mg", "K", "Na"),
    "blood": ("HCT", "Platelets", "WBC"),
    "liver": ("Albumin", "ALP", "ALT", "AST", "Bilirubin", "Cholesterol"),
    "heart": ("TroponinI", "TroponinT"),
}

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Split:
    """Stays in standardised units ``(stay, hour, variable)``, NaN where nothing was measured.

    ``given`` lacks the points that are held out; ``died`` is one truth value per stay.
    """

    truth: Array
    given: Array
    died: NDArray[np.bool_]

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """The points held out."""
        found: NDArray[np.bool_] = np.isnan(self.given) & ~np.isnan(self.truth)
        return found


@dataclass(frozen=True, eq=False)
class Stays:
    """All stays in their own units, and what was measured."""

    values: Array
    variables: tuple[str, ...]
    died: NDArray[np.bool_]

    def columns(self, names: tuple[str, ...]) -> list[int]:
        """Positions of variables."""
        return [self.variables.index(name) for name in names]

    def split(self, seed: int, share: float = 0.1) -> tuple[Split, Split, Split]:
        """Training, validation and test stays (64, 16 and 20 %), with a share of points held out.

        Units are those of the training stays' given points.
        """
        rng = np.random.default_rng(seed)
        test, validation, train = np.split(rng.permutation(len(self.values)), [800, 1440])
        hidden = rng.random(self.values.shape) < share
        given = np.where(hidden, np.nan, self.values)
        known = given[train].reshape(-1, len(self.variables))
        shift, scale = np.nanmean(known, 0), np.nanstd(known, 0)

        def part(rows: NDArray[np.int64]) -> Split:
            truth, left = self.values[rows], given[rows]
            return Split((truth - shift) / scale, (left - shift) / scale, self.died[rows])

        return part(train), part(validation), part(test)


def read_stays(folder: Path) -> Stays:
    """Lay all events out on the grid."""
    names = json.loads((folder / "columns.json").read_text())["params"]
    with np.load(folder / "set-a_events.npz") as file:
        stay, minute, variable, value = (
            file[f"ev_{name}"] for name in ("rec", "minute", "param", "value")
        )
        died = file["in_hospital_death"] == 1
    inside = (value >= 0) & (minute < 60 * HOURS)
    cell = (stay[inside].astype(int), minute[inside] // 60, variable[inside])
    total, count = np.zeros((2, len(died), HOURS, len(names)))
    np.add.at(total, cell, value[inside].astype(np.float64))
    np.add.at(count, cell, 1.0)
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    kept = [i for i, name in enumerate(names) if name != CONSTANT]
    return Stays(mean[..., kept], tuple(names[i] for i in kept), died)

"""What training remembers of itself: where it stands and what it measured."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.columns import DataError
from weft.monitoring import METRICS
from weft.objective import Loss

__all__ = ["Epoch", "Progress", "read_history"]


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured: means over its steps, per real time step."""

    epoch: int
    step: int
    loss: float
    validation: float | None
    beta: float
    rate: float
    gradient: float
    failures: int
    terms: dict[str, float]


@dataclass
class Progress:
    """Where training stands, in plain values that a checkpoint can hold."""

    step: int = 0
    epoch: int = 0
    position: int = 0  # within the epoch
    rate_scale: float = 1.0
    first_loss: float | None = None
    failures: int = 0  # in this epoch
    streak: int = 0  # since the last epoch without any
    risen: bool = False  # far above the first, the last loss
    lowest: float | None = None  # median loss of an epoch, since β is 1
    best: float | None = None
    stale: int = 0
    stopped: bool = False
    averaged: int = 0  # states in the mean
    sums: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)  # in this epoch, since a failure
    history: list[dict[str, Any]] = field(default_factory=list)

    def rise(self, loss: float) -> float:
        """How far a loss lies above the lowest of an epoch, in units of that (at least 1)."""
        return 0.0 if self.lowest is None else (loss - self.lowest) / max(1.0, abs(self.lowest))

    def add(self, loss: Loss, gradient: float) -> None:
        """Count one step towards the means of its epoch."""
        numbers = {"count": 1.0, "loss": loss.total.item(), "gradient": gradient}
        numbers |= {f"terms/{name}": float(term) for name, term in loss.terms.items()}
        self.losses.append(numbers["loss"])
        for name, number in numbers.items():
            self.sums[name] = self.sums.get(name, 0.0) + number

    def median(self) -> float:
        """Close the epoch's losses: their median, which a strange batch does not move."""
        found = statistics.median(self.losses) if self.losses else math.nan
        self.losses = []
        return found

    def means(self) -> dict[str, Any]:
        """Close the epoch's means."""
        count = self.sums.pop("count", math.nan)
        means = {name: total / count for name, total in self.sums.items()}
        self.sums = {}
        terms = {n.removeprefix("terms/"): v for n, v in means.items() if n.startswith("terms/")}
        loss, gradient = means.get("loss", math.nan), means.get("gradient", math.nan)
        return {"loss": loss, "gradient": gradient, "terms": terms}


def read_history(folder: Path) -> list[Epoch]:
    """What training wrote into its folder."""
    path = folder / METRICS
    if not path.is_file():
        raise FileNotFoundError(f"There is no {METRICS} in the folder {folder}. Check the path.")
    found = []
    for i, text in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(Epoch(**json.loads(text)))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"Line {i} of {path} is no record of an epoch. Fit again, or name another log."
            ) from error
    return found

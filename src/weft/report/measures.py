"""The numbers of a report, and how much of the data they are taken from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.columns import Array, Column, DataError
from weft.estimator import MDMM
from weft.evaluation import PROTOCOLS, Score, evaluate
from weft.randomness import stream
from weft.report.text import number, percent
from weft.sequences import Sequences

__all__ = [
    "TRIALS",
    "Curve",
    "Trial",
    "calibrate",
    "coverage",
    "excerpt",
    "reference",
    "reliability",
    "try_out",
]

LEVELS = np.linspace(0.1, 0.9, 9)
BINS = 10
FEWEST = 5
"""Bins of probabilities with fewer cases say nothing and are left out."""

STEPS, PIECES, LONGEST, SHORTEST = 10_000, 200, 500, 20
NUMBERS = 20_000_000
"""Bounds of what is scored: steps, sequences, steps of one, and numbers drawn at once."""


@dataclass(frozen=True)
class Trial:
    """A deletion protocol with its share, and what it is called."""

    protocol: str
    share: float
    title: str


TRIALS = (
    Trial("steps", 0.5, "half the steps"),
    Trial("entries", 0.5, "half the entries"),
    Trial("bursts", 0.25, "one run of a quarter"),
    Trial("start", 0.25, "first quarter"),
    Trial("end", 0.25, "last quarter"),
    Trial("modality", 1.0, "all of it"),
)


@dataclass(frozen=True, eq=False)
class Curve:
    """Promised and found shares ``(point,)``, and how many cases stand behind each point.

    ``entries`` were deleted and inferred.
    """

    expected: Array
    found: Array
    count: Array
    entries: int


def excerpt(data: Sequences, widest: int, samples: int) -> Sequences:
    """At most so many pieces of so many sequences, evenly spread, as can be scored soon."""
    steps = min(STEPS, NUMBERS // (samples * widest))
    longest = int(np.clip(steps, SHORTEST, LONGEST))
    pieces = data if data.lengths.max() <= longest else data.segments(longest)
    count = min(PIECES, max(1, steps // int(pieces.lengths.max())))
    if len(pieces) <= count:
        return pieces
    return pieces[np.unique(np.linspace(0, len(pieces) - 1, count).round().astype(int))]


# Calibration


def calibrate(
    model: MDMM, data: Sequences, names: Sequence[str], *, samples: int, seed: int
) -> dict[str, Curve]:
    """Delete half the steps of these modalities, infer them, and compare promises with findings.

    Of numbers, promises are central intervals; of labels, probabilities.
    """
    left = PROTOCOLS["steps"](data, 0.5, stream(seed, 1), names)
    predictions = model.smooth(left, samples=samples, seed=seed).predictions
    curves = {}
    for name in names:
        column = data.columns[name]
        hidden = column.observed & ~left.columns[name].observed
        if not hidden.any():
            continue
        rows = (data.sequence_of_row, data.step_of_row)
        if column.categories is not None:
            chances = predictions[name].probabilities[rows][hidden]
            curves[name] = reliability(chances, column.values[hidden])
        else:
            draws = predictions[name].sample(samples)[:, *rows][:, hidden]
            curves[name] = coverage(draws, column.values[hidden], seed)
    return curves


def coverage(draws: Array, truth: Array, seed: int) -> Curve:
    """Share of numbers within central intervals of ``(draw, number)``.

    A number's rank among the draws is uniform if it is one of their kind; ties are broken by
    chance.
    """
    chance = np.random.default_rng(seed).uniform(size=truth.shape)
    below, same = (draws < truth).sum(0), (draws == truth).sum(0)
    rank = (below + chance * (same + 1)) / (len(draws) + 1)
    found = (np.abs(2 * rank - 1) <= LEVELS[:, None]).mean(1)
    return Curve(LEVELS, found, np.full(len(LEVELS), len(truth)), len(truth))


def reliability(chances: Array, codes: Array) -> Curve:
    """How often a category was there among those that got about the same probability."""
    hit = np.zeros(chances.shape)
    hit[np.arange(len(codes)), codes] = 1
    given = chances.ravel()
    place = np.minimum((given * BINS).astype(int), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    enough = count >= min(FEWEST, count.max())
    mean, often = (
        np.bincount(place, v, BINS)[enough] / count[enough] for v in (given, hit.ravel())
    )
    return Curve(mean, often, count[enough], len(codes))


# Held-out errors


def try_out(
    model: MDMM, data: Sequences, names: Sequence[str], *, samples: int, seed: int
) -> Iterator[tuple[Trial, dict[str, Score]]]:
    """Score every trial in turn; modalities of which it deletes nothing are left out.

    A modality is deleted as a whole where others are left.
    """
    for trial in TRIALS:
        whole = trial.protocol == "modality"
        alone = [[name] for name in names] if len(data.names) > 1 else []
        scores: dict[str, Score] = {}
        for group in alone if whole else [list(names)]:
            try:
                scores |= evaluate(
                    model,
                    data,
                    trial.protocol,
                    trial.share,
                    modalities=group,
                    samples=samples,
                    seed=seed,
                )
            except DataError:  # nothing of it was observed
                continue
        yield trial, scores


def reference(column: Column) -> str:
    """What a guess that knows no time would reach."""
    if not column.observed.any():
        return ""
    if column.categories is not None:
        counts = np.bincount(column.values[column.observed], minlength=len(column.categories))
        often = column.categories[int(counts.argmax())]
        share = percent(float(counts.max() / counts.sum()))
        return f"Always guessing “{often}” would be right in {share}."
    values = np.where(column.observed, column.values.astype(np.float64), np.nan)
    flat = values.reshape(len(values), -1)
    flat = flat[:, ~np.isnan(flat).all(0)]
    spread = float(np.sqrt(np.nanmean(np.square(flat - np.nanmean(flat, 0)))))
    return f"Always guessing the mean would have an RMSE of {number(spread)}."

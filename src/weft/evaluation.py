"""Held-out errors: delete data by a named protocol, infer it, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from weft.columns import Array, DataError
from weft.corruption import delete_between, delete_bursts, delete_entries, delete_steps
from weft.metrics import crps
from weft.prediction import Prediction
from weft.randomness import stream
from weft.results import Inference
from weft.sequences import Sequences

__all__ = ["PROTOCOLS", "Score", "evaluate"]

Deletion = Callable[[Sequences, float, torch.Generator, Sequence[str] | None], Sequences]

PROTOCOLS: dict[str, Deletion] = {
    "steps": delete_steps,
    "entries": delete_entries,
    "bursts": delete_bursts,
    "end": lambda data, share, _, names: delete_between(data, 1 - share, 1.0, names),
    "start": lambda data, share, _, names: delete_between(data, 0.0, share, names),
    "modality": lambda data, share, _, names: data.hide(*(names or data.names)),
}
"""Ways to delete a share of the data; ``modality`` deletes all of the named ones."""


class Smoother(Protocol):
    """What can infer every entry from the rest."""

    def smooth(self, data: Sequences, *, samples: int = 100, seed: int = 0) -> Inference:
        """Infer each state from everything."""
        ...


@dataclass(frozen=True)
class Score:
    """How well deleted entries of one modality were inferred.

    Attributes
    ----------
    count : int
        Deleted entries that were compared.
    mae, rmse, crps : float, optional
        Of numbers: mean absolute error, root mean squared error, and continuous ranked probability
        score of the predictive distribution, in the user's units.
    coverage : float, optional
        Share of the numbers within their central 90 % interval.
    accuracy, log_loss : float, optional
        Of labels: share that were most probable, and mean negative log-probability.
    """

    count: int
    mae: float | None = None
    rmse: float | None = None
    crps: float | None = None
    coverage: float | None = None
    accuracy: float | None = None
    log_loss: float | None = None


def evaluate(
    model: Smoother,
    data: Sequences,
    protocol: str = "steps",
    share: float = 0.5,
    *,
    modalities: Sequence[str] | None = None,
    samples: int = 100,
    seed: int = 0,
) -> dict[str, Score]:
    """Delete a share of the data, infer it from the rest, and score each modality.

    Parameters
    ----------
    model : MDMM
    data : Sequences
    protocol : str
        One of `PROTOCOLS`: random ``steps`` of each modality, single ``entries``, ``bursts``, the
        ``end`` or ``start`` of every sequence, or whole modalities.
    share : float
        How much of each sequence to delete.
    modalities : sequence of str, optional
        Those to delete from; all of them if not given.
    samples, seed : int
        Of the predictions; the seed also decides what is deleted.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"There is no protocol {protocol!r}; there are {', '.join(map(repr, PROTOCOLS))}."
        )
    left = PROTOCOLS[protocol](data, share, stream(seed, 1), modalities)
    predictions = model.smooth(left, samples=samples, seed=seed).predictions
    scores = {}
    for name, column in data.columns.items():
        hidden = column.observed & ~left.columns[name].observed
        if hidden.any():
            scores[name] = _score(predictions[name], data, name, hidden, samples)
    if not scores:
        raise DataError(
            f"Nothing observed was deleted by {protocol!r} with share {share}. Delete more, or "
            "from other modalities."
        )
    return scores


def _score(
    prediction: Prediction, data: Sequences, name: str, hidden: Array, samples: int
) -> Score:
    rows, column = (data.sequence_of_row, data.step_of_row), data.columns[name]
    if column.categories is not None:
        known = prediction.modality.categories or ()
        codes = np.array([known.index(label) for label in column.decoded()[hidden]])
        chances = prediction.probabilities[rows][hidden]
        given = np.clip(chances[np.arange(len(codes)), codes], 1e-12, 1)
        return Score(
            int(hidden.sum()),
            accuracy=float((chances.argmax(1) == codes).mean()),
            log_loss=float(-np.log(given).mean()),
        )
    truth = column.values[hidden].astype(np.float64)
    error = prediction.mean[rows][hidden] - truth
    low, high = (bound[rows][hidden] for bound in prediction.quantile((0.05, 0.95)))
    draws = prediction.sample(samples)[:, *rows][:, hidden]
    return Score(
        int(hidden.sum()),
        mae=float(np.abs(error).mean()),
        rmse=float(np.sqrt(np.square(error).mean())),
        crps=float(crps(draws, truth).mean()),
        coverage=float(((low <= truth) & (truth <= high)).mean()),
    )


def as_numbers(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Scores as plain values, without what does not apply."""
    return {
        name: {key: value for key, value in vars(score).items() if value is not None}
        for name, score in scores.items()
    }

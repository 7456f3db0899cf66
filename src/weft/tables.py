"""Predictions as tables, in the shape of the table that the data were read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.columns import Array, Column
from weft.frames import Extra, write_grid
from weft.prediction import Prediction
from weft.sequences import Sequences

__all__ = ["beyond_frame", "predictions_frame"]


def predictions_frame(
    data: Sequences,
    predictions: Mapping[str, Prediction],
    *,
    keep_observed: bool = False,
    std: bool = False,
    quantiles: Sequence[float] = (),
    probabilities: bool = False,
    grid: bool = False,
) -> Any:
    """Write what is predicted for every entry into a table like the one that was read.

    Parameters
    ----------
    data : Sequences
        What the predictions were made from.
    predictions : mapping
        Predictions by modality, of the same sequences and steps.
    keep_observed : bool
        Leave observed entries as they are, and say nothing more about them: only gaps are filled.
    std, quantiles, probabilities : bool, sequence of float, bool
        Add columns ``<column>_std``, ``<column>_q05`` … and, for labels, ``<column>_p_<label>``.
    grid : bool
        Write one row per step instead of the table's own rows.
    """
    sequence, step = data.sequence_of_row, data.step_of_row
    columns, extras = _describe(predictions, sequence, step, std, quantiles, probabilities)
    if keep_observed:
        seen = {n: data.columns[n].observed for n in columns if n in data.columns}
        columns = {
            name: _kept(data.columns[name], column) if name in seen else column
            for name, column in columns.items()
        }
        extras = [replace(extra, values=_hidden(extra.values, seen)) for extra in extras]
    others = {n: column for n, column in data.columns.items() if n not in columns}
    return replace(data, columns={**columns, **others}).to_frame(extras, grid=grid)


def beyond_frame(
    data: Sequences,
    predictions: Mapping[str, Prediction],
    steps: int,
    *,
    before: bool = False,
    std: bool = False,
    quantiles: Sequence[float] = (),
    probabilities: bool = False,
) -> Any:
    """Write predictions for so many steps after each sequence, or before it, one row per step."""
    longer = data.extend(before=steps) if before else data.extend(after=steps)
    lengths = longer.lengths[longer.sequence_of_row]
    inside = longer.step_of_row < steps if before else longer.step_of_row >= lengths - steps
    sequence = longer.sequence_of_row[inside]
    step = np.tile(np.arange(steps), len(data))
    columns, extras = _describe(predictions, sequence, step, std, quantiles, probabilities)
    ids = [longer.ids[i] for i in sequence]
    return write_grid(longer.table, columns, ids, longer.ticks[inside], extras)


def _describe(
    predictions: Mapping[str, Prediction],
    sequence: Array,
    step: Array,
    std: bool,
    quantiles: Sequence[float],
    probabilities: bool,
) -> tuple[dict[str, Column], list[Extra]]:
    """Predicted values of rows as columns, and what else was asked."""

    def rows(array: Array) -> Array:
        return array[sequence, step]

    columns: dict[str, Column] = {}
    numbers = {n: p for n, p in predictions.items() if p.modality.categories is None}
    for name, prediction in predictions.items():
        values = rows(prediction.point() if name not in numbers else prediction.mean)
        seen = np.ones(values.shape, bool)
        columns[name] = Column(values, seen, prediction.modality.categories)
    extras = []
    if std:
        extras.append(Extra("_std", {n: _flat(rows(p.std)) for n, p in numbers.items()}))
    bounds = {n: p.quantile(quantiles) for n, p in numbers.items() if quantiles}
    for i, q in enumerate(quantiles):
        found = {n: _flat(rows(bound[i])) for n, bound in bounds.items()}
        extras.append(Extra(f"_q{round(100 * q):02d}", found))
    if probabilities:
        for name, prediction in predictions.items():
            for code, label in enumerate(prediction.modality.categories or ()):
                chance = rows(prediction.probabilities)[:, code, None]
                extras.append(Extra(f"_p_{label}", {name: chance}))
    return columns, extras


def _flat(values: Array) -> Array:
    found: Array = values.reshape(len(values), -1)
    return found


def _kept(read: Column, predicted: Column) -> Column:
    """What was observed, and predictions elsewhere."""
    if read.categories == predicted.categories:
        return read.fill(predicted.values)
    codes = {label: code for code, label in enumerate(predicted.categories or ())}
    known = np.array([codes[label] if label is not None else 0 for label in read.decoded()])
    return Column(known, read.observed, predicted.categories).fill(predicted.values)


def _hidden(values: Mapping[str, Array], seen: Mapping[str, Array]) -> dict[str, Array]:
    """Numbers about gaps only."""
    return {
        name: np.where(seen[name].reshape(len(array), -1), np.nan, array) if name in seen else array
        for name, array in values.items()
    }

"""The section on sequences: what was observed of some, and what is inferred."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.estimator import MDMM
from weft.frames import column_names
from weft.modality import Modality
from weft.prediction import Prediction
from weft.report.axes import timeline
from weft.report.figures import SERIES, Palette, Series, label_figure, series_figure
from weft.report.page import Section, figures, heading, legend, paragraph
from weft.report.settings import ENTRIES, WINDOW, Settings
from weft.report.text import counted, listed, shorten
from weft.sequences import Sequences

__all__ = ["inferred"]


def inferred(
    model: MDMM, data: Sequences, drawn: Sequence[Modality], settings: Settings
) -> Section:
    """Draw some sequences: observed points, gaps, mean and band; probabilities of labels."""
    shown = _choose(data, settings.sequences)
    cut = shown.lengths.max() < data.lengths.max() and data.lengths.max() > WINDOW
    parts = [
        paragraph(
            "All of them."
            if len(shown) == len(data)
            else f"{len(shown)} of {len(data):,}, evenly spread.",
            f"Of longer ones the {WINDOW} steps with most observations are drawn, inferred from "
            "these alone."
            if cut
            else "Everything is inferred from all that was observed of a sequence.",
            "The band is where nine of ten values are expected."
            if any(m.categories is None for m in drawn)
            else "",
            _left_out(model.modalities, drawn),
        ),
        legend(SERIES) if any(m.categories is None for m in drawn) else "",
    ]
    found = model.smooth(shown, samples=settings.samples, seed=settings.seed).predictions
    rows: list[list[str]] = [[] for _ in shown.ids]
    for modality in drawn:
        draw = _draw_numbers if modality.categories is None else _draw_labels
        for row, figure in zip(rows, draw(shown, modality, found[modality.name]), strict=True):
            row += figure
    for name, row in zip(shown.ids, rows, strict=True):
        parts += [heading(f"Sequence {shorten(name, 60)}"), figures(row)]
    return Section("sequences", "Sequences", parts)


def _choose(data: Sequences, count: int) -> Sequences:
    """Sequences in which something was observed, evenly spread; of each its fullest window."""
    per_row = sum(
        column.observed.reshape(data.rows, -1).mean(1) for column in data.columns.values()
    )
    full = np.flatnonzero(np.bincount(data.sequence_of_row, per_row) > 0)
    full = full if len(full) else np.arange(len(data))
    chosen = full[np.unique(np.linspace(0, len(full) - 1, min(count, len(full))).astype(int))]
    if data.lengths[chosen].max() <= WINDOW:
        return data[chosen]
    keys = (data.sequence_of_row, data.step_of_row // WINDOW)
    windows = -(-data.lengths // WINDOW)
    starts = np.cumsum(windows) - windows
    weight = np.bincount(starts[keys[0]] + keys[1], per_row)
    best = [int(starts[i] + weight[starts[i] : starts[i] + windows[i]].argmax()) for i in chosen]
    return data.segments(WINDOW)[best]


def _draw_numbers(data: Sequences, modality: Modality, prediction: Prediction) -> list[list[str]]:
    """Figures of each sequence, one for each entry."""
    name, shape = modality.name, (len(data), int(data.lengths.max()), -1)
    mean, low, high = (
        found.reshape(shape) for found in (prediction.mean, *prediction.quantile((0.05, 0.95)))
    )
    names = column_names(data.table, name, data.columns[name])
    drawn = []
    for i, seen in enumerate(data.arrays(name)):
        time, flat = timeline(data, i), seen.reshape(len(seen), -1)
        steps = len(seen)
        drawn.append(
            [
                series_figure(
                    Series(
                        shorten(names[j], 40),
                        flat[:, j].astype(np.float64),
                        mean[i, :steps, j],
                        low[i, :steps, j],
                        high[i, :steps, j],
                    ),
                    str(data.ids[i]),
                    time,
                )
                for j in range(min(modality.size, ENTRIES))
            ]
        )
    return drawn


def _draw_labels(data: Sequences, modality: Modality, prediction: Prediction) -> list[list[str]]:
    """Figures of each sequence, one for the labels."""
    probabilities = prediction.probabilities
    palette = Palette.choose(modality.categories or (), probabilities)
    column = data.columns[modality.name]
    codes = np.split(np.where(column.observed, column.values, -1), data.starts[1:])
    return [
        [
            label_figure(
                shorten(modality.name, 40),
                seen,
                probabilities[i, : len(seen)],
                palette,
                str(data.ids[i]),
                timeline(data, i),
            )
        ]
        for i, seen in enumerate(codes)
    ]


def _left_out(modalities: Sequence[Modality], drawn: Sequence[Modality]) -> str:
    """Say what is not shown, if anything."""
    images = [m.name for m in modalities if len(m.shape) > 1]
    others = len(modalities) - len(images) - len(drawn)
    wide = [m.name for m in drawn if m.size > ENTRIES]
    said = []
    if images:
        verb = "holds" if len(images) == 1 else "hold"
        said.append(f"{listed(images)} {verb} images, which are neither drawn nor scored.")
    if others:
        said.append(f"{counted(others, 'modality', 'modalities')} more left out.")
    if wide:
        said.append(f"Of {listed(wide)} the first {ENTRIES} entries are drawn.")
    return " ".join(said)

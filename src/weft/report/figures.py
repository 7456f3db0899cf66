"""The figures of a report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.bookkeeping import Epoch
from weft.columns import Array
from weft.report.axes import Timeline, count_axis, share_axis, value_axis
from weft.report.measures import Curve
from weft.report.page import Key, figure
from weft.report.svg import TOP, Axis, Plot, area, cells, dots, draw, line, spans
from weft.report.text import counted, listed, number, percent, shorten
from weft.report.ticks import Tick
from weft.sequences import Sequences

__all__ = [
    "SERIES",
    "Palette",
    "Series",
    "calibration_figure",
    "label_figure",
    "missingness_figure",
    "series_figure",
    "training_figures",
]

ROWS, COLUMNS = 48, 96
"""Most cells of a map; what is more is put together."""

COLOURS = 8
LINES = 6
LEVELS = ("missing", "under 33 % observed", "33 to 67 %", "over 67 %", "observed")
SERIES = (
    Key("dot point", "observed"),
    Key("line k0", "mean"),
    Key("band k0", "90 % band"),
    Key("gap", "not observed"),
)


# What is there


def missingness_figure(data: Sequences, name: str) -> str:
    """A map of what was observed of one modality, a row for each sequence (or several)."""
    rows, columns = min(len(data), ROWS), min(int(data.lengths.max()), COLUMNS)
    longest = int(data.lengths.max())
    row = data.sequence_of_row * rows // len(data)
    cell = row * columns + data.step_of_row * columns // longest
    share = data.columns[name].observed.reshape(data.rows, -1).mean(1)
    counts = np.bincount(cell, minlength=rows * columns)
    sums = np.bincount(cell, share, rows * columns)
    mean = sums / np.maximum(counts, 1)
    levels = np.where(mean >= 1, 4, np.where(mean > 0, 1 + np.floor(3 * mean), 0)).astype(int)
    levels = np.where(counts > 0, np.minimum(levels, np.where(mean < 1, 3, 4)), -1)
    levels = levels.reshape(rows, columns)
    height = rows * min(max(160 / rows, 4), 16)
    x = count_axis(0, longest - 1, "step", -0.5, longest - 0.5)
    plot = Plot(x, _sequence_axis(data, rows), height)
    observed = data.observed_fraction(name)
    keys = [Key(f"cell l{i}", LEVELS[i]) for i in np.unique(levels[levels >= 0])]
    if (levels < 0).any():
        keys.append(Key("outside", "no step"))
    drawing = draw(
        f"What was observed of {name}",
        f"{counted(len(data), 'sequence')} by step; {percent(observed)} of all entries observed.",
        plot,
        [cells(plot, levels)],
    )
    return figure(drawing, f"{name}: {percent(observed)} observed", keys)


def _sequence_axis(data: Sequences, rows: int) -> Axis:
    """Names of some sequences, from top to bottom."""
    shown = np.unique(np.linspace(0, rows - 1, min(rows, 6)).round().astype(int))
    first = -(-shown * len(data) // rows)  # of the sequences in a row
    names = _brief([str(data.ids[which]) for which in first])
    marks = [Tick(rows - i - 0.5, name) for i, name in zip(shown, names, strict=True)]
    return Axis(0, rows, marks, grid=False)


def _brief(names: list[str], most: int = 9) -> list[str]:
    """Names that fit beside an axis; if they are long, without what all have in common."""
    if max(map(len, names)) > most and len(names) > 1:
        columns = enumerate(zip(*names, strict=False))
        shared = next((i for i, letters in columns if len(set(letters)) > 1), 0)
        names = [f"…{name[shared:]}" for name in names] if shared > 1 else names
    return [shorten(name, most) for name in names]


# How it was learned


def training_figures(history: Sequence[Epoch]) -> list[str]:
    """Loss, its terms, and what the optimiser did, over epochs."""
    losses = {"training": _values([epoch.loss for epoch in history])}
    if any(epoch.validation is not None for epoch in history):
        losses["validation"] = _values([epoch.validation for epoch in history])
    drawn = [_curves(history, losses, "Loss per step (nats)", log=True)]
    chain = "smooth" if any("kl/smooth" in epoch.terms for epoch in history) else "filter"
    terms = {
        _term(name, chain): _values([epoch.terms.get(name) for epoch in history])
        for name in history[-1].terms
        if f"/{chain}" in name
    }
    if terms:
        few = dict(list(terms.items())[:LINES])
        more = f", {LINES} of {len(terms)}" if len(terms) > LINES else ""
        drawn.append(_curves(history, few, f"Terms of the loss (nats per step){more}"))
    pace = {
        "learning rate": _values([epoch.rate for epoch in history]),
        "size of the gradient": _values([epoch.gradient for epoch in history]),
    }
    drawn.append(_curves(history, pace, "Learning rate and gradient", log=True))
    return drawn


def _term(name: str, chain: str) -> str:
    return "divergence" if name == f"kl/{chain}" else name.removeprefix(f"nll/{chain}/")


def _values(found: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in found], np.float64)


def _curves(
    history: Sequence[Epoch], curves: dict[str, Array], caption: str, *, log: bool = False
) -> str:
    epochs = np.array([epoch.epoch for epoch in history], np.float64)
    y = value_axis(np.concatenate(list(curves.values())), log=log)
    first, last = float(epochs[0]), float(epochs[-1])
    plot = Plot(count_axis(first, last, "epoch", first, max(last, first + 1)), y)
    marks = []
    for i, values in enumerate(curves.values()):
        usable = np.where(values > 0, values, np.nan) if y.log else values
        marks.append(line(plot, epochs, usable, f"k{i}"))
        if len(history) == 1:
            there = np.isfinite(usable)
            marks.append(dots(plot, epochs[there], usable[there], f"k{i}"))
    ends = [f"{name} from {number(v[0])} to {number(v[-1])}" for name, v in curves.items()]
    drawing = draw(caption, f"{'; '.join(ends)}.", plot, marks)
    keys = [Key(f"line k{i}", name) for i, name in enumerate(curves)]
    return figure(drawing, caption, keys)


# What is inferred


@dataclass(frozen=True, eq=False)
class Series:
    """One entry of a modality along a sequence, all ``(step,)``; ``seen`` is NaN in gaps."""

    name: str
    seen: Array
    mean: Array
    low: Array
    high: Array


def series_figure(series: Series, where: str, time: Timeline) -> str:
    """Observed points, gaps shaded, mean and 90 % band along one sequence."""
    there = np.isfinite(series.seen)
    every = np.concatenate([series.seen, series.mean, series.low, series.high])
    plot = Plot(time.axis, value_axis(every), 130)
    places, mean, low, high = time.places, series.mean, series.low, series.high
    if len(places) == 1:  # a lone step is as wide as a step
        places, mean, low, high = time.edges, *(np.repeat(v, 2) for v in (mean, low, high))
    marks = [
        _gaps(plot, time, there),
        area(plot, places, low, high, "band k0"),
        line(plot, places, mean, "k0"),
        dots(plot, time.places[there], series.seen[there], "point"),
    ]
    description = (
        f"{int(there.sum())} of {counted(len(there), 'step')} observed; mean from "
        f"{number(float(mean.min()))} to {number(float(mean.max()))}."
    )
    drawing = draw(f"{series.name} in sequence {where}", description, plot, marks)
    return figure(drawing, series.name)


def _gaps(plot: Plot, time: Timeline, there: Array) -> str:
    change = np.diff((~there).astype(int), prepend=0, append=0)
    start, stop = time.edges[np.flatnonzero(change == 1)], time.edges[np.flatnonzero(change == -1)]
    return spans(plot, start, stop, plot.top, plot.height, "gap")


@dataclass(frozen=True, eq=False)
class Palette:
    """Colours of categories: ``kind`` of each, and what each kind is called."""

    kind: Array
    names: tuple[str, ...]

    @classmethod
    def choose(cls, categories: Sequence[Hashable], probabilities: Array) -> Palette:
        """A colour for every category; if they are many, the least probable share the last."""
        if len(categories) <= COLOURS:
            return cls(np.arange(len(categories)), tuple(map(str, categories)))
        mean = np.nanmean(probabilities.reshape(-1, len(categories)), 0)
        chosen = np.sort(np.argsort(-mean, kind="stable")[: COLOURS - 1])
        kind = np.full(len(categories), COLOURS - 1)
        kind[chosen] = np.arange(COLOURS - 1)
        rest = counted(len(categories) - len(chosen), "other")
        return cls(kind, (*(str(categories[i]) for i in chosen), rest))


def label_figure(
    name: str, seen: Array, probabilities: Array, palette: Palette, where: str, time: Timeline
) -> str:
    """Stacked probabilities ``(step, category)``, and codes that were observed (else -1) above."""
    plot = Plot(time.axis, share_axis(), 110, above=16)
    x = np.repeat(time.edges, 2)[1:-1]
    marks, base = [], np.zeros(len(seen))
    observed = np.where(seen >= 0, palette.kind[seen], -1)
    for kind in range(len(palette.names)):
        top = np.minimum(base + probabilities[:, palette.kind == kind].sum(1), 1.0)
        marks.append(area(plot, x, np.repeat(base, 2), np.repeat(top, 2), f"fill k{kind}"))
        base = top
    marks.append(spans(plot, time.edges[:1], time.edges[-1:], TOP, 10, "gap"))
    for kind in range(len(palette.names)):
        mine = np.flatnonzero(observed == kind)
        start, stop = time.edges[mine], time.edges[mine + 1]
        marks.append(spans(plot, start, stop, TOP, 10, f"fill k{kind}"))
    often = [palette.names[k] for k in np.unique(palette.kind[probabilities.argmax(1)])]
    drawing = draw(
        f"Probabilities of {name} in sequence {where}",
        f"{int((seen >= 0).sum())} of {counted(len(seen), 'step')} observed; most probable are "
        f"{listed(often)}.",
        plot,
        marks,
    )
    keys = [Key(f"fill k{k}", shorten(label, 30)) for k, label in enumerate(palette.names)]
    return figure(drawing, f"{name}: probabilities; the strip on top is observed", keys)


# How far it can be trusted


def calibration_figure(name: str, curve: Curve, *, labels: bool) -> str:
    """What was promised against what was found, with the diagonal of a perfect promise."""
    if labels:
        promised, found = "probability that was given", "how often it was so"
        caption = f"{name}: reliability of {counted(curve.entries, 'deleted label')}"
    else:
        promised, found = "promised share", "share found inside"
        entries = counted(curve.entries, "deleted entry", "deleted entries")
        caption = f"{name}: coverage of {entries}"
    plot = Plot(share_axis(promised), share_axis(found), 220)
    ends = np.array([0.0, 1.0])
    radius = 2 + 3 * np.sqrt(curve.count / curve.count.max())
    marks = [
        line(plot, ends, ends, "dashed plain"),
        line(plot, curve.expected, curve.found, "k0"),
        dots(plot, curve.expected, curve.found, "k0", radius),
    ]
    pairs = [
        f"{percent(float(e))} promised, {percent(float(f))} found"
        for e, f in zip(curve.expected, curve.found, strict=True)
    ]
    return figure(draw(caption, f"{'; '.join(pairs)}.", plot, marks), caption)

"""Axes for values and for time, as the data have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.columns import Array
from weft.report.svg import Axis
from weft.report.text import breadth, shorten
from weft.report.ticks import Tick, date_ticks, log_ticks, number_ticks
from weft.sequences import Sequences

__all__ = ["Timeline", "count_axis", "share_axis", "timeline", "value_axis"]

ROOM = 300  # for the labels of an x axis, about
WIDE = 20.0
"""Positive numbers whose largest is this many times the smallest stand on a logarithmic axis."""

UNITS = {"d": 86400e9, "h": 3600e9, "min": 60e9, "s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}


@dataclass(frozen=True, eq=False)
class Timeline:
    """Where the steps of a sequence lie: ``(step,)``, and the ``(step + 1,)`` edges around them."""

    places: Array
    edges: Array
    axis: Axis


def value_axis(values: Array, label: str = "", *, log: bool = False) -> Axis:
    """An axis for all finite numbers, with a little room; logarithmic where wanted and wide."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if log and low > 0 and high / low > WIDE:
        low, high = low / 1.15, high * 1.15
        return Axis(low, high, log_ticks(low, high), label, log=True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return Axis(low - room, high + room, number_ticks(low - room, high + room), label)


def share_axis(label: str = "") -> Axis:
    """From nothing to all of it."""
    marks = [Tick(share, f"{100 * share:.0f} %") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return Axis(0.0, 1.0, marks, label)


def count_axis(first: float, last: float, label: str, low: float, high: float) -> Axis:
    """Whole numbers from ``first`` to ``last``, on a range that may be wider."""
    return Axis(low, high, _fitting(lambda most: _whole(first, last, most)), label)


def _whole(first: float, last: float, most: int) -> list[Tick]:
    found = number_ticks(first, last, most)
    return [Tick(tick.at, f"{round(tick.at):,}") for tick in found if tick.at % 1 == 0]


def timeline(data: Sequences, sequence: int) -> Timeline:
    """Times of a sequence as its table has them, or its steps."""
    start = int(data.starts[sequence])
    ticks = data.ticks[start : start + int(data.lengths[sequence])]
    table = data.table
    if table is None or table.clock is None:
        edges = _edges(ticks.astype(np.float64), 1.0)
        axis = count_axis(float(ticks[0]), float(ticks[-1]), "step", edges[0], edges[-1])
        return Timeline(ticks.astype(np.float64), edges, axis)
    name = shorten(table.roles.time, 20)
    width = float(np.median(np.diff(ticks))) if len(ticks) > 1 else table.width
    if table.clock.numbers:
        return _numbers(ticks.astype(np.float64), width, name)
    kind = table.frame[str(table.roles.time)].dtype
    if str(kind).startswith("Duration"):
        return _durations(ticks.astype(np.float64), width, name)
    zone = " UTC" if table.clock.aware or getattr(kind, "time_zone", None) else ""
    return _dates(ticks.astype(np.int64), width, name, zone)


def _numbers(places: Array, width: float, label: str) -> Timeline:
    edges = _edges(places, width)
    marks = _fitting(lambda most: number_ticks(edges[0], edges[-1], most))
    return Timeline(places, edges, Axis(edges[0], edges[-1], marks, label))


def _durations(places: Array, width: float, name: str) -> Timeline:
    span = float(np.ptp(places)) or width
    unit = next((u for u, size in UNITS.items() if span >= 2 * size), "ns")
    return _numbers(places / UNITS[unit], width / UNITS[unit], f"{name} ({unit})")


def _dates(moments: Array, width: float, name: str, zone: str) -> Timeline:
    first = int(moments[0])
    places = (moments - first).astype(np.float64)  # exact, where nanoseconds since 1970 are not
    edges = _edges(places, width)
    start, stop = first + int(edges[0]), first + int(edges[-1])

    def shifted(most: int) -> list[Tick]:
        offset = float(start - first)
        found = date_ticks(start, stop, most)
        return [Tick(tick.at + offset, tick.label, tick.below) for tick in found]

    begin = str(np.datetime64(first, "ns").astype("datetime64[m]")).replace("T", " ")
    label = f"{name}, from {begin}{zone}"
    return Timeline(places, edges, Axis(edges[0], edges[-1], _fitting(shifted), label))


def _edges(places: Array, width: float) -> Array:
    """Half-way between neighbours; at both ends half a usual width out."""
    between = (places[1:] + places[:-1]) / 2
    return np.concatenate([[places[0] - width / 2], between, [places[-1] + width / 2]])


def _fitting(make: Callable[[int], Sequence[Tick]]) -> Sequence[Tick]:
    """As many marks as there is room for their labels."""
    for most in (7, 6, 5, 4, 3):
        marks = make(most)
        widest = max((breadth(mark.label) for mark in marks), default=0.0)
        if len(marks) * (widest + 14) <= ROOM:
            return marks
    return make(2)

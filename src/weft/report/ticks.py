"""Where an axis is marked, and what stands there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.report.text import minus, superscript

__all__ = ["Tick", "date_ticks", "log_ticks", "number_ticks"]

SECOND = 10**9
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
STEPS = [
    *(10**power * lead for power in range(9) for lead in (1, 2, 5)),
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 4, 7, 14)),
]
MONTHS = (1, 2, 3, 6, *(12 * lead * 10**power for power in range(3) for lead in (1, 2, 5)))
MONTH = 30.44 * DAY
NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass(frozen=True)
class Tick:
    """A mark at a place, what it says, and what a second line below says."""

    at: float
    label: str
    below: str = ""


def number_ticks(low: float, high: float, most: int = 5) -> list[Tick]:
    """Round numbers from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> [tick.label for tick in number_ticks(0.0, 1.0)]
    ['0.0', '0.5', '1.0']
    >>> [tick.label for tick in number_ticks(-3.0, 17.0)]
    ['0', '5', '10', '15']
    """
    power = math.floor(math.log10((high - low) / most)) if high > low else 0
    steps = [lead * 10.0**p for p in (power, power + 1, power + 2) for lead in (1, 2, 5)]
    step = next((s for s in steps if _inside(low, high, s) <= most), steps[-1])
    first = math.ceil(low / step - 1e-9)
    places = [first + i for i in range(_inside(low, high, step))]
    values = [place * step for place in places]
    return [Tick(value, label) for value, label in zip(values, _labels(values, step), strict=True)]


def _inside(low: float, high: float, step: float) -> int:
    """How many multiples of a step lie in a range."""
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _labels(values: list[float], step: float) -> list[str]:
    """Numbers with as many digits as their distance needs."""
    largest = max(map(abs, values), default=0.0)
    size = math.floor(math.log10(largest)) if largest > 0 else 0
    fine = math.floor(math.log10(step) + 1e-9)
    if fine >= -4 and size < 6:
        return [minus(f"{value + 0.0:,.{max(0, -fine)}f}") for value in values]
    digits = max(0, size - fine)
    return [
        minus(f"{value / 10.0**size:.{digits}f}×10{superscript(size)}") if value else "0"
        for value in values
    ]


def log_ticks(low: float, high: float, most: int = 5) -> list[Tick]:
    """Powers of ten, or with 2 and 5 times them where few lie in the range.

    Examples
    --------
    >>> [tick.label for tick in log_ticks(0.002, 30.0)]
    ['0.01', '0.1', '1', '10']
    """
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    choices = [
        [10.0**p * lead for p in range(bottom, top + 1, every) for lead in leads]
        for every, leads in [
            (1, (1, 2, 5)),
            (1, (1, 3)),
            (1, (1,)),
            (2, (1,)),
            (4, (1,)),
            (9, (1,)),
        ]
    ]
    inside = [
        [v for v in values if low <= v * (1 + 1e-9) and v <= high * (1 + 1e-9)]
        for values in choices
    ]
    values = next((found for found in inside if len(found) <= most), inside[-1])
    return [Tick(value, _power(value)) for value in values]


def _power(value: float) -> str:
    size = math.floor(math.log10(value) + 1e-9)
    if -3 <= size <= 4:
        return f"{value:,.{max(0, -size)}f}"
    lead = round(value / 10.0**size)
    return f"10{superscript(size)}" if lead == 1 else f"{lead}×10{superscript(size)}"


def date_ticks(start: int, stop: int, most: int = 5) -> list[Tick]:
    """Round moments between two times in nanoseconds, placed relative to the first.

    Hours have their day below where it changes, days and months their year.

    Examples
    --------
    >>> day = 86400 * 10**9
    >>> [(tick.label, tick.below) for tick in date_ticks(0, day, 3)]
    [('00:00', '1 Jan'), ('12:00', ''), ('00:00', '2 Jan')]
    """
    for step in STEPS:
        first = -(-start // step)
        if stop // step - first < most:
            return _name([i * step for i in range(first, stop // step + 1)], start, step)
    for months in MONTHS:
        begin, end = (_month(moment) for moment in (start, stop))
        inside = [m for m in range(begin, end + 1) if m % months == 0]
        moments = [
            int(np.datetime64(m, "M").astype("datetime64[ns]").astype(np.int64)) for m in inside
        ]
        moments = [moment for moment in moments if start <= moment <= stop]
        if len(moments) <= most:
            return _name(moments, start, months * MONTH)
    return []


def _month(moment: int) -> int:
    return int(np.datetime64(moment, "ns").astype("datetime64[M]").astype(np.int64))


def _name(moments: list[int], start: int, step: float) -> list[Tick]:
    """Write moments as finely as their distance asks for, and the rest below where it changes."""
    ticks: list[Tick] = []
    last = ""
    for moment in moments:
        date, clock = str(np.datetime64(moment, "ns")).split("T")
        year, month, day = date.rsplit("-", 2)
        named = NAMES[int(month) - 1]
        if step >= 12 * MONTH:
            label, below = year, ""
        elif step >= MONTH:
            label, below = named, year
        elif step >= DAY:
            label, below = f"{int(day)} {named}", year
        else:
            label, below = _clock(clock, step), f"{int(day)} {named}"
        ticks.append(Tick(float(moment - start), label, below if below != last else ""))
        last = below
    return ticks


def _clock(clock: str, step: float) -> str:
    """The time of a day, to minutes, seconds or parts of them."""
    if step >= MINUTE:
        return clock[:5]
    if step >= SECOND:
        return clock[:8]
    digits = 9 - math.floor(math.log10(step) + 1e-9)
    return f":{clock[6:9]}{clock[9 : 9 + digits]}"

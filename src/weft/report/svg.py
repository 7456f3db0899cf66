"""Drawings: an area with two axes, and marks in it, as SVG text.

Colours are classes: ``k0`` to ``k7`` for kinds, ``l0`` to ``l4`` for levels; a style sheet says
what they look like. Drawings are as wide as a phone, so that text keeps its size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.columns import Array
from weft.report.text import breadth, escape
from weft.report.ticks import Tick

__all__ = ["WIDTH", "Axis", "Plot", "area", "cells", "dots", "draw", "line", "spans"]

WIDTH = 360
TOP, RIGHT = 8, 14
LINE = 15  # height of a line of text


@dataclass(frozen=True)
class Axis:
    """A range of numbers, where it is marked, and what it is called."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    label: str = ""
    log: bool = False
    grid: bool = True

    def share(self, values: Array) -> Array:
        """How far along the axis numbers lie, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            low, high, values = math.log(low), math.log(high), np.log(values)
        found: Array = (np.asarray(values, np.float64) - low) / (high - low)
        return found


@dataclass(frozen=True)
class Plot:
    """The area between two axes."""

    x: Axis
    y: Axis
    height: float = 150.0
    above: float = 0.0  # room for a strip on top
    left: float = field(init=False)

    def __post_init__(self) -> None:
        widest = max((breadth(tick.label) for tick in self.y.ticks), default=0.0)
        object.__setattr__(self, "left", 8 + widest + (LINE if self.y.label else 0))

    @property
    def width(self) -> float:
        """From the left to the right end of the x axis."""
        return WIDTH - RIGHT - self.left

    @property
    def top(self) -> float:
        """Upper end of the y axis."""
        return TOP + self.above

    @property
    def bottom(self) -> float:
        """Lower end of the y axis."""
        return self.top + self.height

    def across(self, values: Array) -> Array:
        """Where numbers lie from left to right."""
        return self.left + self.width * self.x.share(values)

    def down(self, values: Array) -> Array:
        """Where numbers lie from top to bottom."""
        return self.bottom - self.height * self.y.share(values)


def draw(title: str, description: str, plot: Plot, marks: Sequence[str]) -> str:
    """A drawing with its axes, named and described for those who do not see it."""
    two_lines = any(tick.below for tick in plot.x.ticks)
    below = LINE * (1 + two_lines + bool(plot.x.label)) + 8
    return (
        f'<svg viewBox="0 0 {WIDTH} {plot.bottom + below:g}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
        f"{_grid(plot)}{''.join(marks)}{_names(plot)}</svg>"
    )


def _grid(plot: Plot) -> str:
    parts = []
    left, right = plot.left, plot.left + plot.width
    if plot.y.grid:
        for y in plot.down(np.array([tick.at for tick in plot.y.ticks])):
            parts.append(f"M{left:.1f} {y:.1f}H{right:.1f}")
    for x in plot.across(np.array([tick.at for tick in plot.x.ticks])):
        parts.append(f"M{x:.1f} {plot.bottom:.1f}v4")
    parts.append(f"M{left:.1f} {plot.bottom:.1f}H{right:.1f}")
    return f'<path class="grid" d="{"".join(parts)}"/>'


def _names(plot: Plot) -> str:
    parts = []
    for tick, y in zip(plot.y.ticks, plot.down(_places(plot.y)), strict=True):
        parts.append(_text(plot.left - 5, y + 4, tick.label, "end"))
    two_lines = any(tick.below for tick in plot.x.ticks)
    for tick, x in zip(plot.x.ticks, plot.across(_places(plot.x)), strict=True):
        for i, label in enumerate((tick.label, tick.below)):
            half = breadth(label) / 2
            inside = min(max(x, half + 1), WIDTH - half - 1)
            if label:
                parts.append(_text(inside, plot.bottom + LINE * (i + 1) + 2, label, "middle"))
    if plot.x.label:
        y = plot.bottom + LINE * (2 + two_lines) + 3
        parts.append(_text(plot.left + plot.width / 2, y, plot.x.label, "middle"))
    if plot.y.label:
        x, y = 12, plot.top + plot.height / 2
        turned = f' transform="rotate(-90 {x} {y:g})"'
        parts.append(_text(x, y, plot.y.label, "middle", turned))
    return "".join(parts)


def _places(axis: Axis) -> Array:
    return np.array([tick.at for tick in axis.ticks])


def _text(x: float, y: float, label: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(label)}</text>'


# Marks


def line(plot: Plot, x: Array, y: Array, kind: str) -> str:
    """A line through points ``(point,)``, broken where one is not a finite number."""
    whole = np.isfinite(y)
    parts, pen = [], "M"
    for across, down, there in zip(
        plot.across(x), plot.down(np.where(whole, y, plot.y.low)), whole, strict=True
    ):
        if there:
            parts.append(f"{pen}{across:.1f} {down:.1f}")
        pen = "L" if there else "M"
    return f'<path class="line {kind}" d="{"".join(parts)}"/>'


def area(plot: Plot, x: Array, low: Array, high: Array, kind: str) -> str:
    """What lies between two lines through points ``(point,)``."""
    there = np.concatenate([plot.across(x), plot.across(x)[::-1]])
    back = np.concatenate([plot.down(high), plot.down(low)[::-1]])
    corners = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(there, back, strict=True))
    return f'<path class="{kind}" d="M{corners}Z"/>'


def dots(plot: Plot, x: Array, y: Array, kind: str, radius: float | Array = 2.2) -> str:
    """A dot at every point ``(point,)``."""
    sizes = np.broadcast_to(radius, np.shape(x))
    return "".join(
        f'<circle class="dot {kind}" cx="{a:.1f}" cy="{b:.1f}" r="{r:.1f}"/>'
        for a, b, r in zip(plot.across(x), plot.down(y), sizes, strict=True)
    )


def spans(plot: Plot, start: Array, stop: Array, top: float, height: float, kind: str) -> str:
    """Boxes ``(box,)`` from left to right, of one height."""
    boxes = "".join(
        f"M{a:.1f} {top:g}H{b:.1f}v{height:g}H{a:.1f}z"
        for a, b in zip(plot.across(start), plot.across(stop), strict=True)
    )
    return f'<path class="{kind}" d="{boxes}"/>' if boxes else ""


def cells(plot: Plot, levels: Array) -> str:
    """A map ``(row, column)`` of levels from 0 on, the first row on top; nothing below 0."""
    rows, columns = levels.shape
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(levels):
        edges = np.flatnonzero(np.diff(row, prepend=-2, append=-2))
        for start, stop in itertools.pairwise(edges):
            if row[start] >= 0:
                box = f"M{start} {i}h{stop - start}v1h-{stop - start}z"
                paths.setdefault(int(row[start]), []).append(box)
    scale = f"scale({plot.width / columns:.5f} {plot.height / rows:.5f})"
    inner = "".join(
        f'<path class="cell l{level}" d="{"".join(boxes)}"/>'
        for level, boxes in sorted(paths.items())
    )
    return f'<g transform="translate({plot.left:.1f} {plot.top:g}) {scale}">{inner}</g>'

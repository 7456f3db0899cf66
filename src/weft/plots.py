"""Pictures, by matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.prediction import Prediction
from weft.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "plot_spirals"]

EDGE = 4.2  # no spiral reaches beyond √2 · 2.75
RADIUS = 2.448  # in standard deviations: holds 95 % of a Gaussian in the plane
TRUTH, MEAN, SEEN = "0.65", "#c1440e", "#1f4e79"


@dataclass(frozen=True)
class Panel:
    """One picture of spirals: what was given, what was inferred, and which sequence to show."""

    given: Sequences
    predictions: Mapping[str, Prediction]
    sequence: int


def plot_spirals(
    rows: Mapping[str, Sequence[Panel]], titles: Sequence[str], truth: Sequences
) -> Figure:
    """Draw rows of panels, a column for each title: observed, true and predicted, 95 % ellipses.

    ``rows`` maps a label (which may be empty) to its panels.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'weft[plot]'.") from error

    figure = Figure(figsize=(2.6 * len(titles), 2.6 * len(rows) + 0.7), layout="constrained")
    axes = figure.subplots(len(rows), len(titles), squeeze=False, sharex=True, sharey=True)
    for j, title in enumerate(titles):
        axes[0, j].set_title(title, fontsize=11)
    for i, (label, panels) in enumerate(rows.items()):
        axes[i, 0].set_ylabel(f"{label.strip()}\ny".strip(), fontsize=11)
        for j, panel in enumerate(panels):
            _draw(axes[i, j], panel, truth)
    for bottom in axes[-1]:
        bottom.set_xlabel("x", fontsize=11)
    handles = [
        Line2D([], [], color=TRUTH, lw=3, label="truth"),
        Line2D([], [], color=SEEN, marker="o", ms=3, ls="", label="x and y observed"),
        Line2D([], [], color=SEEN, marker="|", ms=7, ls="", label="only x observed"),
        Line2D([], [], color=SEEN, marker="_", ms=7, ls="", label="only y observed"),
        Line2D([], [], color=MEAN, lw=1.5, label="prediction, 95 % ellipses"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _draw(axes: Axes, panel: Panel, truth: Sequences) -> None:
    from matplotlib.patches import Ellipse

    given, predictions, sequence = panel.given, panel.predictions, panel.sequence

    def curve(source: Sequences, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(source.padded(name)[sequence, :, 0], np.float64)

    true_x, true_y = curve(truth, "x"), curve(truth, "y")
    axes.plot(true_x, true_y, color=TRUTH, lw=3, zorder=1)
    x, y = (predictions[name].mean[sequence, :, 0] for name in ("x", "y"))
    width, height = (2 * RADIUS * predictions[name].std[sequence, :, 0] for name in ("x", "y"))
    for t in range(0, len(x), 3):
        axes.add_patch(Ellipse((x[t], y[t]), width[t], height[t], color=MEAN, alpha=0.08, lw=0))
    axes.plot(x, y, color=MEAN, lw=1.5, zorder=3)
    seen_x, seen_y = curve(given, "x"), curve(given, "y")
    both = ~np.isnan(seen_x) & ~np.isnan(seen_y)
    axes.plot(seen_x[both], seen_y[both], "o", color=SEEN, ms=2.2, zorder=2)
    only_x, only_y = seen_x[np.isnan(seen_y)], seen_y[np.isnan(seen_x)]  # marked along the edges
    edge = -EDGE + 0.3
    axes.plot(only_x, np.full_like(only_x, edge), "|", color=SEEN, ms=5, zorder=2)
    axes.plot(np.full_like(only_y, edge), only_y, "_", color=SEEN, ms=5, zorder=2)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
    axes.tick_params(labelsize=7, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

"""Pictures, by matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.columns import Array
from weft.prediction import Prediction
from weft.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "Strip", "animate_strips", "draw_seeds", "plot_spirals", "plot_strips"]

EDGE = 4.2  # no spiral reaches beyond √2 · 2.75
RADIUS = 2.448  # in standard deviations: holds 95 % of a Gaussian in the plane
TRUTH, MEAN, SEEN = "0.65", "#c1440e", "#1f4e79"
GAP = 0.8  # brightness of a frame that was not observed


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
    figure_class = _figure_class()
    from matplotlib.lines import Line2D

    figure = figure_class(figsize=(2.6 * len(titles), 2.6 * len(rows) + 0.7), layout="constrained")
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


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'weft[plot]'.") from error
    return Figure


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


def draw_seeds(
    axes: Axes, places: Sequence[float], seeds: Sequence[Sequence[float]], label: str
) -> None:
    """Draw the mean over seeds as a line, and their range as a band."""
    line = axes.plot(places, [np.mean(each) for each in seeds], "o-", label=label)
    low, high = [min(each) for each in seeds], [max(each) for each in seeds]
    axes.fill_between(places, low, high, color=line[0].get_color(), alpha=0.2, lw=0)


@dataclass(frozen=True, eq=False)
class Strip:
    """Frames in a row: images ``(time, channel, height, width)``, NaN where nothing was seen.

    ``captions`` stand below the frames.
    """

    label: str
    images: Array
    captions: Sequence[str] | None = None

    def picture(self, t: int) -> Array:
        """One frame as ``(height, width, 3)``; grey if it was not seen."""
        image = np.moveaxis(np.asarray(self.images[t], np.float64), 0, -1)
        image = np.clip(np.where(np.isnan(image), GAP, image), 0, 1)
        return np.broadcast_to(image, (*image.shape[:2], 3))


def plot_strips(strips: Sequence[Strip], title: str, most: int = 12) -> Figure:
    """Draw strips below each other, at most so many frames of each, evenly spread."""
    figure_class = _figure_class()
    steps = len(strips[0].images)
    shown = np.unique(np.linspace(0, steps - 1, most).round().astype(int))
    figure = figure_class(
        figsize=(len(shown) + 1.3, 1.12 * len(strips) + 0.5), layout="constrained"
    )
    axes = figure.subplots(len(strips), len(shown), squeeze=False)
    for i, strip in enumerate(strips):
        for j, t in enumerate(shown):
            axes[i, j].imshow(strip.picture(t))
            axes[i, j].set(xticks=[], yticks=[])
            axes[i, j].spines[:].set_visible(False)
            if strip.captions is not None:
                axes[i, j].set_xlabel(strip.captions[t], fontsize=7, labelpad=2)
        axes[i, 0].set_ylabel(strip.label, rotation=0, ha="right", va="center", fontsize=8)
    for j, t in enumerate(shown):
        axes[0, j].set_title(f"frame {t}", fontsize=7)
    figure.suptitle(title, fontsize=10)
    return figure


def animate_strips(
    strips: Sequence[Strip], path: Path, *, scale: int = 3, rate: float = 12.5
) -> None:
    """Write strips side by side as a GIF, ``rate`` frames per second, captions below."""
    from PIL import Image, ImageDraw

    side = strips[0].images.shape[-1] * scale
    head, foot, gap = 16, 16, 6
    frames = []
    for t in range(len(strips[0].images)):
        canvas = Image.new("RGB", (len(strips) * (side + gap) - gap, head + side + foot), "white")
        pen = ImageDraw.Draw(canvas)
        for i, strip in enumerate(strips):
            pixels = Image.fromarray((255 * strip.picture(t)).round().astype(np.uint8))
            left = i * (side + gap)
            canvas.paste(pixels.resize((side, side), Image.Resampling.NEAREST), (left, head))
            pen.text((left + 2, 2), strip.label.replace("\n", " "), fill="black")
            if strip.captions is not None:
                pen.text((left + 2, head + side + 2), strip.captions[t], fill="black")
        frames.append(canvas.quantize(96))
    first, *rest = frames
    first.save(path, save_all=True, append_images=rest, duration=round(1000 / rate), loop=0)

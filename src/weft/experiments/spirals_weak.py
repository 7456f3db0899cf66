"""The paper's second experiment: learning spirals from incomplete training data.

Two kinds of incompleteness: steps missing uniformly at random (`uniform`), and whole sequences that
lack y (`unimodal`). Evaluation takes the first and last quarter of each test spiral away, and half
of the steps between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.corruption import delete_between, delete_modalities, delete_steps
from weft.experiments.runner import run_jobs, write_json
from weft.experiments.spirals import Size, SpiralsJob, fit_spirals, seeds_of, spirals_of
from weft.experiments.tasks import squared_distance
from weft.plots import draw_seeds
from weft.randomness import stream
from weft.sequences import Sequences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CONDITIONS", "LEVELS", "WeakJob", "reproduce_spirals_weak"]

LEVELS = {"uniform": (0.0, 0.3, 0.7, 0.9), "unimodal": (0.0, 0.3, 0.6, 0.9)}
"""Shares of the training data that are missing, by kind of incompleteness."""

CONDITIONS: dict[str, Callable[[Sequences, float, torch.Generator], Sequences]] = {
    "uniform": delete_steps,
    "unimodal": lambda data, share, generator: delete_modalities(data, share, generator, ["y"]),
}


@dataclass(frozen=True)
class WeakJob:
    """One fit on incomplete training data."""

    condition: str
    level: float
    fit: SpiralsJob

    @property
    def name(self) -> str:
        """Condition and level, then the fit; where nothing is missing, no condition."""
        if not self.level:
            return f"complete-{self.fit.name}"
        return f"{self.condition}-{round(100 * self.level)}-{self.fit.name}"


def run_weak(job: WeakJob) -> dict[str, Any]:
    """Fit on what is left of the training spirals; measure on incomplete test spirals."""
    torch.set_num_threads(1)
    train, test = spirals_of(job.fit.seed, job.fit.size)
    generator = stream(job.fit.seed, 2, round(100 * job.level))
    left = CONDITIONS[job.condition](train.noisy, job.level, generator)
    model = fit_spirals(job.fit, left)
    given = delete_between(delete_between(test.noisy, 0.0, 0.25), 0.75, 1.0)
    given = delete_steps(given, 0.5, stream(job.fit.seed, 3))
    path = model.sequence(given)
    errors = squared_distance({name: path[name] for name in given.names}, test.clean)
    return {"mean": float(errors.mean()), "sd": float(errors.std())}


def summarise(
    jobs: Sequence[WeakJob], results: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Preset → method → condition → level → mean over seeds, SD over the test set, and seeds."""
    summary: dict[str, Any] = {}
    for job in jobs:
        methods = summary.setdefault(job.fit.preset, {})
        levels = methods.setdefault(job.fit.method, {}).setdefault(job.condition, {})
        entry = levels.setdefault(f"{job.level:.1f}", {"mean": 0.0, "sd": 0.0, "seeds": []})
        entry["seeds"].append(results[job.name]["mean"])
        entry["mean"] = float(np.mean(entry["seeds"]))
        count = len(entry["seeds"])
        entry["sd"] += (results[job.name]["sd"] - entry["sd"]) / count
    return summary


def draw_weak(summary: Mapping[str, Any]) -> Figure:
    """Error over the share of training data that is missing; bands span the seeds."""
    from matplotlib.figure import Figure

    titles = {
        "uniform": "training steps missing at random",
        "unimodal": "training spirals that lack y",
    }
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(titles), sharey=True)
    for axis, (condition, title) in zip(axes, titles.items(), strict=True):
        for preset, methods in summary.items():
            for method, conditions in methods.items():
                levels = conditions.get(condition, {})
                shares = [100 * float(level) for level in levels]
                seeds = [entry["seeds"] for entry in levels.values()]
                draw_seeds(axis, shares, seeds, f"{method} ({preset})")
        axis.set(title=title, xlabel="missing in training, %", yscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    ticks = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    axes[0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].minorticks_off()
    lowest = min(min(line.get_ydata()) for line in axes[0].lines + axes[1].lines)
    axes[0].set_ylim(bottom=0.7 * lowest)
    axes[0].set_ylabel("squared distance per step\n(line: mean of the seeds, band: their range)")
    axes[0].legend(frameon=False)
    return figure


def reproduce_spirals_weak(
    out: Path,
    *,
    presets: Sequence[str] = ("sweep",),
    methods: Sequence[str] = ("bfvi", "b-mask"),
    seeds: int = 3,
    levels: Mapping[str, Sequence[float]] = LEVELS,
    size: Size = Size(),
    processes: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run every condition and level; write ``spirals_weak.json`` and a figure."""
    directory = out / "spirals_weak"
    jobs = [
        WeakJob(condition, level, SpiralsJob(preset, method, seed, directory, size))
        for preset in presets
        for method in methods
        for condition in CONDITIONS
        for level in levels[condition]
        for seed in seeds_of(preset, seeds)
    ]
    distinct = list({job.name: job for job in jobs}.values())
    results = run_jobs(run_weak, distinct, directory, processes=processes, progress=progress)
    summary = summarise(jobs, results)
    write_json(out / "spirals_weak.json", summary)
    draw_weak(summary).savefig(out / "spirals_weak.png", dpi=110)
    return summary

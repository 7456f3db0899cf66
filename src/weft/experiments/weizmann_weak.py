"""Learning actions when some of the training clips have no label.

At the test half of the frames are given and nothing else; the figure is the accuracy per frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.experiments.runner import run_jobs, write_json
from weft.experiments.weizmann import run_weizmann
from weft.experiments.weizmann_fits import EXPERIMENTS, WeizmannJob, budget_of
from weft.plots import draw_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LEVELS", "reproduce_weizmann_weak"]

LEVELS = (0.0, 0.25, 0.5, 0.75)


def summarise(
    jobs: Sequence[WeizmannJob], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Experiment → method → level → mean and SD over test clips, and seeds."""
    summary: dict[str, Any] = {}
    for job in jobs:
        levels = summary.setdefault(job.experiment, {}).setdefault(job.method, {})
        entry = levels.setdefault(f"{job.unlabelled:.2f}", {"clips": []})
        entry["clips"].append(results[job.name]["action_half"])
    for methods in summary.values():
        for levels in methods.values():
            for level, entry in levels.items():
                clips = np.array(entry["clips"])
                levels[level] = {
                    "mean": float(clips.mean()),
                    "sd": float(clips.std(1).mean()),
                    "seeds": clips.mean(1).tolist(),
                }
    return summary


def draw(summary: Mapping[str, Any]) -> Figure:
    """Accuracy over the share of training clips without a label; bars span the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(summary) + 0.6, 3.6), layout="constrained")
    axes = figure.subplots(1, len(summary), squeeze=False, sharey=True)[0]
    for axis, (experiment, methods) in zip(axes, summary.items(), strict=True):
        for method, levels in methods.items():
            shares = [100 * float(level) for level in levels]
            seeds = [entry["seeds"] for entry in levels.values()]
            draw_seeds(axis, shares, seeds, method)
        axis.set(
            title=EXPERIMENTS[experiment].title,
            xlabel="training clips without their action, %",
            ylim=(0, 1),
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy per frame, half the frames given")
    axes[0].legend(frameon=False)
    return figure


def reproduce_weizmann_weak(
    data: Path,
    out: Path,
    *,
    experiments: Sequence[str] = ("w90",),
    methods: Sequence[str] = ("bfvi", "b-mask-direct"),
    budget: str | None = None,
    seeds: int = 1,
    levels: Sequence[float] = LEVELS,
    processes: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run every level; write ``weizmann_weak.json`` and a figure."""
    directory = out / "weizmann"
    jobs = [
        WeizmannJob(experiment, method, seed, data, directory, budget_of(experiment, budget), level)
        for experiment in experiments
        for method in methods
        for level in levels
        for seed in range(seeds)
    ]
    results = run_jobs(run_weizmann, jobs, directory, processes=processes, progress=progress)
    summary = summarise(jobs, results)
    write_json(out / "weizmann_weak.json", summary)
    draw(summary).savefig(out / "weizmann_weak.png", dpi=110)
    return summary

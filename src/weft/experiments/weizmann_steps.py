"""How much more training would bring: every task's figure after fits of growing length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.experiments.runner import run_jobs, write_json
from weft.experiments.tasks import VIDEO_TASKS
from weft.experiments.weizmann import run_weizmann, summarise
from weft.experiments.weizmann_fits import EXPERIMENTS, WeizmannJob, budget_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LENGTHS", "reproduce_weizmann_steps"]

LENGTHS = (375, 750, None)
"""Steps of the fits; the last has the budget's."""


def draw(summary: Mapping[str, Any], title: str) -> Figure:
    """Figures of every task over the steps of a fit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axis = figure.subplots()
    tasks = [task for task in VIDEO_TASKS if all(task.name in found for found in summary.values())]
    steps = [int(length) for length in summary]
    for task in tasks:
        means = [found[task.name]["mean"] for found in summary.values()]
        axis.plot(steps, means, marker="o", ms=4, label=task.title)
    figure.suptitle(title, fontsize=11)
    axis.set(
        xlabel="training steps",
        ylabel="similarity or accuracy",
        xscale="log",
        ylim=(None, 1.02),
    )
    axis.set_xticks(steps, [f"{count:,}" for count in steps])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    return figure


def reproduce_weizmann_steps(
    data: Path,
    out: Path,
    *,
    experiment: str = "w36",
    method: str = "bfvi",
    budget: str | None = None,
    lengths: Sequence[int | None] = LENGTHS,
    processes: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Fit one method for so many steps each; write ``weizmann_steps.json`` and a figure."""
    directory = out / "weizmann"
    spent = budget_of(experiment, budget)
    jobs = [
        WeizmannJob(experiment, method, 0, data, directory, spent, steps=length)
        for length in lengths
    ]
    results = run_jobs(run_weizmann, jobs, directory, processes=processes, progress=progress)
    found = [summarise([job], results)[experiment][method] for job in jobs]
    summary = {str(fit["run"]["steps"]): fit for fit in found}
    write_json(out / "weizmann_steps.json", {experiment: {method: summary}})
    title = f"{EXPERIMENTS[experiment].title}, {method}"
    draw(summary, title).savefig(out / "weizmann_steps.png", dpi=110)
    return summary

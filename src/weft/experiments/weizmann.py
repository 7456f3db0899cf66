"""The paper's experiment on video: images, silhouettes and labels of human actions.

One person is held out. A model of three modalities is trained in short segments; at the test it is
given one stream alone, of which parts may be missing, and infers the rest: the missing parts, the
silhouettes, the action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.estimator import MDMM, load
from weft.experiments.runner import run_jobs, write_json
from weft.experiments.tasks import VIDEO_TASKS, accuracy, similarity
from weft.experiments.weizmann_budgets import BUDGETS
from weft.experiments.weizmann_fits import (
    EXPERIMENTS,
    WeizmannJob,
    budget_of,
    clips_of,
    declare,
    keep_fit,
    model_of,
)
from weft.plots import Strip, animate_strips, plot_strips
from weft.randomness import stream
from weft.sequences import Sequences

__all__ = ["EXPERIMENTS", "reproduce_weizmann", "run_weizmann"]


def run_weizmann(job: WeizmannJob) -> dict[str, Any]:
    """Fit, unless that was done before, and measure every task on the tested person's clips."""
    torch.set_num_threads(1)
    train, test = clips_of(job)
    record = job.directory / f"{job.name}.fit.json"
    if not record.exists():
        write_json(record, keep_fit(job, train))
    fitted: dict[str, Any] = json.loads(record.read_text())
    model = load(model_of(job), declare(job))
    return fitted | measure(model, test, EXPERIMENTS[job.experiment].given, job.seed)


def measure(model: MDMM, test: Sequences, given: str, seed: int) -> dict[str, list[float]]:
    """Every task's figure for every test clip, from one modality alone."""
    alone = test.hide(*(name for name in test.names if name != given))
    found = {}
    for i, task in enumerate(VIDEO_TASKS):
        target = task.target or given
        if target == given and task.target:  # nothing to infer
            continue
        path = model.sequence(task.corrupt(alone, stream(seed, 1, i)))
        judge = similarity if test.columns[target].categories is None else accuracy
        found[task.name] = judge(path[target], test, target).tolist()
    return found


def summarise(
    jobs: Sequence[WeizmannJob], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Experiment → method → task → mean and SD over test clips, seeds, epochs and seconds."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for job in jobs:
        run = {"budget": job.budget, **results[job.name]}
        groups.setdefault((job.experiment, job.method), []).append(run)
    summary: dict[str, Any] = {}
    for (experiment, method), runs in groups.items():
        tasks: dict[str, Any] = {}
        for task in VIDEO_TASKS:
            if task.name not in runs[0]:
                continue
            figures = np.array([run[task.name] for run in runs])
            tasks[task.name] = {
                "mean": float(figures.mean()),
                "sd": float(figures.std(1).mean()),
                "seeds": figures.mean(1).tolist(),
                "epochs": runs[0]["epochs"],
                "seconds": float(np.mean([run["seconds"] for run in runs])),
            }
        tasks["run"] = {
            "budget": runs[0]["budget"],
            "latent": BUDGETS[runs[0]["budget"]].latent,
            "steps": runs[0]["steps"],
            "seconds_per_step": float(np.mean([run["seconds_per_step"] for run in runs])),
            "peak_gb": float(np.max([run["peak_gb"] for run in runs])),
            "loss": runs[0]["loss"],
        }
        summary.setdefault(experiment, {})[method] = tasks
    return summary


def beside(path: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a summary over that of a file, if there is one: newly run methods replace their own."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    return {
        name: kept.get(name, {}) | summary.get(name, {})
        for name in EXPERIMENTS
        if name in kept or name in summary
    }


def table(summary: Mapping[str, Any]) -> str:
    """Similarities and accuracies in Markdown, one table per experiment."""
    lines = []
    for experiment, methods in summary.items():
        tasks = [t for t in VIDEO_TASKS if all(t.name in found for found in methods.values())]
        lines += [
            f"**{experiment}**: {EXPERIMENTS[experiment].title}",
            "",
            f"| method | {' | '.join(task.title for task in tasks)} | s/step | GB |",
            "|---|" + "---:|" * (len(tasks) + 2),
        ]
        for method, found in methods.items():
            cells = [f"{found[t.name]['mean']:.2f} ({found[t.name]['sd']:.2f})" for t in tasks]
            run = found["run"]
            cells += [f"{run['seconds_per_step']:.1f}", f"{run['peak_gb']:.1f}"]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def storyboard(jobs: Sequence[WeizmannJob], clip: int = 0) -> list[Strip]:
    """One test clip with half its frames missing: what was there, what was seen, each fit's view.

    Jobs must be of one experiment and tested person.
    """
    given = EXPERIMENTS[jobs[0].experiment].given
    _, test = clips_of(jobs[0])
    shown = test[[clip]]
    half = next(task for task in VIDEO_TASKS if task.name == "half")
    seen = half.corrupt(shown.hide(*(n for n in shown.names if n != given)), stream(0, 1, 1))
    images = [name for name in ("video", "silhouette") if name in shown.names]
    strips = [Strip(f"original\n{name}", shown.arrays(name)[0]) for name in images]
    strips[0] = replace(strips[0], captions=list(shown.arrays("action")[0]))
    strips.append(Strip(f"observed\n{given}", seen.arrays(given)[0]))
    for job in jobs:
        path = load(model_of(job), declare(job)).sequence(seen)
        actions = path["action"]
        words = [
            f"{label} {chance:.2f}"
            for label, chance in zip(
                actions.labels[0], actions.probabilities[0].max(-1), strict=True
            )
        ]
        strips += [Strip(f"{job.method}\n{name}", path[name].mean[0], words) for name in images]
    return strips


def reproduce_weizmann(
    data: Path,
    out: Path,
    *,
    experiments: Sequence[str] = tuple(EXPERIMENTS),
    methods: Sequence[str] | None = None,
    budget: str | None = None,
    steps: int | None = None,
    seeds: int = 1,
    processes: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run experiments × methods × seeds; write results, storyboards and animations.

    Experiments and methods that were not asked for stay in the results as they are.
    """
    directory = out / "weizmann"
    jobs = [
        WeizmannJob(
            experiment,
            method,
            seed,
            data,
            directory,
            budget_of(experiment, budget),
            steps=steps,
        )
        for experiment in experiments
        for seed in range(seeds)
        for method in methods or EXPERIMENTS[experiment].methods
    ]
    results = run_jobs(run_weizmann, jobs, directory, processes=processes, progress=progress)
    summary = beside(out / "weizmann.json", summarise(jobs, results))
    write_json(out / "weizmann.json", summary)
    (out / "weizmann.md").write_text(table(summary))
    for experiment in experiments:
        fits = [job for job in jobs if job.experiment == experiment and job.seed == 0]
        title = f"{EXPERIMENTS[experiment].title}: half of the frames given, nothing else"
        plot_strips(storyboard(fits), title).savefig(out / f"weizmann_{experiment}.png", dpi=110)
        animate_strips(storyboard(fits[:1]), out / f"weizmann_{experiment}.gif")
    return summary

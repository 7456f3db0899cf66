"""One fit of the paper's Spirals model, measured: shared by the studies beside this file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import weft
from weft.corruption import delete_steps
from weft.datasets import make_spirals
from weft.experiments.runner import run_jobs
from weft.experiments.spirals import PRESETS
from weft.experiments.tasks import SPIRAL_TASKS, squared_distance
from weft.objective import ObjectiveConfig
from weft.schedules import TrainingConfig

ROOT = Path(__file__).parent.parent
PAPER = replace(PRESETS["paper"].training, epochs=100)
"""The supplement's training table, shortened to 100 epochs (of them 20, not 100, of annealing)."""


@dataclass(frozen=True)
class Fit:
    """One seed of one recipe."""

    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """Recipe and seed."""
        return f"{self.recipe}-{self.seed}"


def run_fits(
    study: str, work: Callable[[Fit], dict[str, Any]], recipes: Iterable[str], seeds: Iterable[int]
) -> dict[str, list[dict[str, Any]]]:
    """Fit every seed by every recipe; each fit is kept in results/<study>/, and not run again."""
    jobs = [Fit(recipe, seed) for seed in seeds for recipe in recipes]
    found = run_jobs(work, jobs, ROOT / "results" / study)
    results: dict[str, list[dict[str, Any]]] = {recipe: [] for recipe in recipes}
    for job in jobs:
        results[job.recipe].append(found[job.name])
    return results


def commit() -> str:
    """The commit that is checked out, with a plus sign if files have changed since."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def fit_spirals(seed: int, objective: ObjectiveConfig, training: TrainingConfig) -> dict[str, Any]:
    """Fit on 600 spirals; measure the paper's tasks and coverage on 400 others.

    The spirals are others than those on which defaults were chosen (generator seed 0).
    """
    torch.set_num_threads(1)
    spirals = make_spirals(torch.Generator().manual_seed(1))
    train, test = spirals[:600], spirals[600:]
    model = weft.MDMM([weft.Modality("x"), weft.Modality("y")], latent=5, hidden=20)
    started = time.monotonic()
    model.fit(train.noisy, training=training, objective=objective, seed=seed, progress=False)
    seconds = time.monotonic() - started
    errors = {}
    for task in SPIRAL_TASKS:
        given = task.corrupt(test.noisy, torch.Generator().manual_seed(7))
        path = model.sequence(given)
        errors[task.name] = float(
            squared_distance({name: path[name] for name in test.noisy.names}, test.clean).mean()
        )
    return {
        "seed": seed,
        "mse": errors,
        "coverage": coverage(model, test.noisy[:100]),
        "loss": model.history[-1].loss,
        "failures": sum(epoch.failures for epoch in model.history),
        "seconds": seconds,
    }


def coverage(model: weft.MDMM, data: weft.Sequences) -> float:
    """Share of deleted noisy points inside their 90 % interval, half of all steps deleted."""
    given = delete_steps(data, 0.5, torch.Generator().manual_seed(7))
    found = model.smooth(given, samples=200)
    hits, count = 0, 0
    for name in data.names:
        deleted = np.isnan(given.padded(name)) & ~np.isnan(data.padded(name))
        value = data.padded(name)[deleted]
        low, high = (bound[deleted] for bound in found[name].quantile((0.05, 0.95)))
        hits += int(((low <= value) & (value <= high)).sum())
        count += len(value)
    return hits / count

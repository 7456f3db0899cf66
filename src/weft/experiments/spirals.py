"""The paper's first experiment: five inference tasks on spirals, BFVI beside recurrent methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.datasets import Spirals, make_spirals
from weft.estimator import MDMM, load
from weft.experiments.runner import run_jobs, write_json
from weft.experiments.tasks import SPIRAL_TASKS, squared_distance
from weft.modality import Modality
from weft.objective import ObjectiveConfig
from weft.particles import Cubature, MonteCarlo, Particles
from weft.plots import Panel, plot_spirals
from weft.randomness import stream
from weft.schedules import TrainingConfig
from weft.sequences import Sequences
from weft.training import TrainingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PAPER_ROWS", "PRESETS", "Preset", "Size", "SpiralsJob", "reproduce_spirals"]

PAPER_ROWS: dict[str, tuple[float, ...]] = {
    "bfvi": (0.02, 0.04, 0.12, 0.07, 0.26),
    "f-mask": (0.02, 0.06, 0.10, 0.18, 1.37),
    "f-skip": (0.04, 0.10, 0.13, 0.19, 1.51),
    "b-mask": (0.02, 0.04, 0.18, 0.04, 1.25),
    "b-skip": (0.05, 0.19, 0.32, 0.37, 1.64),
}
"""Published errors, in the order of the tasks."""


@dataclass(frozen=True)
class Preset:
    """A recipe: how to train, what on, and how to predict.

    ``methods`` are those it is meant for, ``recurrent_rate`` the learning rate of all but BFVI.
    ``weight`` is the multiplier λ of a modality's reconstruction, per step observed: where some of
    its steps are missing, λ grows as many times. A share ``held_out`` of the training spirals
    decides which epoch's state is kept (the supplement's early stopping), and which of several
    ``starts``; recurrent methods, three times as slow, have one. Errors are those of the MAP
    sequence, or after ``refine`` rounds of linearisation of the posterior mean. Spirals of seeds
    below ``first_seed`` were looked at while the recipe was made, so they cannot judge it.
    """

    training: TrainingConfig
    objective: ObjectiveConfig
    particles: Particles
    recurrent_rate: float
    weight: float = 1.0
    held_out: float = 0.1
    starts: int = 1
    refine: int = 0
    first_seed: int = 0
    methods: tuple[str, ...] = tuple(PAPER_ROWS)


PAPER = Preset(
    TrainingConfig(
        epochs=500,
        batch_size=100,
        learning_rate=0.02,
        warmup=0.0,
        final_rate=1.0,
        anneal=0.2,
        polish=0.0,
    ),
    ObjectiveConfig(),
    MonteCarlo(200),
    recurrent_rate=0.01,
    weight=0.5,
)
BEST = Preset(
    TrainingConfig(epochs=100, batch_size=25, learning_rate=0.01, polish=0.0),
    ObjectiveConfig(particles=Cubature(), match_particles=Cubature(), each_alone=False),
    Cubature(),
    recurrent_rate=0.01,
    weight=0.5,
    starts=5,
    refine=2,
    first_seed=3,
    methods=("bfvi",),
)
SWEEP = replace(BEST, starts=3, methods=tuple(PAPER_ROWS))
PRESETS = {"paper": PAPER, "best": BEST, "sweep": SWEEP}
"""Named recipes.

``paper`` is the supplement's table of training parameters, but for λ = 1/2 (one over the number of
modalities, as in the released code) instead of 1, which does not reproduce the paper's figures.

``best`` is for the same model and BFVI. It trains in small steps, at a rate that falls, with
cubature points, with little annealing, and on all modalities together only: to infer from x alone
is served best by two oscillators that do not know of each other, and then x tells nothing of y.
Predictions are refined by linearisation, and the best of five starts is kept.

``sweep`` is the same with three starts, for experiments of many fits, and any method.
"""


@dataclass(frozen=True)
class Size:
    """How much data, and how long: the paper's, or less for a quick look."""

    train: int = 600
    test: int = 400
    steps: int = 100
    epochs: float = 1.0


QUICK = Size(train=20, test=10, steps=20, epochs=0.004)


@dataclass(frozen=True)
class SpiralsJob:
    """One fit with all tasks."""

    preset: str
    method: str
    seed: int
    directory: Path
    size: Size = Size()

    @property
    def name(self) -> str:
        """Preset, method and seed, and the size if it is not the paper's."""
        size = "" if self.size == Size() else f"-{self.size.train}x{self.size.steps}"
        return f"{self.preset}-{self.method}-{self.seed}{size}"


def seeds_of(preset: str, count: int) -> range:
    """So many seeds whose spirals the recipe has not seen."""
    first = PRESETS[preset].first_seed
    return range(first, first + count)


def spirals_of(seed: int, size: Size) -> tuple[Spirals, Spirals]:
    """Training and test spirals of a seed."""
    spirals = make_spirals(stream(seed), size.train + size.test, size.steps)
    return spirals[: size.train], spirals[size.train :]


def fit_spirals(job: SpiralsJob, train: Sequences) -> MDMM:
    """Fit one method by one preset from each of its starts; keep the best that came through."""
    count = len(train) - round(PRESETS[job.preset].held_out * len(train))
    kept, held_out = train[:count], train[count:]
    starts = range(PRESETS[job.preset].starts if job.method == "bfvi" else 1)
    models, failed = [], None
    for i in starts:
        try:
            models.append(_fit_once(job, kept, held_out, len(starts) * job.seed + i))
        except TrainingError as error:
            failed = error
    if failed is not None and not models:
        raise failed
    return min(models, key=lambda model: _judge(model, held_out, job.seed))


def _fit_once(job: SpiralsJob, train: Sequences, held_out: Sequences, seed: int) -> MDMM:
    preset = PRESETS[job.preset]
    epochs = max(round(preset.training.epochs * job.size.epochs), 1)
    training = replace(preset.training, epochs=epochs)
    if job.method != "bfvi":
        training = replace(training, learning_rate=preset.recurrent_rate)
    model = MDMM(
        [
            Modality(name, weight=preset.weight / train.observed_fraction(name))
            for name in train.names
        ],
        latent=5,
        hidden=20,
        particles=preset.particles,
        inference=job.method,
        refine=preset.refine,
    )
    return model.fit(
        train,
        validation=held_out,
        training=training,
        objective=preset.objective,
        seed=seed,
        progress=False,
    )


def _judge(model: MDMM, held_out: Sequences, seed: int) -> float:
    """Mean logarithm of the tasks' errors at what is known of held-out (noisy) spirals."""
    errors = []
    for i, task in enumerate(SPIRAL_TASKS):
        path = model.sequence(task.corrupt(held_out, stream(seed, 4, i)))
        off = [path[name].mean - held_out.padded(name) for name in held_out.names]
        errors.append(np.log(np.nanmean(np.square(off))))
    return float(np.mean(errors))


def run_spirals(job: SpiralsJob) -> dict[str, Any]:
    """Fit, and measure every task on the test spirals, against the noise-free and the noisy ones.

    Per task: mean and SD over the test set of the squared distance per step. The model is kept
    beside the results, and not fitted again if it is there.
    """
    torch.set_num_threads(1)
    train, test = spirals_of(job.seed, job.size)
    kept = job.directory / f"{job.name}.weft"
    if not kept.exists():
        fit_spirals(job, train.noisy).save(kept)
    model = load(kept)
    found: dict[str, Any] = {}
    for i, task in enumerate(SPIRAL_TASKS):
        given = task.corrupt(test.noisy, stream(job.seed, 1, i))
        path = model.sequence(given)
        predictions = {
            "map": {name: path[name] for name in test.noisy.names},
            "mean": model.smooth(given).predictions,
        }
        found[task.name] = {}
        for kind, prediction in predictions.items():
            for target, truth in (("clean", test.clean), ("noisy", test.noisy)):
                errors = squared_distance(prediction, truth)
                found[task.name][f"{kind}/{target}"] = [float(errors.mean()), float(errors.std())]
    return found


def draw_spirals(jobs: Sequence[SpiralsJob]) -> Figure:
    """Draw the tasks side by side, one row per fit, on one spiral that none of them has seen."""
    _, test = spirals_of(jobs[0].seed, jobs[0].size)
    some = Spirals(test.noisy[:1], test.clean[:1])
    rows = {}
    for job in jobs:
        model = load(job.directory / f"{job.name}.weft")
        model.refine = PRESETS[job.preset].refine
        panels = []
        for i, task in enumerate(SPIRAL_TASKS):
            given = task.corrupt(some.noisy, stream(jobs[0].seed, 1, i))
            panels.append(Panel(given, model.smooth(given).predictions, 0))
        rows[f"{job.method} ({job.preset})"] = panels
    return plot_spirals(rows, [task.title for task in SPIRAL_TASKS], some.clean)


def summarise(
    jobs: Iterable[SpiralsJob], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Preset → method → task → mean and SD over the test set (averaged over seeds), and seeds."""
    summary: dict[str, Any] = {}
    groups: dict[tuple[str, str], list[SpiralsJob]] = {}
    for job in jobs:
        groups.setdefault((job.preset, job.method), []).append(job)
    for (preset, method), members in groups.items():
        tasks = {}
        for task in SPIRAL_TASKS:
            runs = np.array([results[job.name][task.name]["map/clean"] for job in members])
            others = {
                key: float(np.mean([results[job.name][task.name][key][0] for job in members]))
                for key in ("map/clean", "map/noisy", "mean/clean", "mean/noisy")
            }
            tasks[task.name] = {
                "mean": float(runs[:, 0].mean()),
                "sd": float(runs[:, 1].mean()),
                "seeds": [float(error) for error in runs[:, 0]],
                "other": others,
            }
        summary.setdefault(preset, {})[method] = tasks
    return summary


def table(summary: Mapping[str, Any]) -> str:
    """The paper's table in Markdown, ours beside the published figures."""
    titles = [task.title for task in SPIRAL_TASKS]
    lines = [
        f"| preset, method | {' | '.join(titles)} |",
        "|---|" + "---:|" * len(titles),
    ]
    for preset, methods in summary.items():
        for method, tasks in methods.items():
            cells = []
            for task, published in zip(SPIRAL_TASKS, PAPER_ROWS[method], strict=True):
                mean, sd = tasks[task.name]["mean"], tasks[task.name]["sd"]
                cells.append(f"{mean:.3f} ({sd:.3f}), paper {published:.2f}")
            lines.append(f"| {preset}, {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def reproduce_spirals(
    out: Path,
    *,
    presets: Sequence[str] = ("paper", "best"),
    methods: Sequence[str] = tuple(PAPER_ROWS),
    seeds: int = 3,
    size: Size = Size(),
    processes: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run methods × seeds × tasks by each preset meant for them; write results, table and figure.

    They are ``spirals.json``, ``.md`` and ``.png``; single fits are kept in ``out/spirals`` and not
    repeated. Each preset counts so many seeds from its own first one.
    """
    directory = out / "spirals"
    jobs = [
        SpiralsJob(preset, method, seed, directory, size)
        for preset in presets
        for method in methods
        if method in PRESETS[preset].methods
        for seed in seeds_of(preset, seeds)
    ]
    results = run_jobs(run_spirals, jobs, directory, processes=processes, progress=progress)
    summary = summarise(jobs, results)
    write_json(out / "spirals.json", summary)
    (out / "spirals.md").write_text(table(summary))
    shown = [job for job in jobs if job.seed == PRESETS[job.preset].first_seed]
    draw_spirals(shown).savefig(out / "spirals.png", dpi=110)
    return summary

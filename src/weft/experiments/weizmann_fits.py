"""Fits of the video experiment: which clips, which modalities, and how one is made and kept."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.bookkeeping import read_history
from weft.corruption import delete_modalities
from weft.datasets.weizmann import ACTIONS, PERSONS, read_prepared, read_weizmann
from weft.estimator import MDMM
from weft.experiments.weizmann_budgets import BUDGETS
from weft.experiments.weizmann_images import move_images
from weft.likelihoods import Pixels
from weft.modality import Modality
from weft.networks import FilmFeatures
from weft.randomness import stream
from weft.sequences import Sequences
from weft.training import CHECKPOINT

__all__ = [
    "EXPERIMENTS",
    "METHODS",
    "WeizmannJob",
    "budget_of",
    "clips_of",
    "declare",
    "fit_weizmann",
    "keep_fit",
    "model_of",
    "steps_made",
]

TESTED = "shahar"
METHODS = ("bfvi", "f-mask-direct", "f-skip-direct", "b-mask-direct", "b-skip-direct")
SIDE = 64
MODALITIES = {
    "video": partial(Modality, "video", (3, SIDE, SIDE), likelihood=Pixels(), level=True),
    "silhouette": partial(Modality, "silhouette", (1, SIDE, SIDE), likelihood=Pixels()),
    "person": partial(Modality, "person", categories=PERSONS),
    "action": partial(Modality, "action", categories=ACTIONS),
}


@dataclass(frozen=True)
class Experiment:
    """Which clips and modalities, of which the first is given at the test, and which methods.

    Training images may be ``mirrored`` where people go either way. The ``budget`` is what is spent
    on a fit unless something else is asked for.
    """

    title: str
    modalities: tuple[str, ...]
    read: Callable[[Path], Sequences]
    methods: tuple[str, ...] = METHODS
    mirrored: bool = True
    budget: str = "wide"

    @property
    def given(self) -> str:
        """What is observed at the test."""
        return self.modalities[0]

    @property
    def inferred(self) -> tuple[str, ...]:
        """What is inferred from it; only these are ever withheld in training."""
        return self.modalities[1:]


EXPERIMENTS = {
    "w36": Experiment(
        "36 close-up clips of four actions, from video",
        ("video", "silhouette", "action"),
        partial(read_prepared, window=(74, 75)),
        mirrored=False,
    ),
    "w90": Experiment(
        "all 90 clips, from silhouettes",
        ("silhouette", "person", "action"),
        partial(read_weizmann, videos=False),
        budget="films",
    ),
    "w27": Experiment(
        "27 wide clips of six actions, from video",
        ("video", "silhouette", "action"),
        partial(read_prepared, window=(128, 128)),
        ("bfvi", "b-mask-direct"),
    ),
}


@dataclass(frozen=True)
class WeizmannJob:
    """One fit with all tasks; ``unlabelled`` is the share of clips without their action.

    ``steps`` replaces the budget's, if given.
    """

    experiment: str
    method: str
    seed: int
    data: Path
    directory: Path
    budget: str = "paper"
    unlabelled: float = 0.0
    tested: str = TESTED
    steps: int | None = None

    @property
    def name(self) -> str:
        """All that tells it apart."""
        parts = [self.experiment, self.budget, self.method, str(self.seed)]
        if self.unlabelled:
            parts.append(f"unlabelled{round(100 * self.unlabelled)}")
        if self.tested != TESTED:
            parts.append(self.tested)
        if self.steps is not None:
            parts.append(f"{self.steps}steps")
        return "-".join(parts)


def budget_of(experiment: str, asked: str | None) -> str:
    """What to spend on a fit of an experiment: what was asked for, or its own."""
    return asked or EXPERIMENTS[experiment].budget


def clips_of(job: WeizmannJob) -> tuple[Sequences, Sequences]:
    """Training and test clips: all other persons', and the tested one's."""
    experiment = EXPERIMENTS[job.experiment]
    clips = experiment.read(job.data).keep(*experiment.modalities)
    tested = np.array([str(name).startswith(f"{job.tested}_") for name in clips.ids])
    train = clips[~tested]
    if job.unlabelled:
        train = delete_modalities(train, job.unlabelled, stream(job.seed, 2), ["action"])
    return train, clips[tested]


def declare(job: WeizmannJob) -> list[Modality]:
    """Declare an experiment's modalities, as heavy and as read as the budget says."""
    budget, experiment = BUDGETS[job.budget], EXPERIMENTS[job.experiment]
    modalities = {name: MODALITIES[name]() for name in experiment.modalities}
    if budget.films:
        channels = modalities[experiment.given].shape[0]
        film = FilmFeatures(channels, SIDE, budget.hidden, dropout=0.5)
        reads_films = MODALITIES[experiment.given](encoder=film, whole=True, mask_input=True)
        modalities[experiment.given] = reads_films
    for name, modality in modalities.items():
        modality.weight = budget.weight(name)
    return list(modalities.values())


def model_of(job: WeizmannJob) -> Path:
    """Where a fitted model is kept."""
    return job.directory / f"{job.name}.weft"


def fit_weizmann(job: WeizmannJob, train: Sequences) -> MDMM:
    """Fit, going on from a checkpoint if there is one."""
    budget = BUDGETS[job.budget]
    if job.steps is not None:
        budget = replace(budget, steps=job.steps)
    torch.manual_seed(job.seed)  # of an encoder's first weights
    model = MDMM(
        declare(job),
        budget.latent,
        budget.hidden,
        inference=job.method,
        particles=budget.particles,
    )
    directory = job.directory / job.name
    experiment = EXPERIMENTS[job.experiment]
    move = None
    if budget.moved:
        move = partial(
            move_images,
            most=budget.moved,
            mirror=experiment.mirrored,
            stretch=budget.stretched,
        )
    withhold = dict.fromkeys(experiment.inferred, budget.withhold)
    return model.fit(
        train,
        training=replace(budget.training_on(train), withhold=withhold),
        objective=budget.objective,
        augment=move,
        seed=job.seed,
        directory=directory,
        resume=(directory / CHECKPOINT).exists(),
        progress=False,
    )


def steps_made(directory: Path) -> int:
    """Steps of an interrupted fit."""
    kept = read_history(directory) if (directory / CHECKPOINT).exists() else []
    return kept[-1].step if kept else 0


def keep_fit(job: WeizmannJob, train: Sequences) -> dict[str, Any]:
    """Fit, keep the model, and say what it took.

    Of a fit that was interrupted, the steps made since are timed and stand for all.
    """
    before = steps_made(job.directory / job.name)
    started = time.monotonic()
    model = fit_weizmann(job, train)
    elapsed = time.monotonic() - started
    model.save(model_of(job))
    steps = model.history[-1].step
    pace = elapsed / max(steps - before, 1)
    return {
        "epochs": len(model.history),
        "steps": steps,
        "seconds": pace * steps,
        "seconds_per_step": pace,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": [epoch.loss for epoch in model.history],
    }

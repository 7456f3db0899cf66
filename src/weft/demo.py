"""The main job on one screen: fit noisy spirals once, then do every task with one model.

Run it with ``python -m weft.demo`` (or ``make demo``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from weft.datasets import make_spirals
from weft.estimator import MDMM
from weft.experiments.spirals import PRESETS
from weft.experiments.tasks import SPIRAL_TASKS, squared_distance
from weft.modality import Modality
from weft.monitoring import progress_bar
from weft.plots import Panel, plot_spirals
from weft.randomness import stream

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> None:
    """Fit, infer, print a table beside the paper's, draw a figure.

    Options come from ``words``, or from the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=PRESETS["best"].training.epochs)
    parser.add_argument("--train", type=int, default=600, help="number of training spirals")
    parser.add_argument("--test", type=int, default=400, help="number of test spirals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)  # these tensors are too small to share between threads
    console = Console()
    started = time.monotonic()

    spirals = make_spirals(stream(arguments.seed), arguments.train + arguments.test)
    train, test = spirals[: arguments.train], spirals[arguments.train :]
    console.print(
        f"{len(train.noisy)} noisy spirals to learn from, {len(test.noisy)} new ones to infer; "
        "x and y are two modalities of 100 steps."
    )
    recipe = PRESETS["best"]
    modalities = [Modality(name, weight=recipe.weight) for name in train.noisy.names]
    model = MDMM(modalities, latent=5, hidden=20, refine=recipe.refine)
    training = replace(recipe.training, epochs=arguments.epochs)
    model.fit(train.noisy, training=training, objective=recipe.objective, seed=arguments.seed)

    table = Table(title="squared distance to the noise-free spiral per step: mean (SD)")
    for heading in ("task", "given", "weft", "paper"):
        table.add_column(heading)
    shown: list[list[Panel]] = [[], [], []]
    with progress_bar("infer", shown=True) as update:
        for i, task in enumerate(SPIRAL_TASKS):
            given = task.corrupt(test.noisy, stream(arguments.seed, 1, i))
            found = model.smooth(given)
            error = squared_distance(found.predictions, test.clean)
            share = sum(given.observed_fraction(name) for name in given.names) / 2
            mean, deviation = task.paper
            table.add_row(
                task.title,
                f"{share:.0%}",
                f"{error.mean():.3f} ({error.std():.3f})",
                f"{mean:.2f} ({deviation:.2f})",
            )
            for sequence, panels in enumerate(shown):
                panels.append(Panel(given, found.predictions, sequence))
            update((i + 1) / len(SPIRAL_TASKS), task.title)
    console.print(table)

    arguments.out.mkdir(parents=True, exist_ok=True)
    picture, file = arguments.out / "spirals.png", arguments.out / "spirals.weft"
    titles = [task.title for task in SPIRAL_TASKS]
    rows = {" " * i: panels for i, panels in enumerate(shown)}
    plot_spirals(rows, titles, test.clean).savefig(picture, dpi=150)
    model.save(file)
    console.print(
        f"One model, {time.monotonic() - started:.0f} s in all. Figure: {picture}. "
        f"Model: {file} (weft.load reads it)."
    )


if __name__ == "__main__":
    main()

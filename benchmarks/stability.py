"""Does training converge? `make stability` fits 20 seeds of the Spirals model by two recipes.

Each at the paper's learning rate 0.02, 100 epochs: what `fit` does by default, and the paper's own
recipe (constant rate, equal weights, 25 random particles). Converged means a reconstruction MSE
below 0.05. Finished fits are kept in results/stability/; a run goes on where one stopped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.spirals import PAPER, ROOT, Fit, commit, fit_spirals, run_fits
from weft.estimator import FIT
from weft.experiments.runner import write_json
from weft.experiments.tasks import SPIRAL_TASKS
from weft.objective import ObjectiveConfig
from weft.schedules import TrainingConfig

OUT = ROOT / "results" / "stability.json"
TABLE = ROOT / "docs" / "stability.md"
SEEDS = range(20)
CONVERGED = 0.05
RECIPES = {
    "fit": (FIT, TrainingConfig(epochs=100, learning_rate=0.02)),
    "paper": (ObjectiveConfig(), PAPER),
}


def run(fit: Fit) -> dict[str, Any]:
    """Fit one seed by one recipe."""
    return fit_spirals(fit.seed, *RECIPES[fit.recipe])


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """All fits as a page of documentation."""
    lines = [
        "# Stability",
        "",
        "Twenty seeds of the Spirals model (1,854 parameters) at the paper's learning rate 0.02, "
        "100 epochs each, on one thread. Errors are squared distances per time step to the "
        "noise-free spirals on 400 test spirals, of the MAP sequence; a fit has converged if its "
        f"reconstruction is below {CONVERGED}. Coverage is that of 90 % intervals on deleted noisy "
        "points; seconds are wall time on a shared machine. `make stability` repeats it all and "
        "writes this page.",
        "",
        "`fit` is what `MDMM.fit` does by default at that rate; `paper` is the supplement's "
        "recipe: constant rate, equal weights, 25 Monte Carlo particles, annealing over the first "
        "20 epochs (its 100 of 500).",
    ]
    for recipe, fits in results.items():
        good = sum(fit["mse"]["recon"] < CONVERGED for fit in fits)
        titles = [task.title for task in SPIRAL_TASKS]
        lines += [
            "",
            f"## {recipe}: {good} of {len(fits)} converged",
            "",
            f"| seed | {' | '.join(titles)} | coverage | failed steps | seconds |",
            "|" + "---:|" * (len(titles) + 4),
        ]
        for fit in fits:
            errors = " | ".join(f"{fit['mse'][task.name]:.3f}" for task in SPIRAL_TASKS)
            lines.append(
                f"| {fit['seed']} | {errors} | {fit['coverage']:.1%} | {fit['failures']} | "
                f"{fit['seconds']:.0f} |"
            )
        medians = " | ".join(
            f"{np.median([fit['mse'][task.name] for fit in fits]):.3f}" for task in SPIRAL_TASKS
        )
        middle = np.median([fit["coverage"] for fit in fits])
        lines.append(f"| median | {medians} | {middle:.1%} | | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and write both files."""
    results = run_fits("stability", run, RECIPES, SEEDS)
    write_json(OUT, {"commit": commit(), **results})
    TABLE.write_text(table(results))
    print(f"Wrote {OUT} and {TABLE}")


if __name__ == "__main__":
    main()

"""JSB chorales: one modality of 88 keys. `make study-jsb`.

The split is that of the deep Markov model papers. Results are negative bounds on the test chorales'
log-likelihood, in nats per step: of one trajectory (the ELBO), and of many (`MDMM.score`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.io
import torch

import weft
from benchmarks.real.study import Clock, recordings, table, write_study
from weft.estimator import FIT

PARTS = {"train": "traindata", "validation": "validdata", "test": "testdata"}
PUBLISHED = {"Krishnan et al., DMM": 6.93, "Pyro, DMM": 6.87, "Pyro, DMM with two flows": 6.80}
TRAJECTORIES = (1, 10, 100, 1000)
LATENT, HIDDEN = 64, 64
TRAINING = weft.TrainingConfig(
    epochs=500,
    batch_size=20,
    learning_rate=7e-3,
    weight_decay=1e-3,
    anneal=0.9,
    polish=0.0,
    burst=0.0,
    hide=0.0,
)
OBJECTIVE = replace(FIT, filter_weight=0.0, smooth_weight=1.0, particles=weft.MonteCarlo(3))


def read_chorales(folder: Path) -> dict[str, weft.Sequences]:
    """Piano rolls ``(time, 88)`` of zeros and ones, by part of the split."""
    stored = scipy.io.loadmat(str(folder / "JSB_Chorales.mat"))
    return {
        part: weft.Sequences.from_arrays({"keys": [x.astype(np.float32) for x in stored[key][0]]})
        for part, key in PARTS.items()
    }


def main() -> None:
    """Fit, bound, and write ``results/jsb.json``."""
    torch.set_num_threads(1)
    chorales = read_chorales(recordings("jsb_chorales"))
    keys = weft.Modality("keys", 88, likelihood=weft.Bernoulli(), mask_input=False)
    model = weft.MDMM([keys], LATENT, HIDDEN, particles=weft.MonteCarlo(25))
    clock = Clock()
    model.fit(
        chorales["train"],
        validation=chorales["validation"],
        training=TRAINING,
        objective=OBJECTIVE,
    )
    cost = clock.read()
    bounds = {
        part: {
            count: -model.score(data, samples=count)
            for count in (TRAJECTORIES if part == "test" else TRAJECTORIES[:3])
        }
        for part, data in chorales.items()
    }
    best = bounds["test"][TRAJECTORIES[-1]]
    rows = [[name, f"{value:.2f}"] for name, value in PUBLISHED.items()]
    rows += [
        [f"weft, {count:,} trajector{'y' if count == 1 else 'ies'}", f"{value:.2f}"]
        for count, value in bounds["test"].items()
    ]
    results = {
        "nll": best,
        "bounds": bounds,
        "published": PUBLISHED,
        "steps": model.history[-1].step,
        **cost,
    }
    write_study("jsb", results, table(["test chorales", "nats per step"], rows))


if __name__ == "__main__":
    main()

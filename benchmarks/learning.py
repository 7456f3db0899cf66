"""Evidence that learning works: `make evidence` runs all of it and writes results/learning.json.

- linear_gaussian: score and smoothing of a learned model against the exact ones of the process
  that made the data, with 0, 30 and 60 % of the entries missing;
- kills: a training process killed with SIGKILL at random moments, 50 times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.linear_gaussian import LinearGaussian

import weft
from weft.datasets import make_spirals
from weft.objective import ObjectiveConfig
from weft.persistence import read_file
from weft.schedules import TrainingConfig
from weft.training import CHECKPOINT, Trainer

ROOT = Path(__file__).parent.parent
MISSING = (0.0, 0.3, 0.6)
KILLS = 50


# A linear-Gaussian process


def linear_gaussian(missing: float) -> dict[str, float]:
    """Learn from 600 sequences of a known process; compare on 200 others."""
    torch.set_num_threads(1)
    started = time.monotonic()
    truth = LinearGaussian(
        a=np.array([0.95, 0.8]),
        m=np.array([0.5, -1.0]),
        v=np.array([1.0, 2.0]),
        gain=np.array([[1.0, -1.5], [0.8, 1.0]]),
        offset=np.array([[0.0, 2.0], [-1.0, 0.5]]),
        noise=np.array([[0.3, 0.2], [0.5, 0.4]]),
    )
    train = truth.simulate(1, [30] * 600, missing)
    clean, test = truth.simulate_pair(2, [30] * 200, missing)
    model = weft.MDMM([weft.Modality(name, 2) for name in truth.names], latent=2, hidden=32)
    config = TrainingConfig(epochs=100, batch_size=50, burst=0.0, polish=0.5)
    model.fit(train, training=config, progress=False)

    exact_score = sum(truth.log_likelihood(test, i) for i in range(len(test))) / test.rows
    score = model.score(test, samples=100)
    found = model.smooth(test, samples=200)
    ours, exact = [], []
    for i, name in enumerate(truth.names):
        signal = clean.padded(name)
        ours.append(np.square(found[name].mean - signal))
        for b in range(len(test)):
            mean, _ = truth.marginals(test, b)
            exact.append(np.square(truth.gain[i] * mean + truth.offset[i] - signal[b]))
    error, exact_error = float(np.mean(ours)), float(np.mean(exact))
    return {
        "missing": missing,
        "score": score,
        "exact_score": exact_score,
        "score_gap": (exact_score - score) / abs(exact_score),
        "smoothing_mse": error,
        "exact_smoothing_mse": exact_error,
        "smoothing_excess": error / exact_error - 1,
        "seconds": time.monotonic() - started,
    }


# Kills


def _train_tiny(directory: Path, resume: bool, epochs: int = 1_000_000) -> None:
    """Train with a checkpoint after every step, large enough to take most of the time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_spirals(torch.Generator().manual_seed(0), count=2, steps=2).noisy
    module = weft.BFVI([weft.Modality("x"), weft.Modality("y")], latent=8, hidden=4096)
    trainer = Trainer(
        module,
        data.conform(module.model.fields),
        objective=ObjectiveConfig(particles=weft.Cubature()),
        config=TrainingConfig(epochs=epochs, batch_size=2),
        directory=directory,
    )
    trainer.run(resume=resume)


def kills(count: int = KILLS) -> dict[str, Any]:
    """Kill training again and again; each time the newest checkpoint must load and go on."""
    fork = multiprocessing.get_context("fork")
    chance = random.Random(0)
    steps = [0]
    halfway = 0
    directory = Path(tempfile.mkdtemp())
    checkpoint, temporary = directory / CHECKPOINT, directory / f".{CHECKPOINT}.tmp"
    try:
        _train_tiny(directory / "first", resume=False, epochs=1)  # load what children will need
        while len(steps) <= count:
            child = fork.Process(target=_train_tiny, args=(directory, checkpoint.exists()))
            temporary.unlink(missing_ok=True)
            child.start()
            child.join(timeout=chance.uniform(0.05, 1.5))
            while child.is_alive() and not temporary.exists():
                child.join(timeout=1e-3)
            child.join(
                timeout=chance.uniform(0.0, 0.02)
            )  # now somewhere in, or just after, a write
            if not child.is_alive():
                raise RuntimeError(f"Training ended by itself with exit code {child.exitcode}.")
            child.kill()
            child.join()
            halfway += temporary.exists()
            if checkpoint.exists():  # the first child may have been killed before its first step
                steps.append(read_file(checkpoint, "checkpoint").header["progress"]["step"])
    finally:
        shutil.rmtree(directory)
    pairs = list(itertools.pairwise(steps))
    if any(later < earlier for earlier, later in pairs):
        raise RuntimeError(f"A checkpoint was lost: {steps}")
    return {  # every child resumed and came as far as its next write, or this raised
        "kills": count,
        "resumed": count,
        "left_a_half_written_file": halfway,
        "checkpoint_readable_after": len(steps) - 1,
        "steps_in_all": steps[-1],
    }


# All of it


def main() -> None:
    """Run everything, or the named parts, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["kills", "linear_gaussian"])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "learning.json")
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if "kills" in arguments.parts:  # first, before any thread exists that a fork would lose
        results["kills"] = kills()
        print(json.dumps(results["kills"]))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        if "linear_gaussian" in arguments.parts:
            results["linear_gaussian"] = list(pool.map(linear_gaussian, MISSING))
            print(json.dumps(results["linear_gaussian"], indent=1))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    results["commit"] = commit.stdout.strip()
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Wrote {arguments.out}")


if __name__ == "__main__":
    main()

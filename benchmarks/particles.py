"""Which particles? `make particles` compares schemes and writes results/particles.json.

- linear_gaussian: error of the smoothed mean and variance against the exact ones, and the spread of
  the gradient between draws, at the time one smoothing takes;
- spirals: errors of the paper's tasks after a fit of 60 epochs at rate 0.02, three seeds each.

Finished fits are kept in results/particles/; a run goes on where one stopped.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tests.linear_gaussian import LinearGaussian

from benchmarks.spirals import ROOT, Fit, commit, fit_spirals, run_fits
from weft import Antithetic, Cubature, MonteCarlo, Particles
from weft.estimator import FIT
from weft.experiments.runner import write_json
from weft.schedules import TrainingConfig

OUT = ROOT / "results" / "particles.json"
SCHEMES: dict[str, Particles] = {
    "monte_carlo_200": MonteCarlo(200),
    "monte_carlo_25": MonteCarlo(25),
    "antithetic_10": Antithetic(10),
    "antithetic_4": Antithetic(4),
    "cubature": Cubature(),
}
FITTED = ("monte_carlo_25", "antithetic_10", "antithetic_4", "cubature")
SEEDS = (0, 1, 2)


def linear_gaussian(particles: Particles) -> dict[str, float]:
    """Smooth 50 sequences of 40 steps, 40 % missing, five latent dimensions."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    truth = LinearGaussian(
        a=np.linspace(0.5, 0.95, 5),
        m=rng.normal(size=5),
        v=rng.uniform(0.5, 2.0, 5),
        gain=rng.normal(size=(2, 5)),
        offset=rng.normal(size=(2, 5)),
        noise=rng.uniform(0.2, 0.6, (2, 5)),
    )
    data = truth.simulate(1, [40] * 50, 0.4)
    module = truth.module()
    batch = module.batch(data)
    exact = [truth.marginals(data, b) for b in range(len(data))]
    mean = np.stack([m for m, _ in exact], 1)
    variance = np.stack([v for _, v in exact], 1)
    generator = torch.Generator().manual_seed(0)
    means, ratios, seconds = [], [], []
    with torch.no_grad():
        for _ in range(7):
            started = time.perf_counter()
            found = module.smooth(batch, particles=particles, generator=generator).posterior
            seconds.append(time.perf_counter() - started)
            off = (found.mean[:, 0].numpy() - mean) / np.sqrt(variance)
            means.append(np.square(off).mean())
            ratios.append(np.square(found.variance[:, 0].numpy() / variance - 1).mean())
    return {
        "mean_error": float(np.sqrt(np.mean(means))),
        "variance_error": float(np.sqrt(np.mean(ratios))),
        "seconds": statistics.median(seconds),
    }


def spirals(fit: Fit) -> dict[str, Any]:
    """Fit with one scheme."""
    training = TrainingConfig(epochs=60, learning_rate=0.02)
    return fit_spirals(fit.seed, replace(FIT, particles=SCHEMES[fit.recipe]), training)


def main() -> None:
    """Measure both and write what was found."""
    exact = {name: linear_gaussian(particles) for name, particles in SCHEMES.items()}
    print(json.dumps(exact, indent=1), flush=True)
    fits = run_fits("particles", spirals, FITTED, SEEDS)
    write_json(OUT, {"commit": commit(), "linear_gaussian": exact, "spirals": fits})
    print(f"Wrote {OUT}")


if __name__ == "__main__":
    main()

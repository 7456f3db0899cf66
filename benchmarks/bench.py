"""How fast? `make bench` measures ratios in one run; results/bench.json and a figure.

Speed is told as a ratio to the textbook form (`benchmarks/textbook.py`) on the same machine, in the
same run, medians of interleaved repetitions, so that a busy machine slows both sides. Peak memory
is that of a fresh process. Names ending in `_gb` and `_mb` are sizes, those ending in `_per_second`
rates on this machine, all others ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.textbook import Draw, Moments, textbook_loss, textbook_smooth
from weft import BFVI, Cubature, Modality, MonteCarlo, Particles, Pixels
from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference import native
from weft.objective import Objective, ObjectiveConfig
from weft.scaling import Scale, Scaling
from weft.streaming import Stream

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "bench.json"
FIGURE = ROOT / "results" / "bench.png"
ALL_THREADS = os.cpu_count() or 1


# What is measured


class Case:
    """A model and a batch of random data of its shape, all of it observed."""

    def __init__(self, modalities: list[Modality], latent: int, steps: int, batch: int) -> None:
        torch.manual_seed(0)
        self.module = BFVI(modalities, latent, hidden=4 * latent if latent < 64 else latent).train()
        self.values = {m.name: self._draw(m, steps, batch) for m in modalities}
        observed = {
            name: torch.ones_like(value, dtype=torch.bool) for name, value in self.values.items()
        }
        lengths = torch.full((batch,), steps)
        self.batch = Batch(self.values, observed, lengths, torch.arange(batch))
        self.generator = torch.Generator().manual_seed(0)

    @staticmethod
    def _draw(modality: Modality, steps: int, batch: int) -> torch.Tensor:
        if modality.categories is not None:
            return torch.randint(len(modality.categories), (steps, batch))
        return torch.rand(steps, batch, *modality.shape)

    def train(self, particles: Particles) -> None:
        """One loss and its gradient."""
        self.module.zero_grad()
        objective = Objective(self.module, ObjectiveConfig(particles=particles))
        objective(self.batch, self.generator).total.backward()

    def train_textbook(self, count: int) -> None:
        """The same in the textbook form."""
        self.module.zero_grad()
        steps, batch = self.batch.steps, len(self.batch.lengths)
        subsets, latent = len(self.values) + 1, self.module.model.latent
        noise = torch.randn(2, steps, subsets, batch, latent)
        swarm = torch.randn(50, latent)
        loss = textbook_loss(
            self.module, self.values, ObjectiveConfig(), random(count), noise, swarm
        )
        loss.backward()

    @torch.no_grad()
    def smooth(self, particles: Particles) -> None:
        """Smoothing marginals."""
        self.module.smooth(self.batch, particles=particles, generator=self.generator)

    @torch.no_grad()
    def smooth_textbook(self, count: int) -> None:
        """The same in the textbook form."""
        textbook_smooth(self.module, self.values, random(count))


def random(count: int) -> Draw:
    """Independent particles."""

    def draw(state: Moments) -> torch.Tensor:
        return state[0] + state[1].sqrt() * torch.randn(count, *state[0].shape)

    return draw


def scalars(count: int = 2, steps: int = 100, batch: int = 100) -> Case:
    """The Spirals model, with other sizes if asked."""
    return Case([Modality(f"x{i}") for i in range(count)], 5, steps, batch)


def weizmann() -> Case:
    """Video, silhouette and action: 25 clips of 25 frames, 256 latent dimensions."""
    modalities = [
        Modality("video", (3, 64, 64), likelihood=Pixels()),
        Modality("silhouette", (1, 64, 64), likelihood=Pixels()),
        Modality("action", categories=10, weight=10.0),
    ]
    return Case(modalities, 256, steps=25, batch=25)


# How it is measured


def seconds(run: Callable[[], None]) -> float:
    """Time one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ratio(slow: Callable[[], None], fast: Callable[[], None], repetitions: int) -> float:
    """How many times longer one takes than the other, in turns, after one of each."""
    slow(), fast()
    pairs = [(seconds(slow), seconds(fast)) for _ in range(repetitions)]
    return statistics.median(s for s, _ in pairs) / statistics.median(f for _, f in pairs)


def threads(count: int) -> None:
    """Let PyTorch and the compiled scan use so many."""
    torch.set_num_threads(count)


def scan_rate(latent: int, hidden: int) -> float:
    """Rate of the compiled scan's matrix products over that of one large product, one thread.

    Only multiplications and additions of the network's layers count as the scan's work; drawing
    noise, exponentials and moments are its overhead.
    """
    steps, rows, count = 100, 320, 25
    torch.manual_seed(0)
    model = BFVI([Modality("x")], latent, hidden).model
    shape = (steps, rows, latent)
    factors = Gaussian.from_moments(torch.randn(shape), 0.2 + torch.rand(shape))
    prior = model.prior().detach()
    start, ahead = prior.expand(rows, latent), prior.expand(*shape)
    inputs = (
        model.forward_factor.packed().detach(),
        torch.stack([prior.precision, prior.information]),
        model.bounds(prior),
        (start.precision.contiguous(), start.information.contiguous()),
        (factors.precision, factors.information),
        (ahead.precision, ahead.information),
        torch.ones(steps, rows, dtype=torch.bool),
    )
    kernels = native.active()
    assert kernels is not None
    way = native.Way(hidden, native.Draws(count), reverse=False, states=False, kernels=kernels)
    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    products = 2 * (2 * hidden * latent + latent**2) + 2 * (2 * latent * hidden + latent**2)

    def scan() -> None:
        native.scan(way, *inputs)

    def multiply() -> None:
        for _ in range(4):
            one @ other

    speed = products * steps * rows * count / (4 * 2 * 1024**3)
    return speed * ratio(multiply, scan, 25)


def peak(*what: object) -> float:
    """Peak memory of a fresh process that does something, in GB."""
    command = [sys.executable, "-m", "benchmarks.bench", "--once", *map(str, what)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr)
    return float(found.stdout)


def once(what: str, *sizes: int) -> None:
    """Do one thing for `peak`, and print this process's peak memory."""
    threads(1)
    if what == "train":
        modalities, steps, batch, count = sizes
        scalars(modalities, steps, batch).train(MonteCarlo(count))
    elif what == "smooth":
        scalars(2, *sizes).smooth(Cubature())
    elif what == "weizmann":
        case = weizmann()
        for _ in range(2):
            case.train(MonteCarlo(25))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


# All of it


def speeds() -> dict[str, float]:
    """Ratios to the textbook form."""
    found: dict[str, float] = {}
    spirals, video = scalars(), weizmann()
    for count in sorted({1, ALL_THREADS}):
        threads(count)
        name = f"{count}thread" + "s" * (count > 1)
        found[f"spirals_train_{name}"] = ratio(
            lambda: spirals.train_textbook(25), lambda: spirals.train(MonteCarlo(25)), 7
        )
        found[f"spirals_train_cubature_{name}"] = ratio(
            lambda: spirals.train_textbook(25), lambda: spirals.train(Cubature()), 7
        )
        found[f"spirals_smooth_{name}"] = ratio(
            lambda: spirals.smooth_textbook(200), lambda: spirals.smooth(MonteCarlo(200)), 7
        )
        found[f"weizmann_train_{name}"] = ratio(
            lambda: video.train_textbook(25), lambda: video.train(MonteCarlo(25)), 3
        )
        show(found)
    threads(1)
    if ALL_THREADS > 1:

        def step_with(count: int) -> Callable[[], None]:
            def run() -> None:
                threads(count)
                spirals.train(MonteCarlo(25))
                threads(1)

            return run

        found["spirals_train_threads_gain"] = ratio(step_with(1), step_with(ALL_THREADS), 9)
    if native.active():
        found["native_scan_vs_matmul"] = scan_rate(5, 20)
        found["native_scan_vs_matmul_16x64"] = scan_rate(16, 64)
    return found


def growth() -> dict[str, float]:
    """Time of a training step over that of the smallest of its kind, one thread."""
    found: dict[str, float] = {}

    def series(name: str, sizes: list[int], make: Callable[[int], Callable[[], None]]) -> None:
        runs = [make(size) for size in sizes]
        for run in runs:
            run()
        for size, run in zip(sizes[1:], runs[1:], strict=True):
            found[f"train_time_{name}_{size}_over_{sizes[0]}"] = ratio(run, runs[0], 3)
        show({key: value for key, value in found.items() if f"_{name}_" in key})

    def step(case: Case, particles: Particles) -> Callable[[], None]:
        return lambda: case.train(particles)

    few = MonteCarlo(25)
    series("steps", [100, 1000, 10_000], lambda n: step(scalars(steps=n, batch=10), few))
    series("batch", [10, 100, 1000], lambda n: step(scalars(batch=n), few))
    series("particles", [10, 25, 100], lambda n: step(scalars(), MonteCarlo(n)))
    series("modalities", [1, 2, 4, 7], lambda n: step(scalars(count=n), few))
    return found


def memory() -> dict[str, float]:
    """Peak memory of fresh processes."""
    found = {"empty_process_gb": peak("nothing")}
    for count in (10, 25, 100):
        found[f"train_peak_mb_particles_{count}"] = 1024 * peak("train", 2, 1000, 100, count)
    for steps in (100, 1000, 10_000):
        found[f"train_peak_mb_steps_{steps}"] = 1024 * peak("train", 2, steps, 10, 25)
    found["smooth_100000_steps_gb"] = peak("smooth", 100_000, 1)
    found["weizmann_peak_gb"] = peak("weizmann")
    show(found)
    return found


def streams() -> dict[str, float]:
    """Observations (of two numbers each) that streams take in per second, one thread."""
    threads(1)
    module = scalars().module.eval()
    names = module.model.names
    scaling = Scaling({name: Scale(np.zeros(1), np.ones(1)) for name in names})
    found = {}
    for count in (1, 1000):
        values = dict(zip(names, np.random.default_rng(0).normal(size=(2, count)), strict=True))
        stream = Stream(module, scaling, Cubature(), count)

        def run(stream: Stream = stream, values: dict[str, np.ndarray] = values) -> None:
            for _ in range(100):
                stream.update(values)

        run()
        median = statistics.median(seconds(run) for _ in range(25))
        found[f"streams_{count}_observations_per_second"] = 100 * count / median
    show(found)
    return found


def show(found: dict[str, float]) -> None:
    """Print as it comes."""
    for name, value in found.items():
        print(f"{name:44s} {value:8.2f}", flush=True)


def draw(found: dict[str, float]) -> None:
    """Ratios with their targets on the left, growth on the right."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    targets = {
        "spirals_train_1thread": ("Spirals\ntrain step", 10),
        "spirals_smooth_1thread": ("Spirals smoothing\n200 particles", 8),
        "weizmann_train_1thread": ("Weizmann\ntrain step", 2.5),
    }
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
    for i, (name, (_, target)) in enumerate(targets.items()):
        left.barh(i, found[name], color="#4477aa", height=0.55)
        left.plot([target] * 2, [i - 0.38, i + 0.38], color="#cc3311", linewidth=2)
        left.text(max(found[name], target) + 0.25, i, f"{found[name]:.1f}×", va="center")
    left.set_yticks(range(len(targets)), [title for title, _ in targets.values()])
    left.set(xlabel="times as fast as the textbook form (red: target)")
    left.set_title("speed on one thread", fontsize=10)
    left.set_xlim(0, 1.15 * max(found[name] for name in targets))
    left.invert_yaxis()
    middle.plot([1, 100], [1, 100], color="0.8", zorder=0)
    for kind, color in zip(
        ("steps", "batch", "particles", "modalities"),
        ("#4477aa", "#ee7733", "#228833", "#aa3377"),
        strict=True,
    ):
        points = {1.0: 1.0}
        for name, value in found.items():
            if name.startswith(f"train_time_{kind}_"):
                larger, smaller = name.removeprefix(f"train_time_{kind}_").split("_over_")
                points[int(larger) / int(smaller)] = value
        middle.plot(list(points), list(points.values()), "o-", color=color, label=kind)
    middle.set(xscale="log", yscale="log", xlabel="times as many", ylabel="times as long")
    middle.set_title("time of a training step", fontsize=10)
    middle.legend(frameon=False)
    base = 1024 * found["empty_process_gb"]
    for kind, color in (("steps", "#4477aa"), ("particles", "#228833")):
        prefix = f"train_peak_mb_{kind}_"
        sizes = {int(n.removeprefix(prefix)): v for n, v in found.items() if n.startswith(prefix)}
        right.plot(list(sizes), [v - base for v in sizes.values()], "o-", color=color, label=kind)
    right.set(xscale="log", yscale="log", ylim=(10, 1000))
    right.set_xlabel("steps (batch 10), or particles (1,000 steps)")
    right.set_ylabel("peak above an empty process, MB")
    for axis in (right.xaxis, right.yaxis, middle.xaxis, middle.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    right.set_title("memory of a training step", fontsize=10)
    right.legend(frameon=False)
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


PARTS = {"memory": memory, "speeds": speeds, "growth": growth, "streams": streams}


def main() -> None:
    """Measure everything and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", nargs="+", help="do one thing and print the peak memory")
    parser.add_argument("--draw", action="store_true", help="draw the stored results again")
    parser.add_argument("--only", choices=PARTS, help="measure one part, keep the others as stored")
    arguments = parser.parse_args()
    if arguments.once:
        once(arguments.once[0], *map(int, arguments.once[1:]))
        return
    if arguments.draw:
        draw(json.loads(OUT.read_text()))
        return
    print(f"{platform.processor() or platform.machine()}, kernels: {native.active()}")
    found = json.loads(OUT.read_text()) if arguments.only else {}
    for part in [arguments.only] if arguments.only else PARTS:
        found |= PARTS[part]()
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({k: round(v, 4) for k, v in found.items()}, indent=1) + "\n")
    draw(found)
    show(found)
    print(f"Wrote {OUT} and {FIGURE}")


if __name__ == "__main__":
    main()

"""UTD-MHAD: a sensor at the wrist or thigh, a skeleton, an action. `make study-utd`.

One fitted model of ours answers every question; of the others each answers what it was fitted for.
All see the clips of odd subjects, and are asked about those of even ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import weft
from benchmarks.real import imputers, peers
from benchmarks.real.study import KEPT, Clock, table, write_study
from benchmarks.real.utd_data import ACTIONS, SENSORS
from benchmarks.real.utd_gaps import lose
from benchmarks.real.utd_tasks import LABELS, VALUES, Clips, Filled, Question
from benchmarks.real.utd_vary import vary
from weft import Sequences
from weft.corruption import delete_modalities
from weft.estimator import FIT
from weft.experiments.runner import run_jobs
from weft.networks import GRUFeatures
from weft.randomness import stream

Array = NDArray[np.float64]

SEED = 0
DRAWS = 50
BATCH = 20
LATENT, HIDDEN, WIDTH = 64, 64, 128
CLOCK = 6
"""Frames by which the sensor may be early or late."""
TRAINING = weft.TrainingConfig(
    epochs=120,
    batch_size=BATCH,
    learning_rate=4e-3,
    final_rate=0.4,
    average=0.4,
    anneal=0.3,
    polish=0.0,
    burst=0.0,
    withhold={"action": 0.8},
)
OBJECTIVE = replace(
    FIT,
    filter_weight=0.0,
    smooth_weight=1.0,
    particles=weft.MonteCarlo(5),
    each_alone=SENSORS,
    cross=True,
    temper=1.0,
)
PASSES = 30
"""Over the training clips, of every network that is fitted for one task."""


@dataclass(frozen=True)
class Answers:
    """What an approach found: by question, and how many models it took."""

    values: dict[str, Filled]
    actions: dict[str, NDArray[np.int64]]
    models: int


def declare() -> list[weft.Modality]:
    """Two sensors, each read from both ends, with gaps and errors that last, and a label."""

    def sensor(name: str, entries: int, weight: float, clock: int = 0) -> weft.Modality:
        return weft.Modality(
            name,
            entries,
            encoder=GRUFeatures(entries, WIDTH, layers=2, dropout=0.5, differences=True),
            mask_input=True,
            whole=True,
            gaps=True,
            skip=True,
            level=True,
            clock=clock,
            weight=weight,
        )

    label = weft.Modality("action", categories=ACTIONS, weight=80.0)
    return [sensor("inertial", 6, 30.0, CLOCK), sensor("skeleton", 60, 10.0), label]


def fit_weft(train: Sequences, method: str = "bfvi") -> weft.MDMM:
    """Fit the one model of all tasks."""
    torch.manual_seed(SEED)  # of the encoders' first weights
    model = weft.MDMM(declare(), LATENT, HIDDEN, inference=method, particles=weft.MonteCarlo(25))
    return model.fit(
        train,
        training=TRAINING,
        objective=OBJECTIVE,
        augment=vary,
        corrupt=lose,
        seed=SEED,
        progress=False,
    )


def ask_weft(model: weft.MDMM, clips: Clips) -> Answers:
    """Ask one model everything."""
    values, actions = {}, {}
    for question in VALUES:
        found = model.smooth(clips.asked(question, clips.test), samples=DRAWS)[question.target]
        mean, deviation = clips.units[question.target]
        parts = (found.mean, *found.quantile((0.05, 0.95)))
        values[question.name] = Filled(*((part - mean) / deviation for part in parts))
    for question in LABELS:
        chances = model.smooth(clips.asked(question, clips.test), samples=DRAWS)["action"]
        actions[question.name] = clip_labels(chances.probabilities, clips.test.lengths)
    return Answers(values, actions, 1)


def clip_labels(chances: Array, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """One action per clip from chances ``(clip, step, action)``: the largest mean logarithm."""
    evidence = np.log(np.clip(chances, 1e-12, 1))
    return np.array(
        [clip[:steps].mean(0).argmax() for clip, steps in zip(evidence, lengths, strict=True)]
    )


def with_weft(method: str, clips: Clips) -> Answers:
    """Our model by one of its inference methods, which is kept."""
    model = fit_weft(clips.train, method)
    model.save(KEPT / "utd" / f"{method}.weft")
    return ask_weft(model, clips)


def with_half_of_the_labels(clips: Clips) -> Answers:
    """Ours, when half of the training clips lose their action."""
    train = delete_modalities(clips.train, 0.5, stream(SEED, 8), ["action"])
    return ask_weft(fit_weft(train), clips)


def with_single_sensors(clips: Clips) -> Answers:
    """Ours, when half of the training clips lose one sensor or the other."""
    half = stream(SEED, 9)
    lost = torch.rand(len(clips.train), generator=half).numpy() < 0.5
    which = torch.rand(len(clips.train), generator=half).numpy() < 0.5
    gone = {
        name: np.repeat(lost & (which == first), clips.train.lengths)
        for name, first in zip(SENSORS, (True, False), strict=True)
    }
    return ask_weft(fit_weft(clips.train.delete(gone)), clips)


def by_interpolation(clips: Clips) -> Answers:
    """Straight lines between a sensor's values, and its last one beyond them."""
    values = {
        question.name: Filled(
            peers.interpolate(clips.standard(clips.asked(question, clips.test), question.target))
        )
        for question in VALUES
    }
    return Answers(values, {}, 0)


def by_ridge(clips: Clips) -> Answers:
    """One linear regression per question, on a window of all that is left, gaps interpolated."""
    values = {}
    for question in VALUES:
        given, asked = (
            peers.interpolate(clips.both(clips.asked(question, part)))
            for part in (clips.train, clips.test)
        )
        wanted = clips.standard(clips.train, question.target)
        values[question.name] = Filled(peers.ridge(given, wanted, asked, reach=5, penalty=0.1))
    return Answers(values, {}, len(VALUES))


def by_gru(clips: Clips, *, varied: bool = False) -> Answers:
    """One bidirectional GRU per question, which sees the clips as they are or as ours sees them."""
    parts = [clips.train]
    if varied:  # each pass over clips of its own
        parts = [vary(clips.train, stream(SEED, 10, i)) for i in range(PASSES)]
    lengths = np.tile(clips.train.lengths, len(parts))

    def taught(question: Question, wanted: NDArray[Any], outputs: int) -> tuple[peers.GRU, Array]:
        torch.manual_seed(SEED)  # of the first weights
        left = (clips.asked(question, part, seed=i) for i, part in enumerate(parts))
        given = np.concatenate([clips.both(part) for part in left])
        gru = peers.GRU(given.shape[-1], outputs)
        gru.train_on(given, wanted, lengths, epochs=PASSES // len(parts), seed=SEED)
        return gru, clips.both(clips.asked(question, clips.test))

    values, actions = {}, {}
    for question in VALUES:
        wanted = np.concatenate([clips.standard(part, question.target) for part in parts])
        gru, asked = taught(question, wanted, wanted.shape[-1])
        values[question.name] = Filled(gru.answer(asked))
    for question in LABELS:
        codes = np.concatenate([clips.codes(part) for part in parts])
        gru, asked = taught(question, codes, len(ACTIONS))
        actions[question.name] = gru.classify(asked, clips.test.lengths)
    return Answers(values, actions, len(VALUES) + len(LABELS))


def by_network(how: imputers.Learn, clips: Clips) -> Answers:
    """One imputation network over all channels of both sensors.

    It learns from complete clips, and from the same clips without what one question or another
    takes from them.
    """
    steps = max(int(part.lengths.max()) for part in (clips.train, clips.test))

    def padded(part: Sequences) -> Array:
        values = clips.both(part)
        missing = np.full((len(values), steps - values.shape[1], values.shape[2]), np.nan)
        return np.concatenate([values, missing], 1)

    def worn(part: Sequences) -> tuple[Array, Array]:
        turns = [part[i :: len(VALUES)] for i in range(len(VALUES))]
        left = [clips.asked(*each) for each in zip(VALUES, turns, strict=True)]
        seen, whole = (np.concatenate([padded(x) for x in parts]) for parts in (left, turns))
        return seen, whole

    held = np.arange(len(clips.train)) % 5 == 0  # to choose a pass by
    fill = how(np.concatenate(worn(clips.train[~held])), worn(clips.train[held]), PASSES, BATCH)
    widths = [clips.train.columns[name].shape[0] for name in SENSORS]
    ends = np.cumsum([0, *widths])
    places = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(SENSORS)}
    values = {}
    for question in VALUES:
        asked = clips.asked(question, clips.test)
        filled = fill(padded(asked))[:, : int(clips.test.lengths.max()), places[question.target]]
        values[question.name] = Filled(filled)
    return Answers(values, {}, 1)


def by_rocket(clips: Clips) -> Answers:
    """One MiniRocket classifier per question, on clips stretched to one length."""
    from aeon.classification.convolution_based import MiniRocketClassifier

    actions = {}
    for question in LABELS:
        given, asked = (
            stretched(clips.asked(question, part), clips) for part in (clips.train, clips.test)
        )
        classifier = MiniRocketClassifier(random_state=SEED)
        classifier.fit(given, clips.codes(clips.train))
        actions[question.name] = classifier.predict(asked)
    return Answers({}, actions, len(LABELS))


def stretched(part: Sequences, clips: Clips, steps: int = 100) -> Array:
    """What is left of each clip's sensors, stretched: ``(clip, channel, step)``."""
    rows = []
    for clip in clips.both(part):
        seen = clip[:, ~np.isnan(clip).all(0)]
        seen = seen[~np.isnan(seen).any(1)]
        places = np.linspace(0, len(seen) - 1, steps)
        rows.append([np.interp(places, np.arange(len(seen)), channel) for channel in seen.T])
    return np.array(rows)


APPROACHES: dict[str, Callable[[Clips], Answers]] = {
    "interpolation": by_interpolation,
    "ridge": by_ridge,
    "GRU": by_gru,
    "GRU, varied clips": partial(by_gru, varied=True),
    "BRITS": partial(by_network, imputers.brits),
    "SAITS": partial(by_network, imputers.saits),
    "MiniRocket": by_rocket,
    "weft, F-Skip": partial(with_weft, "f-skip-direct"),
    "weft, B-Mask": partial(with_weft, "b-mask-direct"),
    "weft": partial(with_weft, "bfvi"),
    "weft, half of the labels": with_half_of_the_labels,
    "weft, half of the clips with one sensor": with_single_sensors,
}


@dataclass(frozen=True)
class Approach:
    """One approach, run by itself."""

    name: str


def run(approach: Approach) -> dict[str, Any]:
    """Fit and judge one approach."""
    torch.set_num_threads(1)
    clips, clock = Clips.read(), Clock()
    answers = APPROACHES[approach.name](clips)
    asked = {question.name: question for question in VALUES}
    truth = clips.codes(clips.test)
    found: dict[str, Any] = {
        name: clips.judge(asked[name], filled) for name, filled in answers.values.items()
    }
    for name, codes in answers.actions.items():
        found[name] = {"accuracy": float(np.mean(codes == truth))}
    return {"tasks": found, "models": answers.models, **clock.read()}


def tables(results: dict[str, Any]) -> str:
    """Errors at lost steps with the coverage of 90 % intervals, accuracies, and what it took."""
    kinds = {"rmse": VALUES, "accuracy": LABELS}
    parts = []
    for figure, questions in kinds.items():
        rows = []
        for name, found in results.items():
            tasks = [found["tasks"].get(question.name, {}) for question in questions]
            if any(figure in task for task in tasks):
                cells = [_cell(task, figure) for task in tasks]
                rows.append([name, *cells, f"{found['models']}", f"{found['seconds']:.0f}"])
        head = ["", *(question.name for question in questions), "models", "seconds"]
        parts.append(table(head, rows))
    return "\n\n".join(parts)


def _cell(task: dict[str, float], figure: str) -> str:
    if figure not in task:
        return ""
    covered = f" ({task['coverage']:.0%})" if "coverage" in task else ""
    return f"{task[figure]:.3f}{covered}"


def main() -> None:
    """Run every approach that has not been run, and write ``results/utd.json``."""
    results = run_jobs(run, [Approach(name) for name in APPROACHES], KEPT / "utd")
    settings = {"seed": SEED, "epochs": TRAINING.epochs, "passes": PASSES}
    write_study("utd", {**settings, "approaches": results}, tables(results))


if __name__ == "__main__":
    main()

"""Use a fitted model: a table in, a table out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.files import check_output, read_frames, write_frame
from weft.cli.messages import spoken, tell
from weft.cli.options import (
    AsJson,
    Grid,
    Inputs,
    Model,
    Out,
    Probabilities,
    Quantiles,
    Samples,
    Seed,
    Std,
    Steps,
)

if TYPE_CHECKING:
    from weft.estimator import MDMM
    from weft.prediction import Prediction
    from weft.sequences import Sequences

__all__ = ["VERBS"]


@spoken
def impute(
    model: Model,
    data: Inputs,
    out: Out = None,
    std: Std = False,
    quantile: Quantiles = None,
    probabilities: Probabilities = False,
    grid: Grid = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Fill every gap; what was observed stays as it is."""
    fitted, source = _open(model, data, out)
    predictions = fitted.smooth(source, samples=samples, seed=seed).predictions
    _write(source, predictions, out, std, quantile, probabilities, grid, keep_observed=True)


@spoken
def smooth(
    model: Model,
    data: Inputs,
    out: Out = None,
    std: Std = False,
    quantile: Quantiles = None,
    probabilities: Probabilities = False,
    grid: Grid = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Predict every entry from all that was observed, noise removed."""
    fitted, source = _open(model, data, out)
    predictions = fitted.smooth(source, samples=samples, seed=seed).predictions
    _write(source, predictions, out, std, quantile, probabilities, grid)


@spoken
def filter(
    model: Model,
    data: Inputs,
    out: Out = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="From present and future instead of the past.")
    ] = False,
    std: Std = False,
    quantile: Quantiles = None,
    probabilities: Probabilities = False,
    grid: Grid = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Predict every entry from what was observed up to then."""
    fitted, source = _open(model, data, out)
    found = fitted.filter(
        source, direction="backward" if backward else "forward", samples=samples, seed=seed
    )
    _write(source, found.predictions, out, std, quantile, probabilities, grid)


@spoken
def forecast(
    model: Model,
    data: Inputs,
    steps: Steps,
    out: Out = None,
    std: Std = False,
    quantile: Quantiles = None,
    probabilities: Probabilities = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Predict so many steps after the end of every sequence."""
    fitted, source = _open(model, data, out)
    found = fitted.forecast(source, steps, samples=samples, seed=seed)
    _write_beyond(source, found, steps, False, out, std, quantile, probabilities)


@spoken
def backcast(
    model: Model,
    data: Inputs,
    steps: Steps,
    out: Out = None,
    std: Std = False,
    quantile: Quantiles = None,
    probabilities: Probabilities = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Infer so many steps before the start of every sequence."""
    fitted, source = _open(model, data, out)
    found = fitted.backcast(source, steps, samples=samples, seed=seed)
    _write_beyond(source, found, steps, True, out, std, quantile, probabilities)


@spoken
def generate(
    model: Model,
    data: Inputs,
    target: Annotated[list[str], typer.Option("--target", help="Modality to predict.")],
    given: Annotated[
        list[str] | None, typer.Option("--given", help="Modality to use; all others if not said.")
    ] = None,
    out: Out = None,
    std: Std = False,
    quantile: Quantiles = None,
    probabilities: Probabilities = False,
    grid: Grid = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Predict some modalities from others."""
    fitted, source = _open(model, data, out)
    found = fitted.generate(source, target, given, samples=samples, seed=seed)
    _write(source, found, out, std, quantile, probabilities, grid)


@spoken
def classify(
    model: Model,
    data: Inputs,
    label: Annotated[str, typer.Option(help="The label to predict.")],
    given: Annotated[
        list[str] | None, typer.Option("--given", help="Modality to use; all others if not said.")
    ] = None,
    out: Out = None,
    grid: Grid = False,
    samples: Samples = 100,
    seed: Seed = 0,
) -> None:
    """Predict a label at every step, with the probability of each."""
    fitted, source = _open(model, data, out)
    found = fitted.classify(source, label, given, samples=samples, seed=seed)
    _write(source, {label: found}, out, False, None, True, grid)


@spoken
def sample(
    model: Model,
    steps: Steps,
    count: Annotated[int, typer.Option("--count", "-n", help="How many sequences.", min=1)] = 1,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Draw new sequences from the model."""
    check_output(out)
    write_frame(_load(model).sample(count, steps, seed=seed).to_frame(), out)


@spoken
def score(
    model: Model,
    data: Inputs,
    samples: Samples = 100,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Bound the log-likelihood of tables per step, from below."""
    fitted, source = _open(model, data, None)
    found = fitted.score(source, samples=samples, seed=seed)
    tell(f"{found:.4f} nats per step", {"score": found, "steps": source.rows}, as_json)


@spoken
def evaluate(
    model: Model,
    data: Inputs,
    delete: Annotated[
        str, typer.Option(help="What to delete: steps, entries, bursts, end, start or modality.")
    ] = "steps",
    share: Annotated[float, typer.Option(help="How much of it.", min=0, max=1)] = 0.5,
    modality: Annotated[
        list[str] | None, typer.Option(help="From which modalities; all if not given.")
    ] = None,
    samples: Samples = 100,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Delete data, infer it again, and report the errors of every modality."""
    fitted, source = _open(model, data, None)
    from weft.evaluation import as_numbers, evaluate

    scores = evaluate(
        fitted, source, delete, share, modalities=modality, samples=samples, seed=seed
    )
    facts = as_numbers(scores)
    lines = [
        f"{name}: " + ", ".join(f"{key} {number:.4g}" for key, number in found.items())
        for name, found in facts.items()
    ]
    tell("\n".join(lines), facts, as_json)


@spoken
def report(
    model: Model,
    data: Inputs,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path(
        "report.html"
    ),
    log: Annotated[
        Path | None, typer.Option(help="Folder of the training's metrics; MODEL_log if not given.")
    ] = None,
    sequences: Annotated[int, typer.Option(help="How many sequences to draw.", min=1)] = 6,
    samples: Samples = 100,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page on a model and tables: gaps, curves, sequences, calibration, errors."""
    fitted, source = _open(model, data, out, table=False)
    from weft.monitoring import METRICS
    from weft.report import write_report

    usual = model.with_name(f"{model.stem}_log")
    write_report(
        fitted,
        source,
        out,
        log=usual if log is None and (usual / METRICS).is_file() else log,
        sequences=sequences,
        samples=samples,
        seed=seed,
        title=f"{model.name} and {', '.join(path.name for path in data)}",
        progress=not as_json,
    )
    tell(
        f"Wrote {out}. Open it in a browser; it needs no network.",
        {"report": str(out), "sequences": len(source), "steps": source.rows},
        as_json,
    )


VERBS = (
    impute,
    forecast,
    backcast,
    generate,
    classify,
    filter,
    smooth,
    sample,
    score,
    evaluate,
    report,
)
"""The commands, in the order in which they are listed."""


def _load(path: Path) -> MDMM:
    from weft.estimator import load

    return load(path)


def _open(
    path: Path, data: list[Path], out: Path | None, *, table: bool = True
) -> tuple[MDMM, Sequences]:
    """The model and its data, once it is clear that the result can be written."""
    check_output(out, table=table)
    frame = read_frames(data)
    model = _load(path)
    return model, model.read(frame)


def _write(
    source: Sequences,
    predictions: dict[str, Prediction],
    out: Path | None,
    std: bool,
    quantile: list[float] | None,
    probabilities: bool,
    grid: bool,
    keep_observed: bool = False,
) -> None:
    from weft.tables import predictions_frame

    frame = predictions_frame(
        source,
        predictions,
        keep_observed=keep_observed,
        std=std,
        quantiles=quantile or (),
        probabilities=probabilities,
        grid=grid,
    )
    write_frame(frame, out)


def _write_beyond(
    source: Sequences,
    predictions: dict[str, Prediction],
    steps: int,
    before: bool,
    out: Path | None,
    std: bool,
    quantile: list[float] | None,
    probabilities: bool,
) -> None:
    from weft.tables import beyond_frame

    frame = beyond_frame(
        source,
        predictions,
        steps,
        before=before,
        std=std,
        quantiles=quantile or (),
        probabilities=probabilities,
    )
    write_frame(frame, out)

"""Fit a model to tables, and use it: a table in, a table out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.files import check_output, read_frames, write_bytes, write_frame
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
from weft.cli.spec import declare, plan_training, read_spec

if TYPE_CHECKING:
    from weft.estimator import MDMM
    from weft.prediction import Prediction
    from weft.sequences import Sequences

__all__ = ["register"]


@spoken
def fit(
    data: Inputs,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the model goes.")] = Path(
        "model.weft"
    ),
    spec: Annotated[Path | None, typer.Option(help="A TOML file; flags win over it.")] = None,
    id: Annotated[str | None, typer.Option(help="Column that names the sequence.")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times.")] = None,
    step: Annotated[str | None, typer.Option(help="Lay times on a grid: 1h, 30s, 0.5 …")] = None,
    combine: Annotated[
        str | None, typer.Option(help="Several values in a cell: mean, last, first, min, max, sum.")
    ] = None,
    variable: Annotated[str | None, typer.Option(help="Long table: column of names.")] = None,
    value: Annotated[str | None, typer.Option(help="Long table: column of values.")] = None,
    modality: Annotated[
        list[str] | None,
        typer.Option("--modality", "-m", help="name=column or name=column,column,…; repeatable."),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="A table that decides which state is kept.")
    ] = None,
    latent: Annotated[int | None, typer.Option(help="Width of the state.", min=1)] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.", min=1)] = None,
    inference: Annotated[str | None, typer.Option(help="bfvi, or a recurrent method.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same numbers.")] = None,
    log: Annotated[
        Path | None, typer.Option(help="Folder of checkpoint, metrics and curves.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in the log.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Learn a model from incomplete tables.

    Every column that is not the id or the time is a modality of its own, unless --modality groups
    them: numbers as they are, text as labels, empty cells as gaps.
    """
    check_output(out, table=False)
    wanted = read_spec(spec).override(
        {
            "id": id,
            "time": time,
            "step": _number_or_text(step),
            "combine": combine,
            "variable": variable,
            "value": value,
        },
        {"latent": latent, "hidden": hidden, "inference": inference, "seed": seed},
        modality or [],
        {"epochs": epochs, "learning_rate": learning_rate},
    )
    frame = read_frames(data)
    from weft.estimator import MDMM

    train = wanted.read(frame)
    held_out = None if validation is None else wanted.read(read_frames([validation]))
    modalities = declare(wanted, train)
    training = plan_training(wanted, train)
    if not as_json:
        typer.echo(f"{train!r}")
        for each in modalities:
            typer.echo(f"  {each}")
    settings = dict(wanted.model)
    number = int(settings.pop("seed", 0))
    model = MDMM(modalities, **settings)
    folder = log or out.with_name(f"{out.stem}_log")
    model.fit(
        train,
        validation=held_out,
        training=training,
        seed=number,
        directory=folder,
        resume=resume,
        progress=not as_json,
    )
    model.save(out)
    _draw_curves(model, folder)
    last = model.history[-1]
    tell(
        f"Loss {last.loss:.3f} per step after {last.epoch} epochs. Wrote {out}; metrics and curves "
        f"are in {folder}. Next: weft impute {out} {data[0]} -o filled.csv",
        {
            "model": str(out),
            "log": str(folder),
            "loss": last.loss,
            "epochs": last.epoch,
            "modalities": [str(each) for each in modalities],
        },
        as_json,
    )


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


@spoken
def info(
    model: Annotated[Path | None, typer.Argument(help="A model to describe.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which versions are installed and how the recursions run here, or what a model is."""
    text, facts = _about_here() if model is None else _about_model(_load(model), model)
    tell(text, facts, as_json)


def register(app: typer.Typer) -> None:
    """Add the verbs to an app."""
    for command in (
        fit,
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
        info,
    ):
        app.command()(command)


def describe_scan(kernels: tuple[str, ...], active: str | None) -> str:
    """One sentence on the compiled scan."""
    if active:
        return f"Compiled scan: {active} (available: {', '.join(kernels)})."
    if kernels:
        return "Compiled scan: switched off by WEFT_NATIVE; recursions run in PyTorch."
    return (
        "Compiled scan: not built when weft was installed, most often for want of a C++ compiler; "
        "recursions run in PyTorch, several times slower. Install a compiler, then install weft "
        "again."
    )


def _about_here() -> tuple[str, dict[str, Any]]:
    import platform

    import torch

    import weft
    from weft.inference import native

    facts = {
        "weft": weft.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "scan": native.active(),
        "scans": list(native.KERNELS),
    }
    lines = [
        f"weft {facts['weft']}, Python {facts['python']}, {facts['machine']}",
        f"PyTorch {facts['torch']}, {facts['threads']} threads",
        describe_scan(native.KERNELS, native.active()),
    ]
    return "\n".join(lines), facts


def _about_model(model: MDMM, path: Path) -> tuple[str, dict[str, Any]]:
    roles = {} if model.roles is None else vars(model.roles)
    table = {name: value for name, value in roles.items() if value and name != "categories"}
    facts = {
        "model": str(path),
        "inference": model.inference,
        "latent": model.latent,
        "hidden": model.hidden,
        "parameters": sum(parameter.numel() for parameter in model.module.parameters()),
        "modalities": [str(modality) for modality in model.modalities],
        "table": table,
    }
    lines = [
        f"{path}: {model.inference}, {model.latent} latent and {model.hidden} hidden dimensions, "
        f"{facts['parameters']:,} parameters",
        *(f"  {modality}" for modality in model.modalities),
    ]
    if table:
        named = ", ".join(f"{name}={value!r}" for name, value in table.items())
        lines.append(f"Tables are read with {named}")
    return "\n".join(lines), facts


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


def _number_or_text(step: str | None) -> float | str | None:
    if step is None:
        return None
    try:
        return float(step)
    except ValueError:
        return step


def _draw_curves(model: MDMM, folder: Path) -> None:
    """Loss over epochs as a picture, where matplotlib is installed."""
    import io

    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    epochs = [epoch.epoch for epoch in model.history]
    axes.plot(epochs, [epoch.loss for epoch in model.history], label="training")
    held_out = [epoch.validation for epoch in model.history if epoch.validation is not None]
    if len(held_out) == len(epochs):
        axes.plot(epochs, held_out, label="validation")
        axes.legend(frameon=False)
    axes.set(xlabel="epoch", ylabel="loss per step (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    figure.savefig(content, dpi=120)
    write_bytes(content.getvalue(), folder / "curves.png")

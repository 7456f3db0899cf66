"""Fit a model to tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.files import check_output, read_frames
from weft.cli.messages import spoken, tell
from weft.cli.options import AsJson, Inputs
from weft.cli.spec import declare, plan_training, read_spec

if TYPE_CHECKING:
    from weft.estimator import MDMM

__all__ = ["fit"]


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


def _number_or_text(step: str | None) -> float | str | None:
    if step is None:
        return None
    try:
        return float(step)
    except ValueError:
        return step


def _draw_curves(model: MDMM, folder: Path) -> None:
    """Loss over epochs as a picture, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    from weft.persistence import write_whole

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
    write_whole(content.getvalue(), folder / "curves.png")

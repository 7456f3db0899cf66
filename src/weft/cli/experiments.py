"""``weft demo`` and ``weft reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.messages import spoken

__all__ = ["demo", "reproduce"]

reproduce = typer.Typer(help="Repeat the paper's experiments.", no_args_is_help=True)

Seeds = Annotated[int, typer.Option(help="How many seeds.", min=1)]
Out = Annotated[Path, typer.Option(help="Where results go.")]
Processes = Annotated[int | None, typer.Option(help="How many fits side by side.")]
Data = Annotated[
    Path, typer.Option(help="The folder of the recordings.", envvar="WEFT_DATA", show_envvar=True)
]
Experiments = Annotated[
    list[str] | None, typer.Option(help="Which experiments; the usual ones if not given.")
]
Methods = Annotated[
    list[str] | None, typer.Option(help="Inference methods; the usual ones if not given.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="What to spend on a fit: paper, wide, short, films or quick; the usual if not given."
    ),
]
Quick = Annotated[bool, typer.Option(help="A small version, to see that it runs.")]


@spoken
def demo() -> None:
    """Fit 600 noisy spirals, do every task with the one model, draw a figure."""
    from weft import demo as demonstration

    demonstration.main([])


@reproduce.command()
@spoken
def spirals(
    preset: Annotated[
        list[str] | None, typer.Option(help="Recipes; 'paper' and 'best' if not given.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Inference methods; all of them if not given.")
    ] = None,
    seeds: Seeds = 3,
    out: Out = Path("results"),
    processes: Processes = None,
    quick: Quick = False,
) -> None:
    """Fit spirals and measure the five inference tasks, beside the paper's figures."""
    from weft.experiments import spirals as study

    size = study.QUICK if quick else study.Size()
    summary = study.reproduce_spirals(
        out,
        presets=preset or ["paper", "best"],
        methods=method or list(study.PAPER_ROWS),
        seeds=seeds,
        size=size,
        processes=processes,
    )
    typer.echo(study.table(summary))
    typer.echo(f"Wrote {out / 'spirals.json'} and {out / 'spirals.md'}.")


@reproduce.command("spirals-weak")
@spoken
def spirals_weak(
    preset: Annotated[list[str] | None, typer.Option(help="Recipes; 'sweep' if not given.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Inference methods; BFVI and B-Mask if not given.")
    ] = None,
    seeds: Seeds = 3,
    out: Out = Path("results"),
    processes: Processes = None,
    quick: Quick = False,
) -> None:
    """Learn spirals from incomplete training data, at growing shares of what is missing."""
    from weft.experiments import spirals as sizes
    from weft.experiments import spirals_weak as study

    study.reproduce_spirals_weak(
        out,
        presets=preset or ["sweep"],
        methods=method or ["bfvi", "b-mask"],
        seeds=seeds,
        levels=dict.fromkeys(study.CONDITIONS, (0.0, 0.5)) if quick else study.LEVELS,
        size=sizes.QUICK if quick else sizes.Size(),
        processes=processes,
    )
    typer.echo(f"Wrote {out / 'spirals_weak.json'} and {out / 'spirals_weak.png'}.")


@reproduce.command()
@spoken
def weizmann(
    data: Data,
    experiment: Experiments = None,
    method: Methods = None,
    budget: Budget = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of a fit; the budget's if not given.", min=1)
    ] = None,
    seeds: Seeds = 1,
    out: Out = Path("results"),
    processes: Processes = None,
) -> None:
    """Fit videos of human actions; infer missing frames, silhouettes and actions of a new person.

    The recordings are in the folder weizmann of the data.
    """
    from weft.experiments import weizmann as study

    summary = study.reproduce_weizmann(
        data / "weizmann",
        out,
        experiments=experiment or list(study.EXPERIMENTS),
        methods=method,
        budget=budget,
        steps=steps,
        seeds=seeds,
        processes=processes,
    )
    typer.echo(study.table(summary))
    typer.echo(f"Wrote {out / 'weizmann.json'} and pictures beside it.")


@reproduce.command("weizmann-weak")
@spoken
def weizmann_weak(
    data: Data,
    experiment: Experiments = None,
    method: Methods = None,
    budget: Budget = None,
    seeds: Seeds = 1,
    out: Out = Path("results"),
    processes: Processes = None,
) -> None:
    """Learn human actions from clips of which some have no label."""
    from weft.experiments import weizmann_weak as study

    study.reproduce_weizmann_weak(
        data / "weizmann",
        out,
        experiments=experiment or ["w90"],
        methods=method or ["bfvi", "b-mask-direct"],
        budget=budget,
        seeds=seeds,
        processes=processes,
    )
    typer.echo(f"Wrote {out / 'weizmann_weak.json'} and {out / 'weizmann_weak.png'}.")


@reproduce.command("weizmann-steps")
@spoken
def weizmann_steps(
    data: Data,
    budget: Budget = None,
    out: Out = Path("results"),
    processes: Processes = None,
) -> None:
    """Fit close-up videos of human actions for growing numbers of steps."""
    from weft.experiments import weizmann_steps as study

    study.reproduce_weizmann_steps(data / "weizmann", out, budget=budget, processes=processes)
    typer.echo(f"Wrote {out / 'weizmann_steps.json'} and {out / 'weizmann_steps.png'}.")

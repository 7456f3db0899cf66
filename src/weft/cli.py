"""The command line: ``weft info``, ``weft demo`` and ``weft reproduce``."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import torch
import typer

import weft
from weft import demo as demonstration
from weft.experiments import spirals as spirals_experiment
from weft.experiments import spirals_weak as spirals_weak_experiment
from weft.experiments import weizmann as weizmann_experiment
from weft.experiments import weizmann_weak as weizmann_weak_experiment
from weft.inference import native

app = typer.Typer(
    help="Incomplete multimodal time series, woven into one latent state.",
    no_args_is_help=True,
    add_completion=False,
)


reproduce = typer.Typer(help="Repeat the paper's experiments.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")

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
Budget = Annotated[str, typer.Option(help="How much to spend on a fit.")]
Quick = Annotated[bool, typer.Option(help="A small version, to see that it runs.")]


@app.command()
def info() -> None:
    """Say which versions are installed, and how the recursions run here."""
    typer.echo(f"weft {weft.__version__}, Python {platform.python_version()}, {platform.machine()}")
    typer.echo(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    typer.echo(describe_scan(native.KERNELS, native.active()))


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


@app.command()
def demo() -> None:
    """Fit 600 noisy spirals, do every task with the one model, draw a figure."""
    demonstration.main()


@reproduce.command()
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
    size = spirals_experiment.QUICK if quick else spirals_experiment.Size()
    summary = spirals_experiment.reproduce_spirals(
        out,
        presets=preset or ["paper", "best"],
        methods=method or list(spirals_experiment.PAPER_ROWS),
        seeds=seeds,
        size=size,
        processes=processes,
    )
    typer.echo(spirals_experiment.table(summary))
    typer.echo(f"Wrote {out / 'spirals.json'} and {out / 'spirals.md'}.")


@reproduce.command("spirals-weak")
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
    spirals_weak_experiment.reproduce_spirals_weak(
        out,
        presets=preset or ["sweep"],
        methods=method or ["bfvi", "b-mask"],
        seeds=seeds,
        levels=(0.0, 0.5) if quick else spirals_weak_experiment.LEVELS,
        size=spirals_experiment.QUICK if quick else spirals_experiment.Size(),
        processes=processes,
    )
    typer.echo(f"Wrote {out / 'spirals_weak.json'} and {out / 'spirals_weak.png'}.")


@reproduce.command()
def weizmann(
    data: Data,
    experiment: Experiments = None,
    method: Methods = None,
    budget: Budget = "paper",
    seeds: Seeds = 1,
    out: Out = Path("results"),
    processes: Processes = None,
) -> None:
    """Fit videos of human actions; infer missing frames, silhouettes and actions of a new person.

    The recordings are in the folder weizmann of the data.
    """
    summary = weizmann_experiment.reproduce_weizmann(
        data / "weizmann",
        out,
        experiments=experiment or list(weizmann_experiment.EXPERIMENTS),
        methods=method,
        budget=budget,
        seeds=seeds,
        processes=processes,
    )
    typer.echo(weizmann_experiment.table(summary))
    typer.echo(f"Wrote {out / 'weizmann.json'} and pictures beside it.")


@reproduce.command("weizmann-weak")
def weizmann_weak(
    data: Data,
    experiment: Experiments = None,
    method: Methods = None,
    budget: Budget = "paper",
    seeds: Seeds = 1,
    out: Out = Path("results"),
    processes: Processes = None,
) -> None:
    """Learn human actions from clips of which some have no label."""
    weizmann_weak_experiment.reproduce_weizmann_weak(
        data / "weizmann",
        out,
        experiments=experiment or ["w90"],
        methods=method or ["bfvi", "b-mask-direct"],
        budget=budget,
        seeds=seeds,
        processes=processes,
    )
    typer.echo(f"Wrote {out / 'weizmann_weak.json'} and {out / 'weizmann_weak.png'}.")

"""The command line: ``weft info`` and ``weft demo``."""

from __future__ import annotations

import platform

import torch
import typer

import weft
from weft import demo as demonstration
from weft.inference import native

app = typer.Typer(
    help="Incomplete multimodal time series, woven into one latent state.",
    no_args_is_help=True,
    add_completion=False,
)


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

"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "Grid",
    "Inputs",
    "Model",
    "Out",
    "Probabilities",
    "Quantiles",
    "Samples",
    "Seed",
    "Std",
    "Steps",
]

Model = Annotated[Path, typer.Argument(help="A model that weft fit wrote.")]
Inputs = Annotated[
    list[Path],
    typer.Argument(help="Tables (CSV, TSV, Parquet, Arrow); several are merged on time."),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where the table goes; not given: shown as CSV.")
]
Std = Annotated[bool, typer.Option("--std", help="Add a column <name>_std of standard deviations.")]
Quantiles = Annotated[
    list[float] | None,
    typer.Option("--quantile", "-q", help="Add a column, such as <name>_q05 for 0.05; repeatable."),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Add a column for every label's probability.")
]
Grid = Annotated[
    bool, typer.Option("--grid", help="One row per step of the grid instead of the table's rows.")
]
Samples = Annotated[int, typer.Option(help="Trajectories behind every prediction.", min=1)]
Seed = Annotated[int, typer.Option(help="Same seed, same numbers.")]
Steps = Annotated[int, typer.Option(help="How many steps.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Say it as JSON.")]

"""The report as a whole: its sections in order, and its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weft.bookkeeping import read_history
from weft.estimator import MDMM
from weft.monitoring import progress_bar
from weft.persistence import write_whole
from weft.report.inferred import inferred
from weft.report.measures import excerpt
from weft.report.overview import missingness, summary, training
from weft.report.page import page
from weft.report.settings import MODALITIES, Settings
from weft.report.text import counted
from weft.report.trust import calibration, errors, extent
from weft.sequences import Sequences

__all__ = ["build_report", "write_report"]


def write_report(
    model: MDMM,
    data: Sequences | Mapping[str, Any],
    path: str | Path,
    *,
    log: str | Path | None = None,
    sequences: int = 6,
    samples: int = 100,
    seed: int = 0,
    title: str = "weft report",
    progress: bool = False,
) -> None:
    """Write a report to an HTML file, whole or not at all; see `build_report`.

    With ``progress``, show a progress bar.
    """
    with progress_bar("report", progress) as watch:
        content = build_report(
            model,
            data,
            log=log,
            sequences=sequences,
            samples=samples,
            seed=seed,
            title=title,
            watch=watch,
        )
    write_whole(content.encode(), Path(path))


def build_report(
    model: MDMM,
    data: Sequences | Mapping[str, Any],
    *,
    log: str | Path | None = None,
    sequences: int = 6,
    samples: int = 100,
    seed: int = 0,
    title: str = "weft report",
    watch: Callable[[float, str], None] = lambda share, remark: None,
) -> str:
    """Make one HTML page about a fitted model and data; it needs no other file and no network.

    Parameters
    ----------
    model : MDMM
    data : Sequences or mapping of arrays
    log : path, optional
        The folder that `MDMM.fit` wrote ``metrics.jsonl`` to; the model's own history if not given.
    sequences : int
        How many sequences to draw.
    samples, seed : int
        Of the predictions; the seed also decides what is deleted to measure errors.
    title : str
    watch : callable, optional
        Called with the share done and what is being done.
    """
    settings = Settings(sequences, samples, seed)
    history = model.history if log is None else read_history(Path(log))
    read = data if isinstance(data, Sequences) else Sequences.from_arrays(data)
    source = read.conform(model.module.model.fields)
    drawn = [m for m in model.modalities if len(m.shape) <= 1][:MODALITIES]
    watch(0.0, "sequences")
    parts = [
        summary(model, source),
        missingness(source),
        training(history),
        inferred(model, source, drawn, settings),
    ]
    watch(0.2, "calibration")
    scored = excerpt(source, max((m.size for m in drawn), default=1), samples)
    measured = extent(source, scored)
    parts += [
        calibration(model, scored, drawn, settings, measured),
        errors(model, scored, drawn, settings, measured, watch),
    ]
    lead = (
        "What the data look like, how training went, what the model infers, and how far that can "
        "be trusted."
    )
    footer = (
        f"weft {version('weft')}, seed {seed}, {counted(samples, 'sample')} per prediction. "
        "This page is one file and loads nothing."
    )
    return page(title, lead, parts, footer)

"""Sections on how far predictions can be trusted: calibration and held-out errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.estimator import MDMM
from weft.evaluation import Score
from weft.modality import Modality
from weft.report.figures import calibration_figure
from weft.report.measures import TRIALS, calibrate, reference, try_out
from weft.report.page import Section, figures, paragraph, side_by_side, table
from weft.report.settings import Settings
from weft.report.text import counted, number, percent, shorten
from weft.sequences import Sequences

__all__ = ["calibration", "errors", "extent"]

NUMBER_HEAD = ("Deleted", "Entries", "MAE", "RMSE", "CRPS", "In 90 %")
LABEL_HEAD = ("Deleted", "Labels", "Accuracy", "Log loss")


def extent(data: Sequences, scored: Sequences) -> str:
    """Say what errors were measured on."""
    if scored.rows == data.rows:
        return f"Measured on all {counted(data.rows, 'step')}."
    return (
        f"Measured on {scored.rows:,} of {counted(data.rows, 'step')}, in "
        f"{counted(len(scored), 'piece')} of at most {int(scored.lengths.max()):,} steps."
    )


def calibration(
    model: MDMM, data: Sequences, drawn: Sequence[Modality], settings: Settings, measured: str
) -> Section:
    """Compare what the model promises with what is found, for numbers and for labels."""
    names = [modality.name for modality in drawn]
    curves = calibrate(model, data, names, samples=settings.samples, seed=settings.seed)
    plots = [
        calibration_figure(name, curve, labels=data.columns[name].categories is not None)
        for name, curve in curves.items()
    ]
    said = (
        "Half of each modality’s steps were deleted at random and inferred from the rest. On the "
        "dashed line promises are kept: intervals of 50 % hold half of the deleted numbers, and "
        "labels given a probability of 70 % are there seven times in ten. A model whose intervals "
        "lie below the line, or whose labels rise less steeply than it, is too sure of itself. "
        "Larger dots stand for more cases."
    )
    if not plots:
        said = "Nothing could be deleted and compared: too little was observed."
    return Section("calibration", "Calibration", [paragraph(said, measured), figures(plots)])


def errors(
    model: MDMM,
    data: Sequences,
    drawn: Sequence[Modality],
    settings: Settings,
    measured: str,
    watch: Callable[[float, str], None],
) -> Section:
    """Tabulate the errors of every modality under every deletion protocol."""
    rows: dict[str, list[Sequence[str]]] = {modality.name: [] for modality in drawn}
    trials = try_out(model, data, list(rows), samples=settings.samples, seed=settings.seed)
    for i, (trial, scores) in enumerate(trials):
        watch(0.3 + 0.7 * (i + 1) / len(TRIALS), f"errors, {trial.title} deleted")
        for name, score in scores.items():
            rows[name].append((trial.title, *_cells(score)))
    tables = [
        table(
            NUMBER_HEAD if data.columns[name].categories is None else LABEL_HEAD,
            lines,
            shorten(name, 60),
            reference(data.columns[name]),
        )
        for name, lines in rows.items()
        if lines
    ]
    said = [
        paragraph(
            "Observed data were deleted, inferred from the rest, and compared. All modalities lose "
            "data at once, except that “all of it” deletes one and keeps the others. If the model "
            "was fitted to these very data, expect larger errors on new ones.",
            measured,
        ),
        paragraph(
            "MAE and RMSE are the mean and the root mean square error of the predicted mean, CRPS "
            "the error of the whole predicted distribution, all in the column’s own unit; smaller "
            "is better. “In 90 %” is the share of deleted numbers inside their 90 % interval and "
            "should be near 90 %. Accuracy is the share of labels that were the most probable; log "
            "loss is the mean of −log of the probability they were given, in nats, smaller is "
            "better."
        ),
    ]
    if not tables:
        said = [paragraph("Nothing could be deleted and compared: too little was observed.")]
    return Section("errors", "Held-out errors", [*said, side_by_side(tables)])


def _cells(score: Score) -> tuple[str, ...]:
    """The numbers of a score, as far as they apply."""
    plain = (score.mae, score.rmse, score.crps)
    cells = [f"{score.count:,}", *(number(value) for value in plain if value is not None)]
    cells += [percent(share) for share in (score.coverage, score.accuracy) if share is not None]
    return (*cells, *(number(loss) for loss in (score.log_loss,) if loss is not None))

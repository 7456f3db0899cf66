"""Sections on the model, the data and the training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.bookkeeping import Epoch
from weft.estimator import MDMM
from weft.modality import Modality
from weft.report.figures import missingness_figure, training_figures
from weft.report.page import Section, figures, paragraph, table
from weft.report.settings import MODALITIES
from weft.report.text import counted, percent, shorten
from weft.sequences import Sequences

__all__ = ["missingness", "summary", "training"]


def summary(model: MDMM, data: Sequences) -> Section:
    """Say what the model and the data are."""
    count = sum(parameter.numel() for parameter in model.module.parameters())
    low, middle, high = (int(f(data.lengths)) for f in (np.min, np.median, np.max))
    steps = f"{low:,} each" if low == high else f"{low:,} to {high:,}, median {middle:,}"
    facts = [
        ("inference", model.inference),
        ("state", f"{counted(model.latent, 'number')}, networks of width {model.hidden}"),
        ("parameters", f"{count:,}"),
        ("sequences", f"{len(data):,}"),
        ("steps", f"{data.rows:,} in all" if len(data) == 1 else f"{data.rows:,} in all, {steps}"),
    ]
    kinds = [
        (
            shorten(modality.name, 40),
            _kind(modality),
            type(modality.likelihood).__name__,
            percent(data.observed_fraction(modality.name)),
        )
        for modality in model.modalities
    ]
    return Section(
        "summary",
        "Summary",
        [
            table((), facts, "Model and data", words=True),
            table(("Modality", "Holds", "Likelihood", "Observed"), kinds, words=True),
        ],
    )


def _kind(modality: Modality) -> str:
    if modality.categories is not None:
        return f"{len(modality.categories)} labels"
    if len(modality.shape) > 1:
        return f"images of {' × '.join(map(str, modality.shape))}"
    return counted(modality.size, "number")


def missingness(data: Sequences) -> Section:
    """Map what was observed of every modality."""
    shown = data.names[:MODALITIES]
    more = (
        f"The first {MODALITIES} of {len(data.names)} modalities."
        if len(data.names) > len(shown)
        else ""
    )
    return Section(
        "missingness",
        "What is missing",
        [
            paragraph(
                "Each row is a sequence, counted from its own first step. Where there are many "
                "sequences or steps, several share a cell.",
                more,
            ),
            figures([missingness_figure(data, name) for name in shown]),
        ],
    )


def training(history: Sequence[Epoch]) -> Section:
    """Draw how training went, or say that nothing is known of it."""
    if not history:
        parts = [
            paragraph(
                "No record of the training was found. weft fit leaves one in the folder "
                "MODEL_log; name it with --log, or log=… in Python."
            )
        ]
    else:
        parts = [
            paragraph(
                f"{counted(len(history), 'epoch')}. Curves should fall and then level off; a curve "
                "that still falls asks for more epochs."
            ),
            figures(training_figures(history)),
        ]
    return Section("training", "Training", parts)

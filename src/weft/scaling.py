"""Standardising numbers before they are modelled, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.columns import Array, Column, DataError
from weft.modality import Modality
from weft.sequences import Sequences

__all__ = ["Scale", "Scaling"]

LARGEST = 1e100
"""Squares of larger numbers soon overflow."""


@dataclass(frozen=True, eq=False)
class Scale:
    """Shift and scale of one modality's entries: ``model units = (user units - shift) / scale``."""

    shift: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class Scaling:
    """The scale of every modality that has one; others pass unchanged."""

    scales: dict[str, Scale]

    @classmethod
    def fit(cls, modalities: Sequence[Modality], data: Sequences) -> Scaling:
        """Give every entry of location-scale modalities mean 0 and variance 1 where observed."""
        scales = {}
        for modality in modalities:
            if not modality.likelihood.location_scale:
                continue
            column = data.columns[modality.name]
            count = np.maximum(column.observed.sum(0), 1)
            values = column.values.astype(np.float64)
            largest = np.abs(values).max(initial=0)
            if largest > LARGEST:
                raise DataError(
                    f"Modality {modality.name!r} holds a number as large as {largest:.3g}, which "
                    "cannot be standardised. Mark it as missing if it is an error, or rescale."
                )
            shift = values.sum(0) / count
            centred = np.where(column.observed, values - shift, 0)
            std = np.sqrt(np.square(centred).sum(0) / count)
            constant = std <= 1e-8 * np.maximum(1, np.abs(shift))
            scales[modality.name] = Scale(shift, np.where(constant, 1.0, std))
        return cls(scales)

    def apply(self, data: Sequences) -> Sequences:
        """Bring data into the model's units."""
        scaled = {name: self.rescale(name, column) for name, column in data.columns.items()}
        return replace(data, columns=scaled)

    def rescale(self, name: str, column: Column) -> Column:
        """Bring one modality's column into the model's units."""
        if name not in self.scales:
            return column
        return column.rescale(self.scales[name].shift, self.scales[name].scale)

    def undo(self, data: Sequences) -> Sequences:
        """Bring data back into the user's units."""
        columns = dict(data.columns)
        for name, scale in self.scales.items():
            columns[name] = columns[name].rescale(-scale.shift / scale.scale, 1 / scale.scale)
        return replace(data, columns=columns)

    def log_volume(self, data: Sequences) -> Array:
        """``Σ log scale`` over the observed entries of each sequence.

        A density in user units is the density in model units divided by this volume.
        """
        rows = np.zeros(data.rows)
        for name, scale in self.scales.items():
            logs = data.columns[name].observed * np.log(scale.scale)
            rows += logs.reshape(data.rows, -1).sum(1)
        return np.bincount(data.sequence_of_row, rows, minlength=len(data))

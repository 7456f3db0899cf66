"""Incomplete multimodal sequences.

Missing data come at four levels: single entries of a vector, whole steps, whole modalities, and
ragged ends. All four are the same thing here: a mask that is false. `Sequences` live in NumPy with
(sequence, time, …) arrays at their border; a `Batch` is time-major tensors, zero where missing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import torch
from torch import Tensor

from weft.batch import Batch
from weft.columns import ANYTHING, Array, Column, DataError, Field, listing
from weft.frames import (
    Combine,
    Contents,
    Extra,
    Roles,
    Step,
    Table,
    read_table,
    write_grid,
    write_rows,
)
from weft.reading import read_arrays

__all__ = ["Sequences"]

Index: TypeAlias = SupportsIndex | slice | Sequence[int] | Array | Tensor


@dataclass(frozen=True, eq=False)
class Sequences:
    """A collection of multimodal sequences in which anything may be missing.

    Build one with `from_arrays` or `from_frame`. All methods return new objects; nothing changes
    in place.

    Attributes
    ----------
    columns : dict[str, Column]
        Flat storage per modality: the steps of all sequences, one after another.
    lengths : ndarray
        Steps of each sequence.
    ids : tuple
        A unique name for each sequence, used in messages and results.
    table, cells : Table and ndarray, optional
        The table they were read from, and which of its cells each row is (-1: none of them).

    Examples
    --------
    >>> data = Sequences.from_arrays({
    ...     "accel": [[[0.1, 9.8], [np.nan, 9.7]], [[0.0, 9.9]]],
    ...     "activity": [["walk", None], ["rest"]],
    ... })
    >>> data
    Sequences(2 sequences, 1 to 2 steps, accel (2,) 83% observed,
              activity 2 categories 67% observed)
    >>> data[1].arrays("activity")
    [array(['rest'], dtype=object)]
    """

    columns: dict[str, Column]
    lengths: Array
    ids: tuple[Hashable, ...]
    table: Table | None = None
    cells: Array | None = None

    @classmethod
    def from_arrays(
        cls,
        values: Mapping[str, Any],
        *,
        observed: Mapping[str, Any] | None = None,
        lengths: Sequence[int] | Array | None = None,
        categories: Mapping[str, Sequence[Hashable]] | None = None,
        ids: Sequence[Hashable] | None = None,
    ) -> Sequences:
        """Read arrays or lists of arrays, one per modality.

        Parameters
        ----------
        values : mapping
            Modality name to an array ``(sequence, time, …)``, or to a list with one ``(time, …)``
            array per sequence, ``None`` where a sequence lacks the modality. NaN marks a missing
            entry. Text is read as labels, ``None`` marking a missing one.
        observed : mapping, optional
            Masks shaped like the values, or one truth value per step; true where observed. They
            add to what NaN already says.
        lengths : sequence of int, optional
            Real steps of each sequence, where arrays are padded.
        categories : mapping, optional
            All labels of a categorical modality, in order; found in the data if not given.
        ids : sequence, optional
            Unique names of the sequences; their positions if not given.
        """
        return cls(*read_arrays(values, observed, lengths, categories, ids))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        id: str | None = None,
        time: str | None = None,
        modalities: Mapping[str, str | Sequence[str]] | None = None,
        step: Step | None = None,
        combine: Combine = "mean",
        variable: str | None = None,
        value: str | None = None,
        categories: Mapping[str, Sequence[Hashable]] | None = None,
    ) -> Sequences:
        """Read a table: pandas, Polars, Arrow, or a list of them to be merged on time.

        Parameters
        ----------
        frame : table or list of tables
            One row per sequence and time, or (a long table) per measurement.
        id, time : str, optional
            Columns that name a row's sequence and its time; all rows are one sequence, and in
            order, if not given.
        modalities : mapping, optional
            Modality name to its column, or to several columns of numbers. Every other column is a
            modality of its own, if not given: numbers as they are, text as labels.
        step : number, str or timedelta, optional
            Lay times on a grid of this width (``"1h"``); what no row falls into is missing.
            Without it each time that occurs is a step, however far from the next.
        combine : str
            What becomes of several numbers in a cell of the grid: "mean", "last", "first", "min",
            "max" or "sum". Of several labels the last one is taken.
        variable, value : str, optional
            In a long table, the columns that name what was measured and hold what it was.
        categories : mapping, optional
            All labels of a categorical modality, in order; found in the table if not given.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"t": [0, 1, 3], "pulse": [70.0, None, 75.0],
        ...                       "state": ["rest", "rest", None]})
        >>> Sequences.from_frame(frame, time="t", step=1)
        Sequences(1 sequence, 4 steps, pulse (1,) 50% observed, state 1 categories 50% observed)
        """
        roles = Roles(id, time, variable, value, modalities, step, combine, dict(categories or {}))
        return cls.from_contents(read_table(frame, roles))

    @classmethod
    def from_contents(cls, read: Contents) -> Sequences:
        """Take over what was read from a table."""
        return cls(read.columns, read.lengths, read.ids, read.table, np.arange(read.lengths.sum()))

    def to_frame(self, extras: Sequence[Extra] = (), *, grid: bool = False) -> Any:
        """Write a table like the one that was read, rows, index and other columns included.

        Each row gets what its cell holds; what was not changed stays to the last digit. With
        ``grid``, or if there was no such table, one row per step.

        Examples
        --------
        >>> Sequences.from_arrays({"x": [[1.0, np.nan], [3.0]]}).to_frame()
           sequence  step    x
        0         0     0  1.0
        1         0     1  NaN
        2         1     0  3.0
        """
        table, cells = self.table, self.cells
        known = cells is not None and bool((cells >= 0).all())
        if table is not None and cells is not None and known and not (grid or table.merged):
            return write_rows(table, self.columns, cells, extras)
        ids = [self.ids[i] for i in self.sequence_of_row]
        return write_grid(table, self.columns, ids, self.ticks, extras)

    @property
    def ticks(self) -> Array:
        """Time of each row, as a number; its step, where there are no times.

        Rows that were added before or after a sequence go on at the usual distance.
        """
        table, cells = self.table, self.cells
        if table is None or cells is None or table.clock is None:
            return self.step_of_row
        whose, row, known = self.sequence_of_row, np.arange(self.rows), cells >= 0
        first, last = np.full(len(self), self.rows), np.full(len(self), -1)  # with a known time
        np.minimum.at(first, whose[known], row[known])
        np.maximum.at(last, whose[known], row[known])
        near = np.clip(row, first[whose], last[whose])
        width = int(table.width) if table.ticks.dtype == np.int64 else table.width
        found: Array = table.ticks[cells[near]] + (row - near) * width
        return found

    # Looking at it

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the modalities."""
        return tuple(self.columns)

    @property
    def rows(self) -> int:
        """Steps of all sequences together."""
        return int(self.lengths.sum())

    @property
    def starts(self) -> Array:
        """First row of each sequence."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def sequence_of_row(self) -> Array:
        """Position of the sequence that each row belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def step_of_row(self) -> Array:
        """Step of each row within its sequence."""
        return np.arange(self.rows) - self.starts[self.sequence_of_row]

    def observed_fraction(self, name: str) -> float:
        """Share of a modality's entries that were observed."""
        return float(self._column(name).observed.mean())

    def arrays(self, name: str) -> list[Array]:
        """Values per sequence: NaN, or ``None`` among labels, where missing."""
        return np.split(self._column(name).decoded(), self.starts[1:])

    def padded(self, name: str) -> Array:
        """Values as one ``(sequence, time, …)`` array, missing beyond the ends."""
        column = self._column(name)
        rows, valid = self._grid(np.arange(len(self)))
        filled = column.decoded()[rows]
        filled[~valid] = np.nan if column.categories is None else None
        return filled.swapaxes(0, 1)

    def __repr__(self) -> str:
        low, high = self.lengths.min(), self.lengths.max()
        steps = f"{low} steps" if low == high else f"{low} to {high} steps"
        parts = ["1 sequence" if len(self) == 1 else f"{len(self)} sequences", steps]
        for name, column in self.columns.items():
            kind = (
                column.shape
                if column.categories is None
                else f"{len(column.categories)} categories"
            )
            parts.append(f"{name} {kind} {self.observed_fraction(name):.0%} observed")
        return f"Sequences({', '.join(parts)})"

    # Selecting and arranging

    def __getitem__(self, index: Index) -> Sequences:
        """Select sequences by position, slice, list of positions or boolean mask.

        A sequence may be selected twice; then ids become positions.
        """
        chosen = self._positions(index)
        grid, valid = self._grid(chosen)
        rows = grid.T[valid.T]
        ids = _unique([self.ids[i] for i in chosen])
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        cells = None if self.cells is None else self.cells[rows]
        return Sequences(columns, self.lengths[chosen], ids, self.table, cells)

    def keep(self, *names: str) -> Sequences:
        """Keep only these modalities."""
        return replace(self, columns={name: self._column(name) for name in names})

    def hide(self, *names: str) -> Sequences:
        """Mark every value of these modalities as missing."""
        return self.delete({name: np.ones(self.rows, bool) for name in names})

    def delete(self, entries: Mapping[str, Array]) -> Sequences:
        """Mark entries as missing: per modality a mask of ``(row,)`` or ``(row, *shape)``."""
        for name, mask in entries.items():
            shape = self._column(name).observed.shape
            if mask.dtype != bool or mask.shape not in (shape, shape[:1]):
                raise DataError(
                    f"The entries to delete of modality {name!r} are {mask.dtype} of shape "
                    f"{mask.shape}. Give truth values of shape {shape[:1]} or {shape}."
                )
        changed = {name: self.columns[name].delete(mask) for name, mask in entries.items()}
        return replace(self, columns={**self.columns, **changed})

    def segments(self, length: int) -> Sequences:
        """Cut every sequence into pieces of ``length`` steps; a shorter rest is kept."""
        if length < 1:
            raise ValueError(f"Segments need a length of at least 1, got {length}.")
        pieces = [
            (name, start, min(length, int(total) - start))
            for name, total in zip(self.ids, self.lengths, strict=True)
            for start in range(0, int(total), length)
        ]
        ids = tuple(f"{name}[{start}:{start + steps}]" for name, start, steps in pieces)
        return replace(self, lengths=np.array([steps for *_, steps in pieces]), ids=_unique(ids))

    def crop(self, start: int | None = None, stop: int | None = None) -> Sequences:
        """Keep the steps from ``start`` to ``stop`` of every sequence, counted as slices count.

        ``data.crop(stop=-8)`` leaves the last eight out, ``data.crop(-8)`` all others.
        """
        step, lengths = self.step_of_row, self.lengths[self.sequence_of_row]
        first, last = (
            default if bound is None else np.where(bound < 0, bound + lengths, bound)
            for bound, default in ((start, 0), (stop, lengths))
        )
        inside = (step >= first) & (step < last)
        left = np.bincount(self.sequence_of_row[inside], minlength=len(self))
        if not left.all():
            name = self.ids[int(np.argmin(left))]
            raise DataError(
                f"Nothing is left of sequence {name!r} between steps {start} and {stop}. Keep "
                "more, or drop the sequence."
            )
        rows = np.flatnonzero(inside)
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        cells = None if self.cells is None else self.cells[rows]
        return Sequences(columns, left, self.ids, self.table, cells)

    def extend(self, before: int = 0, after: int = 0) -> Sequences:
        """Add steps at which nothing is observed to both ends of every sequence."""
        lengths = self.lengths + before + after
        step = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        inside = (step >= before) & (step < np.repeat(self.lengths + before, lengths))
        columns = {}
        for name, column in self.columns.items():
            shape = (len(step), *column.shape)
            values, observed = np.zeros(shape, column.values.dtype), np.zeros(shape, bool)
            values[inside], observed[inside] = column.values, column.observed
            columns[name] = Column(values, observed, column.categories)
        cells = None
        if self.cells is not None:
            cells = np.full(len(step), -1)
            cells[inside] = self.cells
        return Sequences(columns, lengths, self.ids, self.table, cells)

    def shift(self, steps: Mapping[str, Array]) -> Sequences:
        """Move modalities in time: what was at step ``t`` of a sequence is at ``t + steps`` of it.

        One whole number per sequence. What leaves a sequence is gone; `extend` it first to keep it.
        """
        columns = dict(self.columns)
        whose, length = self.sequence_of_row, self.lengths[self.sequence_of_row]
        for name, by in steps.items():
            source = self.step_of_row - by[whose]
            outside = (source < 0) | (source >= length)
            rows = self.starts[whose] + np.clip(source, 0, length - 1)
            columns[name] = self._column(name).take(rows).delete(outside)
        return replace(self, columns=columns)

    @staticmethod
    def concatenate(parts: Sequence[Sequences]) -> Sequences:
        """Put the sequences of several collections one after another.

        Modalities must agree in shape and categories; one that a part lacks is missing there. Ids
        are renumbered where they repeat.
        """
        if not parts:
            raise DataError("There is nothing to concatenate. Pass at least one collection.")
        fields: dict[str, Field] = {}
        for part in parts:
            for name, column in part.columns.items():
                fields.setdefault(name, Field(column.shape, ANYTHING, column.categories))
        parts = [part.conform(fields) for part in parts]
        columns = {
            name: Column(
                np.concatenate([part.columns[name].values for part in parts]),
                np.concatenate([part.columns[name].observed for part in parts]),
                field.categories,
            )
            for name, field in fields.items()
        }
        ids = _unique([name for part in parts for name in part.ids])
        return Sequences(columns, np.concatenate([part.lengths for part in parts]), ids)

    def conform(self, fields: Mapping[str, Field]) -> Sequences:
        """Check against what a model expects; add modalities that are absent, all missing."""
        for name in self.names:
            if name not in fields:
                raise DataError(
                    f"The data hold a modality {name!r}, which is unknown here; known are "
                    f"{listing(tuple(fields))}. Rename it, or drop it with data.keep(…)."
                )

        def where(row: int) -> str:
            i = int(np.searchsorted(self.starts, row, side="right")) - 1
            return f"sequence {self.ids[i]!r}, step {row - self.starts[i]}"

        columns = {
            name: self.columns[name].conform(name, field, where)
            if name in self.columns
            else Column.missing(field, self.rows)
            for name, field in fields.items()
        }
        return replace(self, columns=columns)

    # Batches

    def batch(
        self, index: Sequence[int] | Array | None = None, dtype: torch.dtype = torch.float32
    ) -> Batch:
        """Lay sequences (all, or those at ``index``) side by side as tensors."""
        chosen = self._positions(slice(None) if index is None else index)
        rows, valid = self._grid(chosen)
        values, observed = {}, {}
        for name, column in self.columns.items():
            keep = valid.reshape(valid.shape + (1,) * len(column.shape))
            seen = torch.from_numpy(column.observed[rows] & keep)
            kind = dtype if column.categories is None else torch.int64
            filled = torch.from_numpy(column.values[rows]).to(kind)
            if kind.is_floating_point and not filled.isfinite().all():
                raise DataError(
                    f"Modality {name!r} holds numbers too large for {kind}. Rescale it, or use "
                    "double precision."
                )
            values[name] = torch.where(seen, filled, torch.zeros((), dtype=kind))
            observed[name] = seen
        lengths = torch.from_numpy(self.lengths[chosen].astype(np.int64))
        return Batch(values, observed, lengths, torch.from_numpy(chosen.astype(np.int64)))

    def batches(
        self,
        size: int,
        *,
        generator: torch.Generator | None = None,
        bucket: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Iterator[Batch]:
        """Iterate over all sequences once, ``size`` at a time.

        A generator shuffles; without one the order is kept. ``bucket`` puts sequences of similar
        length together, so that little is padded.
        """
        for group in self.groups(size, generator=generator, bucket=bucket):
            yield self.batch(group, dtype)

    def groups(
        self, size: int, *, generator: torch.Generator | None = None, bucket: bool = False
    ) -> list[Array]:
        """Positions of the sequences of each batch; see `batches`."""
        if size < 1:
            raise ValueError(f"A batch needs at least one sequence, got size={size}.")
        order = _permutation(len(self), generator)
        if bucket:
            order = order[np.argsort(self.lengths[order], kind="stable")]
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        shuffled = generator if bucket else None
        return [groups[i] for i in _permutation(len(groups), shuffled)]

    # Helpers

    def _column(self, name: str) -> Column:
        if name not in self.columns:
            raise DataError(
                f"There is no modality {name!r} in the data; there are {listing(self.names)}."
            )
        return self.columns[name]

    def _positions(self, index: Index) -> Array:
        """Positions of the selected sequences, at least one."""
        if not isinstance(index, slice):
            index = np.asarray(index)
            index = index if index.size else slice(0)
        chosen = np.atleast_1d(np.arange(len(self))[index])
        if not len(chosen):
            raise DataError("The selection holds no sequence. Select at least one.")
        return chosen

    def _grid(self, chosen: Array) -> tuple[Array, Array]:
        """Rows ``(time, batch)`` of the chosen sequences, and where they are real."""
        clock = np.arange(int(self.lengths[chosen].max()))[:, None]
        valid = clock < self.lengths[chosen]
        return np.where(valid, self.starts[chosen] + clock, 0), valid


def _permutation(count: int, generator: torch.Generator | None) -> Array:
    """Shuffle 0 … count-1, or keep the order without a generator."""
    if generator is None:
        return np.arange(count)
    order: Array = torch.randperm(count, generator=generator).numpy()
    return order


def _unique(ids: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Keep ids if they are unique, else number them."""
    return tuple(ids) if len(set(ids)) == len(ids) else tuple(range(len(ids)))

"""Tables in: pandas, Polars, Arrow and whatever else narwhals knows.

A table is read as a set of events: each entry of each column happens at a row's time in a row's
sequence. Events fall into *cells*, the steps of the sequences. Without a step width a cell is a
time stamp that occurs; with one, time is a grid of cells, of which many may stay empty. So wide and
long tables, several tables at different rates and irregular times are one and the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.columns import Array, Column, DataError, listing
from weft.frames.clock import Clock, Step, read_clock

__all__ = ["Combine", "Contents", "Roles", "Table", "read_table"]

Combine: TypeAlias = Literal["mean", "last", "first", "min", "max", "sum"]
MOST_CELLS = 1000
"""More grid cells than this per row are taken for a mistake."""

MOST_LABELS = 200
LOGGER = logging.getLogger("weft")


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are.

    Attributes
    ----------
    id, time : str, optional
        Columns that name a row's sequence and its time. Without an ``id`` all rows are one
        sequence; without a ``time`` they are in order.
    variable, value : str, optional
        In a long table, the columns that name what was measured and hold what it was.
    modalities : mapping, optional
        Modality to column, or to several columns of numbers; of a long table, to variables. If not
        given, each column (variable) that has no other role is a modality.
    step : number, str or timedelta, optional
        Width of a cell of the grid that times are laid on.
    combine : str
        What becomes of several numbers in a cell: "mean", "last", "first", "min", "max" or "sum".
        Of several labels the last one is taken (with "first" the first).
    categories : mapping, optional
        All labels of a modality, in order; those in the table if not given.
    """

    id: str | None = None
    time: str | None = None
    variable: str | None = None
    value: str | None = None
    modalities: Mapping[str, str | Sequence[str]] | None = None
    step: Step | None = None
    combine: Combine = "mean"
    categories: Mapping[str, Sequence[Hashable]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Table:
    """A table that was read, and where its entries went.

    Attributes
    ----------
    frame : narwhals.DataFrame
    roles : Roles
    members : dict
        Columns (variables) of each modality.
    cells : ndarray
        Cell of each row of the frame.
    ids, sequences : tuple, ndarray
        Names of the sequences, and the sequence of each cell.
    clock : Clock, optional
    ticks : ndarray
        Time of each cell.
    width : float
        Width of a step in ticks: the grid's, or the most usual distance.
    columns : dict[str, Column]
        What was read, by cell.
    merged : bool
        Whether the frame was put together from several tables.
    """

    frame: Any
    roles: Roles
    members: dict[str, tuple[str, ...]]
    cells: Array
    ids: tuple[Hashable, ...]
    sequences: Array
    clock: Clock | None
    ticks: Array
    width: float
    columns: dict[str, Column]
    merged: bool

    @property
    def reading(self) -> Roles:
        """How to read another table like this one."""
        categories = {n: c.categories for n, c in self.columns.items() if c.categories is not None}
        step = self.roles.step
        if isinstance(step, timedelta):
            step = f"{step / timedelta(microseconds=1):f}us"
        return replace(self.roles, modalities=dict(self.members), categories=categories, step=step)


@dataclass(frozen=True)
class Contents:
    """What `read_table` found, laid out as `Sequences` has it."""

    columns: dict[str, Column]
    lengths: Array
    ids: tuple[Hashable, ...]
    table: Table


def read_table(frames: Any, roles: Roles, *, partial: bool = False) -> Contents:
    """Read one table, or a list of tables to be merged on time.

    If ``partial``, modalities none of whose columns are there are left out.
    """
    several = isinstance(frames, list | tuple)
    frame = _join([_as_frame(each) for each in frames]) if several else _as_frame(frames)
    if not len(frame):
        raise DataError("The table has no rows. Pass at least one.")
    if roles.combine not in ("mean", "last", "first", "min", "max", "sum"):
        raise DataError(
            f"There is no rule {roles.combine!r} for several values in a cell; there are 'mean', "
            "'last', 'first', 'min', 'max' and 'sum'."
        )
    entries, members = _entries(frame, roles, partial)
    ids, sequence = _read_ids(frame, roles)
    clock = None if roles.time is None else read_clock(frame[roles.time])
    cells, sequences, ticks, width = _lay_out(sequence, clock, roles, ids)

    def where(cell: int) -> str:
        place = f"sequence {ids[sequences[cell]]!r}"
        return place if clock is None else f"{place} at {clock.show(ticks[cell])}"

    moments = np.arange(len(frame)) if clock is None else clock.ticks
    columns = {}
    for name, parts in members.items():
        texts = [part for part in parts if entries[part].labels]
        if texts and len(parts) > 1:
            raise DataError(
                f"Modality {name!r} has several columns, of which {texts[0]!r} holds labels. Give "
                "labels a modality of their own."
            )
        placed = [
            _place(entries[part], part, cells, moments, len(sequences), roles, where)
            for part in parts
        ]
        columns[name] = _column(name, placed, roles)
    lengths = np.bincount(sequences, minlength=len(ids))
    table = Table(
        frame, roles, members, cells, ids, sequences, clock, ticks, width, columns, several
    )
    return Contents(columns, lengths, ids, table)


# Reading


@dataclass(frozen=True, eq=False)
class _Entries:
    """One column's entries: the rows they stand in, and values (numbers or labels)."""

    rows: Array
    values: Array

    @property
    def labels(self) -> bool:
        return bool(self.values.dtype == object)


def _as_frame(native: Any) -> Any:
    import narwhals as nw

    if type(native).__module__.startswith("xarray"):
        native = native.to_dataframe().reset_index()
    try:
        frame = nw.from_native(native, eager_only=True)
    except TypeError as error:
        raise DataError(
            f"A {type(native).__name__} is no table that can be read. Pass a pandas, Polars or "
            "Arrow table, or a list of them."
        ) from error
    except nw.exceptions.DuplicateError as error:
        columns = list(native.columns)
        twice = next(name for name in columns if columns.count(name) > 1)
        raise DataError(f"The table has the column {twice!r} twice. Rename one of them.") from error
    return frame


def _join(frames: Sequence[Any]) -> Any:
    """Put the rows of several tables below each other."""
    import narwhals as nw

    if not frames:
        raise DataError("There is no table in the list. Pass at least one.")
    try:
        return nw.concat(frames, how="diagonal")
    except Exception as error:
        raise DataError(
            f"The tables cannot be merged ({error}). Give columns of the same name the same type, "
            "and pass tables of one library."
        ) from error


def _entries(
    frame: Any, roles: Roles, partial: bool
) -> tuple[dict[str, _Entries], dict[str, tuple[str, ...]]]:
    """Every column's (variable's) entries, and the modalities they belong to."""
    taken = [roles.id, roles.time, roles.variable, roles.value]
    for name in taken:
        if name is not None and name not in frame.columns:
            raise DataError(
                f"The table has no column {name!r}; there are {listing(tuple(frame.columns))}."
            )
    if (roles.variable is None) != (roles.value is None):
        raise DataError("A long table has a column for variable and one for value. Name both.")
    if roles.variable is None:
        there = [name for name in frame.columns if name not in taken]
    else:
        names = frame[roles.variable]
        if names.is_null().any():
            row = int(np.argmax(names.is_null().to_numpy()))
            raise DataError(f"Column {roles.variable!r} names no variable in row {row}. Drop it.")
        variables = np.array(names.to_list(), object)
        there = sorted(set(variables.tolist()), key=str)
    members: dict[str, tuple[str, ...]] = {name: (name,) for name in map(str, there)}
    if roles.modalities is not None:
        members = {
            name: (parts,) if isinstance(parts, str) else tuple(parts)
            for name, parts in roles.modalities.items()
        }
    if partial:
        members = {n: parts for n, parts in members.items() if any(p in there for p in parts)}
    if not members or not all(members.values()):
        raise DataError("No column is left to be a modality. Name some with modalities=….")
    for name, parts in members.items():
        for part in parts:
            if part not in there:
                raise DataError(
                    f"Modality {name!r} wants the column {part!r}, which the table does not have "
                    f"(or uses otherwise); there are {listing(tuple(there))}."
                )
    wanted = {part for parts in members.values() for part in parts}
    if roles.variable is None:
        return {part: _read_entries(frame[part], part) for part in wanted}, members
    values = frame[roles.value]
    found = {}
    for part in wanted:
        rows = np.flatnonzero(variables == part)
        read = _read_entries(values.filter((variables == part).tolist()), part)
        found[part] = _Entries(rows[read.rows], read.values)
    return found, members


def _read_entries(series: Any, name: str) -> _Entries:
    """What is there of a column, without what is missing."""
    import narwhals as nw

    dtype = series.dtype
    seen = ~series.is_null().to_numpy()
    if dtype.is_numeric() or dtype == nw.Boolean:
        rows = np.flatnonzero(seen)
        values = series.filter(seen.tolist()).to_numpy().astype(np.float64)
        real = ~np.isnan(values)
        return _Entries(rows[real], values[real])
    if dtype in (nw.Datetime, nw.Date, nw.Duration, nw.Time):
        raise DataError(
            f"Column {name!r} holds times. Name it as time=…, or leave it out of the modalities."
        )
    items = series.to_list()
    rows = np.array([i for i in np.flatnonzero(seen) if items[i] == items[i]], np.int64)
    chosen = [items[i] for i in rows]
    numbers = [isinstance(item, int | float | np.number) for item in chosen]
    if all(numbers):
        return _Entries(rows, np.array(chosen, np.float64))
    for i, item in enumerate(chosen):
        if not isinstance(item, str):
            raise DataError(
                f"Column {name!r} holds {item!r} in row {rows[i]} among text. Make all of it "
                "numbers, or all of it labels."
            )
    values = np.empty(len(chosen), object)
    values[:] = chosen
    _refuse_spoilt_numbers(values, rows, name)
    return _Entries(rows, values)


def _refuse_spoilt_numbers(values: Array, rows: Array, name: str) -> None:
    """Text that is mostly numbers is a column of numbers with something else in it."""
    odd = [i for i, text in enumerate(values) if not _is_number(text)]
    if len(odd) < len(values) / 2:
        text, row = (values[odd[0]], rows[odd[0]]) if odd else (values[0], rows[0])
        raise DataError(
            f"Column {name!r} holds text, {text!r} in row {row}, but mostly numbers. Leave the "
            "entry empty if it is missing, and convert the column to numbers."
        )
    if len(set(values)) > MOST_LABELS:
        raise DataError(
            f"Column {name!r} holds {len(set(values))} different texts, too many for labels. Leave "
            "it out with modalities=…, or name it as id=…."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_ids(frame: Any, roles: Roles) -> tuple[tuple[Hashable, ...], Array]:
    """Names of the sequences in order of appearance, and the sequence of each row."""
    if roles.id is None:
        return (0,), np.zeros(len(frame), np.int64)
    series = frame[roles.id]
    missing = series.is_null().to_numpy()
    if missing.any():
        raise DataError(
            f"Column {roles.id!r} names no sequence in row {int(np.argmax(missing))}. Fill it in, "
            "or drop the row."
        )
    codes: dict[Hashable, int] = {}
    sequence = np.array([codes.setdefault(name, len(codes)) for name in series.to_list()])
    return tuple(codes), sequence


def _lay_out(
    sequence: Array, clock: Clock | None, roles: Roles, ids: tuple[Hashable, ...]
) -> tuple[Array, Array, Array, float]:
    """Cell of each row; sequence and time of each cell; width of a step."""
    if clock is None:
        if roles.step is not None:
            raise DataError("A step lays times on a grid, but no column was named as time.")
        order = np.argsort(sequence, kind="stable")
        cells = np.empty(len(order), np.int64)
        cells[order] = np.arange(len(order))
        sequences = sequence[order]
        starts = np.searchsorted(sequences, sequences)
        return cells, sequences, np.arange(len(order)) - starts, 1.0
    if roles.step is None:
        order = np.lexsort((clock.ticks, sequence))
        sequences, ticks = sequence[order], clock.ticks[order]
        new = np.ones(len(order), bool)
        new[1:] = (np.diff(sequences) != 0) | (np.diff(ticks) != 0)
        cells = np.empty(len(order), np.int64)
        cells[order] = np.cumsum(new) - 1
        sequences, ticks = sequences[new], ticks[new]
        return cells, sequences, ticks, _usual_width(sequences, ticks, clock)
    width = clock.step(roles.step)
    exact = clock.ticks.dtype == np.int64 and width == int(width)
    place = clock.ticks // int(width) if exact else np.floor(clock.ticks / width + 1e-9)
    place = place.astype(np.int64)
    first = np.full(len(ids), np.iinfo(np.int64).max)
    last = np.full(len(ids), np.iinfo(np.int64).min)
    np.minimum.at(first, sequence, place)
    np.maximum.at(last, sequence, place)
    lengths = last - first + 1
    if lengths.sum() > MOST_CELLS * len(sequence):
        i = int(np.argmax(lengths))
        raise DataError(
            f"A step of {roles.step!r} makes {lengths[i]:,} steps of sequence {ids[i]!r}, far more "
            "than there are rows. Check its times, or choose a longer step."
        )
    starts = np.cumsum(lengths) - lengths
    cells = starts[sequence] + place - first[sequence]
    sequences = np.repeat(np.arange(len(ids)), lengths)
    ticks = (np.arange(len(sequences)) - starts[sequences] + first[sequences]) * (
        int(width) if exact else width
    )
    return cells, sequences, ticks, width


def _usual_width(sequences: Array, ticks: Array, clock: Clock) -> float:
    """The most usual distance of neighbouring times; a word of warning if there are others."""
    distances = np.diff(ticks)[np.diff(sequences) == 0]
    if not len(distances):
        return 1.0
    width = float(np.median(distances))
    uneven = ~np.isclose(distances.astype(np.float64), width, rtol=1e-3)
    if uneven.any():
        LOGGER.warning(
            "%d of %d times do not follow the one before at the usual distance; each row counts as "
            "one step all the same. Pass a step to lay them on a grid.",
            int(uneven.sum()),
            len(distances),
        )
    return width


def _place(
    entries: _Entries,
    part: str,
    cells: Array,
    ticks: Array,
    count: int,
    roles: Roles,
    where: Callable[[int], str],
) -> tuple[Array, Array]:
    """One column's value in every cell, and whether there is one."""
    target = cells[entries.rows]
    many = np.bincount(target, minlength=count)
    if roles.step is None and many.max(initial=0) > 1:
        raise DataError(
            f"Column {part!r} has two values in {where(int(np.argmax(many > 1)))}. Drop one, or "
            "pass a step and a rule to combine them."
        )
    values: Array = np.zeros(count, entries.values.dtype)
    infinite = np.zeros(len(target), bool) if entries.labels else np.isinf(entries.values)
    if infinite.any():
        raise DataError(
            f"Column {part!r} holds an infinite value in {where(int(target[np.argmax(infinite)]))}."
            " Replace it by a number, or leave it empty if it is missing."
        )
    if entries.labels or roles.combine in ("first", "last"):
        latest = np.lexsort((entries.rows, ticks[entries.rows], target))
        order = latest[::-1] if roles.combine == "first" else latest
        values[target[order]] = entries.values[order]  # of several the last one stays
    elif roles.combine in ("min", "max"):
        worst = np.inf if roles.combine == "min" else -np.inf
        values[many > 0] = worst
        (np.minimum if roles.combine == "min" else np.maximum).at(values, target, entries.values)
    else:
        values = np.bincount(target, weights=entries.values, minlength=count)
        if roles.combine == "mean":
            values = values / np.maximum(many, 1)
    return values, many > 0


def _column(name: str, placed: Sequence[tuple[Array, Array]], roles: Roles) -> Column:
    """Put the columns of a modality together, or code its labels."""
    value, seen = placed[0]
    if value.dtype != object and name not in roles.categories:
        values = np.stack([value for value, _ in placed], 1)
        return Column(values, np.stack([seen for _, seen in placed], 1))
    there = sorted(set(value[seen].tolist()), key=str)
    known = tuple(roles.categories.get(name, there))
    codes = {label: code for code, label in enumerate(known)}
    strange = [label for label in there if label not in codes]
    if strange:
        raise DataError(
            f"Modality {name!r} holds the label {strange[0]!r}, which is not among its categories "
            f"({listing(known)}). Add it, or leave the entry empty."
        )
    coded = np.array([codes[v] if s else 0 for v, s in zip(value, seen, strict=True)], np.int64)
    return Column(coded, seen, known)

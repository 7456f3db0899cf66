"""Tables out, in the shape they came in.

Every row gets what its cell holds now. An entry whose cell is as it was read stays as it stood in
the table, to the last digit; so a table that nothing was done to comes back unchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.columns import Array, Column
from weft.frames.reading import Table

__all__ = ["Extra", "column_names", "write_grid", "write_rows"]


@dataclass(frozen=True, eq=False)
class Extra:
    """More to say about every entry: a column per column, with ``suffix`` behind its name.

    ``values`` has an array ``(row, entry)`` per modality; modalities may lack it.
    """

    suffix: str
    values: Mapping[str, Array]


def write_rows(
    table: Table, columns: Mapping[str, Column], cells: Array, extras: Sequence[Extra] = ()
) -> Any:
    """Write columns, whose rows are these cells, into the rows of the table that lie there."""
    position = np.full(len(table.sequences), -1)
    position[cells] = np.arange(len(cells))
    inside = position[table.cells] >= 0
    frame = table.frame.filter(inside.tolist())
    rows = position[table.cells[inside]]
    write = _write_wide if table.roles.variable is None else _write_long
    return write(table, frame, rows, columns, cells, extras).to_native()


def write_grid(
    table: Table | None,
    columns: Mapping[str, Column],
    ids: Sequence[Hashable],
    ticks: Array,
    extras: Sequence[Extra] = (),
) -> Any:
    """Write one row per step: whose it is, when it is, and what it holds.

    Without a table to go by, pandas gets columns ``sequence`` and ``step``.
    """
    import narwhals as nw

    backend: Any = nw.Implementation.PANDAS if table is None else table.frame.implementation
    series = []
    if table is None or table.roles.id is not None:
        name = "sequence" if table is None else str(table.roles.id)
        series.append(nw.new_series(name, list(ids), backend=backend))
    if table is None or table.clock is None:
        series.append(nw.new_series("step", ticks.astype(np.int64), backend=backend))
    else:
        name = str(table.roles.time)
        series.append(table.clock.series(name, ticks, table.frame[name]))
    rows = np.arange(len(ticks))
    for name, column, part, j in _each(table, columns):
        series.append(_series(part, _objects(column, j, rows), backend))
        series += _more(part, name, j, extras, rows, backend)
    return series[0].to_frame().with_columns(*series[1:]).to_native()


def _each(
    table: Table | None, columns: Mapping[str, Column]
) -> Iterator[tuple[str, Column, str, int]]:
    """Modality, column, name of the table's column, and which entry that is."""
    for name, column in columns.items():
        for j, part in enumerate(column_names(table, name, column)):
            yield name, column, part, j


def column_names(table: Table | None, name: str, column: Column) -> tuple[str, ...]:
    """Column names of a modality: those it was read from, or its own, numbered if several."""
    if table is not None and name in table.members:
        return table.members[name]
    width = int(np.prod(column.shape))
    return (name,) if width == 1 else tuple(f"{name}_{i}" for i in range(width))


def _write_wide(
    table: Table,
    frame: Any,
    rows: Array,
    columns: Mapping[str, Column],
    cells: Array,
    extras: Sequence[Extra],
) -> Any:
    backend = frame.implementation
    for name, column, part, j in _each(table, columns):
        new = _changed(table, name, column, cells)[rows, j]
        if new.any() or part not in frame.columns:
            entries = _objects(column, j, rows)
            if part in frame.columns:
                entries = _mend(frame[part], entries, new)
            frame = frame.with_columns(_series(part, entries, backend))
        frame = frame.with_columns(*_more(part, name, j, extras, rows, backend))
    return frame


def _write_long(
    table: Table,
    frame: Any,
    rows: Array,
    columns: Mapping[str, Column],
    cells: Array,
    extras: Sequence[Extra],
) -> Any:
    """Existing rows first, then one for each entry that has a value now and had no row."""
    import narwhals as nw

    variable, value = str(table.roles.variable), str(table.roles.value)
    variables = np.array(frame[variable].to_list(), object)
    entries = _object_array(frame[value].to_list())
    more = {extra.suffix: np.full(len(rows), np.nan) for extra in extras}
    blocks, touched = [], False
    for name, column, part, j in _each(table, columns):
        mine = np.flatnonzero(variables == part)
        new = _changed(table, name, column, cells)[rows[mine], j]
        entries[mine[new]] = _objects(column, j, rows[mine[new]])
        touched |= bool(new.any())
        for extra in extras:
            if name in extra.values:
                more[extra.suffix][mine] = extra.values[name][rows[mine], j]
        absent = column.observed.reshape(len(cells), -1)[:, j].copy()
        absent[rows[mine]] = False
        if absent.any():
            blocks.append(
                _block(table, name, column, part, j, np.flatnonzero(absent), cells, extras)
            )
    if touched:
        frame = frame.with_columns(_series(value, entries, frame.implementation))
    frame = frame.with_columns(
        *(_series(f"{value}{suffix}", n, frame.implementation) for suffix, n in more.items())
    )
    return nw.concat([frame, *blocks], how="diagonal") if blocks else frame


def _block(
    table: Table,
    name: str,
    column: Column,
    part: str,
    entry: int,
    rows: Array,
    cells: Array,
    extras: Sequence[Extra],
) -> Any:
    """Rows of a long table for entries of one variable."""
    import narwhals as nw

    backend, roles = table.frame.implementation, table.roles
    variable, value = str(roles.variable), str(roles.value)
    series = [
        nw.new_series(variable, [part] * len(rows), backend=backend),
        _series(value, _objects(column, entry, rows), backend),
    ]
    if roles.id is not None:
        whose = [table.ids[i] for i in table.sequences[cells[rows]]]
        series.append(nw.new_series(roles.id, whose, backend=backend))
    if table.clock is not None:
        time = str(roles.time)
        series.append(table.clock.series(time, table.ticks[cells[rows]], table.frame[time]))
    series += _more(value, name, entry, extras, rows, backend)
    return series[0].to_frame().with_columns(*series[1:])


def _changed(table: Table, name: str, column: Column, cells: Array) -> Array:
    """Entries ``(row, entry)`` that are not as they were read."""
    if name not in table.columns:
        return np.ones((len(cells), int(np.prod(column.shape))), bool)
    read = table.columns[name].take(cells)
    if read.categories != column.categories:
        before, now = read.decoded(), column.decoded()
        return np.array([a != b for a, b in zip(before, now, strict=True)])[:, None]
    differ = read.observed != column.observed
    differ |= column.observed & (read.values != column.values)
    found: Array = differ.reshape(len(cells), -1)
    return found


def _objects(column: Column, entry: int, rows: Array) -> Array:
    """Values of some rows as Python objects, ``None`` where missing."""
    if column.categories is not None:
        return column.take(rows).decoded()
    values = column.values.reshape(len(column.values), -1)[rows, entry].astype(np.float64)
    found = _object_array(values.tolist())
    found[~column.observed.reshape(len(column.values), -1)[rows, entry]] = None
    return found


def _object_array(entries: Sequence[Any]) -> Array:
    found = np.empty(len(entries), object)
    found[:] = entries
    return found


def _mend(old: Any, new: Array, changed: Array) -> Array:
    """Take the new entries where something changed and the old ones elsewhere."""
    found = _object_array(old.to_list())
    found[changed] = new[changed]
    return found


def _series(name: str, entries: Array, backend: Any) -> Any:
    """A series of numbers or of text, with gaps."""
    import narwhals as nw

    cleaned = [None if _missing(entry) else entry for entry in entries]
    if any(isinstance(entry, str) for entry in cleaned):
        return nw.new_series(name, cleaned, nw.String, backend=backend)
    numbers = [None if entry is None else float(entry) for entry in cleaned]
    return nw.new_series(name, numbers, nw.Float64, backend=backend)


def _missing(entry: Any) -> bool:
    """``None``, NaN, or what a library has for them."""
    if entry is None or isinstance(entry, str):
        return entry is None
    same = entry == entry
    return not isinstance(same, bool | np.bool_) or not same


def _more(
    part: str, name: str, entry: int, extras: Sequence[Extra], rows: Array, backend: Any
) -> list[Any]:
    return [
        _series(f"{part}{extra.suffix}", extra.values[name][rows, entry], backend)
        for extra in extras
        if name in extra.values
    ]

"""How the values of one step become columns with a row for each stream.

As in `weft.reading`, NaN and ``None`` mean "missing"; every complaint names the modality, the
stream and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from weft.columns import Array, Column, DataError, Field, listing
from weft.reading import NUMBER, is_missing

__all__ = ["read_step"]


def read_step(
    values: Mapping[str, Any], fields: Mapping[str, Field], count: int, step: int
) -> dict[str, Column]:
    """Read and check the values of ``count`` streams at one step; see `Stream.update`."""
    for name in values:
        if name not in fields:
            raise DataError(
                f"The values at step {step} hold a modality {name!r}, which is unknown here; known "
                f"are {listing(tuple(fields))}. Rename it, or leave it out."
            )

    def where(row: int) -> str:
        return f"stream {row}, step {step}"

    return {
        name: _read(name, _as_array(name, value, fields[name], count, step), fields[name], where)
        for name, value in values.items()
        if value is not None
    }


def _read(name: str, array: Array, field: Field, where: Callable[[int], str]) -> Column:
    """Turn numbers, or labels among objects, into a checked column."""
    if array.dtype == object:
        missing = _each(is_missing, array)
        kind = NUMBER if field.categories is None else Hashable
        wrong = ~missing & ~_each(lambda value: isinstance(value, kind), array)
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0])
            raise DataError(
                f"Modality {name!r} holds {array[index]!r} at {where(int(index[0]))}, which is no "
                f"{'number' if field.categories is None else 'label'}. Correct it, or mark it as "
                "missing."
            )
        if field.categories is not None:
            return _labels(array, missing).conform(name, field, where)
        array = np.where(missing, np.nan, array)
    array = array.astype(np.float64)
    observed = ~np.isnan(array)
    infinite = np.isinf(array)
    if infinite.any():
        raise DataError(
            f"Modality {name!r} holds an infinite value at "
            f"{where(int(np.argwhere(infinite)[0][0]))}. Replace it by a number, or by NaN if it "
            "is missing."
        )
    return Column(np.where(observed, array, 0), observed).conform(name, field, where)


def _each(test: Callable[[Any], bool], array: Array) -> Array:
    found: Array = np.frompyfunc(test, 1, 1)(array).astype(bool)
    return found


def _labels(array: Array, missing: Array) -> Column:
    """Number the labels ``(stream,)`` as they come."""
    known: dict[Any, int] = {}
    codes = [
        0 if gap else known.setdefault(label, len(known))
        for label, gap in zip(array, missing, strict=True)
    ]
    return Column(np.array(codes, np.int64), ~missing, tuple(known) or (None,))


def _as_array(name: str, value: Any, field: Field, count: int, step: int) -> Array:
    """Return numbers or objects ``(stream, *shape)``."""
    if isinstance(value, np.ma.MaskedArray):
        value = np.where(np.ma.getmaskarray(value), np.nan, value.data)
    try:
        array = np.asarray(value)
    except ValueError:
        array = _fill_rows(name, value, field, step)
    if array.dtype.kind in "US":  # NumPy turns NaN and numbers among text into text
        array = np.asarray(value, object)
    if array.dtype.kind not in "fiubO":
        raise DataError(
            f"Modality {name!r} holds data of type {array.dtype} at step {step}. Pass numbers, or "
            "labels as text."
        )
    whole = (count, *field.shape)
    shapes = {whole, whole[:1]} if field.shape == (1,) else {whole}
    if count == 1:
        shapes |= {shape[1:] for shape in shapes}
    if array.shape not in shapes:
        raise DataError(
            f"Modality {name!r} has shape {array.shape} at step {step}, but needs "
            f"{field.shape if count == 1 else whole} for {count} "
            f"{'stream' if count == 1 else 'streams'}. Give every stream its value, NaN or None "
            "where nothing was measured."
        )
    return array.reshape(whole)


def _fill_rows(name: str, value: Any, field: Field, step: int) -> Array:
    """Put NaN where a stream has ``None`` for all its entries."""
    gap = np.full(field.shape, np.nan)
    try:
        return np.asarray([gap if row is None else row for row in value])
    except ValueError as error:
        raise DataError(
            f"Modality {name!r} has values of unequal shape at step {step}. Give every stream a "
            f"value of shape {field.shape}, with NaN for missing entries."
        ) from error

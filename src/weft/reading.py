"""How user arrays become columns.

Reading is the only place where NaN and ``None`` mean "missing"; every complaint names the
modality, the sequence and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.columns import Array, Column, DataError, listing

__all__ = ["NUMBER", "Contents", "is_missing", "read_arrays"]

NUMBER = int | float | np.number | np.bool_
"""Types that count as numbers."""


class Contents(NamedTuple):
    """What `read_arrays` found."""

    columns: dict[str, Column]
    lengths: Array
    ids: tuple[Hashable, ...]


def read_arrays(
    values: Mapping[str, Any],
    observed: Mapping[str, Any] | None,
    lengths: Sequence[int] | Array | None,
    categories: Mapping[str, Sequence[Hashable]] | None,
    ids: Sequence[Hashable] | None,
) -> Contents:
    """Read what `Sequences.from_arrays` was given."""
    items = {name: _per_sequence(name, value) for name, value in values.items()}
    masks = {name: _per_sequence(name, value) for name, value in (observed or {}).items()}
    for name in [*masks, *(categories or {})]:
        if name not in items:
            raise DataError(
                f"A mask or categories were given for modality {name!r}, which is not in the data; "
                f"there are {listing(tuple(items))}."
            )
    names = _read_ids(ids, _common_count({**items, **{f"{k} (mask)": v for k, v in masks.items()}}))

    def label(i: int) -> str:
        return f"sequence {names[i]!r}"

    steps = _common_lengths(items, lengths, label)
    columns = {
        name: _read_column(
            name, entries, masks.get(name), (categories or {}).get(name), steps, label
        )
        for name, entries in items.items()
    }
    return Contents(columns, steps, names)


def _per_sequence(name: str, value: Any) -> list[Any]:
    """One item per sequence."""
    if isinstance(value, list | tuple):
        return list(value)
    array = np.asanyarray(value)
    if array.ndim == 0 or (array.ndim == 1 and array.dtype != object):
        raise DataError(
            f"Modality {name!r} has shape {array.shape}, but an array needs the axes "
            "(sequence, time, …). For a single series pass [array]."
        )
    return list(array)


def _common_count(items: Mapping[str, list[Any]]) -> int:
    if not items:
        raise DataError("There is no modality in the data. Pass at least one name with its values.")
    (first, entries), *others = items.items()
    for name, other in others:
        if len(other) != len(entries):
            raise DataError(
                f"Modality {name!r} has {len(other)} sequences, but {first!r} has {len(entries)}. "
                "Give every modality one item per sequence, None where it is absent."
            )
    if not entries:
        raise DataError(f"Modality {first!r} holds no sequence. Pass at least one.")
    return len(entries)


def _read_ids(ids: Sequence[Hashable] | None, count: int) -> tuple[Hashable, ...]:
    if ids is None:
        return tuple(range(count))
    if len(ids) != count:
        raise DataError(f"There are {len(ids)} ids for {count} sequences. Give one id each.")
    seen: set[Hashable] = set()
    for name in ids:
        if name in seen:
            raise DataError(f"The sequence id {name!r} stands twice. Give every sequence its own.")
        seen.add(name)
    return tuple(ids)


def _common_lengths(
    items: Mapping[str, list[Any]],
    lengths: Sequence[int] | Array | None,
    label: Callable[[int], str],
) -> Array:
    """Steps of each sequence, on which all its modalities must agree."""
    count = len(next(iter(items.values())))
    if lengths is not None and len(lengths) != count:
        raise DataError(f"There are {len(lengths)} lengths for {count} sequences. Give one each.")
    steps = np.zeros(count, np.int64)
    for i in range(count):
        found = {
            name: _length(name, e[i], label(i)) for name, e in items.items() if e[i] is not None
        }
        if not found:
            raise DataError(
                f"No modality is present in {label(i)}, so its length is unknown. Drop it, or give "
                "one modality an array of NaN."
            )
        (first, steps[i]), *others = found.items()
        for name, length in others:
            if length != steps[i]:
                raise DataError(
                    f"Modality {name!r} has {length} steps in {label(i)}, but {first!r} has "
                    f"{steps[i]}: they disagree from step {min(length, steps[i])} on. Put both on "
                    "one time grid, NaN where nothing was measured."
                )
        if steps[i] == 0:
            raise DataError(f"Modality {first!r} has no steps in {label(i)}. Drop the sequence.")
        if lengths is not None:
            if lengths[i] % 1 or not 1 <= lengths[i] <= steps[i]:
                raise DataError(
                    f"The length given for {label(i)} is {lengths[i]}, but modality {first!r} has "
                    f"{steps[i]} steps there. Give a length from 1 to {steps[i]}."
                )
            steps[i] = lengths[i]
    return steps


def _length(name: str, item: Any, sequence: str) -> int:
    try:
        return len(item)
    except TypeError:
        raise DataError(
            f"Modality {name!r} is a single value of type {type(item).__name__} in {sequence}, but "
            "a time series is needed. Pass an array of shape (time,) or (time, …)."
        ) from None


def _read_column(
    name: str,
    items: Sequence[Any],
    masks: Sequence[Any] | None,
    categories: Sequence[Hashable] | None,
    lengths: Array,
    label: Callable[[int], str],
) -> Column:
    """Turn one item per sequence (array-like, or ``None`` if absent) into a column.

    ``lengths`` gives the steps of each sequence; longer items are cut, which is how padding goes.
    ``label`` names a sequence in messages.
    """
    present = []
    for i, item in enumerate(items):
        if item is not None:
            array = _as_array(name, item, int(lengths[i]), label(i))
            if masks is not None and masks[i] is not None:
                array = _apply_mask(name, array, masks[i], len(item), label(i))
            present.append((i, array))
    if not present:
        raise DataError(
            f"Modality {name!r} is absent from every sequence. Leave it out of the data, or give "
            "an array of NaN that shows its shape."
        )
    labelled = categories is not None or any(array.dtype == object for _, array in present)
    if labelled:
        kinds = _categories_of(name, present, categories, label)
        present = [(i, _encode(name, array, kinds, label(i))) for i, array in present]
    else:
        kinds = None
        present = [(i, array[:, None] if array.ndim == 1 else array) for i, array in present]

    first, model = present[0]
    shape = model.shape[1:]
    if 0 in shape:
        raise DataError(
            f"Modality {name!r} has steps of shape {shape} in {label(first)}, which hold nothing. "
            "Leave it out of the data."
        )
    dtype = np.result_type(*(array.dtype for _, array in present))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.zeros((int(offsets[-1]), *shape), dtype)
    observed = np.zeros(values.shape, bool)
    for i, array in present:
        if array.shape[1:] != shape:
            raise DataError(
                f"Modality {name!r} has steps of shape {array.shape[1:]} in {label(i)}, but of "
                f"shape {shape} in {label(first)}. Give every step of a modality the same shape."
            )
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        seen = (array >= 0) if labelled else ~np.isnan(array)
        if np.isinf(array).any():
            step = int(np.argwhere(np.isinf(array))[0][0])
            raise DataError(
                f"Modality {name!r} holds an infinite value in {label(i)} at step {step}. "
                "Replace it by a number, or by NaN if it is missing."
            )
        values[rows] = np.where(seen, array, 0)
        observed[rows] = seen
    return Column(values, observed, kinds)


def _as_array(name: str, item: Any, length: int, sequence: str) -> Array:
    """Return one sequence's real steps as a float array, or as an object array of labels."""
    if isinstance(item, np.ma.MaskedArray):
        item = np.where(np.ma.getmaskarray(item), np.nan, item.data)
    try:
        array = np.asarray(item)
        if array.dtype.kind in "US":  # NumPy turns NaN and numbers among text into text
            array = np.asarray(item, object)
    except ValueError as error:
        raise DataError(
            f"Modality {name!r} has steps of unequal shape in {sequence}. Give every step the "
            "same number of entries, with NaN for missing ones."
        ) from error
    if array.ndim == 0:
        raise DataError(
            f"Modality {name!r} is a single value in {sequence}, but a time series is needed. "
            "Pass an array of shape (time,) or (time, …)."
        )
    array = array[:length]
    if array.dtype.kind in "fiub":
        small = array.dtype.itemsize <= 2 or array.dtype == np.float32
        return array.astype(np.float32 if small else np.float64, copy=False)
    if array.dtype.kind != "O":
        raise DataError(
            f"Modality {name!r} holds data of type {array.dtype} in {sequence}. Pass numbers, or "
            "labels as text."
        )
    return _numbers_or_labels(name, array, sequence)


def _numbers_or_labels(name: str, array: Array, sequence: str) -> Array:
    missing = np.frompyfunc(is_missing, 1, 1)(array).astype(bool)
    seen = array[~missing]
    if all(isinstance(value, NUMBER) for value in seen):
        return np.where(missing, np.nan, array).astype(np.float64)
    wrong = [i for i in map(tuple, np.argwhere(~missing)) if not isinstance(array[i], str)]
    if wrong:
        worst = min(wrong, key=lambda i: isinstance(array[i], NUMBER))
        raise DataError(
            f"Modality {name!r} holds a value of type {type(array[worst]).__name__} in {sequence} "
            f"at step {worst[0]}, among text or other objects. Pass only numbers or only text "
            "labels."
        )
    labels = array.copy()
    labels[missing] = None
    return labels


def is_missing(value: Any) -> bool:
    """Whether a value stands for nothing: ``None``, NaN and what pandas has for them."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA refuses to be a truth value
        return True
    except ValueError:  # an array has no single truth value
        return False


def _categories_of(
    name: str,
    present: Sequence[tuple[int, Array]],
    categories: Sequence[Hashable] | None,
    label: Callable[[int], str],
) -> tuple[Hashable, ...]:
    if categories is not None:
        kinds = tuple(categories)
        if not kinds or len(set(kinds)) != len(kinds):
            raise DataError(
                f"The categories of modality {name!r} are {listing(kinds) or 'none'}. Give at "
                "least one, and each once."
            )
        return kinds
    for i, array in present:
        if array.dtype != object and not np.isnan(array).all():
            step = int(np.argmax(~np.isnan(array).reshape(len(array), -1).all(1)))
            raise DataError(
                f"Modality {name!r} holds numbers in {label(i)} at step {step}, but text labels "
                "elsewhere. Pass only numbers or only text labels."
            )
    seen = {value for _, array in present if array.dtype == object for value in array.flat}
    return tuple(sorted(seen - {None}))


def _encode(name: str, array: Array, kinds: tuple[Hashable, ...], sequence: str) -> Array:
    """Codes, with -1 for missing."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"Modality {name!r} has steps of shape {array.shape[1:]} in {sequence}, but a label "
            "modality has one label per step."
        )
    known: dict[Any, int] = {kind: code for code, kind in enumerate(kinds)}
    codes = np.full(len(array), -1, np.int64)
    for step, value in enumerate(array.tolist()):
        if is_missing(value):
            continue
        if value not in known:
            raise DataError(
                f"Modality {name!r} holds the category {value!r} in {sequence} at step {step}, "
                f"which is not among its categories {listing(kinds)}. Add it to them, or mark "
                "the step as missing."
            )
        codes[step] = known[value]
    return codes


def _apply_mask(name: str, array: Array, mask: Any, steps: int, sequence: str) -> Array:
    """Write NaN or ``None`` where the mask is false; ``steps`` counts the padding, too."""
    try:
        seen = np.asarray(mask)
    except ValueError as error:
        raise DataError(
            f"The mask of modality {name!r} in {sequence} has steps of unequal shape. Give one "
            "truth value per entry, or one per step."
        ) from error
    if seen.dtype != bool:
        if seen.dtype.kind not in "iuf" or not np.isin(seen, (0, 1)).all():
            raise DataError(
                f"The mask of modality {name!r} in {sequence} must be boolean: true where the "
                "value was observed."
            )
        seen = seen.astype(bool)
    given = seen.shape
    if given[:1] == (steps,):
        seen = seen[: len(array)]
    if given[1:] == (1,):
        seen = seen[:, 0]
    if seen.shape not in (array.shape, array.shape[:1]):
        raise DataError(
            f"The mask of modality {name!r} in {sequence} has shape {given}, but the values have "
            f"shape {(steps, *array.shape[1:])}. Give one truth value per entry, or one per step."
        )
    seen = seen.reshape(seen.shape + (1,) * (array.ndim - seen.ndim))
    labels = array.dtype == object
    left = np.where(seen, array, np.asarray(None if labels else np.nan, array.dtype))
    return _numbers_or_labels(name, left, sequence) if labels else left

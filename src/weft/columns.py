"""One modality's observations in flat storage.

A `Column` keeps all steps of all sequences in one array, ``(row, *shape)``, zero where nothing was
observed, beside a mask of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["ANYTHING", "Array", "Column", "DataError", "Field", "Support", "listing"]

Array: TypeAlias = np.ndarray[Any, Any]


class DataError(ValueError):
    """Data that cannot be used as they are; the message says where and what to do."""


@dataclass(frozen=True)
class Support:
    """The values something can take: a phrase and an element-wise test."""

    description: str
    contains: Callable[[Array], Array]


ANYTHING = Support("anything", lambda values: np.ones(values.shape, bool))


@dataclass(frozen=True)
class Field:
    """What a model expects of one modality.

    ``shape`` is that of one step; ``categories`` are the labels of a categorical modality (whose
    shape is ``()``), in the order of their codes.
    """

    shape: tuple[int, ...]
    support: Support
    categories: tuple[Hashable, ...] | None = None


@dataclass(frozen=True, eq=False)
class Column:
    """Flat values ``(row, *shape)`` with what is observed; integer codes if ``categories``."""

    values: Array
    observed: Array
    categories: tuple[Hashable, ...] | None = None

    @classmethod
    def missing(cls, field: Field, rows: int) -> Column:
        """Build a column in which nothing was observed."""
        dtype = np.float32 if field.categories is None else np.int64
        shape = (rows, *field.shape)
        return cls(np.zeros(shape, dtype), np.zeros(shape, bool), field.categories)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one step."""
        return tuple(self.values.shape[1:])

    def take(self, rows: Array) -> Column:
        """Select rows."""
        return Column(self.values[rows], self.observed[rows], self.categories)

    def delete(self, entries: Array) -> Column:
        """Forget the entries marked true; ``(row,)`` marks whole steps."""
        marked = entries.reshape(entries.shape + (1,) * (self.observed.ndim - entries.ndim))
        observed = self.observed & ~marked
        return Column(np.where(observed, self.values, 0), observed, self.categories)

    def rescale(self, shift: Array, scale: Array) -> Column:
        """Map observed values to ``(value - shift) / scale``."""
        values = np.where(self.observed, (self.values - shift) / scale, 0)
        return Column(values, self.observed, self.categories)

    def fill(self, values: Array) -> Column:
        """Put ``values`` (codes if categorical) where nothing was observed; now all is."""
        filled = np.where(self.observed, self.values, values)
        return Column(filled, np.ones(filled.shape, bool), self.categories)

    def decoded(self) -> Array:
        """Values as a user writes them: NaN, or ``None`` among labels, where missing."""
        if self.categories is None:
            return np.where(self.observed, self.values, np.asarray(np.nan, self.values.dtype))
        labels = np.empty(len(self.values), object)
        labels[:] = [
            self.categories[code] if seen else None
            for code, seen in zip(self.values, self.observed, strict=True)
        ]
        return labels

    def conform(self, name: str, field: Field, where: Callable[[int], str]) -> Column:
        """Check against what a model expects and recode categories to the model's order."""
        if field.categories is None:
            return self._conform_numbers(name, field, where)
        return self._conform_categories(name, field, where)

    def _conform_numbers(self, name: str, field: Field, where: Callable[[int], str]) -> Column:
        if self.categories is not None:
            raise DataError(
                f"Modality {name!r} holds labels ({listing(self.categories)}), but the model "
                f"declares numbers of shape {field.shape}. Declare it with categories=… or pass "
                "numbers."
            )
        if self.shape != field.shape:
            raise DataError(
                f"Modality {name!r} has steps of shape {self.shape}, but the model declares "
                f"{field.shape}. Reshape the data to (sequence, time, "
                f"{', '.join(map(str, field.shape))}) or change the declaration."
            )
        wrong = self.observed & ~field.support.contains(self.values)
        if wrong.any():
            index = np.argwhere(wrong)[0]
            raise DataError(
                f"Modality {name!r} holds {self.values[tuple(index)]:g} at {where(int(index[0]))}, "
                f"but its likelihood needs {field.support.description}. Correct the value or "
                "choose another likelihood."
            )
        return self

    def _conform_categories(self, name: str, field: Field, where: Callable[[int], str]) -> Column:
        assert field.categories is not None
        known = {label: code for code, label in enumerate(field.categories)}
        coded = not any(isinstance(label, int | float | np.number) for label in known)
        if self.categories is not None:
            codes = np.array([known.get(label, -1) for label in self.categories], np.int64)
            values = codes[self.values]
            observed = self.observed
            shown: Sequence[Any] = [self.categories[code] for code in self.values]
        else:
            if self.shape not in ((), (1,)):
                raise DataError(
                    f"Modality {name!r} has steps of shape {self.shape}, but the model declares "
                    "one category per step. Pass data of shape (sequence, time)."
                )
            numbers = self.values.reshape(-1)
            observed = self.observed.reshape(-1)
            shown = numbers.tolist()
            lookup: dict[Any, int] = {code: code for code in known.values()} if coded else known
            values = np.array([lookup.get(number, -1) for number in shown], np.int64)
        wrong = observed & (values < 0)
        if wrong.any():
            row = int(np.argmax(wrong))
            codes_too = f" (or the codes 0 to {len(known) - 1})" if coded else ""
            raise DataError(
                f"Modality {name!r} holds the category {shown[row]!r} at {where(row)}, which the "
                f"model does not know. Its categories are {listing(field.categories)}{codes_too}. "
                "Add the category to the declaration or mark the step as missing."
            )
        return Column(np.where(observed, values, 0), observed, field.categories)


def listing(labels: Sequence[Hashable], most: int = 10) -> str:
    """Write labels out for a message."""
    shown = ", ".join(repr(label) for label in labels[:most])
    return shown if len(labels) <= most else f"{shown}, … ({len(labels)} in all)"

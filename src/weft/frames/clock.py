"""Time stamps as numbers: reading, dividing into steps, and writing them again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from weft.columns import Array, DataError

__all__ = ["Clock", "Step", "read_clock"]

Step = float | str | timedelta
UNITS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class Clock:
    """The times of a table's rows.

    Attributes
    ----------
    ticks : ndarray
        One number per row: the time itself if it was a number, else nanoseconds (since 1970, in
        UTC where there is a time zone).
    numbers, text : bool
        Whether times were plain numbers, or text.
    aware : bool
        Whether times that were text had a time zone.
    """

    ticks: Array
    numbers: bool = False
    text: bool = False
    aware: bool = False

    def step(self, step: Step) -> float:
        """A step in ticks."""
        if isinstance(step, bool) or not isinstance(step, int | float | str | timedelta):
            raise DataError(f"A step is a number or a duration such as '1h', got {step!r}.")
        if isinstance(step, int | float):
            if not self.numbers:
                raise DataError(
                    f"The step {step} has no unit, but times are dates. Write it as '1h', '30s' …"
                )
            found = float(step)
        elif self.numbers:
            raise DataError(f"The step {step!r} is a duration, but times are plain numbers.")
        elif isinstance(step, timedelta):
            found = float(round(step / timedelta(microseconds=1)) * 1000)
        else:
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*", step.lower())
            if match is None or match[2] not in UNITS:
                raise DataError(
                    f"The step {step!r} is not a duration. Write a number and a unit, one of "
                    f"{', '.join(UNITS)}: '15min', '1h'."
                )
            found = float(match[1] or 1) * UNITS[match[2]]
        if not found > 0 or not np.isfinite(found):
            raise DataError(f"A step is longer than nothing, got {step!r}.")
        return found

    def show(self, tick: float) -> str:
        """A time as a user reads it."""
        if self.numbers:
            return f"{tick:g}"
        return str(np.datetime64(int(tick), "ns")).rstrip("0").rstrip(".")

    def series(self, name: str, ticks: Array, like: Any) -> Any:
        """Times as a series of the kind they were read from."""
        import narwhals as nw

        backend, dtype = like.implementation, like.dtype
        if self.text:
            return nw.new_series(name, self._texts(ticks), nw.String, backend=backend)
        if self.numbers:
            whole = dtype.is_integer() and bool((ticks == np.round(ticks)).all())
            kind = dtype if whole or dtype.is_float() else nw.Float64
            return nw.new_series(name, ticks.tolist(), nw.Float64, backend=backend).cast(kind)
        if dtype == nw.Duration:
            return nw.new_series(name, ticks.astype("timedelta64[ns]"), backend=backend).cast(dtype)
        stamps = nw.new_series(name, ticks.astype("datetime64[ns]"), backend=backend)
        if dtype == nw.Date:
            return stamps if (ticks % UNITS["d"]).any() else stamps.cast(dtype)
        stamps = stamps.cast(nw.Datetime(dtype.time_unit))
        if dtype.time_zone is None:
            return stamps
        return stamps.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)

    def _texts(self, ticks: Array) -> list[str]:
        shown = [(EPOCH + timedelta(microseconds=int(tick) // 1000)) for tick in ticks]
        return [
            (stamp if self.aware else stamp.replace(tzinfo=None)).isoformat() for stamp in shown
        ]


def read_clock(series: Any) -> Clock:
    """Read a narwhals series of times."""
    import narwhals as nw

    name, dtype = series.name, series.dtype
    missing = series.is_null().to_numpy()
    if dtype.is_float():
        missing = missing | np.isnan(series.to_numpy().astype(np.float64))
    if missing.any():
        raise DataError(
            f"Column {name!r} has no time in row {int(np.argmax(missing))}. Fill it in, or drop "
            "the row."
        )
    if dtype == nw.Boolean:
        raise DataError(f"Column {name!r} holds truth values, which are no times.")
    if dtype.is_numeric():
        ticks = series.to_numpy().astype(np.float64)
        if not np.isfinite(ticks).all():
            row = int(np.argmin(np.isfinite(ticks)))
            raise DataError(f"Column {name!r} has an infinite time in row {row}. Correct it.")
        return Clock(ticks, numbers=True)
    if dtype == nw.Date:
        series, dtype = series.cast(nw.Datetime("us")), nw.Datetime("us")
    if dtype == nw.Datetime:
        return Clock(series.dt.timestamp("ns").to_numpy().astype(np.int64))
    if dtype == nw.Duration:
        return Clock(series.dt.total_nanoseconds().to_numpy().astype(np.int64))
    return _read_entries(name, series.to_list())


def _read_entries(name: str, entries: Sequence[Any]) -> Clock:
    """Text in ISO form, or objects."""
    stamps = []
    for row, entry in enumerate(entries):
        try:
            stamps.append(_stamp(entry))
        except (ValueError, TypeError):
            raise DataError(
                f"Column {name!r} holds {entry!r} in row {row}, which is no time. Write times as "
                "numbers or like 2026-03-01T12:30:00."
            ) from None
    aware = [stamp.tzinfo is not None for stamp in stamps]
    if len(set(aware)) > 1:
        row = aware.index(not aware[0])
        raise DataError(
            f"Column {name!r} mixes times with and without a time zone: {entries[0]} in row 0, "
            f"{entries[row]} in row {row}. Give all of them a zone, or none."
        )
    zoned = all(aware)
    elapsed = [(stamp if zoned else stamp.replace(tzinfo=UTC)) - EPOCH for stamp in stamps]
    ticks = [(e.days * 86400 + e.seconds) * 10**9 + e.microseconds * 1000 for e in elapsed]
    return Clock(np.array(ticks, np.int64), text=True, aware=zoned)


def _stamp(entry: Any) -> datetime:
    if isinstance(entry, datetime):
        return entry
    if isinstance(entry, date):
        return datetime(entry.year, entry.month, entry.day)
    return datetime.fromisoformat(entry.strip())

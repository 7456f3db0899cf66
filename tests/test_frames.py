"""Tables in and out: nothing is lost, nothing is invented, and what is wrong is said."""

import datetime as dt
from typing import Any

import hypothesis.strategies as st
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from hypothesis import given, settings

from weft import DataError, Sequences
from weft.frames import Extra

LIBRARIES: dict[str, Any] = {
    "pandas": nw.Implementation.PANDAS,
    "polars": nw.Implementation.POLARS,
    "pyarrow": nw.Implementation.PYARROW,
}
every_library = pytest.mark.parametrize("library", LIBRARIES)
DAY = dt.datetime(2026, 3, 1)


def table(library, columns):
    """A native table from lists with None for gaps."""
    return nw.from_dict(columns, backend=LIBRARIES[library]).to_native()


def same(left, right):
    """Whether two native tables agree in every name, type and entry."""
    a, b = (nw.from_native(each, eager_only=True) for each in (left, right))
    if a.schema != b.schema:
        return False
    if isinstance(left, pd.DataFrame):
        pd.testing.assert_frame_equal(left, right)
    return all(_plain(a[name].to_list()) == _plain(b[name].to_list()) for name in a.columns)


def _plain(entries):
    return [None if entry is None or entry != entry else entry for entry in entries]


# Nothing is lost


numbers = st.none() | st.floats(-1e9, 1e9) | st.integers(-(2**53) + 1, 2**53 - 1)
STAMPS = st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2050, 1, 1)).map(
    lambda stamp: stamp.replace(microsecond=0)
)


@st.composite
def tables(draw):
    """Columns of a table: who, when, two of numbers, labels and a remark; and their roles."""
    rows = draw(st.integers(1, 12))

    def column(entries):
        return draw(st.lists(entries, min_size=rows, max_size=rows))

    when = draw(st.sampled_from([STAMPS, st.integers(-50, 50), st.floats(-50, 50)]))
    names = draw(st.sampled_from([st.sampled_from(["a", "b"]), st.integers(1, 3)]))
    columns = {
        "who": column(names),
        "when": column(when),
        "x": column(st.none() | st.floats(-1e9, 1e9)),
        "n": column(st.integers(-(2**53) + 1, 2**53 - 1)),
        "label": column(st.none() | st.sampled_from(["walk", "run", "", "ü"])),
        "remark": column(st.none() | st.text("abc", max_size=3)),
    }
    columns["x"][0] = 0.5  # some libraries give a column of nothing but gaps no type
    columns["label"][0] = "run"
    columns["remark"][0] = "seen"
    seen = set()
    for i, pair in enumerate(zip(columns["who"], columns["when"], strict=True)):
        if pair in seen:
            for each in columns.values():
                each[i] = None
        seen.add(pair)
    kept = [i for i in range(rows) if columns["who"][i] is not None]
    return {name: [entries[i] for i in kept] for name, entries in columns.items()}


@every_library
@settings(max_examples=40, deadline=None, derandomize=True)
@given(columns=tables(), step=st.booleans())
def test_a_table_comes_back_as_it_was(library, columns, step):
    frame = table(library, columns)
    width: float | str | None = None
    if step and not isinstance(columns["when"][0], dt.datetime):
        width = 7.5
    data = Sequences.from_frame(
        frame,
        id="who",
        time="when",
        modalities={"x": "x", "pair": ["n", "x"], "label": "label"},
        step=width,
    )
    assert same(data.to_frame(), frame)
    few = data[:1].to_frame()
    assert len(nw.from_native(few, eager_only=True)) == columns["who"].count(data.ids[0])


@every_library
@settings(max_examples=25, deadline=None, derandomize=True)
@given(columns=tables())
def test_a_long_table_comes_back_as_it_was(library, columns):
    rows = range(len(columns["who"]))
    frame = table(
        library,
        {
            "who": columns["who"],
            "when": columns["when"],
            "what": ["pulse" if i % 2 else "pressure" for i in rows],
            "value": [float(n) for n in columns["n"]],
        },
    )
    data = Sequences.from_frame(frame, id="who", time="when", variable="what", value="value")
    assert same(data.to_frame(), frame)


def test_an_index_and_other_columns_stay():
    frame = pd.DataFrame(
        {"t": [2, 0, 1], "x": [1.0, None, 3.0], "note": ["a", "b", "c"]}, index=[7, 5, 9]
    )
    data = Sequences.from_frame(frame, time="t", modalities={"x": "x"})
    assert data.padded("x")[0, :, 0].tolist()[1:] == [3.0, 1.0]
    found = data.to_frame()
    assert found.index.tolist() == [7, 5, 9]
    assert found["note"].tolist() == ["a", "b", "c"]


def test_only_what_changed_is_written():
    big = 2**53 - 1
    frame = pd.DataFrame({"x": [0.1 + 0.2, None, 5.0], "n": [big, 1, 2], "label": ["a", None, "b"]})
    data = Sequences.from_frame(frame)
    filled = Sequences(
        {
            "x": data.columns["x"].fill(np.full((3, 1), 9.0)),
            "n": data.columns["n"],
            "label": data.columns["label"].fill(np.array([1, 1, 1])),
        },
        data.lengths,
        data.ids,
        data.table,
        data.cells,
    ).to_frame()
    assert filled["x"].tolist() == [0.1 + 0.2, 9.0, 5.0]
    assert filled["n"].dtype == frame["n"].dtype
    assert filled["n"].tolist() == [big, 1, 2]
    assert filled["label"].tolist() == ["a", "b", "b"]


@every_library
def test_deleted_entries_are_gaps(library):
    frame = table(library, {"x": [1.0, 2.0], "label": ["a", "b"]})
    data = Sequences.from_frame(frame)
    first = np.array([True, False])
    found = nw.from_native(data.delete({"x": first, "label": first}).to_frame(), eager_only=True)
    assert found["x"].is_null().to_list() == [True, False]
    assert found["label"].is_null().to_list() == [True, False]


# Grids


def test_times_are_laid_on_a_grid():
    frame = pd.DataFrame({
        "t": pd.to_datetime(["2026-03-01 00:10", "2026-03-01 00:50", "2026-03-01 03:00"]),
        "x": [1.0, 3.0, 5.0],
        "label": ["a", "b", "a"],
    })  # fmt: skip
    data = Sequences.from_frame(frame, time="t", step="1h")
    np.testing.assert_array_equal(data.padded("x")[0, :, 0], [2.0, np.nan, np.nan, 5.0])
    assert data.arrays("label")[0].tolist() == ["b", None, None, "a"]
    grid = data.to_frame(grid=True)
    assert grid["t"].dt.hour.tolist() == [0, 1, 2, 3]
    assert data.to_frame()["x"].tolist() == [1.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("mean", 2.5), ("last", 4.0), ("first", 2.0), ("min", 1.0), ("max", 4.0), ("sum", 10.0)],
)
def test_several_values_in_a_cell_are_combined(combine, expected):
    frame = pd.DataFrame({"t": [0.3, 0.1, 0.2, 0.4], "x": [1.0, 2.0, 3.0, 4.0]})
    data = Sequences.from_frame(frame, time="t", step=1, combine=combine)
    assert data.padded("x").tolist() == [[[expected]]]


@pytest.mark.parametrize("combine", ["mean", "first"])
def test_of_several_labels_one_is_taken(combine):
    frame = pd.DataFrame({"t": [0.3, 0.1], "label": ["late", "early"]})
    data = Sequences.from_frame(frame, time="t", step=1, combine=combine)
    assert data.arrays("label")[0].tolist() == ["early" if combine == "first" else "late"]


def test_tables_at_different_rates_are_merged():
    fast = pd.DataFrame({"t": [0.0, 0.5, 1.0, 1.5], "x": [1.0, 3.0, 5.0, 7.0]})
    slow = pd.DataFrame({"t": [1.0], "label": ["a"]})
    data = Sequences.from_frame([fast, slow], time="t", step=1.0, categories={"label": ["a", "b"]})
    assert data.padded("x")[0, :, 0].tolist() == [2.0, 6.0]
    assert data.arrays("label")[0].tolist() == [None, "a"]
    assert data.to_frame()["t"].tolist() == [0.0, 1.0]


def test_time_zones_are_one_time_line():
    frame = pl.DataFrame({
        "t": ["2026-03-01T12:00:00+01:00", "2026-03-01T12:00:00+00:00"], "x": [1.0, 2.0]
    })  # fmt: skip
    data = Sequences.from_frame(frame, time="t", step="1h")
    assert data.padded("x")[0, :, 0].tolist() == [1.0, 2.0]
    assert data.to_frame(grid=True)["t"].to_list() == [
        "2026-03-01T11:00:00+00:00",
        "2026-03-01T12:00:00+00:00",
    ]


@every_library
def test_added_steps_go_on_in_time(library):
    stamps = [DAY + dt.timedelta(hours=h) for h in range(3)]
    frame = table(library, {"who": ["a", "a", "b"], "t": stamps, "x": [1.0, 2.0, 3.0]})
    data = Sequences.from_frame(frame, id="who", time="t")
    found = nw.from_native(data.extend(before=1, after=1).to_frame(), eager_only=True)
    hours = [(stamp - DAY) // dt.timedelta(hours=1) for stamp in found["t"].to_list()]
    assert hours == [-1, 0, 1, 2, 1, 2, 3]
    assert found["who"].to_list() == ["a"] * 4 + ["b"] * 3


def test_zoned_times_come_back_in_their_zone():
    stamps = pd.date_range("2026-03-28 22:00", periods=3, freq="1h", tz="Europe/Berlin")
    data = Sequences.from_frame(pd.DataFrame({"t": stamps, "x": [1.0, None, 2.0]}), time="t")
    found = data.extend(after=2).to_frame()
    assert str(found["t"].dt.tz) == "Europe/Berlin"
    assert found["t"].iloc[-1] == pd.Timestamp("2026-03-29 03:00", tz="Europe/Berlin")


def test_uneven_times_are_remarked_on(caplog):
    frame = pd.DataFrame({"t": [0, 1, 2, 9], "x": [1.0, 2.0, 3.0, 4.0]})
    Sequences.from_frame(frame, time="t")
    assert "1 of 3 times" in caplog.text
    caplog.clear()
    Sequences.from_frame(frame, time="t", step=1)
    assert not caplog.text


# More columns


@every_library
def test_extra_columns_stand_beside_their_own(library):
    frame = table(library, {"x": [1.0, None], "y": [3.0, 4.0]})
    data = Sequences.from_frame(frame, modalities={"pair": ["x", "y"]})
    std = Extra("_std", {"pair": np.array([[np.nan, 0.1], [0.2, 0.3]])})
    found = nw.from_native(data.to_frame([std]), eager_only=True)
    assert found.columns == ["x", "y", "x_std", "y_std"]
    assert _plain(found["x_std"].to_list()) == [None, 0.2]
    assert found["y_std"].to_list() == [0.1, 0.3]


def test_a_long_table_grows_by_what_was_filled_in():
    frame = pd.DataFrame({"t": [0, 0, 1], "what": ["x", "y", "x"], "value": [1.0, 2.0, 3.0]})
    data = Sequences.from_frame(frame, time="t", variable="what", value="value")
    filled = Sequences(
        {name: column.fill(np.full((2, 1), 9.0)) for name, column in data.columns.items()},
        data.lengths,
        data.ids,
        data.table,
        data.cells,
    )
    std = Extra("_std", {"y": np.array([[np.nan], [0.5]])})
    found = filled.to_frame([std])
    assert found["what"].tolist() == ["x", "y", "x", "y"]
    assert found["value"].tolist() == [1.0, 2.0, 3.0, 9.0]
    assert found["t"].tolist() == [0, 0, 1, 1]
    assert found["value_std"].tolist()[-1] == 0.5


def test_sequences_without_a_table_make_one():
    data = Sequences.from_arrays({"v": [[[1.0, 2.0]]], "label": [["a"]]}, ids=["first"])
    found = data.to_frame()
    assert found.columns.tolist() == ["sequence", "step", "v_0", "v_1", "label"]
    assert found.iloc[0].tolist() == ["first", 0, 1.0, 2.0, "a"]


# What is wrong is said


def frame_of(**columns):
    return pd.DataFrame(columns)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "not a table": ({"x": [1]}, {}, "no table that can be read"),
    "no rows": (frame_of(x=[]), {}, "no rows"),
    "unknown time": (frame_of(x=[1.0]), {"time": "t"}, "no column 't'; there are 'x'"),
    "unknown id": (frame_of(x=[1.0]), {"id": "who"}, "no column 'who'"),
    "nothing left": (frame_of(t=[1.0]), {"time": "t"}, "No column is left"),
    "unknown column": (frame_of(x=[1.0]), {"modalities": {"m": "y"}}, "wants the column 'y'"),
    "id twice used": (frame_of(x=[1.0]), {"id": "x", "modalities": {"m": "x"}}, "uses otherwise"),
    "a time is missing": (frame_of(t=[1.0, None], x=[1.0, 2.0]), {"time": "t"}, "in row 1"),
    "an infinite time": (frame_of(t=[1.0, np.inf], x=[1.0, 2.0]), {"time": "t"}, "infinite time"),
    "an id is missing": (frame_of(i=["a", None], x=[1.0, 2.0]), {"id": "i"}, "in row 1"),
    "no time": (frame_of(t=["noon"], x=[1.0]), {"time": "t"}, "'noon' in row 0, which is no time"),
    "truth as time": (frame_of(t=[True], x=[1.0]), {"time": "t"}, "no times"),
    "mixed zones": (
        frame_of(t=["2026-03-01T12:00", "2026-03-01T12:00+01:00"], x=[1.0, 2.0]),
        {"time": "t"},
        "with and without a time zone: .* in row 1",
    ),
    "twice": (
        frame_of(i=["a", "a"], t=[3, 3], x=[1.0, 2.0]),
        {"id": "i", "time": "t"},
        "two values in sequence 'a' at 3",
    ),
    "twice at a date": (
        frame_of(t=[DAY, DAY], x=[1.0, 2.0]),
        {"time": "t"},
        "two values in sequence 0 at 2026-03-01T00:00",
    ),
    "infinite": (frame_of(t=[4], x=[np.inf]), {"time": "t"}, "infinite value in sequence 0 at 4"),
    "spoilt numbers": (frame_of(x=["1.5", "2", "n/a"]), {}, "'n/a' in row 2, but mostly numbers"),
    "numbers as text": (frame_of(x=["1.5", "2", "3"]), {}, "'1.5' in row 0, but mostly numbers"),
    "mixed": (frame_of(x=["a", 2.0, "b"]), {}, "2.0 in row 1 among text"),
    "too many labels": (frame_of(x=[f"a{i}" for i in range(300)]), {}, "300 different texts"),
    "times as values": (frame_of(x=[DAY]), {}, "holds times"),
    "labels among columns": (
        frame_of(x=[1.0, 2.0], y=["a", "b"]),
        {"modalities": {"m": ["x", "y"]}},
        "'y' holds labels",
    ),
    "unknown label": (frame_of(x=["a", "b"]), {"categories": {"x": ["a", "c"]}}, "the label 'b'"),
    "step without time": (frame_of(x=[1.0]), {"step": 1}, "no column was named as time"),
    "step without unit": (frame_of(t=[DAY], x=[1.0]), {"time": "t", "step": 1}, "has no unit"),
    "unit for numbers": (frame_of(t=[0], x=[1.0]), {"time": "t", "step": "1h"}, "plain numbers"),
    "no duration": (frame_of(t=[DAY], x=[1.0]), {"time": "t", "step": "1m"}, "not a duration"),
    "no width": (frame_of(t=[0], x=[1.0]), {"time": "t", "step": 0}, "longer than nothing"),
    "truth as step": (frame_of(t=[0], x=[1.0]), {"time": "t", "step": True}, "a number or a dura"),
    "too fine": (frame_of(t=[0, 1e9], x=[1.0, 2.0]), {"time": "t", "step": 1}, "1,000,000,001 ste"),
    "no rule": (frame_of(x=[1.0]), {"combine": "best"}, "no rule 'best'"),
    "half a long table": (frame_of(x=[1.0], v=["a"]), {"variable": "v"}, "Name both"),
    "no variable": (
        frame_of(v=["a", None], x=[1.0, 2.0]),
        {"variable": "v", "value": "x"},
        "names no variable in row 1",
    ),
    "an empty list": ([], {}, "no table in the list"),
    "unlike tables": (
        [frame_of(t=[0], x=[1.0]), pl.DataFrame({"t": [0], "y": [1.0]})],
        {"time": "t"},
        "cannot be merged",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_table_is_said(case):
    frame, roles, message = BAD[case]
    with pytest.raises(DataError, match=message):
        Sequences.from_frame(frame, **roles)


def test_a_column_that_stands_twice_is_refused():
    frame = pd.DataFrame([[1.0, 2.0]], columns=["x", "x"])
    with pytest.raises(DataError, match="'x' twice"):
        Sequences.from_frame(frame)


def test_xarray_data_sets_are_read():
    hours = pd.date_range("2026-03-01", periods=3, freq="1h")
    grid = xr.Dataset(
        {"temperature": (("station", "time"), [[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])},
        coords={"station": ["north", "south"], "time": hours},
    )
    data = Sequences.from_frame(grid, id="station", time="time")
    assert data.ids == ("north", "south")
    np.testing.assert_array_equal(
        data.padded("temperature")[..., 0], [[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]]
    )
    again = data.to_frame().set_index(["station", "time"]).to_xarray()
    assert again["temperature"].equals(grid["temperature"])

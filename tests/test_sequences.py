"""Incomplete sequences keep what was observed, and only that, whatever is done to them."""

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import Bernoulli, DataError, Modality, Sequences

NAN = float("nan")
KINDS = ("rest", "run", "walk")

examples = settings(deadline=None, max_examples=50, derandomize=True)


@st.composite
def incomplete(draw) -> dict[str, Any]:
    """Arguments of from_arrays: ragged, with entries, steps and modalities missing."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    size, rate = draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.3, 0.9]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vectors: list[Any] = []
    labels: list[Any] = []
    for steps in lengths:
        vector = rng.normal(size=(steps, size))
        vector[rng.random(vector.shape) < rate] = np.nan
        vector[rng.random(steps) < rate / 2] = np.nan
        label = rng.choice(KINDS, steps).astype(object)
        label[rng.random(steps) < rate] = None
        vectors.append(vector)
        labels.append(label)
    for i in range(1, len(lengths)):
        hidden = draw(st.sampled_from([None, vectors, labels]))
        if hidden is not None:
            hidden[i] = None
    return {"values": {"x": vectors, "act": labels}, "categories": {"act": KINDS}}


def read(arguments: dict[str, Any]) -> Sequences:
    return Sequences.from_arrays(**arguments)


def assert_same(found: Sequences, expected: Sequences) -> None:
    assert found.names == expected.names
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    for name in expected.names:
        a, b = found.columns[name], expected.columns[name]
        assert a.categories == b.categories
        assert a.values.dtype == b.values.dtype
        np.testing.assert_array_equal(a.observed, b.observed)
        np.testing.assert_array_equal(a.values, b.values)


def assert_arrays(found, expected) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def data() -> Sequences:
    """Five sequences of lengths 4, 1, 3, 6, 2 in which step t of sequence i is (10 i + t, -t)."""
    lengths = [4, 1, 3, 6, 2]
    x = [np.stack([10 * i + np.arange(n), -np.arange(n)], 1) for i, n in enumerate(lengths)]
    act = [[KINDS[(i + t) % 3] for t in range(n)] for i, n in enumerate(lengths)]
    return Sequences.from_arrays({"x": x, "act": act}, ids=list("abcde"))


# Reading


def given_x(values: Any, mask: Any = None, **options: Any) -> dict[str, Any]:
    observed = {} if mask is None else {"observed": {"x": mask}}
    return {"values": {"x": values}, **observed, **options}


def objects(*items: Any) -> np.ndarray[Any, Any]:
    array = np.empty(len(items), object)
    array[:] = items
    return array


DENSE = np.arange(12.0).reshape(2, 3, 2)
RAGGED = [DENSE[0], DENSE[1, :1]]
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "list of arrays": (given_x(list(DENSE)), given_x(DENSE)),
    "nested lists": (given_x(DENSE.tolist()), given_x(DENSE)),
    "tuples": (given_x(tuple(DENSE)), given_x(DENSE)),
    "tensors": (given_x(torch.from_numpy(DENSE)), given_x(DENSE)),
    "array of arrays": (given_x(objects(*RAGGED)), given_x(RAGGED)),
    "numbers as vectors of one": (given_x([[1.0, 2.0], [3.0]]), given_x([[[1.0], [2.0]], [[3.0]]])),
    "lengths for padding": (given_x(DENSE, lengths=[3, 1]), given_x(RAGGED)),
    "labels in padding are not categories": (
        given_x([["a", "b"], ["a", "PAD"]], lengths=np.array([2, 1])),
        given_x([["a", "b"], ["a"]]),
    ),
    "None for NaN": (given_x([[1, None, 3]]), given_x([[1.0, NAN, 3.0]])),
    "NaN for None": (given_x([["a", NAN, "b"]]), given_x([["a", None, "b"]])),
    "text array": (given_x(np.array([["b", "a"]])), given_x([["b", "a"]])),
    "labels in a column": (given_x([[["b"], ["a"]]]), given_x([["b", "a"]])),
    "whole numbers as labels": (
        given_x([[3, 5]], categories={"x": [5, 3]}),
        given_x([[3.0, 5.0]], categories={"x": [5, 3]}),
    ),
    "mask per entry": (
        given_x([[[1.0, 2.0], [3.0, 4.0]]], [[[True, False], [False, True]]]),
        given_x([[[1.0, NAN], [NAN, 4.0]]]),
    ),
    "mask per step": (
        given_x(DENSE[:1], [[True, False, True]]),
        given_x([[[0.0, 1.0], [NAN, NAN], [4.0, 5.0]]]),
    ),
    "mask of zeros and ones": (given_x([[1.0, 2.0]], [[0, 1.0]]), given_x([[NAN, 2.0]])),
    "mask beside NaN": (given_x([[NAN, 2.0, 3.0]], [[1, 0, 1]]), given_x([[NAN, NAN, 3.0]])),
    "mask with padding": (
        given_x([[1.0, 2.0, 9.0]], [[1, 0, 1]], lengths=[2]),
        given_x([[1.0, NAN]]),
    ),
    "mask without padding": (
        given_x([[1.0, 2.0, 9.0]], [[1, 0]], lengths=[2]),
        given_x([[1.0, NAN]]),
    ),
    "mask of some sequences": (
        given_x([[1.0, 2.0], [3.0]], [[0, 1], None]),
        given_x([[NAN, 2.0], [3.0]]),
    ),
    "mask over infinity": (given_x([[1.0, np.inf]], [[1, 0]]), given_x([[1.0, NAN]])),
    "mask over labels": (given_x([["a", "?", "b"]], [[1, 0, 1]]), given_x([["a", None, "b"]])),
    "mask over all labels": (given_x([["a", "b"]], [[0, 0]]), given_x([[None, None]])),
    "mask in a column": (given_x([[["a"], ["b"]]], [[[1], [0]]]), given_x([["a", None]])),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_the_same_data_may_be_written_in_many_ways(one, other):
    assert_same(read(one), read(other))


def test_missing_data_come_at_four_levels_and_are_all_a_false_mask():
    full = np.ones((4, 2))
    entry, step = full.copy(), full.copy()
    entry[1, 0] = step[2] = np.nan
    data = Sequences.from_arrays(
        {"x": [entry, step, None, full[:2]], "y": [full[:, 0]] * 3 + [None]}
    )
    assert data.lengths.tolist() == [4, 4, 4, 2]
    seen = np.split(data.columns["x"].observed, data.starts[1:])
    assert seen[0].tolist() == [[True, True], [False, True], [True, True], [True, True]]
    assert seen[1].all(1).tolist() == seen[1].any(1).tolist() == [True, True, False, True]
    assert not seen[2].any()
    assert seen[3].all()
    assert data.observed_fraction("y") == 12 / 14
    assert not data.columns["x"].values[~data.columns["x"].observed].any()


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float32),
        (np.int64, np.float64),
        (np.int32, np.float64),
        (np.uint8, np.float32),
        (bool, np.float32),
    ],
)
def test_no_digits_are_lost_in_reading(given_type, kept):
    data = Sequences.from_arrays({"x": np.ones((2, 3, 1), given_type)})
    assert data.columns["x"].values.dtype == kept
    for other in (
        data[1],
        data.keep("x"),
        data.hide("x"),
        data.segments(2),
        Sequences.concatenate([data, data]),
        data.conform({"x": Modality("x").field}),
    ):
        assert other.columns["x"].values.dtype == kept
    assert data.arrays("x")[0].dtype == data.padded("x").dtype == kept


def test_a_batch_has_the_precision_asked_for():
    value = 1 + 2.0**-40
    data = Sequences.from_arrays({"x": [[value]]})
    assert data.batch(dtype=torch.float64).values["x"].item() == value
    assert data.batch().values["x"].dtype == torch.float32


def test_labels_are_sorted_unless_their_order_is_given():
    values = {"act": [["walk", None, "run"], ["rest"]]}
    assert Sequences.from_arrays(values).columns["act"].categories == ("rest", "run", "walk")
    order = ["walk", "rest", "run", "swim"]
    column = Sequences.from_arrays(values, categories={"act": order}).columns["act"]
    assert column.categories == tuple(order)
    assert column.values.tolist() == [0, 0, 2, 1]
    assert column.observed.tolist() == [True, False, True, True]
    assert column.shape == ()


def test_numbers_are_labels_if_categories_are_given():
    data = Sequences.from_arrays({"act": [[2, 7, NAN]]}, categories={"act": [7, 2]})
    assert data.columns["act"].values.tolist() == [1, 0, 0]
    assert data.arrays("act")[0].tolist() == [2, 7, None]


def test_reading_copies():
    values, mask = np.ones((1, 3, 1)), np.ones((1, 3), bool)
    data = Sequences.from_arrays({"x": values}, observed={"x": mask})
    values[:], mask[:] = 5, False
    assert data.arrays("x")[0].tolist() == [[1], [1], [1]]


def test_ids_are_positions_unless_given(data):
    assert data.ids == tuple("abcde")
    assert Sequences.from_arrays({"x": DENSE}).ids == (0, 1)


def test_repr_says_what_is_there(data):
    assert repr(data) == (
        "Sequences(5 sequences, 1 to 6 steps, x (2,) 100% observed, act 3 categories 100% observed)"
    )
    assert "3 steps" in repr(Sequences.from_arrays({"x": DENSE}))


# Rows


def test_every_row_knows_its_sequence_and_step(data):
    assert data.rows == 16
    assert data.starts.tolist() == [0, 4, 5, 8, 14]
    x = data.columns["x"].values
    np.testing.assert_array_equal(x[:, 0], 10 * data.sequence_of_row + data.step_of_row)


def test_padded_arrays_are_missing_beyond_the_ends(data):
    x, act = data.padded("x"), data.padded("act")
    assert x.shape == (5, 6, 2)
    assert act.shape == (5, 6)
    beyond = np.arange(6) >= data.lengths[:, None]
    np.testing.assert_array_equal(np.isnan(x).all(2), beyond)
    np.testing.assert_array_equal(act == np.array(None), beyond)
    again = Sequences.from_arrays({"x": x, "act": act}, lengths=data.lengths)
    assert_same(again, data)


@examples
@given(incomplete())
def test_arrays_give_back_what_was_read(arguments):
    data = read(arguments)
    for name, items in arguments["values"].items():
        for found, item, steps in zip(data.arrays(name), items, data.lengths, strict=True):
            nothing = np.full((steps, *data.columns[name].shape), None if name == "act" else NAN)
            np.testing.assert_array_equal(found, nothing if item is None else item)
    values = {name: data.arrays(name) for name in data.names}
    assert_same(read({**arguments, "values": values}), data)
    padded = {name: data.padded(name) for name in data.names}
    assert_same(read({**arguments, "values": padded, "lengths": data.lengths}), data)


# Selecting


@pytest.mark.parametrize(
    ("index", "ids"),
    [
        (0, "a"),
        (-1, "e"),
        (np.int64(2), "c"),
        (slice(1, 3), "bc"),
        (slice(None, None, -2), "eca"),
        ([3, 0], "da"),
        (np.array([4, 1, 2]), "ebc"),
        (torch.tensor([1, 3]), "bd"),
        ([True, False, False, True, False], "ad"),
        (np.arange(5) > 2, "de"),
        (torch.tensor([False, True, True, False, False]), "bc"),
    ],
)
def test_selection_takes_whole_sequences(data, index, ids):
    chosen = data[index]
    positions = ["abcde".index(name) for name in ids]
    assert chosen.ids == tuple(ids)
    assert chosen.lengths.tolist() == data.lengths[positions].tolist()
    for name in data.names:
        assert_arrays(chosen.arrays(name), [data.arrays(name)[i] for i in positions])
    if not isinstance(index, slice) and np.ndim(index):
        batch = data.batch(index)
        assert batch.index.tolist() == positions
        torch.testing.assert_close(batch.values, chosen.batch().values, rtol=0, atol=0)


def test_a_sequence_selected_twice_is_numbered(data):
    twice = data[[1, 1, 3]]
    assert twice.ids == (0, 1, 2)
    assert_arrays(twice.arrays("x"), [data.arrays("x")[i] for i in (1, 1, 3)])


def test_a_position_that_does_not_exist_is_an_index_error(data):
    with pytest.raises(IndexError):
        data[5]
    assert [one.ids[0] for one in data] == list("abcde")


def test_keep_drops_other_modalities_and_hide_only_their_values(data):
    kept, hidden = data.keep("act"), data.hide("act")
    assert kept.names == ("act",)
    assert hidden.names == data.names
    assert hidden.observed_fraction("act") == 0
    assert hidden.columns["act"].categories == KINDS
    assert_same(hidden.keep("x"), data.keep("x"))
    assert data.observed_fraction("act") == 1


# Segments and concatenation


def test_segments_cut_sequences_and_keep_the_rest(data):
    pieces = data.segments(4)
    assert pieces.lengths.tolist() == [4, 1, 3, 4, 2, 2]
    assert pieces.ids == ("a[0:4]", "b[0:1]", "c[0:3]", "d[0:4]", "d[4:6]", "e[0:2]")
    for name in data.names:
        whole = data.arrays(name)
        cut = [whole[0], whole[1], whole[2], whole[3][:4], whole[3][4:], whole[4]]
        assert_arrays(pieces.arrays(name), cut)
    assert_same(data.segments(100), data)


def test_segments_have_unique_names():
    pieces = Sequences.from_arrays({"x": [[1.0], [2.0]]}, ids=[1, "1"]).segments(1)
    assert len(set(pieces.ids)) == 2


@pytest.mark.parametrize("length", [0, -1])
def test_segments_need_a_length(data, length):
    with pytest.raises(ValueError, match="at least 1"):
        data.segments(length)


def test_a_modality_absent_from_one_part_is_missing_there(data):
    both = Sequences.concatenate([data[:2].keep("x"), data[2:]])
    assert both.ids == data.ids
    assert_same(both.keep("x"), data.keep("x"))
    assert_same(both[2:], data[2:])
    assert both[:2].observed_fraction("act") == 0
    assert both.columns["act"].categories == KINDS


def test_concatenation_recodes_labels_and_renumbers_repeated_ids():
    one = Sequences.from_arrays({"act": [["a", "b"]]}, categories={"act": ["a", "b"]})
    two = Sequences.from_arrays({"act": [["a", "b"]]}, categories={"act": ["b", "a"]})
    both = Sequences.concatenate([one, two])
    assert both.columns["act"].values.tolist() == [0, 1, 0, 1]
    assert both.ids == (0, 1)


@examples
@given(incomplete(), st.integers(1, 7))
def test_segments_and_concatenation_preserve_every_row(arguments, length):
    data = read(arguments)
    assert_same(Sequences.concatenate([data[i] for i in range(len(data))]), data)
    pieces = Sequences.concatenate([data[i].segments(length) for i in range(len(data))])
    assert_same(pieces, data.segments(length))
    assert pieces.lengths.max() <= length
    assert pieces.rows == data.rows
    for name in data.names:
        assert_arrays([np.concatenate(pieces.arrays(name))], [np.concatenate(data.arrays(name))])


# Conforming


def test_conform_recodes_the_order_of_categories(data):
    fields = {
        "act": Modality("act", categories=["walk", "swim", "rest", "run"]).field,
        "x": Modality("x", 2).field,
    }
    found = data.conform(fields)
    assert found.names == ("act", "x")
    assert found.columns["act"].categories == ("walk", "swim", "rest", "run")
    assert_arrays(found.arrays("act"), data.arrays("act"))
    assert_arrays(found.arrays("x"), data.arrays("x"))


def test_conform_adds_absent_modalities_as_missing(data):
    fields = {m.name: m.field for m in (Modality("x", 2), Modality("act", categories=KINDS))}
    extra = {"y": Modality("y", (2, 3)).field, "z": Modality("z", categories=4).field}
    found = data.conform({**fields, **extra})
    assert_same(found.keep("x", "act"), data)
    assert found.columns["y"].shape == (2, 3)
    assert found.columns["z"].categories == (0, 1, 2, 3)
    assert found.observed_fraction("y") == found.observed_fraction("z") == 0


@pytest.mark.parametrize(
    ("categories", "numbers", "labels"),
    [
        (["a", "b", "c"], [2, NAN, 0], ["c", None, "a"]),
        (3, [2, NAN, 0], [2, None, 0]),
        ([1, 2, 3], [2, NAN, 1], [2, None, 1]),
        ([5, 2], [[2], [5], [NAN]], [2, 5, None]),
    ],
)
def test_numbers_are_codes_of_text_labels_but_numeric_labels_themselves(
    categories, numbers, labels
):
    data = Sequences.from_arrays({"act": [numbers]})
    found = data.conform({"act": Modality("act", categories=categories).field})
    assert found.arrays("act")[0].tolist() == labels


def test_an_unknown_label_that_is_missing_does_no_harm():
    data = Sequences.from_arrays({"act": [["a", "b"]]})
    field = Modality("act", categories=["b", "c"]).field
    found = data.delete({"act": np.array([True, False])}).conform({"act": field})
    assert found.arrays("act")[0].tolist() == [None, "b"]


def test_values_outside_the_support_may_hide_behind_a_mask():
    data = Sequences.from_arrays({"x": [[0.5, 1.0]]}, observed={"x": [[False, True]]})
    field = Modality("x", likelihood=Bernoulli()).field
    assert_same(data.conform({"x": field}), data)


# Batches


def test_a_batch_is_time_major(data):
    batch = data.batch([3, 1])
    assert batch.steps == 6
    assert batch.lengths.tolist() == [6, 1]
    assert batch.index.tolist() == [3, 1]
    assert batch.values["x"].shape == batch.observed["x"].shape == (6, 2, 2)
    assert batch.values["act"].shape == (6, 2)
    assert batch.values["act"].dtype == torch.int64
    assert batch.values["x"][:, 0, 0].tolist() == [30, 31, 32, 33, 34, 35]
    assert batch.valid.tolist() == [[True, t < 1] for t in range(6)]
    assert batch.to("cpu").values["x"] is batch.values["x"]


@examples
@given(incomplete())
def test_padding_is_never_observed_and_missing_is_zero(arguments):
    data = read(arguments)
    batch = data.batch(dtype=torch.float64)
    assert batch.valid.shape == (data.lengths.max(), len(data))
    assert batch.valid.sum(0).tolist() == data.lengths.tolist()
    for name in data.names:
        values, seen = batch.values[name], batch.observed[name]
        assert not seen[~batch.valid].any()
        assert not values[~seen].any()
        assert seen.sum() == data.columns[name].observed.sum()
        flat = values.transpose(0, 1)[batch.valid.T].numpy()
        np.testing.assert_array_equal(flat, data.columns[name].values)


@examples
@given(incomplete(), st.data())
def test_selecting_and_batching_commute(arguments, choice):
    data = read(arguments)
    positions = choice.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=6))
    whole, direct, selected = data.batch(), data.batch(positions), data[positions].batch()
    assert direct.index.tolist() == positions
    assert direct.steps == selected.steps
    for name in data.names:
        for part in ("values", "observed"):
            expected = getattr(whole, part)[name][: direct.steps, positions]
            assert torch.equal(getattr(direct, part)[name], expected)
            assert torch.equal(getattr(selected, part)[name], expected)


def indices(data: Sequences, size: int, seed: int | None = None, **options: Any) -> list[list[int]]:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return [b.index.tolist() for b in data.batches(size, generator=generator, **options)]


@pytest.fixture
def many() -> Sequences:
    lengths = np.random.default_rng(0).integers(1, 30, 40)
    return Sequences.from_arrays({"x": [np.zeros(n) for n in lengths]})


@pytest.mark.parametrize("size", [1, 7, 40, 100])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("bucket", [False, True])
def test_batches_hold_every_sequence_once(many, size, seed, bucket):
    groups = indices(many, size, seed, bucket=bucket)
    assert sorted(chain(*groups)) == list(range(40))
    assert max(map(len, groups)) == min(size, 40)


def test_without_a_generator_the_order_is_kept(many):
    assert list(chain(*indices(many, 7))) == list(range(40))


@pytest.mark.parametrize("bucket", [False, True])
def test_shuffling_is_repeatable(many, bucket):
    first = indices(many, 7, 3, bucket=bucket)
    assert indices(many, 7, 3, bucket=bucket) == first
    assert indices(many, 7, 4, bucket=bucket) != first
    assert indices(many, 7, bucket=bucket) != first


@pytest.mark.parametrize("seed", [None, 3])
def test_buckets_hold_sequences_of_similar_length_and_are_shuffled(many, seed):
    groups = [many.lengths[group] for group in indices(many, 8, seed, bucket=True)]
    spans = [(min(lengths), max(lengths)) for lengths in groups]
    assert all(high <= low for (_, high), (low, _) in pairwise(sorted(spans)))
    assert (spans == sorted(spans)) == (seed is None)


def test_batches_take_dtype_and_need_a_size(many):
    assert next(many.batches(2, dtype=torch.float64)).values["x"].dtype == torch.float64
    with pytest.raises(ValueError, match="at least one"):
        next(many.batches(0))


# Deleting


@examples
@given(incomplete(), st.integers(0, 2**32 - 1), st.booleans())
def test_deleting_only_ever_removes(arguments, seed, per_step):
    data = read(arguments)
    rng = np.random.default_rng(seed)
    axes = 1 if per_step else 2
    shapes = {name: column.observed.shape[:axes] for name, column in data.columns.items()}
    masks = {name: rng.random(shape) < 0.5 for name, shape in shapes.items()}
    left = data.delete(masks)
    for name, before in data.columns.items():
        after, gone = left.columns[name], masks[name]
        gone = gone[:, None] if gone.ndim < before.observed.ndim else gone
        np.testing.assert_array_equal(after.observed, before.observed & ~gone)
        np.testing.assert_array_equal(after.values, np.where(after.observed, before.values, 0))
    assert_same(left.delete(masks), left)
    assert_same(data, read(arguments))


def test_masked_arrays_bring_their_mask():
    array = np.ma.MaskedArray([[1.0, 2.0, 3.0]], mask=[[False, True, False]])
    for value in (array, [array[0]]):
        data = Sequences.from_arrays({"x": value})
        np.testing.assert_array_equal(data.padded("x")[0, :, 0], [1.0, np.nan, 3.0])


def test_numbers_beyond_the_precision_are_refused_by_name():
    data = Sequences.from_arrays({"x": [[1.0, 1e39]]})
    with pytest.raises(DataError, match=r"'x' holds numbers too large for torch\.float32"):
        data.batch()
    assert data.batch(dtype=torch.float64).values["x"].max() == 1e39


@pytest.mark.parametrize(
    ("start", "stop"), [(None, None), (0, 2), (1, None), (None, -1), (-2, None), (-2, -1), (1, 99)]
)
def test_cropping_is_slicing_every_sequence(start, stop):
    data = Sequences.from_arrays({"x": [[1.0, 2.0, 3.0], [4.0, np.nan]], "k": [[*"abc"], [*"ab"]]})
    found = data.crop(start, stop)
    for name in data.names:
        for before, after in zip(data.arrays(name), found.arrays(name), strict=True):
            np.testing.assert_array_equal(before[start:stop], after)
    assert found.ids == data.ids


def test_cropping_leaves_something_of_every_sequence():
    data = Sequences.from_arrays({"x": [[1.0, 2.0, 3.0], [4.0]]}, ids=["long", "short"])
    with pytest.raises(DataError, match="Nothing is left of sequence 'short' between steps 1"):
        data.crop(1)


def test_a_cropped_table_goes_back_into_its_rows():
    frame = pd.DataFrame({"t": [2, 0, 1], "x": [3.0, 1.0, 2.0]})
    assert Sequences.from_frame(frame, time="t").crop(1).to_frame()["t"].tolist() == [2, 1]

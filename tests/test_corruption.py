"""Corruption deletes what it says, as much as it says, and nothing else."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_sequences import assert_same, incomplete, read
from weft import DataError, Sequences
from weft.corruption import (
    delete_between,
    delete_bursts,
    delete_entries,
    delete_modalities,
    delete_steps,
    keep_between,
    withhold_modalities,
)

FRACTIONS = [0.0, 0.1, 0.25, 0.5, 0.7, 0.99, 1.0]
NAMES = ["x", "act"]

# Every corruption as a function of data, fraction, generator and modalities.
Corruption = Callable[[Sequences, float, torch.Generator, list[str]], Sequences]
CORRUPTIONS: dict[str, Corruption] = {
    "entries": delete_entries,
    "steps": delete_steps,
    "steps together": lambda d, f, g, m: delete_steps(d, f, g, m, together=True),
    "bursts": delete_bursts,
    "bursts together": lambda d, f, g, m: delete_bursts(d, f, g, m, together=True),
    "modalities": delete_modalities,
    "between": lambda d, f, g, m: delete_between(d, 0, f, m),
    "keep": lambda d, f, g, m: keep_between(d, f, 1, m),
}
each = pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def full(lengths: Any, width: int = 2) -> Sequences:
    """Nothing is missing, and nothing observed is zero."""
    return Sequences.from_arrays(
        {"x": [np.ones((n, width)) for n in lengths], "act": [["a"] * n for n in lengths]}
    )


def lost_steps(data: Sequences, name: str) -> list[np.ndarray[Any, Any]]:
    """Per sequence the steps that are missing; a step is missing wholly or not at all."""
    seen = data.columns[name].observed.reshape(data.rows, -1)
    assert (seen.all(1) == seen.any(1)).all()
    return [np.flatnonzero(~part) for part in np.split(seen.any(1), data.starts[1:])]


# What all have in common


@each
def test_nothing_changes_in_place_and_a_seed_gives_one_result(corrupt):
    data = full([9, 4, 7, 1])
    first = corrupt(data, 0.5, seeded(), NAMES)
    assert_same(data, full([9, 4, 7, 1]))
    assert_same(corrupt(data, 0.5, seeded(), NAMES), first)


@pytest.mark.parametrize("kind", ["entries", "steps", "bursts", "modalities"])
def test_another_seed_gives_another_result(kind):
    data = full([20] * 20)
    one, other = (CORRUPTIONS[kind](data, 0.5, seeded(s), NAMES) for s in (0, 1))
    assert (one.columns["x"].observed != other.columns["x"].observed).any()


@each
def test_fraction_0_is_the_identity(corrupt):
    data = full([9, 4, 7, 1])
    assert_same(corrupt(data, 0.0, seeded(), NAMES), data)


@each
def test_fraction_1_deletes_all(corrupt):
    data = full([9, 4, 7, 1])
    left = corrupt(data, 1.0, seeded(), NAMES)
    if corrupt in (CORRUPTIONS["bursts"], CORRUPTIONS["bursts together"]):
        # A burst starts anywhere and then takes all that follows.
        for name in NAMES:
            for lost, length in zip(lost_steps(left, name), left.lengths, strict=True):
                assert lost.tolist() == list(range(lost[0], length))
    else:
        assert_same(left, data.hide(*NAMES))


@each
@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_fraction_lies_between_0_and_1(corrupt, fraction):
    with pytest.raises(ValueError, match=f"between 0 and 1, got {fraction}"):
        corrupt(full([3]), fraction, seeded(), NAMES)


@each
@pytest.mark.parametrize(("name", "other"), [("x", "act"), ("act", "x")])
def test_only_named_modalities_are_touched(corrupt, name, other):
    data = full([9, 4, 7, 2])
    left = corrupt(data, 0.9, seeded(), [name])
    assert left.names == data.names
    assert left.observed_fraction(name) < 1
    assert_same(left.keep(other), data.keep(other))


@pytest.mark.parametrize("kind", [k for k in CORRUPTIONS if k != "modalities"])
def test_all_modalities_are_touched_unless_some_are_named(kind):
    data = full([9, 4, 7, 2])
    every: Any = None
    left = CORRUPTIONS[kind](data, 0.9, seeded(), every)
    assert_same(left, CORRUPTIONS[kind](data, 0.9, seeded(), NAMES))
    assert all(left.observed_fraction(name) < 1 for name in NAMES)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    incomplete(),
    st.sampled_from(sorted(CORRUPTIONS)),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_nothing_missing_is_ever_restored(arguments, kind, fraction, seed):
    data = read(arguments)
    left = CORRUPTIONS[kind](data, fraction, seeded(seed), NAMES)
    assert left.lengths.tolist() == data.lengths.tolist()
    assert left.ids == data.ids
    for name in NAMES:
        before, after = data.columns[name], left.columns[name]
        assert not (after.observed & ~before.observed).any()
        expected = np.where(after.observed, before.values, 0)
        np.testing.assert_array_equal(after.values, expected)
    assert_same(data, read(arguments))


# What each does


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("together", [False, True])
def test_steps_are_deleted_in_exact_number(fraction, together):
    lengths = [1, 2, 3, 10, 33, 100]
    left = delete_steps(full(lengths), fraction, seeded(), together=together)
    for name in NAMES:
        counts = [len(lost) for lost in lost_steps(left, name)]
        assert counts == [round(fraction * n) for n in lengths]


@pytest.mark.parametrize("delete", [delete_steps, delete_bursts])
def test_modalities_lose_different_steps_unless_together(delete):
    data = full([40] * 5)
    for together in (False, True):
        left = delete(data, 0.5, seeded(), together=together)
        pairs = zip(lost_steps(left, "x"), lost_steps(left, "act"), strict=True)
        assert all(a.tolist() == b.tolist() for a, b in pairs) == together


def test_every_step_is_deleted_equally_often():
    count, length, fraction = 4000, 10, 0.3
    left = delete_steps(full([length] * count), fraction, seeded(), ["x"])
    hits = np.bincount(np.concatenate(lost_steps(left, "x")), minlength=length)
    error = np.sqrt(count * fraction * (1 - fraction))
    assert abs(hits - count * fraction).max() < 4 * error


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_entries_are_deleted_at_the_rate_and_independently(fraction):
    left = delete_entries(full([50] * 200), fraction, seeded())
    x, act = (~left.columns[name].observed for name in NAMES)
    for lost in (x, act, x[:, 0], x[:, 1]):
        assert abs(lost.mean() - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / lost.size)
    for one, other in ((x[:, 0], x[:, 1]), (x[:, 0], act), (x[1:, 0], x[:-1, 0])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(len(one))


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_a_burst_is_one_run_cut_short_at_the_end(fraction):
    lengths = [1, 2, 3, 10, 33, 100] * 20
    left = delete_bursts(full(lengths), fraction, seeded())
    for name in NAMES:
        for lost, length in zip(lost_steps(left, name), lengths, strict=True):
            most = round(fraction * length)
            if most:
                start = lost[0]
                assert lost.tolist() == list(range(start, min(start + most, length)))
            else:
                assert not len(lost)


def test_a_burst_starts_anywhere_with_equal_chance():
    count, length = 4000, 10
    left = delete_bursts(full([length] * count), 0.3, seeded(), ["x"])
    starts = np.bincount([lost[0] for lost in lost_steps(left, "x")], minlength=length)
    expected, error = count / length, np.sqrt(count * (1 / length) * (1 - 1 / length))
    assert abs(starts - expected).max() < 4 * error
    # Chi-square of 9 degrees of freedom has mean 9 and standard deviation √18.
    assert ((starts - expected) ** 2 / expected).sum() < 9 + 4 * np.sqrt(18)


def test_a_burst_comes_with_its_chance():
    count = 4000
    left = delete_bursts(full([10] * count), 0.3, seeded(), ["x"], chance=0.25)
    struck = np.array([len(lost) > 0 for lost in lost_steps(left, "x")])
    assert abs(struck.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / count)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 0.5), (0.25, 0.75), (0.75, 1), (0.5, 0.5), (0.1, 0.35)]
)
def test_delete_between_and_keep_between_part_the_data(start, stop):
    data = full([1, 2, 3, 4, 10, 33])
    outside, inside = delete_between(data, start, stop), keep_between(data, start, stop)
    for name in NAMES:
        out, within = (part.columns[name].observed for part in (outside, inside))
        assert (out ^ within).all()
        for lost, length in zip(lost_steps(outside, name), data.lengths, strict=True):
            assert lost.tolist() == list(range(round(start * length), round(stop * length)))


def test_neighbouring_intervals_meet_without_gap_or_overlap():
    data = full(range(1, 40))
    cuts = [0, 0.125, 0.3, 0.5, 0.77, 1]
    parts = [keep_between(data, a, b) for a, b in pairwise(cuts)]
    times_kept = np.sum([part.columns["x"].observed for part in parts], 0)
    assert (times_kept == 1).all()


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_modalities_are_deleted_wholly_in_an_exact_number_of_sequences(fraction):
    data = full([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
    left = delete_modalities(data, fraction, seeded(), NAMES)
    lost = np.array([[len(part) for part in lost_steps(left, name)] for name in NAMES])
    assert ((lost == 0) | (lost == data.lengths)).all()
    assert np.count_nonzero(lost, 1).tolist() == [round(fraction * len(data))] * 2
    np.testing.assert_array_equal(lost[0], lost[1])


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_withholding_leaves_every_sequence_a_modality(fraction):
    data = full([3, 5, 1] * 400)
    left = withhold_modalities(data, fraction, seeded())
    lost = np.array([[len(part) for part in lost_steps(left, name)] for name in NAMES])
    assert ((lost == 0) | (lost == data.lengths)).all()
    assert not (lost > 0).all(0).any()
    assert (lost > 0).mean(1) == pytest.approx([fraction / 2] * 2, abs=0.05)


def test_withholding_never_takes_the_only_modality_that_was_there():
    data = full([4] * 50).hide("act")
    assert withhold_modalities(data, 1.0, seeded()).observed_fraction("x") == 1


def test_only_named_modalities_are_withheld_and_then_maybe_all_of_them():
    data = full([4, 2] * 400)
    left = withhold_modalities(data, {"act": 0.5}, seeded())
    assert left.observed_fraction("x") == 1
    assert left.observed_fraction("act") == pytest.approx(0.5, abs=0.05)
    alone = withhold_modalities(data.hide("x"), {"act": 1.0}, seeded())
    assert alone.observed_fraction("act") == 1


def test_every_modality_is_withheld_with_its_own_chance():
    data = full([4, 2] * 400)
    left = withhold_modalities(data, {"act": 0.8, "x": 0.2}, seeded())
    # a modality that is not the one kept for certain, one half, is withheld with its chance
    assert left.observed_fraction("act") == pytest.approx(1 - 0.8 / 2, abs=0.05)
    assert left.observed_fraction("x") == pytest.approx(1 - 0.2 / 2, abs=0.05)


def test_withholding_what_is_not_there_is_refused():
    with pytest.raises(DataError, match="'y'"):
        withhold_modalities(full([4]), {"y": 0.5}, seeded())


def test_withholding_nothing_uses_no_random_numbers():
    generator = seeded()
    before = generator.get_state()
    data = full([4, 2])
    assert withhold_modalities(data, 0.0, generator) is data
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("cut", [delete_between, keep_between])
def test_a_segment_that_stops_before_it_starts_is_an_error(cut):
    data = Sequences.from_arrays({"x": [[1.0, 2.0]]})
    with pytest.raises(ValueError, match="starts before it stops"):
        cut(data, 0.8, 0.2)

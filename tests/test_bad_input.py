"""Bad input is refused with a message that names the modality, the sequence and the step."""

import datetime
from typing import Any

import numpy as np
import pytest
import torch

from weft import Bernoulli, Categorical, DataError, Modality, Normal, Poisson, Sequences
from weft.corruption import (
    delete_between,
    delete_bursts,
    delete_entries,
    delete_modalities,
    delete_steps,
    keep_between,
)

NAN, INF = float("nan"), float("inf")
WHOLE = np.ones((2, 3, 2))


def read(hr: Any, ids: Any = ("ann", "bob"), **options: Any) -> Sequences:
    """Read a modality 'hr' of two persons."""
    return Sequences.from_arrays({"hr": hr}, ids=ids, **options)


def conform(hr: Any, *args: Any, data: dict[str, Any] | None = None, **options: Any) -> Sequences:
    """Read 'hr' and hold it against a declaration."""
    return read(hr, **(data or {})).conform({"hr": Modality("hr", *args, **options).field})


def pair(hr: Any, act: Any, **options: Any) -> Sequences:
    return Sequences.from_arrays({"hr": hr, "act": act}, ids=["ann", "bob"], **options)


def bob(step: Any) -> list[Any]:
    """Two sequences; the given value stands in the second, at step 1."""
    return [[1.0, 1.0], [1.0, step, 1.0]]


def ragged_objects() -> Any:
    steps = np.empty(2, object)
    steps[:] = [np.zeros(2), np.zeros(3)]
    return steps


def text(step: Any) -> list[Any]:
    return [["a", "b"], ["b", step, "a"]]


HR, BOB, STEP = "'hr'", "'bob'", "step 1"
GENERATOR = torch.Generator()

CORRUPTIONS: dict[str, Any] = {
    "delete_entries": lambda data, names: delete_entries(data, 0.5, GENERATOR, names),
    "delete_steps": lambda data, names: delete_steps(data, 0.5, GENERATOR, names),
    "delete_bursts": lambda data, names: delete_bursts(data, 0.5, GENERATOR, names),
    "delete_modalities": lambda data, names: delete_modalities(data, 0.5, GENERATOR, names),
    "delete_between": lambda data, names: delete_between(data, 0.5, 1, names),
    "keep_between": lambda data, names: keep_between(data, 0.5, 1, names),
}

DATA_ERRORS: list[tuple[str, Any, list[str]]] = [
    # Values that are no numbers or labels
    ("+inf", lambda: read(bob(INF)), [HR, BOB, STEP, "infinite"]),
    ("-inf", lambda: read(bob(-INF)), [HR, BOB, STEP, "infinite"]),
    (
        "inf in a vector",
        lambda: read([WHOLE[0], [[0.0, 0.0], [1.0, INF]]]),
        [HR, BOB, STEP, "infinite"],
    ),
    (
        "datetime64",
        lambda: read([[1.0], np.array(["2020-01-01"], "datetime64[D]")]),
        [HR, BOB, "datetime64", "numbers"],
    ),
    (
        "datetime objects",
        lambda: read(bob(datetime.date(2020, 1, 1))),
        [HR, BOB, STEP, "date"],
    ),
    ("complex", lambda: read([[1.0], np.array([1j])]), [HR, BOB, "complex128"]),
    ("dicts", lambda: read([[1.0], [{"rate": 60}, {}]]), [HR, BOB, "step 0", "dict"]),
    ("bytes", lambda: read([["a"], [b"a"]]), [HR, BOB, "step 0", "bytes"]),
    ("a number among text", lambda: read(text(3)), [HR, BOB, STEP, "int", "only text"]),
    (
        "a number among text objects",
        lambda: read([["a"], np.array(["a", 2.5], object)]),
        [HR, BOB, STEP, "float"],
    ),
    (
        "numbers here, text there",
        lambda: read([["a", "b"], [NAN, 1.0]]),
        [HR, BOB, STEP, "text labels elsewhere"],
    ),
    # Shapes
    ("ragged steps", lambda: read([[[1, 2]], [[1, 2], [3]]]), [HR, BOB, "unequal shape"]),
    (
        "ragged steps as objects",
        lambda: read([[1.0], ragged_objects()]),
        [HR, BOB, "step 0", "ndarray"],
    ),
    (
        "steps of another shape",
        lambda: read([np.ones((2, 3)), np.ones((2, 4))]),
        [HR, BOB, "(4,)", "(3,)", "'ann'"],
    ),
    ("steps of no entries", lambda: read(np.ones((2, 3, 0))), [HR, "(0,)", "'ann'"]),
    ("no sequence axis", lambda: read(np.ones(3)), [HR, "(3,)", "[array]"]),
    ("no axis", lambda: read(3.0), [HR, "()", "[array]"]),
    ("a number for a sequence", lambda: read([[1.0], 2.0]), [HR, BOB, "float", "(time,)"]),
    ("a text for a sequence", lambda: read([["a"], "b"]), [HR, BOB, "single value"]),
    ("a dict for a sequence", lambda: read([["a"], {"b": 1}]), [HR, BOB, "single value"]),
    ("no steps", lambda: read([[1.0], []]), [HR, BOB, "no steps"]),
    (
        "lengths that disagree",
        lambda: pair([[1.0], [1.0, 2.0, 3.0]], [["a"], ["a"]]),
        ["'act'", HR, BOB, STEP, "1 steps", "has 3", "time grid"],
    ),
    (
        "numbers of sequences that disagree",
        lambda: pair([[1.0], [1.0]], [["a"]]),
        ["'act'", "1 sequences", HR, "has 2", "None"],
    ),
    # Nothing there
    ("no modality", lambda: Sequences.from_arrays({}), ["no modality"]),
    ("no sequence", lambda: read([], ids=[]), [HR, "no sequence"]),
    ("no sequence in an array", lambda: read(np.ones((0, 3, 1)), ids=[]), [HR, "no sequence"]),
    (
        "a modality absent everywhere",
        lambda: pair([[1.0], [1.0]], [None, None]),
        ["'act'", "absent from every sequence"],
    ),
    (
        "a sequence without any modality",
        lambda: pair([[1.0], None], [["a"], None]),
        [BOB, "length is unknown"],
    ),
    ("nothing to concatenate", lambda: Sequences.concatenate([]), ["at least one"]),
    # Masks
    (
        "a mask of wrong shape",
        lambda: read(WHOLE, observed={"hr": [None, np.ones((3, 3), bool)]}),
        [HR, BOB, "(3, 3)", "(3, 2)"],
    ),
    (
        "a mask too short",
        lambda: read(WHOLE, observed={"hr": [[True] * 3, [True] * 2]}),
        [HR, BOB, "(2,)", "(3, 2)"],
    ),
    (
        "a mask too long",
        lambda: read(WHOLE, observed={"hr": [[True] * 3, [True] * 4]}),
        [HR, BOB, "(4,)", "(3, 2)"],
    ),
    (
        "a mask per sequence",
        lambda: read(WHOLE, observed={"hr": [None, True]}),
        [HR, BOB, "()", "per step"],
    ),
    (
        "a ragged mask",
        lambda: read(WHOLE, observed={"hr": [None, [[1, 1], [1], [1, 1]]]}),
        [HR, BOB, "unequal shape"],
    ),
    (
        "a mask of numbers",
        lambda: read(WHOLE, observed={"hr": [None, [0, 1, 2]]}),
        [HR, BOB, "boolean"],
    ),
    (
        "a mask with NaN",
        lambda: read(WHOLE, observed={"hr": [None, [0, 1, NAN]]}),
        [HR, BOB, "boolean"],
    ),
    (
        "a mask of text",
        lambda: read(WHOLE, observed={"hr": [None, ["yes", "no", "no"]]}),
        [HR, BOB, "boolean"],
    ),
    (
        "a mask of an unknown modality",
        lambda: read(WHOLE, observed={"ecg": [None, None]}),
        ["'ecg'", "not in the data", HR],
    ),
    (
        "a mask of too few sequences",
        lambda: read(WHOLE, observed={"hr": [None]}),
        ["hr (mask)", "1 sequences", "has 2"],
    ),
    (
        "categories of an unknown modality",
        lambda: read(WHOLE, categories={"ecg": ["a"]}),
        ["'ecg'", "not in the data", HR],
    ),
    # Names and lengths
    ("repeated ids", lambda: read(WHOLE, ids=["ann", "ann"]), ["'ann'", "twice"]),
    ("too few ids", lambda: read(WHOLE, ids=["ann"]), ["1 ids", "2 sequences"]),
    ("too few lengths", lambda: read(WHOLE, lengths=[3]), ["1 lengths", "2 sequences"]),
    ("length 0", lambda: read(WHOLE, lengths=[3, 0]), [HR, BOB, "is 0", "3 steps"]),
    ("a length too long", lambda: read(WHOLE, lengths=[3, 4]), [HR, BOB, "is 4", "1 to 3"]),
    ("a negative length", lambda: read(WHOLE, lengths=[3, -1]), [HR, BOB, "is -1"]),
    ("half a step", lambda: read(WHOLE, lengths=[3, 1.5]), [HR, BOB, "is 1.5"]),
    ("an unknown length", lambda: read(WHOLE, lengths=[3, NAN]), [HR, BOB, "is nan"]),
    # Categories
    (
        "an unseen label in reading",
        lambda: read(text("z"), categories={"hr": ["a", "b"]}),
        [HR, BOB, STEP, "'z'", "'a', 'b'"],
    ),
    (
        "an unseen number in reading",
        lambda: read(bob(7), categories={"hr": [1, 2]}),
        [HR, BOB, STEP, "7", "1, 2"],
    ),
    (
        "an unseen label for the model",
        lambda: conform(text("z"), categories=["a", "b"]),
        [HR, BOB, STEP, "'z'", "'a', 'b'", "codes 0 to 1"],
    ),
    (
        "an unseen code for the model",
        lambda: conform(bob(2), categories=["a", "b"]),
        [HR, BOB, STEP, "2.0", "codes 0 to 1"],
    ),
    ("a negative code", lambda: conform(bob(-1), categories=3), [HR, BOB, STEP, "-1", "0, 1, 2"]),
    ("a fractional code", lambda: conform(bob(0.5), categories=3), [HR, BOB, STEP, "0.5"]),
    (
        "an unseen numeric label for the model",
        lambda: conform(bob(0), categories=[1, 2]),
        [HR, BOB, STEP, "0.0", "1, 2"],
    ),
    (
        "one of many categories",
        lambda: conform(bob(40), categories=30),
        [HR, BOB, STEP, "(30 in all)"],
    ),
    (
        "labels read in other categories",
        lambda: conform(bob(2), categories=["1", "2"], data={"categories": {"hr": [1, 2]}}),
        [HR, "'ann', step 0", "'1', '2'"],
    ),
    (
        "repeated categories",
        lambda: read(text("a"), categories={"hr": ["a", "b", "a"]}),
        [HR, "'a', 'b', 'a'", "each once"],
    ),
    ("no categories", lambda: read([[NAN], [NAN]], categories={"hr": []}), [HR, "at least one"]),
    (
        "several labels per step",
        lambda: read([[["a"]], [["a", "b"]]]),
        [HR, BOB, "(2,)", "one label per step"],
    ),
    (
        "vectors for given categories",
        lambda: read(WHOLE, categories={"hr": [0, 1]}),
        [HR, "'ann'", "(2,)", "one label per step"],
    ),
    (
        "labels that do not concatenate",
        lambda: Sequences.concatenate([read(text("a")), read(text("z"))]),
        [HR, BOB, STEP, "'z'", "'a', 'b'"],
    ),
    # What a model declares
    (
        "an unknown modality",
        lambda: read(WHOLE).conform({"ecg": Modality("ecg", 2).field}),
        [HR, "unknown", "'ecg'", "keep"],
    ),
    ("another shape", lambda: conform(WHOLE, 3), [HR, "(2,)", "(3,)", "(sequence, time, 3)"]),
    ("a flattened image", lambda: conform(np.ones((2, 3, 4)), (2, 2)), [HR, "(4,)", "(2, 2)"]),
    ("labels for numbers", lambda: conform(text("a"), 1), [HR, "'a', 'b'", "numbers", "(1,)"]),
    (
        "vectors for a category",
        lambda: conform(WHOLE, categories=["a", "b"]),
        [HR, "(2,)", "one category per step"],
    ),
    (
        "Bernoulli 0.5",
        lambda: conform(bob(0.5), likelihood=Bernoulli()),
        [HR, BOB, STEP, "0.5", "0 or 1"],
    ),
    (
        "Poisson -1",
        lambda: conform(bob(-1), likelihood=Poisson()),
        [HR, BOB, STEP, "-1", "at least 0"],
    ),
    (
        "Poisson 1.5",
        lambda: conform(bob(1.5), likelihood=Poisson()),
        [HR, BOB, STEP, "1.5", "whole number"],
    ),
    # Selections
    ("an empty list", lambda: read(WHOLE)[[]], ["no sequence"]),
    ("an empty slice", lambda: read(WHOLE)[2:], ["no sequence"]),
    ("a mask that is all false", lambda: read(WHOLE)[[False, False]], ["no sequence"]),
    ("an empty batch", lambda: read(WHOLE).batch([]), ["no sequence"]),
    ("keep", lambda: read(WHOLE).keep("ecg"), ["'ecg'", HR]),
    ("hide", lambda: read(WHOLE).hide("ecg"), ["'ecg'", HR]),
    ("arrays", lambda: read(WHOLE).arrays("ecg"), ["'ecg'", HR]),
    ("padded", lambda: read(WHOLE).padded("ecg"), ["'ecg'", HR]),
    ("observed_fraction", lambda: read(WHOLE).observed_fraction("ecg"), ["'ecg'", HR]),
    (
        "delete by a mask of one",
        lambda: read(WHOLE).delete({"hr": np.array([True])}),
        [HR, "(1,)", "(6,)", "(6, 2)"],
    ),
    (
        "delete by numbers",
        lambda: read(WHOLE).delete({"hr": np.ones(6, int)}),
        [HR, "int64", "truth values"],
    ),
    *(
        (name, lambda corrupt=corrupt: corrupt(read(WHOLE), ["hr", "ecg"]), ["'ecg'", HR])
        for name, corrupt in CORRUPTIONS.items()
    ),
]

DECLARATION_ERRORS: list[tuple[str, Any, list[str]]] = [
    ("no name", lambda: Modality(""), ["name"]),
    ("no entries", lambda: Modality("hr", 0), [HR, "(0,)"]),
    ("a negative axis", lambda: Modality("hr", (2, -1)), [HR, "(2, -1)"]),
    ("a repeated category", lambda: Modality("hr", categories=["a", "a"]), [HR, "twice"]),
    ("one category", lambda: Modality("hr", categories=1), ["two categories", "1"]),
    (
        "a likelihood of more categories",
        lambda: Modality("hr", categories=3, likelihood=Categorical(4)),
        [HR, "4", "3"],
    ),
    (
        "a likelihood without categories",
        lambda: Modality("hr", likelihood=Categorical(4)),
        [HR, "4", "0"],
    ),
    (
        "categories that are normal",
        lambda: Modality("hr", categories=3, likelihood=Normal()),
        [HR, "Categorical", "Normal()"],
    ),
    (
        "a mask beside a category",
        lambda: Modality("hr", categories=3, mask_input=True),
        [HR, "mask"],
    ),
]


def cases(table: list[tuple[str, Any, list[str]]], error: type[Exception]) -> list[Any]:
    return [pytest.param(call, error, parts, id=name) for name, call, parts in table]


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    cases(DATA_ERRORS, DataError) + cases(DECLARATION_ERRORS, ValueError),
)
def test_the_message_says_what_is_wrong_and_where(call, error, parts):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert message.endswith(".")

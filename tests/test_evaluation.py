"""Scores are of what was deleted, and of nothing else."""

from types import SimpleNamespace

import numpy as np
import pytest

from weft import DataError, Sequences, evaluate
from weft.evaluation import PROTOCOLS

DATA = Sequences.from_arrays(
    {
        "x": [np.arange(8.0), np.arange(10.0, 14.0)],
        "k": [[*"aabbaabb"], [*"abab"]],
    }
)
CODES = {"a": 0, "b": 1}


class Shifted:
    """Predicts the truth of x plus a half, and a with probability 0.75."""

    def __init__(self, data=DATA):
        self.data = data
        self.given: list[Sequences] = []

    def smooth(self, data, *, samples=100, seed=0):
        self.given.append(data)
        truth = self.data.padded("x")
        chances = np.broadcast_to([0.75, 0.25], (*truth.shape[:2], 2))
        numbers = SimpleNamespace(
            mean=truth + 0.5,
            quantile=lambda _: np.stack([truth - 1.0, truth + np.where(truth < 4, 1.0, -0.5)]),
            sample=lambda count: np.stack([truth + 0.5] * count),
        )
        labels = SimpleNamespace(
            probabilities=chances, modality=SimpleNamespace(categories=("a", "b"))
        )
        return SimpleNamespace(predictions={"x": numbers, "k": labels})


def hidden(model, name):
    """What the model was not shown of what is there."""
    return DATA.columns[name].observed & ~model.given[0].columns[name].observed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scores_are_of_deleted_entries(protocol):
    model = Shifted()
    scores = evaluate(model, DATA, protocol, 0.5)
    gone = hidden(model, "x")
    truth = DATA.columns["x"].values[gone]
    assert scores["x"].count == gone.sum() > 0
    assert scores["x"].mae == scores["x"].rmse == scores["x"].crps == pytest.approx(0.5)
    assert scores["x"].coverage == pytest.approx((truth < 4).mean())
    codes = DATA.columns["k"].values[hidden(model, "k")]
    assert scores["k"].accuracy == pytest.approx((codes == CODES["a"]).mean())
    expected = -np.log(np.where(codes == CODES["a"], 0.75, 0.25)).mean()
    assert scores["k"].log_loss == pytest.approx(expected)


def test_ends_and_starts_are_deleted_whole():
    for protocol, gone in (("end", [4, 5, 6, 7, 10, 11]), ("start", [0, 1, 2, 3, 8, 9])):
        model = Shifted()
        evaluate(model, DATA, protocol, 0.5)
        assert np.flatnonzero(hidden(model, "x")).tolist() == gone


def test_only_the_named_modalities_are_deleted_and_scored():
    model = Shifted()
    scores = evaluate(model, DATA, "modality", modalities=["k"])
    assert set(scores) == {"k"}
    assert model.given[0].observed_fraction("k") == 0
    assert model.given[0].observed_fraction("x") == 1


def test_what_was_missing_before_is_not_scored():
    first = np.arange(DATA.rows) < 8
    model = Shifted()
    scores = evaluate(model, DATA.delete({"x": first}), "modality", modalities=["x"])
    assert scores["x"].count == 4


def test_the_seed_decides_what_is_deleted():
    models = [Shifted() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        evaluate(model, DATA, "steps", 0.5, seed=seed)
    first, again, other = (hidden(model, "x") for model in models)
    assert (first == again).all()
    assert (first != other).any()


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="no protocol 'all'; there are 'steps'"):
        evaluate(Shifted(), DATA, "all")
    with pytest.raises(DataError, match="Nothing observed was deleted"):
        evaluate(Shifted(), DATA, "steps", 0.0)

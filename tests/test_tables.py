"""Predictions in the shape of the table that was read."""

import numpy as np
import pandas as pd
import pytest

from weft import MDMM, Modality, Sequences, TrainingConfig, beyond_frame, load, predictions_frame

FRAME = pd.DataFrame(
    {
        "who": ["a", "a", "b", "b", "b"],
        "t": [1, 0, 0, 1, 2],
        "x": [1.0, None, 3.0, None, 5.0],
        "y": [None, 2.0, 3.0, 4.0, None],
        "k": ["up", None, "down", None, "up"],
        "note": [*"vwxyz"],
    },
    index=[9, 8, 7, 6, 5],
)
MODALITIES = {"pair": ["x", "y"], "k": "k"}


@pytest.fixture(scope="module")
def data():
    return Sequences.from_frame(FRAME, id="who", time="t", modalities=MODALITIES)


@pytest.fixture(scope="module")
def model(data):
    declared = [Modality("pair", 2), Modality("k", categories=["up", "down", "still"])]
    model = MDMM(declared, latent=2, hidden=4)
    return model.fit(data, training=TrainingConfig(epochs=1), progress=False)


def test_gaps_are_filled_and_what_was_seen_stays(data, model):
    predictions = model.smooth(data, samples=5).predictions
    found = predictions_frame(data, predictions, keep_observed=True, std=True)
    assert found.index.tolist() == FRAME.index.tolist()
    assert found["note"].tolist() == FRAME["note"].tolist()
    for name in ("x", "y", "k"):
        seen = FRAME[name].notna()
        assert found.loc[seen, name].tolist() == FRAME.loc[seen, name].tolist()
        assert found[name].notna().all()
    for name in ("x", "y"):
        assert found[f"{name}_std"].isna().equals(FRAME[name].notna())


def test_every_entry_is_predicted_in_its_own_row(data, model):
    predictions = model.smooth(data, samples=5).predictions
    found = predictions_frame(data, predictions, quantiles=[0.05, 0.5], probabilities=True)
    mean = predictions["pair"].mean
    assert found["x"].tolist() == [mean[0, 1, 0], mean[0, 0, 0], *mean[1, :, 0]]
    assert found["y_q50"].tolist()[2:] == predictions["pair"].quantile(0.5)[1, :, 1].tolist()
    chances = found[["k_p_up", "k_p_down", "k_p_still"]].to_numpy()
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-6)


def test_steps_beyond_the_ends_have_times(data, model):
    ahead = beyond_frame(data, model.forecast(data, 2, samples=5), 2, std=True)
    assert ahead["who"].tolist() == [*"aabb"]
    assert ahead["t"].tolist() == [2, 3, 3, 4]
    before = beyond_frame(data, model.backcast(data, 1, samples=5), 1, before=True)
    assert before["t"].tolist() == [-1, -1]
    assert before["x"].notna().all()


def test_a_model_reads_tables_like_its_own(data, model, tmp_path):
    model.save(tmp_path / "m.weft")
    for fitted in (model, load(tmp_path / "m.weft")):
        again = fitted.read(FRAME)
        assert again.ids == data.ids
        assert np.array_equal(again.columns["pair"].values, data.columns["pair"].values)
        less = fitted.read(FRAME.drop(columns=["k"]))
        assert less.names == ("pair",)
        assert fitted.impute(less, samples=2).to_frame()["k"].notna().all()


def test_a_model_of_arrays_reads_no_tables():
    model = MDMM([Modality("x")], latent=2, hidden=4)
    model.fit({"x": [[0.0, 1.0]]}, training=TrainingConfig(epochs=1), progress=False)
    with pytest.raises(ValueError, match=r"not fitted to a table\. Use Sequences\.from_frame"):
        model.read(FRAME)

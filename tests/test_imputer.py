"""Habits of scikit-learn: parameters, clones, pipelines."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from weft import MDMM, DataError, Imputer, Modality, TrainingConfig

SHORT = TrainingConfig(epochs=2)


def holes(rows=20):
    rng = np.random.default_rng(0)
    series = np.sin(np.arange(rows)[:, None] / 3 + np.array([0.0, 1.0]))
    return np.where(rng.random(series.shape) < 0.3, np.nan, series)


def small():
    return Imputer(latent=2, hidden=4, training=SHORT, samples=5)


def test_arrays_are_filled_where_they_have_gaps():
    given = holes()
    filled = small().fit_transform(given)
    seen = ~np.isnan(given)
    assert np.array_equal(filled[seen], given[seen])
    assert np.isfinite(filled).all()


def test_tables_come_back_as_tables():
    frame = pd.DataFrame(holes(), columns=["a", "b"], index=range(100, 120))
    frame["who"] = ["x"] * 10 + ["y"] * 10
    filled = Imputer(id="who", latent=2, hidden=4, training=SHORT, samples=5).fit_transform(frame)
    assert filled.index.equals(frame.index)
    assert filled.columns.tolist() == ["a", "b", "who"]
    assert not filled.isna().any().any()


def test_gaps_lie_at_the_level_of_their_series():
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(30), 20)
    truth = rng.normal(size=30)[who] + 0.1 * rng.normal(size=len(who))
    lost = rng.random(len(who)) < 0.3
    frame = pd.DataFrame({"who": who, "a": np.where(lost, np.nan, truth)})
    filled = Imputer(id="who", latent=2, hidden=4, training=SHORT, samples=5).fit_transform(frame)
    assert np.square(filled["a"] - truth)[lost].mean() < 0.04 * truth.var()


def test_it_works_in_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), small())
    filled = pipeline.fit_transform(holes())
    assert filled.shape == (20, 2)
    assert pipeline.get_feature_names_out().tolist() == ["x0", "x1"]
    assert "Imputer" in repr(pipeline)


def test_clones_are_alike_and_know_nothing():
    imputer = small().set_params(latent=3)
    again = clone(imputer)
    assert again.get_params() == imputer.get_params()
    with pytest.raises(NotFittedError):
        again.transform(holes())


def test_models_have_parameters_and_clones():
    model = MDMM([Modality("x")], latent=2, hidden=4, refine=1)
    assert model.get_params()["refine"] == 1
    again = clone(model)
    assert (again.latent, again.hidden, again.refine) == (2, 4, 1)
    assert again.modalities[0].name == "x"
    assert again.set_params(latent=3).module.model.latent == 3
    with pytest.raises(ValueError, match="no parameter 'depth'; there are modalities"):
        model.set_params(depth=3)


def test_arrays_of_another_shape_are_refused():
    imputer = small().fit(holes())
    with pytest.raises(DataError, match="3 columns, but 2"):
        imputer.transform(np.zeros((4, 3)))
    with pytest.raises(DataError, match=r"\(row, column\) is needed"):
        small().fit(np.zeros(4))

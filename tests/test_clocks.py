"""Clocks: by how many steps a modality is early or late is found, sequence by sequence."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from weft import MDMM, Modality, MonteCarlo, Sequences, TrainingConfig, load
from weft.clocks import Clock, Evidence, Readings
from weft.layouts import HEARD, Inferring, Layouts, hear
from weft.simulators import predicted_moments

NAN = float("nan")
REACH = 3


def apart(seed=0, count=48, steps=30):
    """One number, and its double by a clock that is up to two steps off; the lags."""
    rng = np.random.default_rng(seed)
    lags = rng.integers(-2, 3, count)
    walk = rng.normal(size=(count, steps + 8))
    walk[:, 1:] += 0.5 * walk[:, :-1]
    here = np.stack([w[4 : 4 + steps] for w in walk])
    there = 2 * np.stack([w[4 + lag :][:steps] for w, lag in zip(walk, lags, strict=True)])
    return Sequences.from_arrays({"here": here, "there": there}), lags


def declare(clock=REACH):
    return [Modality("here"), Modality("there", clock=clock)]


TRAINING = TrainingConfig(epochs=100, batch_size=12, polish=0.0, burst=0.0, withhold={"there": 0.5})


@pytest.fixture(scope="module")
def fitted():
    model = MDMM(declare(), latent=4, hidden=16)
    return model.fit(apart()[0], training=TRAINING, progress=False)


def chances(model, data):
    how = Inferring(model.particles)
    heard = hear(model.module, model.modalities[1], model._prepare(data), how)
    return model._clocks["there"].read(heard)


def test_shifted_values_are_where_they_were_moved_to():
    data = Sequences.from_arrays(
        {"x": [[1.0, NAN, 3.0, 4.0], [5.0, 6.0]], "y": [[1.0] * 4, [2.0, 3.0]]}
    )
    moved = data.shift({"x": np.array([1, -1])})
    np.testing.assert_array_equal(moved.arrays("x")[0], [[NAN], [1], [NAN], [3]])
    np.testing.assert_array_equal(moved.arrays("x")[1], [[6], [NAN]])
    for name in ("x", "y"):
        back = data.extend(2, 2).shift({"x": np.array([2, -2])}).shift({"x": np.array([-2, 2])})
        for left, right in zip(back.crop(2, -2).arrays(name), data.arrays(name), strict=True):
            np.testing.assert_array_equal(left, right)


def test_evidence_is_the_density_of_what_was_seen_some_steps_off(fitted):
    """By the sums written out."""
    data = fitted._prepare(apart(seed=1, count=5, steps=9)[0])
    data = data.delete({"there": np.arange(data.rows) % 4 == 0})
    how = Inferring(fitted.particles, samples=HEARD)
    heard = hear(fitted.module, fitted.modalities[1], data, how)
    longer = data.extend(REACH, REACH)
    left = longer.hide("there")
    [best], [others] = (
        Layouts(fitted.module, left, replace(how, spread=spread)).simulators() for spread in (0, 1)
    )
    model = fitted.module.model
    mean, _ = predicted_moments(model.modalities[1], model, best, 1, how.seed)
    _, variance = predicted_moments(model.modalities[1], model, others, HEARD, how.seed)
    batch = longer.batch(others.window.index)
    for place, i in enumerate(others.window.index):
        seen = [t for t in range(REACH, REACH + 9) if batch.observed["there"][t, place, 0]]
        spread = float(np.mean([float(variance[t, place, 0]) for t in seen]))
        for lag in range(-REACH, REACH + 1):
            total = 0.0
            for t in seen:
                error = float(batch.values["there"][t, place, 0] - mean[t + lag, place, 0])
                total -= 0.5 * error**2 / spread
            assert heard.density[i, lag + REACH] == pytest.approx(total, rel=1e-5, abs=1e-5)
    assert heard.lasting >= 1


def test_lags_are_found_in_training_and_beyond(fitted):
    """Up to a shift of all of them, which changes nothing."""
    for seed in (0, 1):
        data, lags = apart(seed)
        found = chances(fitted, data).argmax(1) - REACH
        offset = np.median(found - lags)
        assert abs(offset) <= 1
        assert np.mean(found - lags == offset) > 0.95


def test_gaps_are_filled_by_the_clock_of_what_is_missing(fitted):
    """Half of the second number tells the lag, and so the rest of it."""
    plain = MDMM(declare(clock=0), latent=4, hidden=16)
    plain.fit(apart()[0], training=TRAINING, progress=False)
    data = apart(seed=1)[0]
    late = data.step_of_row >= 15
    left = data.delete({"there": late})
    truth = data.padded("there")[:, 15:]
    one, other = (
        np.sqrt(np.square(m.smooth(left, samples=40)["there"].mean[:, 15:] - truth).mean())
        for m in (plain, fitted)
    )
    assert other < 0.7 * one


def test_where_a_modality_was_not_seen_its_lag_is_any_that_is_usual(fitted):
    data, _ = apart(seed=2, count=4)
    assert np.ptp(chances(fitted, data.hide("there")), 0).max() < 1e-12
    found = chances(fitted, data.hide("there"))[0]
    np.testing.assert_allclose(found, fitted._clocks["there"].chances)


def test_where_nothing_else_was_seen_a_lag_is_any_that_is_usual(fitted):
    data, _ = apart(seed=2, count=4)
    found = chances(fitted, data.hide("here"))
    np.testing.assert_allclose(found, fitted._clocks["there"].chances[None].repeat(4, 0), atol=0.02)


def test_chances_are_those_that_make_the_evidence_likeliest():
    rng = np.random.default_rng(0)
    lags = rng.choice(5, 3000, p=[0.05, 0.15, 0.5, 0.2, 0.1])
    density = rng.normal(size=(3000, 5)) + 3 * np.eye(5)[lags]  # log-densities with noise
    density[:300] = 0  # nothing is known of these
    clock = Clock.learn(Evidence(density, 1.0))

    def likelihood(p):
        return np.log((np.exp(density) * p).sum(1)).sum() + np.log(p).sum()

    best = likelihood(clock.chances)
    for _ in range(100):
        other = np.maximum(clock.chances + 0.01 * rng.normal(size=5), 1e-3)
        assert likelihood(other / other.sum()) < best + 1e-2
    assert clock.chances.sum() == pytest.approx(1)
    nothing = Clock.learn(Evidence(np.zeros((7, 5)), 4.0))
    np.testing.assert_allclose(nothing.chances, 0.2)


def test_errors_that_last_count_once():
    density = np.array([[0.0, 6.0, 2.0]])
    clock = Clock(np.full(3, 1 / 3), 2.0)
    np.testing.assert_allclose(
        clock.read(Evidence(density, 2.0)), torch.softmax(torch.tensor(density) / 2, 1)
    )


def test_lags_are_drawn_as_often_as_they_are_likely():
    chances = np.array([[0.25, 0.5, 0.25], [0.0, 0.1, 0.9], [1.0, 0.0, 0.0]])
    drawn = Readings({"a": chances, "b": chances}).draw(20, torch.Generator().manual_seed(0))
    counts = np.array(
        [[sum(d["a"][i] == lag for d in drawn) for lag in (-1, 0, 1)] for i in range(3)]
    )
    assert (np.abs(counts - 20 * chances) <= 1).all()
    assert any((d["a"] != d["b"]).any() for d in drawn)
    assert Readings({}).draw(20, torch.Generator()) == [{}]


def test_all_meet_in_the_time_of_one():
    """What happens at one moment lies at one step, and the target stays where it is."""
    moment = {"a": 3, "b": 5, "c": 4}  # where one and the same thing is seen
    rows = {name: np.where(np.arange(8) == at, 1.0, NAN)[None] for name, at in moment.items()}
    data = Sequences.from_arrays(rows)
    readings = Readings({"a": np.eye(5)[[3]], "b": np.eye(5)[[1]]})  # one early, one late
    lags = readings.best()
    assert {name: int(by[0]) for name, by in lags.items()} == {"a": 1, "b": -1}
    for target, place in (("a", 3), ("b", 5), ("c", 4), (None, 4)):
        laid = readings.lay_out(data, lags, target)
        for name in moment:
            seen = np.flatnonzero(np.isfinite(laid.arrays(name)[0][:, 0]))
            assert list(seen) == [place + readings.margin]


def test_a_model_without_clocks_is_what_it_was():
    data = apart(count=6)[0]
    model = MDMM(declare(clock=0), latent=3, hidden=6)
    model.fit(data, training=TrainingConfig(epochs=2), progress=False)
    assert model._clocks == {}
    assert Layouts(model.module, data, Inferring(model.particles)).given is data


def test_every_verb_takes_clocks_in(fitted):
    data = apart(seed=1, count=5)[0]
    left = data.delete({"there": data.step_of_row >= 20})
    filled = fitted.impute(left)
    seen = left.columns["there"].observed
    np.testing.assert_array_equal(
        filled.columns["there"].values[seen], left.columns["there"].values[seen]
    )
    assert filled.observed_fraction("there") == 1
    assert fitted.smooth(left).posterior.mean.shape == (5, 30, 4)
    assert fitted.sequence(left).latents.shape == (1, 5, 30, 4)
    assert fitted.sequence(left, samples=3).latents.shape == (3, 5, 30, 4)
    assert fitted.forecast(left, 4)["there"].mean.shape == (5, 4, 1)
    assert fitted.backcast(left, 4)["here"].mean.shape == (5, 4, 1)
    assert fitted.generate(left, ["there"])["there"].sample(7).shape == (7, 5, 30, 1)
    for found in (fitted.smooth(left)["there"], fitted.forecast(left, 4)["there"]):
        assert np.isfinite(found.mean).all()
        assert np.isfinite(found.quantile(0.9)).all()
    assert np.isfinite(fitted.score(left))
    assert np.isfinite(fitted.filter(left)["there"].mean).all()


def test_clocks_are_written_down(fitted, tmp_path):
    fitted.save(tmp_path / "a.weft")
    again, data = load(tmp_path / "a.weft"), apart(seed=1, count=5)[0]
    assert again.modalities[1].clock == REACH
    np.testing.assert_array_equal(
        again.smooth(data, samples=5)["there"].mean, fitted.smooth(data, samples=5)["there"].mean
    )


@pytest.mark.parametrize("step", [1, 5, 8])
def test_an_interrupted_fit_resumes_to_the_same_numbers(tmp_path, step, monkeypatch):
    data, held = apart(count=12)[0], apart(seed=3, count=6)[0]
    config = TrainingConfig(epochs=5, batch_size=6, align=(0.3, 0.7), segment=10)

    def fit(resume=False, directory=tmp_path):
        model = MDMM(declare(), latent=3, hidden=6, particles=MonteCarlo(3))
        return model.fit(
            data,
            validation=held,
            training=config,
            directory=directory,
            resume=resume,
            progress=False,
        )

    whole = fit(directory=None)

    class Interrupting:
        def __init__(self):
            self.calls = 0

        def __call__(self, share, text):
            self.calls += 1
            if self.calls == step:
                os.kill(os.getpid(), signal.SIGINT)

    import weft.estimator

    class Bar:
        def __enter__(self):
            return Interrupting()

        def __exit__(self, *error):
            return None

    with monkeypatch.context() as patch:
        patch.setattr(weft.estimator, "progress_bar", lambda *_: Bar())
        with pytest.raises(KeyboardInterrupt):
            fit()
    resumed = fit(resume=True)
    assert resumed.history == whole.history
    np.testing.assert_array_equal(resumed._clocks["there"].chances, whole._clocks["there"].chances)
    for left, right in zip(resumed.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("settings", [{"clock": -1}, {"clock": 2, "categories": 3}])
def test_a_clock_that_cannot_be_is_refused(settings):
    with pytest.raises(ValueError, match="a number of steps, and 0 for labels"):
        Modality("x", **settings)

"""One fitted model does every task, in the user's units."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from weft import (
    MDMM,
    Bernoulli,
    DataError,
    Modality,
    Normal,
    NotFittedError,
    Poisson,
    Sequences,
    TrainingConfig,
)
from weft.prediction import _quantiles
from weft.training import Trainer

LENGTHS = [12, 7, 15, 10, 9, 14, 12, 11]
QUICK = TrainingConfig(epochs=8, batch_size=4, learning_rate=0.02)


def make_data(scale=1.0, shift=0.0):
    """A slow wave seen as a vector, a count, a switch and a label, 30 % missing."""
    rng = np.random.default_rng(1)
    data: dict[str, list[np.ndarray]] = {"wave": [], "count": [], "switch": [], "label": []}
    for steps in LENGTHS:
        phase = rng.uniform(0, 6) + 0.5 * np.arange(steps)
        wave = np.stack([np.sin(phase), np.cos(phase)], 1) + 0.1 * rng.normal(size=(steps, 2))
        count = rng.poisson(np.exp(np.sin(phase))).astype(float)
        switch = (np.cos(phase) > 0).astype(float)
        label = np.where(np.sin(phase) > 0, "up", "down").astype(object)
        for values in (wave, count, switch):
            values[rng.uniform(size=values.shape) < 0.3] = np.nan
        label[rng.uniform(size=steps) < 0.3] = None
        data["wave"].append(wave * scale + shift)
        data["count"].append(count)
        data["switch"].append(switch)
        data["label"].append(label)
    return Sequences.from_arrays(data)


def declare():
    return [
        Modality("wave", 2),
        Modality("count", likelihood=Poisson()),
        Modality("switch", likelihood=Bernoulli()),
        Modality("label", categories=["down", "up"]),
    ]


DATA = make_data()
NUMERIC = ["wave", "count", "switch"]


@pytest.fixture(scope="module")
def model():
    return MDMM(declare(), latent=4, hidden=8).fit(DATA, training=QUICK, progress=False)


def beyond_end():
    return np.arange(max(LENGTHS))[None, :] >= np.array(LENGTHS)[:, None]


@pytest.mark.parametrize("verb", ["forward", "backward", "smooth"])
def test_inference_gives_a_posterior_and_a_prediction_per_modality(model, verb):
    if verb == "smooth":
        found = model.smooth(DATA, samples=20)
    else:
        found = model.filter(DATA, direction=verb, samples=20)
    assert found.posterior.mean.shape == (8, 15, 4)
    assert (np.isnan(found.posterior.mean).all(-1) == beyond_end()).all()
    assert (found.posterior.std[~beyond_end()] > 0).all()
    for name in NUMERIC:
        prediction = found[name]
        shape = (8, 15, 2) if name == "wave" else (8, 15, 1)
        assert prediction.mean.shape == prediction.std.shape == shape
        assert (np.isnan(prediction.mean).all(-1) == beyond_end()).all()
        assert (prediction.std[~beyond_end()] > 0).all()
    assert found["label"].probabilities.shape == (8, 15, 2)
    np.testing.assert_allclose(found["label"].probabilities[~beyond_end()].sum(-1), 1, atol=1e-6)
    assert set(found["label"].labels[~beyond_end()]) <= {"down", "up"}
    assert all(label is None for label in found["label"].labels[beyond_end()])


def components(model, samples):
    """Mean and std of every emission of the mixture, in user units: (sample, sequence, time, 2)."""
    found = model.sequence(DATA, samples=samples)
    z = torch.from_numpy(np.nan_to_num(found.latents)).float()
    with torch.no_grad():
        emission = Normal().distribution(model.module.model.decode("wave", z), (2,))
    scale = model._scaling.scales["wave"]
    mean = emission.mean.double().numpy() * scale.scale + scale.shift
    return found["wave"], mean, emission.stddev.double().numpy() * scale.scale


def test_the_spread_is_emission_noise_plus_latent_uncertainty(model):
    """The law of total variance over the trajectories that the prediction mixes."""
    prediction, mean, std = components(model, 50)
    inside = ~beyond_end()
    np.testing.assert_allclose(prediction.mean[inside], mean.mean(0)[inside], rtol=1e-4, atol=1e-4)
    total = (std**2).mean(0) + mean.var(0)
    np.testing.assert_allclose(prediction.std[inside] ** 2, total[inside], rtol=1e-3)
    assert (mean.var(0)[inside] > 0).all()


def test_quantiles_are_those_of_the_mixture(model):
    prediction, mean, std = components(model, 400)
    inside = ~beyond_end()
    for q in (0.05, 0.5, 0.95):
        at = torch.from_numpy((prediction.quantile(q) - mean) / std)
        below = torch.special.ndtr(at).mean(0).numpy()[inside]
        error = np.sqrt(q * (1 - q) / 2000)
        assert (np.abs(below - q) < 5 * error).all()
    several = prediction.quantile((0.05, 0.95))
    np.testing.assert_array_equal(several, [prediction.quantile(q) for q in (0.05, 0.95)])
    with pytest.raises(ValueError, match="between 0 and 1"):
        prediction.quantile(1.5)


def test_quantiles_of_draws_are_those_of_numpy():
    draws = np.random.default_rng(0).normal(size=(23, 4, 2)).astype(np.float32)
    chances = np.array([0.0, 0.05, 0.5, 0.97, 1.0])
    expected = np.quantile(draws, chances, axis=0)
    np.testing.assert_allclose(_quantiles(draws, chances), expected, rtol=1e-5)


def test_samples_have_the_predictive_moments(model):
    wave = model.smooth(DATA, samples=400)["wave"]
    draws = wave.sample(4000)
    assert draws.shape == (4000, 8, 15, 2)
    inside = ~beyond_end()
    mean, std = wave.mean[inside], wave.std[inside]
    error = draws.mean(0)[inside] - mean
    assert (np.abs(error) < 5 * std * np.sqrt(1 / 4000 + 1 / 400)).all()
    np.testing.assert_allclose(draws.std(0)[inside], std, rtol=0.2)


def test_sequence_draws_joint_trajectories_or_the_map(model):
    assert model.sequence(DATA).latents.shape == (1, 8, 15, 4)
    drawn = model.sequence(DATA, samples=5, seed=1)
    assert drawn.latents.shape == (5, 8, 15, 4)
    assert (np.isnan(drawn.latents).any((0, 3)) == beyond_end()).all()
    assert not np.allclose(drawn.latents[0, 0], drawn.latents[1, 0])
    np.testing.assert_array_equal(model.sequence(DATA, samples=5, seed=1).latents, drawn.latents)
    assert model.sequence(DATA)["wave"].sample(3).shape == (3, 8, 15, 2)


def test_imputation_fills_gaps_and_leaves_observations_untouched(model):
    filled = model.impute(DATA, samples=20)
    for name in DATA.names:
        assert filled.observed_fraction(name) == 1
        before, after = DATA.columns[name], filled.columns[name]
        np.testing.assert_array_equal(before.values[before.observed], after.values[before.observed])
    assert set(np.unique(filled.columns["switch"].values)) <= {0.0, 1.0}
    counts = filled.columns["count"].values
    assert (counts == np.round(counts)).all()
    assert (counts >= 0).all()
    assert filled.ids == DATA.ids


def test_imputation_can_add_a_modality_the_data_lack(model):
    filled = model.impute(DATA.keep("wave"), samples=20)
    assert filled.names == ("wave", "count", "switch", "label")
    assert filled.observed_fraction("label") == 1


def test_forecasts_continue_each_sequence_from_its_own_end(model):
    ahead = model.forecast(DATA, 4, samples=50, seed=3)
    assert ahead["wave"].mean.shape == (8, 4, 2)
    assert not np.isnan(ahead["wave"].mean).any()
    longer = model.smooth(DATA.extend(after=4), samples=50, seed=3)["wave"].mean
    for i, steps in enumerate(LENGTHS):
        np.testing.assert_array_equal(longer[i, steps : steps + 4], ahead["wave"].mean[i])
    assert ahead["label"].labels.shape == (8, 4)
    assert ahead["wave"].sample(6).shape == (6, 8, 4, 2)


def test_backcasts_precede_each_sequence(model):
    before = model.backcast(DATA, 3, samples=50, seed=3)
    assert before["wave"].mean.shape == (8, 3, 2)
    longer = model.smooth(DATA.extend(before=3), samples=50, seed=3)["wave"].mean
    np.testing.assert_array_equal(longer[:, :3], before["wave"].mean)


def test_extending_with_silence_changes_nothing_inside(model):
    inner = model.smooth(DATA.extend(before=2, after=3)).posterior.mean
    plain = model.smooth(DATA).posterior.mean
    for i, steps in enumerate(LENGTHS):
        np.testing.assert_allclose(inner[i, 2 : 2 + steps], plain[i, :steps], atol=1e-4)


def test_generation_uses_only_what_is_given(model):
    by_default = model.generate(DATA, ["wave"], samples=20)["wave"].mean
    hidden = model.smooth(DATA.hide("wave"), samples=20)["wave"].mean
    np.testing.assert_array_equal(by_default, hidden)
    from_label = model.generate(DATA, ["wave", "count"], ["label"], samples=20)
    only = model.smooth(DATA.keep("label"), samples=20)
    np.testing.assert_array_equal(from_label["wave"].mean, only["wave"].mean)
    with pytest.raises(ValueError, match="no modality 'sound'"):
        model.generate(DATA, ["sound"])


def test_classification_does_not_look_at_the_labels_it_predicts(model):
    found = model.classify(DATA, "label", samples=20)
    without = model.classify(DATA.hide("label"), "label", samples=20)
    np.testing.assert_array_equal(found.probabilities, without.probabilities)
    informed = model.classify(DATA, "label", ["wave", "label"], samples=20)
    assert not np.array_equal(informed.probabilities, found.probabilities)
    with pytest.raises(ValueError, match="'wave' has no categories"):
        model.classify(DATA, "wave")


def test_new_sequences_are_complete_and_repeatable(model):
    drawn = model.sample(5, 20, seed=2)
    assert len(drawn) == 5
    assert (drawn.lengths == 20).all()
    assert all(drawn.observed_fraction(name) == 1 for name in drawn.names)
    np.testing.assert_array_equal(drawn.padded("wave"), model.sample(5, 20, seed=2).padded("wave"))
    assert not np.array_equal(drawn.padded("wave"), model.sample(5, 20, seed=3).padded("wave"))
    model.score(drawn, samples=5)


def test_the_score_tightens_with_samples_and_adds_over_sequences(model):
    few = np.mean([model.score(DATA, samples=1, seed=s) for s in range(20)])
    many = np.mean([model.score(DATA, samples=50, seed=s) for s in range(5)])
    assert many > few
    each = model.score_sequences(DATA, samples=10)
    assert each.shape == (8,)
    assert model.score(DATA, samples=10) == pytest.approx(each.sum() / DATA.rows)


def test_nothing_observed_scores_zero(model):
    hidden = DATA.hide(*DATA.names)
    np.testing.assert_allclose(model.score_sequences(hidden, samples=5), 0, atol=1e-4)


def test_results_come_back_in_the_users_units():
    """Data measured in other units give the same model and correspondingly scaled results."""
    plain = MDMM(declare(), 4, 8).fit(DATA, training=QUICK, progress=False)
    other = make_data(scale=1000.0, shift=50.0)
    scaled = MDMM(declare(), 4, 8).fit(other, training=QUICK, progress=False)
    mine, theirs = plain.smooth(DATA, samples=50)["wave"], scaled.smooth(other, samples=50)["wave"]
    np.testing.assert_allclose(theirs.mean, mine.mean * 1000 + 50, rtol=1e-2, atol=20)
    np.testing.assert_allclose(theirs.std, mine.std * 1000, rtol=2e-2)
    seen = DATA.columns["wave"].observed.sum()
    difference = (plain.score(DATA) - scaled.score(other)) * DATA.rows
    assert difference == pytest.approx(seen * np.log(1000), rel=1e-2)


def test_a_fit_starts_from_scratch_and_repeats():
    encoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
    declared = [Modality("wave", 2, encoder=encoder)]
    data = DATA.keep("wave")
    before = [p.clone() for p in encoder.parameters()]
    model = MDMM(declared, 2, 4)
    first = model.fit(data, training=QUICK, progress=False).score(data)
    again = model.fit(data, training=QUICK, progress=False).score(data)
    assert first == again
    for old, new in zip(before, encoder.parameters(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("how", ["augment", "corrupt"])
def test_a_fit_changes_batches_in_the_user_s_units(how):
    data = make_data(scale=1000.0, shift=5000.0)
    training = replace(QUICK, polish=0.0)  # which corrupts in a way of its own
    seen = []

    def watch(batch, generator):
        seen.append(batch)
        return batch

    def fit(change):
        model = MDMM(declare(), 2, 4)
        return model.fit(data, training=training, progress=False, **{how: change})

    watched, plain, hidden = fit(watch), fit(None), fit(lambda batch, _: batch.hide("wave"))
    for name in data.names:
        shown = np.concatenate([batch.columns[name].values for batch in seen])
        observed = np.concatenate([batch.columns[name].observed for batch in seen])
        column = data.columns[name]
        wanted = np.sort(column.values[column.observed])
        np.testing.assert_allclose(np.sort(shown[observed])[:: QUICK.epochs], wanted, rtol=1e-9)
    assert watched.score(data) == pytest.approx(plain.score(data), rel=1e-4)
    assert hidden.score(data) < plain.score(data)


def test_a_refused_fit_leaves_the_model_as_it_was(tmp_path):
    model = MDMM(declare(), 2, 4).fit(DATA, training=QUICK, progress=False)
    before = model.score(DATA)
    with pytest.raises(FileNotFoundError):
        model.fit(DATA, directory=tmp_path, resume=True, progress=False)
    with pytest.raises(DataError):
        model.fit({"sound": [[1.0]]}, progress=False)
    assert model.score(DATA) == before


def test_an_interrupted_fit_can_be_used_and_resumed(tmp_path, monkeypatch):
    """Ctrl-C in the middle: the model answers, and the resumed fit equals a whole one."""
    whole = MDMM(declare(), 2, 4).fit(DATA, training=QUICK, progress=False)
    finish, calls = Trainer._finish_epoch, []

    def interrupt(trainer):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return finish(trainer)

    monkeypatch.setattr(Trainer, "_finish_epoch", interrupt)
    model = MDMM(declare(), 2, 4)
    with pytest.raises(KeyboardInterrupt):
        model.fit(DATA, training=QUICK, directory=tmp_path, progress=False)
    assert len(model.history) == 3
    model.impute(DATA, samples=2)
    model.fit(DATA, training=QUICK, directory=tmp_path, resume=True, progress=False)
    assert model.score(DATA) == whole.score(DATA)


def test_plain_arrays_are_as_good_as_sequences(model):
    arrays = {name: DATA.arrays(name) for name in ("wave", "count", "switch", "label")}
    np.testing.assert_array_equal(
        model.smooth(arrays, samples=5)["wave"].mean, model.smooth(DATA, samples=5)["wave"].mean
    )


def test_large_requests_are_walked_in_pieces(model, monkeypatch):
    """How sequences are grouped into batches does not change the posterior."""
    import weft.simulators

    whole = model.smooth(DATA, samples=10).posterior.mean
    monkeypatch.setattr(weft.simulators, "ROWS", 20)
    pieces = model.smooth(DATA, samples=10)
    np.testing.assert_allclose(pieces.posterior.mean, whole, atol=1e-5)
    assert pieces["wave"].mean.shape == (8, 15, 2)


def test_memory_does_not_grow_with_steps_times_trajectories():
    """2,000 trajectories of 1,500 steps and 16 states would fill 192 MB for each thing kept."""
    script = """
import resource
import numpy as np
import weft

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
model = weft.MDMM([weft.Modality("x")], latent=16, hidden=8)
quick = weft.TrainingConfig(epochs=1)
model.fit({"x": np.zeros((2, 5))}, training=quick, progress=False)
short, long = ({"x": [np.where(np.arange(n) % 2, 1.0, np.nan)]} for n in (30, 1500))
ask = lambda data: (model.smooth(data, samples=2000)["x"].std, model.score(data, samples=2000))
ask(short)
before = peak()
ask(long)
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert float(done.stdout) < 60


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.smooth(DATA),
        lambda m: m.filter(DATA),
        lambda m: m.impute(DATA),
        lambda m: m.forecast(DATA, 2),
        lambda m: m.score(DATA),
        lambda m: m.sample(2, 3),
        lambda m: m.save("nowhere"),
    ],
)
def test_an_unfitted_model_says_so(call):
    with pytest.raises(NotFittedError, match="Call fit"):
        call(MDMM(declare(), 2, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.smooth({"sound": [[1.0]]}), DataError, "'sound', which is unknown"),
        (lambda m: m.filter(DATA, direction="up"), ValueError, "not 'up'"),
        (lambda m: m.forecast(DATA, 0), DataError, "At least one step"),
        (lambda m: m.smooth(DATA)["label"].mean, ValueError, "categorical and has no mean"),
        (lambda m: m.smooth(DATA)["label"].quantile(0.5), ValueError, "has no quantiles"),
        (lambda m: m.smooth(DATA)["wave"].probabilities, ValueError, "has no categories"),
    ],
)
def test_impossible_questions_are_refused(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)

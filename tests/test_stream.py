"""A stream is the forward filter, one step at a time, in the user's units."""

import numpy as np
import pytest
import torch

import weft
from tests.linear_gaussian import LinearGaussian
from tests.verbs import MODALITIES, declare, random_data
from weft import (
    MDMM,
    Bernoulli,
    DataError,
    FileError,
    Modality,
    MonteCarlo,
    NotFittedError,
    Poisson,
    Sequences,
    TrainingConfig,
)
from weft.arrivals import read_step
from weft.particles import Cubature
from weft.scaling import Scaling

FORWARD = ["bfvi", "f-mask", "f-skip", "f-mask-direct", "f-skip-direct"]
every_method = pytest.mark.parametrize("method", FORWARD)
ONE_EPOCH = TrainingConfig(epochs=1)
NAN, INF = float("nan"), float("inf")


def make(method="bfvi", particles=Cubature(), seed=0, contexts=(0, 0)):
    """A model in double precision with weights and units away from where they start.

    ``contexts`` are steps that the encoders of scalar and vector see before their own.
    """
    data = random_data(seed, missing=0.3)
    scalar, vector = contexts
    modalities = [
        Modality("scalar", context=scalar),
        Modality("vector", 3, context=vector),
        declare(["label"])[0],
    ]
    model = MDMM(modalities, 3, 6, inference=method, particles=particles)
    model.fit(data, training=ONE_EPOCH, seed=seed, progress=False)
    shaken = torch.Generator().manual_seed(seed)
    module = model.module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=shaken).double())
    return model


def gappy(seed=1, lengths=(12, 12, 12, 12)):
    """Sequences with gaps in everything at once: at first, within, and throughout the last."""
    data = random_data(seed, lengths, missing=0.4)
    step, sequence = data.step_of_row, data.sequence_of_row
    silent = (step < 2 * sequence) | ((step >= 7) & (step < 10)) | (sequence == 3)
    return data.delete(dict.fromkeys(MODALITIES, silent))


def step_of(data, t, sequences=slice(None)):
    """What a stream is given at step t."""
    return {name: data.padded(name)[sequences, t] for name in MODALITIES}


def follow(stream, data, steps, sequences=slice(None)):
    """Means and standard deviations ``(2, stream, time, latent)`` along the data."""
    found = [stream.update(step_of(data, t, sequences)) for t in steps]
    return np.stack([[s.mean for s in found], [s.std for s in found]]).swapaxes(1, 2)


# Equality with the batch


@pytest.mark.parametrize("contexts", [(0, 0), (2, 0), (1, 4)])
@every_method
def test_every_step_equals_the_batch_filter(method, contexts):
    model, data = make(method, contexts=contexts), gappy()
    batch = model.filter(data).posterior
    found = follow(model.stream(4), data, range(12))
    np.testing.assert_allclose(found, [batch.mean, batch.std], atol=1e-6, rtol=0)


@every_method
def test_the_state_is_what_all_of_the_past_says(method):
    """What comes later plays no part, not even that something does."""
    model, data = make(method), gappy()
    stream = model.stream(4)
    for t in range(12):
        state = stream.update(step_of(data, t))
        arrays = {name: data.padded(name)[:, : t + 1] for name in MODALITIES}
        past = Sequences.from_arrays(arrays, categories={"label": ["a", "b", "c"]})
        last = model.smooth(past).posterior
        np.testing.assert_allclose(state.mean, last.mean[:, -1], atol=1e-6)
        np.testing.assert_allclose(state.std, last.std[:, -1], atol=1e-6)


@every_method
def test_streams_side_by_side_equal_single_ones(method):
    model, data = make(method), gappy()
    together = follow(model.stream(4), data, range(12))
    for i in range(4):
        alone = follow(model.stream(), data, range(12), slice(i, i + 1))
        np.testing.assert_allclose(together[:, i : i + 1], alone, atol=1e-9)


def test_a_stream_that_has_seen_nothing_knows_the_prior():
    model = make()
    stream, prior = model.stream(2), model.module.model.prior()
    for _ in range(5):
        state = stream.update({})
        np.testing.assert_allclose(state.mean, prior.mean.detach().expand(2, -1), atol=1e-12)
        np.testing.assert_allclose(state.std, prior.std.detach().expand(2, -1), atol=1e-12)
    assert stream.steps == 5


def test_single_precision_follows_the_batch_filter_too():
    model, data = make(), gappy()
    model.module.float()
    batch = model.filter(data).posterior
    found = follow(model.stream(4), data, range(12))
    np.testing.assert_allclose(found, [batch.mean, batch.std], atol=1e-4)


def test_a_large_model_runs_without_the_compiled_scan():
    model = MDMM([Modality("x")], latent=4, hidden=70)
    values = np.random.default_rng(0).normal(size=(2, 6))
    model.fit({"x": values}, training=ONE_EPOCH, progress=False).module.double()
    stream = model.stream(2)
    means = np.stack([stream.update({"x": values[:, t]}).mean for t in range(6)], 1)
    np.testing.assert_allclose(means, model.filter({"x": values}).posterior.mean, atol=1e-6)


# Predictions


def test_predictions_of_the_current_step_are_those_of_the_filter():
    samples = 4000
    model, data = make(), gappy()
    filtered = model.filter(data, samples=samples)
    stream = model.stream(4, samples=samples, seed=5)
    for t in range(12):
        stream.update(step_of(data, t))
        now = stream.predict()
        for name in ("scalar", "vector"):
            wanted = filtered[name]
            error = wanted.std[:, t] * np.sqrt(2 / samples)
            assert now[name].mean.shape == (4, 1, *wanted.mean.shape[2:])
            assert (np.abs(now[name].mean[:, 0] - wanted.mean[:, t]) < 5 * error).all()
            np.testing.assert_allclose(now[name].std[:, 0], wanted.std[:, t], rtol=0.1)
        error = 0.5 * np.sqrt(2 / samples)  # of a mean of numbers between 0 and 1
        difference = now["label"].probabilities[:, 0] - filtered["label"].probabilities[:, t]
        assert (np.abs(difference) < 5 * error).all()


def linear_model():
    """A stationary linear-Gaussian process as a fitted model, its data and its oracle."""
    oracle = LinearGaussian.random(3, latent=2, modalities=2)
    data = oracle.simulate(4, [10, 10, 10], missing=0.4)
    model = MDMM([Modality(name, 2) for name in oracle.names], 2, 4)
    model._module, model._scaling = oracle.module(), Scaling({})
    return model, data, oracle


def test_for_linear_models_states_and_predictions_are_exact():
    samples, ahead = 20_000, 4
    model, data, oracle = linear_model()
    stream = model.stream(3, samples=samples)
    for t in range(10):
        state = stream.update({name: data.padded(name)[:, t] for name in oracle.names})
        for i in range(3):
            mean, variance = oracle.filtered(data, i, backward=False)
            np.testing.assert_allclose(state.mean[i], mean[t], atol=1e-9)
            np.testing.assert_allclose(state.std[i] ** 2, variance[t], atol=1e-9)
    found = stream.predict(steps=ahead)
    forecast = model.forecast(data, ahead, samples=samples)
    longer = data.extend(after=ahead)
    for m, name in enumerate(oracle.names):
        assert found[name].mean.shape == (3, ahead, 2)
        for i in range(3):
            mean, variance = (x[10:] for x in oracle.marginals(longer, i))
            std = np.sqrt(oracle.gain[m] ** 2 * variance + oracle.noise[m])
            error = 5 * std / np.sqrt(samples)
            wanted = oracle.gain[m] * mean + oracle.offset[m]
            assert (np.abs(found[name].mean[i] - wanted) < error).all()
            assert (np.abs(forecast[name].mean[i] - wanted) < error).all()
            np.testing.assert_allclose(found[name].std[i], std, rtol=5 / np.sqrt(2 * samples))


@every_method
def test_predicting_ahead_is_updating_with_nothing(method):
    """One step ahead, as far as a Gaussian message can tell."""
    samples = 4000
    model, data = make(method), gappy()
    stream = model.stream(3, samples=samples)
    follow(stream, data, range(7), slice(3))
    ahead = stream.predict(steps=1)["vector"]
    stream.update({})
    now = stream.predict()["vector"]
    error = 5 * now.std * np.sqrt(2 / samples)
    assert (np.abs(ahead.mean - now.mean) < error + 0.02 * now.std).all()
    np.testing.assert_allclose(ahead.std, now.std, rtol=0.1)


def test_predictions_stay_what_they_were_when_the_stream_goes_on():
    model, data = make(), gappy()
    one, other = model.stream(4), model.stream(4)
    for stream in (one, other):
        follow(stream, data, range(5))
    kept = one.predict(steps=3)
    one.update(step_of(data, 5))
    for name in ("scalar", "vector"):
        np.testing.assert_array_equal(kept[name].mean, other.predict(steps=3)[name].mean)
        assert kept[name].quantile(0.9).shape == (4, 3, *kept[name].modality.shape)
        assert kept[name].sample(6).shape == (6, 4, 3, *kept[name].modality.shape)
    assert kept["label"].labels.shape == (4, 3)
    assert set(kept["label"].labels.flat) <= {"a", "b", "c"}


def test_many_streams_are_predicted_in_pieces(monkeypatch):
    model, data = make(), gappy()
    stream = model.stream(4, samples=2000)
    follow(stream, data, range(5))
    whole = stream.predict(steps=2)["scalar"]
    monkeypatch.setattr("weft.streaming.ROWS", 2000)
    pieces = stream.predict(steps=2)["scalar"]
    error = whole.std * np.sqrt(2 / 2000)
    assert (np.abs(pieces.mean - whole.mean) < 5 * error).all()


# What is given


def test_values_come_in_many_forms():
    model = make()

    def after(values, count=1):
        return model.stream(count).update(values).mean

    plain = after({"scalar": 0.3, "vector": [0.1, NAN, 2.0], "label": "b"})
    for same in (
        {"scalar": [0.3], "vector": (0.1, None, 2.0), "label": ["b"]},
        {"scalar": [[0.3]], "vector": np.array([[0.1, NAN, 2.0]]), "label": np.array("b")},
        {"scalar": np.float64(0.3), "vector": torch.tensor([0.1, NAN, 2.0]).double(), "label": 1},
        {"scalar": 0.3, "vector": np.ma.masked_values([0.1, 9.0, 2.0], 9.0), "label": "b"},
    ):
        np.testing.assert_allclose(after(same), plain, atol=1e-7)
    nothing = after({})
    for empty in (
        {"scalar": None, "label": None},
        {"scalar": NAN, "vector": [NAN] * 3, "label": NAN},
        {"vector": [None] * 3, "label": [None]},
    ):
        np.testing.assert_array_equal(after(empty), nothing)
    several = after(
        {"vector": [None, [0.1, NAN, 2.0]], "label": [None, "b"], "scalar": [NAN, 0.3]}, 2
    )
    np.testing.assert_allclose(several, np.concatenate([nothing, plain]), atol=1e-12)


def fields():
    declared = [
        Modality("x"),
        Modality("v", 3),
        Modality("n", likelihood=Poisson()),
        Modality("on", likelihood=Bernoulli()),
        Modality("kind", categories=["a", "b"]),
        Modality("grade", categories=[1, 2]),
    ]
    return {modality.name: modality.field for modality in declared}


BAD = [
    ({"sound": [1, 2]}, ["'sound'", "unknown", "step 7", "'x'"]),
    ({"x": 1.0}, ["'x'", r"\(\)", "step 7", r"\(2, 1\)"]),
    ({"x": [1.0, 2.0, 3.0]}, ["'x'", r"\(3,\)", "step 7", "2 streams"]),
    ({"v": [1.0, 2.0, 3.0]}, ["'v'", r"\(3,\)", r"\(2, 3\)"]),
    ({"v": [[1.0, 2.0, 3.0], [1.0, 2.0]]}, ["'v'", "unequal shape", "step 7"]),
    ({"v": [None, [1.0, 2.0]]}, ["'v'", "unequal shape", "step 7"]),
    ({"v": [[1.0, 2.0, 3.0], [1.0, INF, 3.0]]}, ["'v'", "infinite", "stream 1, step 7"]),
    ({"n": [1.0, INF]}, ["'n'", "infinite", "stream 1, step 7"]),
    ({"n": [1.0, 2.5]}, ["'n'", "2.5", "stream 1, step 7", "whole number"]),
    ({"on": [1, 2]}, ["'on'", "2", "stream 1, step 7", "0 or 1"]),
    ({"x": [1.0, "much"]}, ["'x'", "'much'", "stream 1, step 7", "no number"]),
    ({"x": ["1.0", "2.0"]}, ["'x'", "'1.0'", "stream 0, step 7", "no number"]),
    ({"x": [1.0, {}]}, ["'x'", "{}", "stream 1, step 7", "no number"]),
    ({"x": np.array(["2020-01-01"] * 2, "datetime64[D]")}, ["'x'", "datetime64", "step 7"]),
    ({"x": [1j, 2j]}, ["'x'", "complex", "step 7"]),
    ({"kind": ["a", "c"]}, ["'kind'", "'c'", "stream 1, step 7", "'a', 'b'"]),
    ({"kind": ["a", {}]}, ["'kind'", "{}", "stream 1, step 7"]),
    ({"kind": [0, 2]}, ["'kind'", "2", "stream 1, step 7", "codes 0 to 1"]),
    ({"kind": [0.5, 1]}, ["'kind'", "0.5", "stream 0, step 7"]),
    ({"kind": "a"}, ["'kind'", r"\(\)", r"\(2,\)"]),
    ({"grade": [1, 0]}, ["'grade'", "0", "stream 1, step 7"]),
    ({"grade": ["1", 2]}, ["'grade'", "'1'", "stream 0, step 7"]),
]


@pytest.mark.parametrize(("values", "words"), BAD, ids=[str(values) for values, _ in BAD])
def test_bad_values_are_refused_in_a_sentence(values, words):
    with pytest.raises(DataError, match=words[0]) as refused:
        read_step(values, fields(), 2, 7)
    for word in words:
        assert refused.match(word)


def test_a_refused_update_leaves_the_streams_as_they_were():
    model, data = make(), gappy()
    stream = model.stream(4)
    follow(stream, data, range(3))
    before = stream.predict()["scalar"].mean
    for values in ({"sound": [1.0] * 4}, {"scalar": [0.0, 0.0, 0.0, INF], "label": ["a"] * 4}):
        with pytest.raises(DataError, match="step 3"):
            stream.update(values)
    assert stream.steps == 3
    np.testing.assert_array_equal(stream.predict()["scalar"].mean, before)
    np.testing.assert_array_equal(
        stream.update(step_of(data, 3)).mean, follow(model.stream(4), data, range(4))[0, :, 3]
    )


def test_numbers_that_single_precision_cannot_hold_are_refused():
    model = make()
    model.module.float()
    stream = model.stream(2)
    with pytest.raises(DataError, match=r"'scalar'.*too large.*stream 1, step 0"):
        stream.update({"scalar": [0.0, 1e300]})
    with pytest.raises(DataError, match=r"step 0.*stream 1.*finite"):
        stream.update({"scalar": [0.0, 1e38]})
    assert stream.steps == 0


# Files


@pytest.mark.parametrize(
    ("particles", "contexts"), [(Cubature(), (0, 0)), (MonteCarlo(5), (0, 0)), (Cubature(), (3, 9))]
)
@every_method
def test_restored_streams_go_on_to_the_same_numbers(method, particles, contexts, tmp_path):
    model, data = make(method, particles, contexts=contexts), gappy()
    stream = model.stream(4, samples=20, seed=3)
    follow(stream, data, range(5))
    stream.save(tmp_path / "streams")
    restored = model.restore_stream(tmp_path / "streams")
    assert (restored.steps, restored.count, restored.samples, restored.seed) == (5, 4, 20, 3)
    np.testing.assert_array_equal(restored.state.mean, stream.state.mean)
    rest = range(5, 12)
    np.testing.assert_array_equal(follow(stream, data, rest), follow(restored, data, rest))
    for name in ("scalar", "vector"):
        one, other = (s.predict(steps=3)[name].mean for s in (stream, restored))
        np.testing.assert_array_equal(one, other)


def test_streams_of_a_saved_model_go_on_with_the_loaded_one(tmp_path):
    model, data = make(), gappy()
    model.module.float()
    stream = model.stream(4)
    follow(stream, data, range(5))
    model.save(tmp_path / "model")
    stream.save(tmp_path / "streams")
    restored = weft.load(tmp_path / "model").restore_stream(tmp_path / "streams")
    np.testing.assert_array_equal(
        follow(stream, data, range(5, 12)), follow(restored, data, range(5, 12))
    )


def test_streams_of_another_model_are_refused(tmp_path):
    path = tmp_path / "streams"
    model = make()
    model.stream(2).save(path)
    with pytest.raises(FileError, match=r"inference bfvi.*f-mask"):
        make("f-mask").restore_stream(path)
    with pytest.raises(FileError, match=r"fingerprint"):
        make(seed=1).restore_stream(path)
    larger = MDMM(declare(), 3, 7).fit(random_data(), training=ONE_EPOCH, progress=False)
    with pytest.raises(FileError, match=r"hidden 6.*7"):
        larger.restore_stream(path)
    model.particles = MonteCarlo(3)
    with pytest.raises(FileError, match=r"particles Cubature\(\).*MonteCarlo"):
        model.restore_stream(path)
    model.save(tmp_path / "model")
    with pytest.raises(FileError, match="holds a model, not a stream"):
        model.restore_stream(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no file"):
        model.restore_stream(tmp_path / "nowhere")


# Refusals


@pytest.mark.parametrize("method", ["b-mask", "b-skip"])
def test_methods_that_read_from_the_end_are_refused(method):
    model = MDMM(declare(), 2, 4, inference=method)
    model.fit(random_data(), training=ONE_EPOCH, progress=False)
    with pytest.raises(ValueError, match=rf"'{method}' reads .* cannot follow a stream"):
        model.stream()


def test_impossible_streams_are_refused():
    with pytest.raises(NotFittedError, match="Call fit"):
        MDMM(declare(), 2, 4).stream()
    model = make()
    with pytest.raises(ValueError, match="At least one stream"):
        model.stream(0)
    with pytest.raises(ValueError, match="0 or more steps"):
        model.stream().predict(steps=-1)

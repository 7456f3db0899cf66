"""Recurrent inference equals its plain form and knows only what it may know."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

import weft
from tests.test_invariances import assert_same
from tests.verbs import MODALITIES, VERBS, assert_same_gradients, declare, random_data
from weft import MDMM, Cubature, FileError, Modality, MonteCarlo, Pixels, TrainingConfig
from weft.inference import METHODS, Recurrent, build
from weft.model import MarkovModel
from weft.objective import Objective, ObjectiveConfig, Temperature
from weft.persistence import read_file, write_file

RECURRENT = [name for name in METHODS if name != "bfvi" and not name.endswith("-direct")]
EVERY_FORM = [(b, s, d) for b in (False, True) for s in (False, True) for d in (False, True)]
every_method = pytest.mark.parametrize("method", RECURRENT)
every_form = pytest.mark.parametrize(("backward", "skip", "direct"), EVERY_FORM)
every_verb = pytest.mark.parametrize("verb", ["forward filter", "smooth", "sequence"])

WEIGHTS = {"scalar": 1.0, "vector": 2.0, "label": 0.5}


def shake(module, seed=0):
    """Move every parameter, biases and initial states too, away from where it starts."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).double()
    return module


def make(method, seed=0, latent=3):
    torch.manual_seed(seed)
    return shake(build(method, declare(), latent, 6), seed)


def make_form(backward, skip, direct, latent=3):
    torch.manual_seed(0)
    modalities = declare()
    for modality in modalities:
        modality.weight = WEIGHTS[modality.name]
    return shake(Recurrent(modalities, latent, 6, backward=backward, skip=skip, direct=direct))


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


# Sizes


@every_method
def test_the_spirals_count_is_the_papers(method):
    module = build(method, [Modality("x"), Modality("y")], 5, 20)
    assert count(module) == 7124
    assert count(module.model) == 510 + 324
    assert count(module.encoders) == 80
    assert count(module.memory) == 5040 + 40
    assert count(module.combiner) == 920
    assert count(module.head) == 210


def test_the_weizmann_count_is_the_papers():
    modalities = [
        Modality("video", (3, 64, 64), likelihood=Pixels()),
        Modality("person", categories=10),
        Modality("action", categories=10),
    ]
    module = Recurrent(modalities, 256, 256, backward=True, skip=False, direct=True)
    assert count(module) == 7_494_183


def test_a_one_way_model_has_a_fixed_standard_prior_and_no_way_back():
    model = MarkovModel([Modality("x")], 3, 4, one_way=True)
    assert not any("prior" in name or "backward" in name for name, _ in model.named_parameters())
    torch.testing.assert_close(model.prior().mean, torch.zeros(3))
    torch.testing.assert_close(model.prior().std, torch.ones(3))
    with pytest.raises(ValueError, match="no backward transition"):
        model.step_backward(torch.zeros(3))


# The plain form


def plain_features(module, batch, given):
    """Features ``[modality][time]`` of one sequence; none where they are missing."""
    found = []
    for modality, encoder in zip(module.model.modalities, module.encoders, strict=True):
        name, steps = modality.name, []
        for t in range(batch.steps):
            seen = name in given and bool(batch.seen(name)[t, 0])
            values, observed = batch.values[name][t], batch.observed[name][t]
            steps.append(encoder(modality.encoder_input(values, observed))[0] if seen else None)
        found.append(steps)
    return found


def plain_chain(module, batch, given, noise):
    """One sequence, one step at a time: states, posteriors and priors of each."""
    steps = range(batch.steps)
    features = plain_features(module, batch, given)
    filled, hidden = [], []
    for m, (cell, width) in enumerate(zip(module.memory.cells, module.widths, strict=True)):
        assert isinstance(cell, nn.GRUCell)
        nothing = torch.zeros(width, dtype=torch.float64)
        filled.append([nothing if f is None else f for f in features[m]])
        state, states = module.memory.initial[m], {}
        for t in reversed(steps) if module.backward else steps:
            if features[m][t] is not None or not module.skip:
                state = cell(filled[m][t][None], state[None])[0]
            states[t] = state
        hidden.append(states)
    last = max((t for t in steps for f in features if f[t] is not None), default=-1)
    prior = module.model.prior()
    z, path = prior.mean, []
    for t in steps:
        before = prior if t == 0 else module.model.step_forward(z)
        prior_t = Normal(before.mean, before.std)
        posterior_t = prior_t
        if t <= last:
            parts = [z, *(states[t] for states in hidden)]
            if module.direct:
                parts += [f[t] for f in filled]
            layer = torch.relu(module.combiner(torch.cat(parts)))
            std = F.softplus(module.head.spread(layer)) + 0.001
            posterior_t = Normal(module.head.mean(layer), std)
        z = posterior_t.mean + posterior_t.stddev * noise[t]
        path.append((z, posterior_t, prior_t))
    return path


def plain_loss(module, inputs, target, subsets, noise, beta):
    total = torch.zeros((), dtype=torch.float64)
    for b in range(len(inputs)):
        given, scored = module.batch(inputs[b]), module.batch(target[b])
        for s, subset in enumerate(subsets):
            path = plain_chain(module, given, subset, noise[:, s, b])
            for t, (z, posterior, prior) in enumerate(path):
                total = total + beta * kl_divergence(posterior, prior).sum()
                for name in subset:
                    value, observed = scored.values[name][t], scored.observed[name][t]
                    score = module.model.log_prob(name, z[None], value, observed)
                    total = total - WEIGHTS[name] * score[0]
    return total / int(target.lengths.sum())


@every_form
@pytest.mark.parametrize("each_alone", [None, True])
def test_value_and_gradients_equal_the_plain_form(backward, skip, direct, each_alone):
    module = make_form(backward, skip, direct)
    target = random_data(1, lengths=(6, 3, 1, 5), missing=0.4)
    late = target.step_of_row >= 4  # the longest sequence ends in silence
    inputs = target.delete(dict.fromkeys(MODALITIES, late))
    subsets = [MODALITIES] + [[name] for name in MODALITIES if each_alone]
    loss = Objective(module, ObjectiveConfig(each_alone=each_alone))(
        module.batch(inputs),
        torch.Generator().manual_seed(7),
        module.batch(target),
        Temperature(0.3),
    )
    noise = torch.randn(
        (1, 6, len(subsets), 4, 3),
        generator=torch.Generator().manual_seed(7),
        dtype=torch.float64,
    )
    plain = plain_loss(module, inputs, target, subsets, noise[0], 0.3)
    torch.testing.assert_close(loss.total, plain, rtol=1e-9, atol=1e-9)
    assert_same_gradients(module, loss.total, plain, rtol=1e-7, atol=1e-9)


@every_method
def test_walking_equals_drawing_at_once(method, monkeypatch):
    monkeypatch.setattr("weft.inference.recursions.STRETCH", 50)
    module = make(method)
    guide = module.guide(module.batch(random_data(2)), subsets=[MODALITIES, ["label"]])
    noise = MonteCarlo(2).noise(torch.zeros(guide.shape).double(), torch.Generator().manual_seed(0))
    whole = guide.sequence(noise)
    steps = list(guide.walk(noise.unbind(1)))
    torch.testing.assert_close(torch.stack([s.latents for s in steps], 1), whole.latents)
    assert_same(weft.Gaussian.stack([s.posterior for s in steps], 1), whole.posterior)
    assert_same(weft.Gaussian.stack([s.prior for s in steps], 1), whole.prior)


# What must not change the answer


@every_method
@every_verb
def test_padding_and_batch_order_change_nothing(method, verb):
    module, data = make(method), random_data(3)
    together = VERBS[verb](module, module.batch(data))
    for b, steps in enumerate(data.lengths):
        alone = VERBS[verb](module, module.batch(data[b]))
        assert_same(together[:steps, :, b : b + 1], alone)
    permuted = VERBS[verb](module, module.batch(data[[2, 0, 1]]))
    assert_same(together[:, :, [2, 0, 1]], permuted)


@every_method
@every_verb
def test_subsets_in_one_pass_equal_separate_passes_and_absent_modalities(method, verb):
    module, data = make(method), random_data(4)
    subsets = [MODALITIES, ["scalar"], ["vector", "label"], []]
    together = VERBS[verb](module, module.batch(data), subsets=subsets)
    for s, subset in enumerate(subsets):
        here = together[:, s : s + 1]
        assert_same(here, VERBS[verb](module, module.batch(data), subsets=[subset]))
        hidden = data.hide(*(name for name in MODALITIES if name not in subset))
        assert_same(here, VERBS[verb](module, module.batch(hidden)))
        if subset:
            assert_same(here, VERBS[verb](module, module.batch(data.keep(*subset))))


@pytest.mark.parametrize("way", ["f", "b"])
def test_mask_and_skip_differ_only_where_something_is_missing(way):
    mask, skip = make(f"{way}-mask"), make(f"{way}-skip")
    skip.load_state_dict(mask.state_dict())
    complete, holes = random_data(5, missing=0.0), random_data(5, missing=0.4)

    def difference(data):
        one, other = (m.guide(m.batch(data)).context for m in (mask, skip))
        inside = mask.batch(data).valid
        return (one - other).abs().amax((1, 3))[inside]

    assert difference(complete).max() < 1e-12
    assert difference(holes).max() > 1e-3


# Who knows what


@pytest.mark.parametrize("method", ["f-mask", "f-skip"])
def test_forward_methods_do_not_depend_on_the_future(method):
    module = make(method)
    data, other = random_data(6, (8,), 0.3), random_data(7, (8,), 0.3)
    late = data.step_of_row >= 5
    spliced = _splice(data, other, late)
    noise = MonteCarlo(2).noise(torch.zeros(8, 1, 1, 3).double(), torch.Generator().manual_seed(0))
    one, two = (module.guide(module.batch(d)).sequence(noise) for d in (data, spliced))
    assert_same(one.posterior[:, :5], two.posterior[:, :5])
    assert not torch.allclose(one.posterior.precision[:, 5:], two.posterior.precision[:, 5:])


@pytest.mark.parametrize("method", ["b-mask", "b-skip"])
def test_backward_methods_need_only_the_previous_state_of_the_past(method):
    """Given the state at step 4, what follows does not depend on earlier observations."""
    module = make(method)
    data, other = random_data(6, (8,), 0.3), random_data(7, (8,), 0.3)
    spliced = _splice(data, other, data.step_of_row < 5)
    one, two = (module.guide(module.batch(d)).context for d in (data, spliced))
    torch.testing.assert_close(one[5:], two[5:])
    assert not torch.allclose(one[:5], two[:5])


def _splice(data, other, chosen):
    """Rows of another data set where chosen."""
    arrays = {}
    for name in data.names:
        mine, theirs = data.arrays(name)[0], other.arrays(name)[0]
        shape = (-1, *(1,) * (mine.ndim - 1))
        arrays[name] = [np.where(chosen.reshape(shape), theirs, mine)]
    return weft.Sequences.from_arrays(arrays, categories={"label": ["a", "b", "c"]})


@every_method
def test_the_filter_knows_the_past_only_and_predicts_from_it(method):
    module, data = make(method), random_data(8, lengths=(6, 4))
    data = data.delete(dict.fromkeys(MODALITIES, data.step_of_row == 2))
    found = module.filter(module.batch(data))
    for t in range(6):
        arrays = {name: [x[: t + 1] for x in data.arrays(name)] for name in MODALITIES}
        past = weft.Sequences.from_arrays(arrays, categories={"label": ["a", "b", "c"]})
        knowing = module.smooth(module.batch(past)).posterior
        inside = torch.tensor(data.lengths > t)
        assert_same(found.posterior[t, 0, inside], knowing[t, 0, inside])
    noise = Cubature().noise(found.posterior.precision[:-1])
    ahead = module.model.step_forward(found.posterior[:-1].at(noise)).moment_match()
    assert_same(found.message[1:], ahead)
    assert_same(found.message[0], module.model.prior().expand(1, 2, 3))


@every_method
@pytest.mark.parametrize("samples", [0, 3])
def test_after_the_last_observation_the_posterior_is_the_transition(method, samples):
    module, data = make(method), random_data(9, (9, 7), missing=0.0)
    data = data.delete({"scalar": data.step_of_row >= 3, "vector": data.step_of_row >= 5})
    data = data.hide("label")
    found = module.sequence(
        module.batch(data), samples=samples, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(found.posterior.precision[:, 5:], found.prior.precision[:, 5:])
    assert torch.equal(found.posterior.information[:, 5:], found.prior.information[:, 5:])
    assert_same(found.prior[:, 1:], module.model.step_forward(found.latents[:, :-1]))
    assert not (found.posterior.precision == found.prior.precision)[:, :5].any()


@every_method
@pytest.mark.parametrize("samples", [0, 3])
def test_nothing_observed_gives_the_prior_and_its_transitions(method, samples):
    module = make(method)
    batch = module.batch(random_data(missing=1.0))
    found = module.sequence(batch, samples=samples, generator=torch.Generator().manual_seed(0))
    assert_same(found.posterior, found.prior)
    prior = module.model.prior()
    assert_same(found.posterior[:, 0], prior.expand(*found.posterior[:, 0].shape))
    assert_same(found.posterior[:, 1:], module.model.step_forward(found.latents[:, :-1]))
    expected = prior.expand(1, 3, 3)
    for step in module.smooth(batch).posterior.unbind():
        assert_same(step, expected)
        expected = module.model.step_forward(expected.at(Cubature().noise(expected.precision)))
        expected = expected.moment_match()


@every_method
def test_marginals_are_those_of_many_trajectories(method):
    """Matched moments come close to the mixture over trajectories, which they approximate."""
    module = make(method)
    batch = module.batch(random_data(10))
    drawn = module.sequence(batch, samples=4000, generator=torch.Generator().manual_seed(0))
    mixture, found = drawn.posterior.moment_match(), module.smooth(batch).posterior
    assert ((found.mean - mixture.mean) / mixture.std).abs().max() < 0.15
    assert (found.std / mixture.std).log().abs().max() < 0.15


# The objective


@every_method
def test_the_only_chain_has_weight_one_throughout(method):
    module = make(method)
    batch = module.batch(random_data(11))

    def loss(config, temperature):
        return Objective(module, config)(
            batch, torch.Generator().manual_seed(0), temperature=temperature
        )

    plain = loss(ObjectiveConfig(), Temperature())
    weighed = loss(ObjectiveConfig(filter_weight=0.2, smooth_weight=0.8), Temperature(1.0, 0.0))
    assert plain.total == weighed.total
    chain = "smooth" if method.startswith("b") else "filter"
    names = {f"kl/{chain}", *(f"nll/{chain}/{name}" for name in MODALITIES)}
    assert set(plain.terms) == names
    torch.testing.assert_close(plain.total, sum(plain.terms.values()))


# Through the estimator


QUICK = TrainingConfig(epochs=2, batch_size=3, anneal=0.5)
DATA = random_data(12, lengths=(7, 4, 9, 6, 5), missing=0.3)


@pytest.fixture(scope="module", params=RECURRENT)
def fitted(request):
    model = MDMM(declare(), latent=3, hidden=6, inference=request.param)
    return model.fit(DATA, validation=DATA, training=QUICK, progress=False)


def test_every_verb_runs(fitted):
    steps = (5, 9)
    for found in (fitted.filter(DATA, samples=5), fitted.smooth(DATA, samples=5)):
        assert found.posterior.mean.shape == (*steps, 3)
        assert found["vector"].mean.shape == (*steps, 3)
        assert (found.posterior.std[0, :7] > 0).all()
    assert fitted.sequence(DATA).latents.shape == (1, *steps, 3)
    assert fitted.sequence(DATA, samples=4)["vector"].sample(4).shape == (4, *steps, 3)
    assert fitted.impute(DATA, samples=5).observed_fraction("label") == 1
    assert fitted.forecast(DATA, 4, samples=5)["scalar"].mean.shape == (5, 4, 1)
    assert fitted.backcast(DATA, 2, samples=5)["scalar"].quantile(0.5).shape == (5, 2, 1)
    assert fitted.generate(DATA, ["vector"], samples=5)["vector"].std.shape == (*steps, 3)
    assert fitted.classify(DATA, "label", samples=5).probabilities.shape == (*steps, 3)
    assert fitted.sample(2, 6).lengths.tolist() == [6, 6]
    assert np.isfinite(fitted.score(DATA, samples=5))
    assert len(fitted.history) == 2


def test_more_trajectories_tighten_the_bound(fitted):
    assert fitted.score(DATA, samples=400) > fitted.score(DATA, samples=1)


def test_a_backward_filter_is_refused_in_a_sentence(fitted):
    with pytest.raises(ValueError, match="cannot filter backward"):
        fitted.filter(DATA, direction="backward")


def test_files_keep_the_method_and_every_bit(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = weft.load(tmp_path / "model")
    assert loaded.inference == fitted.inference == loaded.module.name
    for name, tensor in fitted.module.state_dict().items():
        assert torch.equal(tensor, loaded.module.state_dict()[name])
    for name in ("scalar", "vector"):
        mine, theirs = (m.smooth(DATA, samples=5)[name].mean for m in (fitted, loaded))
        np.testing.assert_array_equal(mine, theirs)


def test_files_without_a_method_are_of_the_first_one(tmp_path):
    model = MDMM(declare(), latent=2, hidden=4).fit(DATA, training=QUICK, progress=False)
    model.save(tmp_path / "new")
    stored = read_file(tmp_path / "new", "model")
    header = {key: value for key, value in stored.header.items() if key != "inference"}
    write_file(tmp_path / "old", "model", header, stored.tensors)
    loaded = weft.load(tmp_path / "old")
    assert loaded.inference == "bfvi"
    np.testing.assert_array_equal(loaded.sequence(DATA).latents, model.sequence(DATA).latents)
    write_file(tmp_path / "odd", "model", {**header, "inference": "magic"}, stored.tensors)
    with pytest.raises(FileError, match="'magic', which this version does not have"):
        weft.load(tmp_path / "odd")


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="no inference method 'c-mask'; there are bfvi, f-mask"):
        MDMM(declare(), inference="c-mask")


def test_a_run_resumes_only_with_its_own_method(tmp_path):
    def fit(method, resume):
        model = MDMM(declare(), latent=2, hidden=4, inference=method)
        model.fit(DATA, training=QUICK, directory=tmp_path, resume=resume, progress=False)

    fit("b-mask", resume=False)
    with pytest.raises(FileError, match="made with inference b-mask, but this run has b-skip"):
        fit("b-skip", resume=True)


@every_method
def test_training_lowers_the_loss(method):
    steps = np.arange(20)
    waves = [np.sin(0.5 * steps + phase) for phase in np.linspace(0, 6, 12)]
    model = MDMM([Modality("wave")], latent=2, hidden=16, inference=method)
    training = TrainingConfig(epochs=60, batch_size=12, learning_rate=0.02)
    model.fit({"wave": waves}, training=training, progress=False)
    assert model.history[-1].loss < model.history[3].loss - 0.3

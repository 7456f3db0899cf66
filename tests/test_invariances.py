"""What must not change the answer, and what must."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verbs import MARGINALS, MODALITIES, VERBS, declare, random_data, random_module
from weft import BFVI, Antithetic, Cubature, MonteCarlo, Sequences
from weft.inference.recursions import fuse

every_verb = pytest.mark.parametrize("verb", VERBS)
every_marginal = pytest.mark.parametrize("verb", MARGINALS)


def assert_same(x, y):
    torch.testing.assert_close(x.precision, y.precision, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(x.information, y.information, rtol=1e-9, atol=1e-12)


@every_marginal
@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("particles", [Cubature(), MonteCarlo(3), Antithetic(2)], ids=str)
def test_nothing_observed_leaves_the_prior_at_every_step(verb, scale, particles):
    module = random_module(1, scale)
    data = random_data(missing=1.0)
    generator = torch.Generator().manual_seed(0)
    found = VERBS[verb](module, module.batch(data), particles=particles, generator=generator)
    prior = module.model.prior()
    assert_same(found, prior.expand(*found.shape))


@pytest.mark.parametrize("samples", [0, 4])
def test_nothing_observed_leaves_sequencing_to_the_conditional_prior(samples):
    module = random_module(1, 3.0)
    generator = torch.Generator().manual_seed(0)
    found = module.sequence(
        module.batch(random_data(missing=1.0)), samples=samples, generator=generator
    )
    assert_same(found.posterior, found.prior)
    prior = module.model.prior()
    assert_same(found.prior[:, 0], prior.expand(*found.prior[:, 0].shape))
    assert_same(found.prior[:, 1:], module.model.step_forward(found.latents[:, :-1]))


@every_verb
@pytest.mark.parametrize("hidden", MODALITIES)
def test_a_masked_modality_equals_an_absent_one(verb, hidden):
    module, data = random_module(2), random_data(2)
    rest = [name for name in MODALITIES if name != hidden]
    masked = VERBS[verb](module, module.batch(data.hide(hidden)))
    absent = VERBS[verb](module, module.batch(data.keep(*rest)))
    left_out = VERBS[verb](module, module.batch(data), subsets=[rest])
    raw = VERBS[verb](module, data.keep(*rest).batch(dtype=torch.float64))
    for other in (absent, left_out, raw):
        assert_same(masked, other)


@every_verb
def test_padding_changes_nothing(verb):
    module, data = random_module(3), random_data(3)
    together = VERBS[verb](module, module.batch(data))
    for b, steps in enumerate(data.lengths):
        alone = VERBS[verb](module, module.batch(data[b]))
        assert_same(together[:steps, :, b : b + 1], alone)


@every_verb
def test_batch_order_changes_nothing(verb):
    module, data = random_module(4), random_data(4)
    found = VERBS[verb](module, module.batch(data))
    permuted = VERBS[verb](module, module.batch(data[[2, 0, 1]]))
    assert_same(found[:, :, [2, 0, 1]], permuted)


@every_verb
def test_modality_order_changes_nothing(verb):
    module, data = random_module(5), random_data(5)
    order = ("label", "scalar", "vector")
    other = BFVI(declare(order), 3, hidden=6).double()
    other.model.load_state_dict(
        {k: v for k, v in module.model.state_dict().items() if "decoders" not in k}, strict=False
    )
    for i, name in enumerate(order):
        source = module.encoders[MODALITIES.index(name)].state_dict()
        other.encoders[i].load_state_dict(source)
    found = VERBS[verb](module, module.batch(data))
    assert_same(found, VERBS[verb](other, other.batch(data)))


@every_verb
def test_subsets_in_one_pass_equal_separate_passes(verb):
    module, data = random_module(6), random_data(6)
    batch = module.batch(data)
    subsets = [MODALITIES, ["scalar"], ["vector"], ["label"], []]
    together = VERBS[verb](module, batch, subsets=subsets)
    for s, subset in enumerate(subsets):
        assert_same(together[:, s : s + 1], VERBS[verb](module, batch, subsets=[subset]))


ENTRIES = [("scalar", 0), ("vector", 0), ("vector", 1), ("vector", 2), ("label", 0)]


@every_verb
@pytest.mark.parametrize("entry", ENTRIES, ids=str)
@pytest.mark.parametrize("value", [0, 1], ids=["zero", "one"])
@pytest.mark.parametrize("step", [0, 2, 4])
def test_any_single_observed_entry_moves_the_posterior(verb, entry, value, step):
    name, position = entry
    vector = np.full((1, 5, 3), np.nan)
    scalar, label = np.full((1, 5), np.nan), np.full((1, 5), np.nan)
    {"scalar": scalar, "label": label}.get(name, vector[..., position])[0, step] = value
    data = Sequences.from_arrays({"scalar": scalar, "vector": vector, "label": label})
    module = random_module(7)
    found = VERBS[verb](module, module.batch(data))[:, 0, 0]
    silent = VERBS[verb](module, module.batch(data.hide(*MODALITIES)))[:, 0, 0]
    moved = ((found.precision - silent.precision).abs() > 1e-6).any(-1).tolist()
    reach = {
        "forward filter": [t >= step for t in range(5)],
        "backward filter": [t <= step for t in range(5)],
    }
    assert moved == reach.get(verb, [True] * 5)


def test_reversing_time_and_swapping_transitions_swaps_the_filters():
    module = random_module(8)
    data = random_data(8, lengths=(6, 6))
    reversed_data = Sequences.from_arrays(
        {name: [x[::-1] for x in data.arrays(name)] for name in MODALITIES},
        categories={"label": ["a", "b", "c"]},
    )
    backward = module.filter(module.batch(data), backward=True)
    model = module.model
    model.forward_factor, model.backward_factor = model.backward_factor, model.forward_factor
    forward = module.filter(module.batch(reversed_data))
    assert_same(backward.posterior, forward.posterior.flip(0))
    assert_same(backward.message, forward.message.flip(0))


def test_forecasts_follow_the_forward_transition_alone():
    """After the last observation, smoothing is the forward filter and its predictions."""
    module = random_module(9)
    data = random_data(9, lengths=(10,), missing=0.0)
    data = data.delete(dict.fromkeys(MODALITIES, data.step_of_row >= 6))
    batch = module.batch(data)
    assert_same(module.smooth(batch).posterior[5:], module.filter(batch).posterior[5:])


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    missing=st.floats(0, 1),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    verb=st.sampled_from(list(VERBS)),
)
def test_any_mask_and_any_network_give_a_proper_posterior(seed, lengths, missing, scale, verb):
    module = random_module(seed, scale)
    found = VERBS[verb](module, module.batch(random_data(seed, lengths, missing)))
    assert found.is_proper.all()
    assert found.mean.isfinite().all()


def test_wide_messages_are_tempered_marked_and_proper():
    prior = random_module().model.prior()
    wide, wider, sharp = prior**0.4, prior**0.3, prior**3.0
    nothing = prior**0.0
    both = fuse(wide, nothing, wider, prior)
    assert both.tempered.all()
    assert_same(both.posterior, wider)
    one = fuse(wide, nothing, sharp, prior)
    assert not one.tempered.any()
    assert_same(one.posterior, prior**2.4)


def test_wild_networks_do_get_tempered():
    """The floor is not a dead branch: networks that scatter particles need it."""
    module = random_module(2, scale=3.0)
    found = module.smooth(module.batch(random_data(2, lengths=(20,), missing=0.6)))
    assert found.tempered.any()
    assert found.posterior.is_proper.all()

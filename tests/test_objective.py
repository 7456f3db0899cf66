"""The loss equals its textbook form, and its options do what they say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.textbook_objective import textbook_loss
from tests.verbs import assert_same_gradients, random_data
from weft import BFVI, Cubature, Modality, Normal, Pixels, Sequences
from weft.corruption import delete_bursts
from weft.objective import Objective, ObjectiveConfig, Temperature

EXACT = ObjectiveConfig(particles=Cubature(), match_particles=Cubature())


def make(modalities=3, weights=(1.0, 2.0, 0.5), seed=0):
    torch.manual_seed(seed)
    declared = [Modality(f"m{i}", weight=weights[i % 3]) for i in range(modalities)]
    return BFVI(declared, latent=2, hidden=4).double()


def scalar_data(seed, lengths, modalities=3, missing=0.4):
    return Sequences.from_arrays(
        {
            f"m{i}": random_data(seed + i, lengths, missing).arrays("scalar")
            for i in range(modalities)
        }
    )


def as_tensors(data):
    return [
        {name: torch.tensor(data.arrays(name)[b][:, 0]) for name in data.names}
        for b in range(len(data))
    ]


def check_against_the_textbook(config, subsets, lengths, missing, beta):
    module = make()
    target = scalar_data(1, lengths, missing=missing)
    inputs = delete_bursts(target, 0.3, torch.Generator().manual_seed(2))
    loss = Objective(module, config)(
        module.batch(inputs),
        torch.Generator().manual_seed(7),
        module.batch(target),
        Temperature(beta),
    )
    generator = torch.Generator().manual_seed(7)
    parts = [1, subsets - 1] if config.cross else [subsets]
    shapes = [(2, max(lengths), count, len(lengths), 2) for count in parts]
    noise = torch.cat([torch.randn(x, generator=generator, dtype=torch.float64) for x in shapes], 2)
    plain = textbook_loss(module, as_tensors(inputs), as_tensors(target), noise, config, beta)
    torch.testing.assert_close(loss.total, plain, rtol=1e-8, atol=1e-8)
    if plain.requires_grad:
        assert_same_gradients(module, loss.total, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("lengths", "missing"), [((6, 3, 5), 0.0), ((6, 3, 5), 0.5), ((1, 2), 0.3), ((4,), 1.0)]
)
def test_value_and_gradients_equal_the_textbook(beta, lengths, missing):
    check_against_the_textbook(EXACT, 4, lengths, missing, beta)


@pytest.mark.parametrize("alone", [None, ("m2", "m0"), ()])
@pytest.mark.parametrize("cross", [False, True])
def test_some_subsets_may_be_asked_for_everything(alone, cross):
    config = replace(EXACT, each_alone=alone, cross=cross)
    check_against_the_textbook(config, 4 if alone is None else 1 + len(alone), (6, 3), 0.5, 0.3)


def test_a_modality_alone_is_not_asked_about_its_own_gaps():
    """All together are asked at every step, the other modality alone at its own."""
    module = make(modalities=2)
    data = scalar_data(1, (5,), modalities=2, missing=0.0)
    gap = np.arange(5) == 2
    objective = Objective(module, replace(EXACT, each_alone=["m0", "m1"], cross=True))
    members, _ = objective._subsets(torch.Generator())
    asked = objective._asked(module.batch(data.delete({"m0": gap})), members)
    assert members.tolist() == [[True, True], [True, False], [False, True]]
    assert asked[:, [0, 2]].all()
    assert asked[:, 1].tolist() == (~gap).tolist()


def test_what_training_takes_is_for_all_together_to_do_without():
    """Each alone sees all of its data."""
    module = make(modalities=2)
    config = replace(EXACT, each_alone=["m0", "m1"], cross=True)
    target = scalar_data(1, (5,), modalities=2, missing=0.0)
    given = target.hide("m0", "m1")

    def losses(chosen, inputs):
        objective = Objective(module, replace(config, each_alone=chosen))
        generator = torch.Generator().manual_seed(0)
        return objective(module.batch(inputs), generator, module.batch(target)).total

    together = [losses([], inputs) for inputs in (target, given)]
    added = [losses(["m0", "m1"], x) - y for x, y in zip((target, given), together, strict=True)]
    assert together[0] != together[1]
    torch.testing.assert_close(*added)


def test_the_only_modality_is_asked_about_its_gaps():
    module = make(modalities=1)
    batch = module.batch(scalar_data(1, (5,), modalities=1, missing=1.0))
    objective = Objective(module, replace(EXACT, cross=True))
    members, _ = objective._subsets(torch.Generator())
    assert objective._asked(batch, members).all()


def test_a_modality_to_score_alone_must_be_one_of_the_model():
    module = make()
    objective = Objective(module, ObjectiveConfig(each_alone=["m1", "other"]))
    with pytest.raises(ValueError, match="no modality 'other'"):
        objective(module.batch(scalar_data(1, (3,))), torch.Generator())


def test_terms_add_up_to_the_total():
    module = make()
    batch = module.batch(scalar_data(3, (6, 4)))
    config = ObjectiveConfig(filter_weight=0.3, smooth_weight=0.9, match_weight=0.2)
    loss = Objective(module, config)(
        batch, torch.Generator().manual_seed(0), temperature=Temperature(0.5, 0.1)
    )
    chains = {"filter": 0.3 * 0.1, "smooth": 0.9}
    total = 0.2 * 0.5 * loss.terms["match"]
    for chain, weight in chains.items():
        total += weight * 0.5 * loss.terms[f"kl/{chain}"]
        for modality in module.model.modalities:
            total += weight * modality.weight * loss.terms[f"nll/{chain}/{modality.name}"]
    torch.testing.assert_close(loss.total, total)
    assert len(loss.terms) == 3 + 2 * 3


def test_padding_does_not_enter_the_loss():
    """A longer sequence with nothing observed adds no divergence beyond chance, nor any match."""
    module = make()
    data = scalar_data(4, (5, 9), missing=0.2)
    long = data.hide(*data.names)[1]
    short = data[0]
    objective = Objective(module, EXACT)

    def terms(source):
        return objective(module.batch(source), torch.Generator().manual_seed(0)).terms

    alone = terms(short)
    both = terms(type(data).concatenate([short, long]))
    assert both["kl/smooth"] * 14 < alone["kl/smooth"] * 5 * 3
    assert both["match"] == alone["match"]


def test_a_handful_of_subsets_is_right_on_average():
    module = make(modalities=6)
    batch = module.batch(scalar_data(5, (3, 4), modalities=6))
    full = Objective(module, ObjectiveConfig(particles=Cubature(), most_subsets=99))
    few = Objective(module, ObjectiveConfig(particles=Cubature(), most_subsets=3))
    with torch.no_grad():
        wanted = torch.stack(
            [full(batch, torch.Generator().manual_seed(i)).total for i in range(100)]
        )
        found = torch.stack(
            [few(batch, torch.Generator().manual_seed(i)).total for i in range(400)]
        )
    error = (found.var() / len(found) + wanted.var() / len(wanted)).sqrt()
    assert (found.mean() - wanted.mean()).abs() < 4 * error


def test_one_modality_is_scored_once():
    module = make(modalities=1)
    members, weights = Objective(module, EXACT)._subsets(torch.Generator())
    assert members.tolist() == [[True]]
    assert weights.tolist() == [1.0]


def test_free_bits_floor_the_divergence():
    module = make()
    batch = module.batch(scalar_data(6, (5,)))
    free = Objective(module, ObjectiveConfig(particles=Cubature(), free_bits=3.0))
    loss = free(batch, torch.Generator().manual_seed(0))
    assert loss.terms["kl/smooth"] >= 3.0 * 4
    assert loss.terms["kl/filter"] >= 3.0 * 4


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_balance_keeps_the_value_and_splits_the_gradient(share):
    module = make()
    batch = module.batch(scalar_data(7, (5,)))

    def loss(balance):
        config = ObjectiveConfig(particles=Cubature(), match_weight=0.0, balance=balance)
        return Objective(module, config)(batch, torch.Generator().manual_seed(0))

    torch.testing.assert_close(loss(share).total, loss(None).total)

    def gradient(balance):
        total = loss(balance).total
        return torch.autograd.grad(total, module.model.forward_factor.spread.bias)[0]

    half, most = gradient(share), gradient(None)
    assert not torch.allclose(half, most)


def test_scoring_some_frames_gives_the_loss_on_average():
    torch.manual_seed(0)
    image = Modality("video", (1, 8, 8), likelihood=Pixels())
    module = BFVI([image, Modality("m0")], latent=2, hidden=4).double().eval()
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(1, 3, 1, 8, 8, generator=generator)
    batch = module.batch(Sequences.from_arrays({"video": pixels, "m0": torch.ones(1, 3)}))
    full, some = (
        Objective(module, ObjectiveConfig(particles=Cubature(), frames=share))
        for share in (1.0, 0.3)
    )
    members, weights = full._subsets(generator)
    asked = full._asked(batch, members)
    with torch.no_grad():
        chains = module.chains(batch, members, Cubature(), generator)
        paths = {chain: draw() for chain, draw in chains.items()}
        whole = full._terms(paths, batch, members, weights, asked, generator)
        drawn = [
            some._terms(paths, batch, members, weights, asked, torch.Generator().manual_seed(seed))
            for seed in range(30)
        ]
    for chain in ("filter", "smooth"):
        single = {round(float(terms[f"nll/{chain}/video"]), 9) for terms in drawn}
        assert len(single) == 3  # one frame of three, any of them
        assert sum(single) / 3 == pytest.approx(float(whole[f"nll/{chain}/video"]), abs=1e-8)
        others = {float(terms[f"nll/{chain}/m0"]) for terms in drawn}
        assert others == {float(whole[f"nll/{chain}/m0"])}


@pytest.mark.parametrize("temper", [0.3, 1.0])
def test_tempering_keeps_the_value_and_lets_means_learn_from_squared_errors(temper):
    """Gradients of an entry are multiplied by σ^(2 · temper), those of its mean and of its σ."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(5, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(5, 2, 3, generator=generator, dtype=torch.float64)
    seen = torch.ones_like(value, dtype=torch.bool)
    likelihood = Normal()

    def score(temper):
        return likelihood.log_prob(likelihood.tempered(raw, (2, 3), temper), value, seen, 2).sum()

    assert score(temper).item() == score(0.0).item()
    plain, tempered = (torch.autograd.grad(score(t), raw)[0] for t in (0.0, temper))
    found = likelihood.distribution(raw.detach(), (2, 3))
    share = torch.cat([found.stddev.flatten(1) ** (2 * temper)] * 2, 1)
    torch.testing.assert_close(tempered, share * plain)
    if temper == 1.0:
        torch.testing.assert_close(tempered[:, :6], (value - found.mean).flatten(1))


def test_tempering_reaches_numbers_and_leaves_labels_alone():
    torch.manual_seed(0)
    modalities = [Modality("x", 2), Modality("label", categories=3)]
    module = BFVI(modalities, latent=2, hidden=4).double()
    data = Sequences.from_arrays({"x": torch.ones(1, 3, 2), "label": torch.ones(1, 3).long()})

    def learned(temper):
        config = ObjectiveConfig(particles=Cubature(), temper=temper)
        loss = Objective(module, config)(module.batch(data), torch.Generator().manual_seed(0))
        weights = list(module.model.decoders.parameters())
        return loss.total.item(), torch.autograd.grad(loss.total, weights)

    (plain, before), (tempered, after) = learned(0.0), learned(1.0)
    assert tempered == plain
    of_numbers = len(before) // 2
    assert not any(map(torch.allclose, before[:of_numbers], after[:of_numbers]))
    torch.testing.assert_close(before[of_numbers:], after[of_numbers:])


def test_a_filtering_chain_of_no_weight_is_left_out_and_changes_nothing():
    module = make()
    batch = module.batch(scalar_data(9, (5, 3)))

    def loss(weight):
        config = ObjectiveConfig(particles=Cubature(), filter_weight=weight)
        return Objective(module, config)(batch, torch.Generator().manual_seed(0))

    alone, beside = loss(0.0), loss(1e-12)
    assert {name.split("/")[1] for name in alone.terms if "/" in name} == {"smooth"}
    torch.testing.assert_close(alone.total, beside.total)
    for name, term in alone.terms.items():
        torch.testing.assert_close(term, beside.terms[name])

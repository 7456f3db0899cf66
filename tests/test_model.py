"""The networks are the supplement's, and users may bring their own."""

import pytest
import torch
from torch import nn

from tests.verbs import VERBS, random_data
from weft import BFVI, Modality, Poisson, Sequences
from weft.gaussian import Gaussian
from weft.inference import build
from weft.inference.bfvi import Encoder
from weft.inference.recurrent import Heard, Recurrent
from weft.model import REACH
from weft.networks import GatedTransition, GRUFeatures, MLPDecoder, MLPFeatures

NAN = float("nan")


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_spirals_model_has_exactly_1854_parameters():
    assert count(BFVI([Modality("x"), Modality("y")], latent=5, hidden=20)) == 1854


def test_the_gated_transition_is_the_supplements():
    torch.manual_seed(0)
    net = GatedTransition(3, 7).double()
    z = torch.randn(4, 3).double()
    found = net(z)
    gate = torch.sigmoid(net.gate(torch.relu(net.gate_hidden(z))))
    candidate = net.candidate(torch.relu(net.candidate_hidden(z)))
    mean = gate * candidate + (1 - gate) * net.linear(z)
    std = nn.functional.softplus(net.spread(candidate)) + 0.001
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.std, std)


def test_an_untrained_model_is_a_slow_process_that_keeps_its_prior():
    torch.manual_seed(0)
    model = BFVI([Modality("x")], latent=4, hidden=16).model
    swarm = model.prior().sample(torch.Generator().manual_seed(0), 20_000)
    for step in (model.step_forward, model.step_backward):
        moved = step(swarm)
        matched = moved.moment_match()
        assert matched.mean.abs().max() < 0.15
        assert (matched.std - 1).abs().max() < 0.15
        memory = (moved.mean * swarm).mean(0)
        assert ((memory > 0.7) & (memory < 1.0)).all()


def test_a_transition_is_never_less_precise_than_the_prior():
    torch.manual_seed(0)
    model = BFVI([Modality("x")], latent=4, hidden=8).model
    z = 100 * torch.randn(1000, 4)
    for step in (model.step_forward, model.step_backward):
        assert (step(z).precision >= model.prior().precision).all()


def test_no_chain_escapes_however_its_transition_grows():
    """A linear path that doubles every state, followed for 2,000 steps, stays near the prior."""
    model = BFVI([Modality("x")], latent=3, hidden=4).model
    with torch.no_grad():
        model.forward_factor.linear.weight.mul_(2.0)
        z = torch.ones(3)
        for _ in range(2000):
            z = model.step_forward(z).mean
    assert (z.abs() <= 2.5 * REACH).all()
    inside = torch.full((3,), 0.99 * REACH)
    exact = model.prior() * model.forward_factor(inside)
    torch.testing.assert_close(model.step_forward(inside).mean, exact.mean)


def test_the_prior_starts_standard():
    prior = BFVI([Modality("x")], latent=4, hidden=8).model.prior()
    torch.testing.assert_close(prior.mean, torch.zeros(4))
    torch.testing.assert_close(prior.std, torch.ones(4))


def test_vectors_reach_the_encoder_zero_filled_with_their_mask():
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x

    data = Sequences.from_arrays({"v": [[[1.0, float("nan"), 3.0], [float("nan")] * 3]]})
    module = BFVI([Modality("v", 3, encoder=Spy(), mask_input=True)], latent=2, hidden=4)
    seen.clear()
    module.encode(module.batch(data))
    torch.testing.assert_close(seen[0], torch.tensor([[1.0, 0.0, 3.0, 1.0, 0.0, 1.0]]))


def test_an_encoder_with_context_sees_the_steps_before_its_own():
    seen = []

    class Spy(nn.Identity):
        def forward(self, x):
            seen.append(x)
            return x

    v = Modality("v", 2, encoder=Spy(), mask_input=True, context=2)
    data = Sequences.from_arrays({"v": [[[1.0, 2.0], [NAN, NAN], [NAN, 6.0], [7.0, 8.0]]]})
    module = BFVI([v], latent=2, hidden=4)
    seen.clear()
    factors = module.encode(module.batch(data))
    windows = [[0, 0, 0, 0, 1, 2], [1, 2, 0, 0, 0, 6], [0, 0, 0, 6, 7, 8]]
    masks = [[0, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1]]
    expected = torch.cat([torch.tensor(windows), torch.tensor(masks)], 1).float()
    torch.testing.assert_close(seen[0], expected)
    assert factors.is_proper[0, :, 0, 0].tolist() == [True, False, True, True]


@pytest.mark.parametrize("name", VERBS)
def test_sequences_side_by_side_do_not_see_each_other_in_their_context(name):
    torch.manual_seed(0)
    modalities = [Modality("scalar", context=2), Modality("vector", 3, context=1)]
    module = BFVI(modalities, latent=3, hidden=6).double()
    data = random_data(lengths=(5, 3, 7)).keep("scalar", "vector")
    together = VERBS[name](module, module.batch(data))
    for i, length in enumerate((5, 3, 7)):
        alone = VERBS[name](module, module.batch(data[[i]]))
        torch.testing.assert_close(together.mean[:length, :, [i]], alone.mean)


def test_an_encoder_may_read_whole_sequences():
    seen, spans = [], []

    class Spy(nn.Module):
        def forward(self, x, inside):
            seen.append(x)
            spans.append(inside)
            return x.flip(0)

    v = Modality("v", 2, encoder=Spy(), mask_input=True, whole=True)
    first, second = [[1.0, 2.0], [NAN, NAN], [NAN, 6.0]], [[7.0, 8.0]]
    module = BFVI([v], latent=2, hidden=4)
    batch = module.batch(Sequences.from_arrays({"v": [first, second]}))
    seen.clear()
    spans.clear()
    factors = module.encode(batch)
    assert spans[0].tolist() == [[True, True], [True, False], [True, False]]
    steps = [[1, 2, 1, 1], [0, 0, 0, 0], [0, 6, 0, 1]]
    torch.testing.assert_close(seen[0][:, 0], torch.tensor(steps).float())
    torch.testing.assert_close(
        seen[0][:, 1], torch.tensor([[7, 8, 1, 1], [0] * 4, [0] * 4]).float()
    )
    assert factors.is_proper[0, :, :, 0].tolist() == [[True, True], [False, False], [True, False]]
    encoder = module.encoders[0]
    assert isinstance(encoder, Encoder)
    wanted = encoder.head(seen[0].flip(0)[2, 0])
    torch.testing.assert_close(factors[0, 2, 0].mean, wanted.mean)


@pytest.mark.parametrize("method", ["bfvi", "f-mask", "b-skip"])
def test_sequences_side_by_side_do_not_see_each_other_when_read_as_a_whole(method):
    torch.manual_seed(0)
    of_motion = GRUFeatures(3, 6, layers=2, differences=True)
    vector = Modality("vector", 3, encoder=of_motion, mask_input=True, whole=True, gaps=True)
    modalities = [Modality("scalar", whole=True), vector]
    module = build(method, modalities, latent=3, hidden=6).double()
    data = random_data(lengths=(5, 3, 7)).keep("scalar", "vector")
    together = module.smooth(module.batch(data)).posterior
    for i, length in enumerate((5, 3, 7)):
        alone = module.smooth(module.batch(data[[i]])).posterior
        torch.testing.assert_close(together.mean[:length, :, [i]], alone.mean)


def test_an_encoder_that_knows_the_rest_speaks_where_its_modality_is_missing():
    torch.manual_seed(0)
    module = BFVI([Modality("a", whole=True, gaps=True), Modality("b")], latent=2, hidden=4)
    data = Sequences.from_arrays(
        {"a": [[NAN, NAN, 1.0, NAN, NAN], [NAN] * 3], "b": [[NAN, 2.0, NAN, 3.0, NAN], [1.0] * 3]}
    )
    speaks = module.encode(module.batch(data)).is_proper[..., 0]
    assert speaks[0, :, 0].tolist() == [False, True, True, True, False]  # while anything is seen
    assert not speaks[0, :, 1].any()  # and never of a sequence that it knows nothing of
    assert speaks[1, :, 0].tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("method", ["bfvi", "f-mask", "b-skip"])
def test_empty_steps_around_a_sequence_change_nothing_that_is_said_of_it(method):
    """So that forecasts of one step and of many see the same past."""
    torch.manual_seed(0)
    modalities = [Modality("a", whole=True, gaps=True), Modality("b", whole=True)]
    module = build(method, modalities, latent=2, hidden=4).double()
    assert isinstance(module, BFVI | Recurrent)
    a, b = [1.0, NAN, 2.0], [NAN, 3.0, NAN]
    alone = module.encode(module.batch(Sequences.from_arrays({"a": [a], "b": [b]})))
    wide = Sequences.from_arrays({"a": [[NAN, *a, NAN, NAN]], "b": [[NAN, *b, NAN, NAN]]})
    among = module.encode(module.batch(wide))
    if isinstance(among, Gaussian) and isinstance(alone, Gaussian):
        torch.testing.assert_close(among.information[:, 1:4], alone.information)
        torch.testing.assert_close(among.precision[:, 1:4], alone.precision)
        assert not among.is_proper[:, [0, 4, 5]].any()
    elif isinstance(among, Heard) and isinstance(alone, Heard):
        torch.testing.assert_close(among.gates[1:4], alone.gates)
        assert not among.seen[[0, 4, 5]].any()


def test_what_is_read_as_a_whole_knows_its_future():
    torch.manual_seed(0)
    module = BFVI([Modality("scalar", whole=True)], latent=3, hidden=6)
    data = [Sequences.from_arrays({"scalar": [[1.0, 2.0, last]]}) for last in (3.0, -3.0)]
    one, two = (module.encode(module.batch(each))[0, 0].mean for each in data)
    assert not torch.allclose(one, two)


@pytest.mark.parametrize("method", ["bfvi", "f-skip"])
def test_what_knows_its_future_neither_filters_nor_follows_streams(method):
    module = build(method, [Modality("scalar", whole=True)], latent=3, hidden=6)
    batch = module.batch(Sequences.from_arrays({"scalar": [[1.0, 2.0]]}))
    with pytest.raises(ValueError, match=r"'scalar' .* cannot filter"):
        module.filter(batch)
    with pytest.raises(ValueError, match=r"'scalar' .* cannot follow a stream"):
        module.track(1)


def test_built_in_encoders_see_the_mask_of_vectors_but_not_of_single_numbers():
    assert Modality("v", 3).mask_input
    assert not Modality("x").mask_input
    assert Modality("x", context=1).mask_input
    assert Modality("x", whole=True).mask_input
    assert not Modality("v", 3, mask_input=False).mask_input
    assert Modality("image", (3, 8, 8)).input_shape == (6, 8, 8)


def test_networks_with_a_skip_are_linear_where_their_hidden_layer_is_silent():
    torch.manual_seed(0)
    features, decoder = MLPFeatures(3, 4, skip=True), MLPDecoder(2, 4, 6, skip=True)
    x, z = torch.randn(5, 3), torch.randn(5, 2)
    for hidden in (features.hidden, decoder.hidden):
        hidden.weight.data.zero_()
        hidden.bias.data.fill_(-1)
    torch.testing.assert_close(features(x), torch.cat([torch.zeros(5, 4), x], 1))
    torch.testing.assert_close(decoder(2 * z) - decoder(z), decoder(z) - decoder(0 * z))
    assert not torch.allclose(decoder(z), decoder(0 * z))


def test_a_modality_with_a_skip_builds_such_networks():
    modality = Modality("v", 3, skip=True)
    wide, plain = (m.build_features(4) for m in (modality, Modality("v", 3)))
    assert modality.features_width(wide) == modality.features_width(plain) + 6  # values and mask
    sizes = [
        sum(p.numel() for p in m.build_decoder(2, 4).parameters())
        for m in (modality, Modality("v", 3))
    ]
    assert sizes[0] == sizes[1] + 2 * 6


def test_any_module_can_be_encoder_or_decoder():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh())
    decoder = nn.Linear(2, 12)
    image = Modality("i", (3, 2, 2), encoder=encoder, decoder=decoder, likelihood=Poisson())
    module = BFVI([image, Modality("l", categories=["a", "b"])], latent=2, hidden=5)
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(5, (2, 6, 3, 2, 2), generator=generator).numpy()
    batch = module.batch(Sequences.from_arrays({"i": counts, "l": [["a"] * 6, ["b"] * 6]}))
    z = module.sequence(batch).latents[0, :, 0]
    loss = -module.model.log_prob("i", z, batch.values["i"], batch.observed["i"]).sum()
    loss = loss - module.model.log_prob("l", z, batch.values["l"], batch.observed["l"]).sum()
    loss.backward()
    for parameter in (*encoder.parameters(), *decoder.parameters()):
        assert parameter.grad is not None


@pytest.mark.parametrize(
    ("modality", "message"),
    [
        (lambda: Modality("v", 3, decoder=nn.Linear(2, 5)), "gives 5 numbers per step.*needs 6"),
        (lambda: Modality("v", 3, encoder=nn.Linear(4, 5)), "does not accept input of shape"),
        (
            lambda: Modality("v", (2, 3), encoder=nn.Identity()),
            r"must map .* shape \(rows, width\)",
        ),
    ],
)
def test_networks_that_do_not_fit_are_refused_by_name(modality, message):
    with pytest.raises(ValueError, match=f"modality 'v' {message}"):
        BFVI([modality()], latent=2, hidden=4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BFVI([], 2, 2), "at least one modality"),
        (lambda: BFVI([Modality("x"), Modality("x")], 2, 2), "must differ"),
        (lambda: BFVI([Modality("x")], 0, 2), "at least 1"),
        (lambda: BFVI([Modality("x")], 2, 2).members([["y"]]), "no modality 'y'"),
    ],
)
def test_impossible_models_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_modality_names_may_be_any_text():
    names = ["type", "values", "heart.rate", "forward", "Блок 1"]
    module = BFVI([Modality(name) for name in names], latent=2, hidden=4)
    data = Sequences.from_arrays({name: [[0.0, 1.0]] for name in names})
    assert module.smooth(module.batch(data)).posterior.mean.isfinite().all()
    assert module.state_dict().keys() == {name for name, _ in module.named_parameters()}

"""Likelihoods are normalised, and score what was observed and nothing else."""

import math

import pytest
import torch

from weft import Bernoulli, Categorical, Modality, Normal, Pixels, Poisson, StudentT, likelihoods

SHAPED = [Normal(), StudentT(), StudentT(df=2.5), Bernoulli(), Pixels(), Poisson()]
ALL = [*SHAPED, Categorical(4)]


def shape_of(likelihood):
    return () if isinstance(likelihood, Categorical) else (2, 3)


def raw_for(likelihood, rows=5, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    outputs = likelihood.outputs(shape_of(likelihood))
    return scale * torch.randn(rows, outputs, generator=generator).double()


def values_for(likelihood, rows=5):
    generator = torch.Generator().manual_seed(1)
    shape = (rows, *shape_of(likelihood))
    if isinstance(likelihood, Categorical):
        return torch.randint(4, shape, generator=generator)
    if isinstance(likelihood, Pixels):
        return torch.rand(shape, generator=generator).double()
    if isinstance(likelihood, Bernoulli | Poisson):
        return torch.randint(2, shape, generator=generator).double()
    return torch.randn(shape, generator=generator).double()


@pytest.mark.parametrize("likelihood", [Normal(), StudentT(), StudentT(df=2.5)], ids=str)
def test_continuous_densities_integrate_to_one(likelihood):
    """Trapezoid rule in x = sinh(u), which reaches far into heavy tails."""
    u = torch.linspace(-16, 16, 200_001, dtype=torch.float64)
    x = torch.sinh(u)
    raw = torch.tensor([0.3, -0.5], dtype=torch.float64).expand(len(x), 2)
    log_prob = likelihood.log_prob(raw, x[:, None], torch.ones(len(x), 1, dtype=torch.bool), 1)
    total = torch.trapezoid(log_prob.exp() * torch.cosh(u), u)
    assert total.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "support", "shape"),
    [(Bernoulli(), 2, (1,)), (Pixels(), 2, (1,)), (Poisson(), 60, (1,)), (Categorical(4), 4, ())],
    ids=str,
)
def test_discrete_probabilities_sum_to_one(likelihood, support, shape):
    raw = torch.randn(
        likelihood.outputs(shape), generator=torch.Generator().manual_seed(0)
    ).double()
    values = torch.arange(support, dtype=torch.float64).reshape(support, *shape)
    observed = torch.ones(values.shape, dtype=torch.bool)
    log_prob = likelihood.log_prob(raw.expand(support, -1), values, observed, len(shape))
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-9)


def test_pixels_are_scored_by_cross_entropy_below_the_continuous_bernoulli():
    raw, value = raw_for(Pixels()), values_for(Pixels())
    found = Pixels().distribution(raw, (2, 3))
    p = torch.sigmoid(raw).reshape(5, 2, 3)
    torch.testing.assert_close(found.mean, p)
    torch.testing.assert_close(found.log_prob(value), value * p.log() + (1 - value) * (1 - p).log())
    density = torch.distributions.ContinuousBernoulli(p).log_prob(value)
    assert (found.log_prob(value) <= density - math.log(2)).all()
    assert torch.equal(Pixels().point(p), p)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_observed_entries_add_up(likelihood):
    raw, value = raw_for(likelihood), values_for(likelihood)
    dims = len(shape_of(likelihood))
    entries = likelihood.distribution(raw, shape_of(likelihood)).log_prob(value)
    assert entries.shape == value.shape
    everything = likelihood.log_prob(raw, value, torch.ones_like(value, dtype=torch.bool), dims)
    torch.testing.assert_close(everything, entries.reshape(5, -1).sum(-1))
    half = torch.rand(value.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    found = likelihood.log_prob(raw, value, half, dims)
    torch.testing.assert_close(found, (entries * half).reshape(5, -1).sum(-1))


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_missing_entries_have_no_value_and_no_gradient(likelihood):
    raw = raw_for(likelihood).requires_grad_()
    value = values_for(likelihood)
    nothing = torch.zeros(value.shape, dtype=torch.bool)
    found = likelihood.log_prob(raw, torch.zeros_like(value), nothing, len(shape_of(likelihood)))
    found.sum().backward()
    assert (found == 0).all()
    assert raw.grad is not None
    assert (raw.grad == 0).all()


@pytest.mark.parametrize("likelihood", ALL, ids=str)
@pytest.mark.parametrize("scale", [1e6, -1e6])
def test_extreme_network_output_stays_finite(likelihood, scale):
    raw = raw_for(likelihood, scale=scale).float().requires_grad_()
    value = values_for(likelihood)
    value = value if isinstance(likelihood, Categorical) else value.float()
    everything = torch.ones(value.shape, dtype=torch.bool)
    found = likelihood.log_prob(raw, value, everything, len(shape_of(likelihood)))
    found.sum().backward()
    assert found.isfinite().all()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Modality("a", likelihood=Categorical(3)), "declares 0"),
        (lambda: Modality("a", categories=2, likelihood=Categorical(3)), "declares 2"),
        (lambda: Modality("a", categories=2, likelihood=Normal()), "must be Categorical"),
        (lambda: Modality("a", categories=1), "at least two categories"),
        (lambda: Modality("a", categories=["u", "u"]), "twice"),
        (lambda: Modality("a", 0), "must be ≥ 1"),
        (lambda: Modality(""), "needs a name"),
        (lambda: Modality("a", categories=2, mask_input=True), "cannot take a mask"),
        (lambda: Modality("a", categories=2, context=1), "context=1"),
        (lambda: Modality("a", context=-1), "number of steps"),
        (lambda: Modality("a", categories=2, whole=True), "cannot have whole=True"),
        (lambda: Modality("a", gaps=True), "Add whole=True"),
        (lambda: Modality("a", context=2, whole=True), "Give one of the two"),
        (lambda: Modality("a", 3, mask_input=False, whole=True), "Leave mask_input out"),
        (lambda: Modality("a", categories=2, skip=True), "cannot have skip=True"),
        (lambda: StudentT(df=2.0), "df > 2"),
    ],
)
def test_contradictory_declarations_are_refused(declare, message):
    with pytest.raises(ValueError, match=message):
        declare()


@pytest.mark.parametrize("rows", [1, 5, 7])
def test_large_outputs_are_scored_in_pieces_to_the_same_numbers(rows, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn((rows, 2, 24), generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn((rows, 1, 3, 4), generator=generator, dtype=torch.float64)
    observed = torch.rand((rows, 1, 3, 4), generator=generator) > 0.3
    cotangent = torch.randn((rows, 2), generator=generator, dtype=torch.float64)

    def run():
        score = Normal().log_prob(raw, value, observed, 2)
        return score, *torch.autograd.grad(score, raw, cotangent)

    whole = run()
    for piece in (1, 100, 150):
        monkeypatch.setattr(likelihoods, "PIECE", piece)
        for a, b in zip(run(), whole, strict=True):
            torch.testing.assert_close(a, b)

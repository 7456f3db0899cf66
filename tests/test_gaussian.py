"""The laws of the factor algebra."""

import math

import numpy as np
import pytest
import torch
import torch.distributions as D
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import Antithetic, Cubature, Gaussian, ImproperGaussianError, MonteCarlo
from weft.gaussian import STD_FLOOR, positive_std

finite = st.floats(-1e3, 1e3)
positive = st.floats(1e-2, 1e2)


@st.composite
def gaussians(draw, count):
    """Proper factors of one random width, in float64."""
    latent = draw(st.integers(1, 4))
    return [
        Gaussian.from_moments(
            torch.tensor(draw(st.lists(finite, min_size=latent, max_size=latent))).double(),
            torch.tensor(draw(st.lists(positive, min_size=latent, max_size=latent))).double(),
        )
        for _ in range(count)
    ]


def points(like, seed=0, count=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, *like.shape), generator=generator, dtype=torch.float64)


def assert_same(x, y, rtol=1e-9):
    torch.testing.assert_close(x.precision, y.precision, rtol=rtol, atol=1e-9)
    torch.testing.assert_close(x.information, y.information, rtol=rtol, atol=1e-6)


@settings(deadline=None)
@given(gaussians(2))
def test_a_product_adds_log_densities_up_to_a_constant(pair):
    x, y = pair
    z = points(x)
    torch.testing.assert_close((x * y).log_factor(z), x.log_factor(z) + y.log_factor(z))
    difference = (x * y).log_prob(z) - x.log_prob(z) - y.log_prob(z)
    scale = x.log_prob(z).abs().max() + y.log_prob(z).abs().max()
    assert (difference - difference[0]).abs().max() <= 1e-9 * scale


@settings(deadline=None)
@given(gaussians(2))
def test_a_quotient_undoes_a_product(pair):
    x, y = pair
    assert_same(x * y / y, x, rtol=1e-6)


@settings(deadline=None)
@given(gaussians(3))
def test_products_commute_and_associate(three):
    x, y, z = three
    assert_same(x * y, y * x)
    assert_same((x * y) * z, x * (y * z))


@settings(deadline=None)
@given(gaussians(1), st.floats(-3, 3))
def test_the_empty_factor_is_the_identity_and_powers_scale_log_factors(one, exponent):
    (x,) = one
    assert_same(x * Gaussian.empty(x.precision), x)
    assert_same(x / Gaussian.empty(x.precision), x)
    z = points(x)
    torch.testing.assert_close((x**exponent).log_factor(z), exponent * x.log_factor(z))


@settings(deadline=None)
@given(gaussians(3), st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1))
def test_subset_products_are_products_of_the_subset(three, rows):
    members = torch.tensor(rows)
    found = Gaussian.stack(three).subset_products(members)
    for s, row in enumerate(rows):
        want = Gaussian.empty(three[0].precision)
        for factor, chosen in zip(three, row, strict=True):
            want = want * factor if chosen else want
        assert_same(found[s], want)


@settings(deadline=None)
@given(gaussians(1))
def test_density_moments_and_samples_agree_with_torch(one):
    (x,) = one
    twin = D.Independent(D.Normal(x.mean, x.std), 1)
    z = points(x)
    torch.testing.assert_close(x.log_prob(z), twin.log_prob(z))
    torch.testing.assert_close(x.variance, twin.variance)
    noise = points(x, seed=1)
    torch.testing.assert_close(x.at(noise), x.mean + x.std * noise)


@settings(deadline=None)
@given(gaussians(2))
def test_divergence_agrees_with_torch_and_is_never_negative(pair):
    x, y = pair
    twin = D.kl_divergence(
        D.Independent(D.Normal(x.mean, x.std), 1), D.Independent(D.Normal(y.mean, y.std), 1)
    )
    torch.testing.assert_close(x.kl(y), twin, rtol=1e-7, atol=1e-7)
    assert x.kl(y) >= -1e-7
    assert x.kl(x).abs() < 1e-12


def example():
    x = Gaussian.from_moments(torch.tensor([0.5, -2.0]).double(), torch.tensor([0.7, 1.5]).double())
    y = Gaussian.from_moments(torch.tensor([0.0, -1.0]).double(), torch.tensor([1.0, 2.0]).double())
    return x, y


def test_divergence_agrees_with_monte_carlo():
    x, y = example()
    z = x.sample(torch.Generator().manual_seed(0), 100_000)
    draws = x.log_prob(z) - y.log_prob(z)
    assert (draws.mean() - x.kl(y)).abs() < 4 * draws.std() / len(draws) ** 0.5


def test_samples_have_the_moments():
    x, _ = example()
    z = x.sample(torch.Generator().manual_seed(0), 100_000)
    assert ((z.mean(0) - x.mean).abs() < 4 * x.std / len(z) ** 0.5).all()
    assert ((z.var(0) - x.variance).abs() < 4 * x.variance * (2 / len(z)) ** 0.5).all()


def test_samples_carry_gradients_to_both_moments():
    mean = torch.zeros(3, requires_grad=True)
    std = torch.ones(3, requires_grad=True)
    Gaussian.from_moments(mean, std).sample(torch.Generator().manual_seed(0), 7).sum().backward()
    assert mean.grad is not None
    assert std.grad is not None
    torch.testing.assert_close(mean.grad, torch.full((3,), 7.0))
    assert (std.grad != 0).all()


def test_moment_matching_agrees_with_torch_mixtures():
    x, y = example()
    pair = Gaussian.stack([x, y])
    weights = D.Categorical(torch.ones(2, 2).double())
    twin = D.MixtureSameFamily(weights, D.Normal(pair.mean.T, pair.std.T))
    found = pair.moment_match()
    torch.testing.assert_close(found.mean, twin.mean)
    torch.testing.assert_close(found.variance, twin.variance)


def test_moment_matching_survives_means_that_dwarf_their_spread():
    """The uncentred form of eq. 8 gives a negative variance here."""
    means = torch.tensor([[1e6], [1e6 + 1]])
    found = Gaussian.from_moments(means, torch.full((2, 1), 1e-2)).moment_match()
    assert found.precision > 0
    assert 0.1 < found.variance.item() < 0.5
    assert (means.square().mean(0) - means.mean(0).square()).item() != pytest.approx(0.25, rel=0.5)


@pytest.mark.parametrize("use", ["log_prob", "sample", "kl", "kl of another"])
def test_an_improper_factor_has_no_density_sample_or_divergence(use):
    x, _ = example()
    improper = Gaussian(torch.tensor([1.0, -1.0]).double(), torch.zeros(2).double())
    calls = {
        "log_prob": lambda: improper.log_prob(torch.zeros(2)),
        "sample": lambda: improper.sample(torch.Generator()),
        "kl": lambda: improper.kl(x),
        "kl of another": lambda: x.kl(improper),
    }
    with pytest.raises(ImproperGaussianError, match=r"precision at index \(1,\) is -1"):
        calls[use]()


def test_standard_deviations_keep_above_the_floor():
    raw = torch.tensor([-1e6, -10.0, 0.0, 1e6])
    std = positive_std(raw)
    assert (std >= STD_FLOOR).all()
    assert std[0] == STD_FLOOR
    assert std[2] == pytest.approx(math.log(2) + STD_FLOOR)


def quadratic(z):
    a = torch.tensor([[1.0, 0.3, -0.2], [0.0, 2.0, 0.7], [0.1, 0.0, -1.0]]).double()
    return torch.einsum("...i,ij,...j->...", z, a, z) + z @ torch.tensor([1.0, -2.0, 3.0]).double()


def cubic(z):
    return z[..., 0] ** 3 - 2 * z[..., 0] * z[..., 1] ** 2 + z.prod(-1)


@pytest.mark.parametrize("function", [quadratic, cubic])
def test_cubature_points_are_exact_up_to_the_third_degree(function):
    """Exact against a tensor-product Gauss-Hermite rule."""
    state = Gaussian.from_moments(
        torch.tensor([0.5, -1.0, 2.0]).double(), torch.tensor([0.5, 2.0, 1.0]).double()
    )
    found = function(state.at(Cubature().noise(state.precision))).mean()
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    grid = torch.tensor(np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1))
    weight = torch.tensor(np.einsum("i,j,k->ijk", weights, weights, weights)) / weights.sum() ** 3
    torch.testing.assert_close(found, (weight * function(state.at(grid))).sum())


def test_cubature_takes_two_points_per_dimension():
    assert Cubature().noise(torch.zeros(7, 2, 5)).shape == (10, 1, 1, 5)


def test_antithetic_points_are_exact_for_odd_functions_and_unbiased_for_others():
    noise = Antithetic(2000).noise(torch.zeros(3).double(), torch.Generator().manual_seed(0))
    assert noise.shape == (2000, 3)
    assert noise.mean(0).abs().max() < 1e-12
    assert (noise**3).mean(0).abs().max() < 1e-12
    squares = noise[:1000] ** 2
    assert ((squares.mean(0) - 1).abs() < 4 * squares.std(0) / 1000**0.5).all()


def test_antithetic_points_estimate_a_mean_with_less_variance():
    like = torch.zeros(500, 1).double()
    plain = MonteCarlo(20).noise(like, torch.Generator().manual_seed(0))
    paired = Antithetic(20).noise(like, torch.Generator().manual_seed(0))
    assert torch.tanh(paired + 0.3).mean(0).var() < 0.5 * torch.tanh(plain + 0.3).mean(0).var()


@pytest.mark.parametrize("scheme", [MonteCarlo(4), Antithetic(4)])
def test_random_points_need_a_generator(scheme):
    with pytest.raises(ValueError, match="need a generator"):
        scheme.noise(torch.zeros(2), None)


@pytest.mark.parametrize("make", [lambda: MonteCarlo(0), lambda: Antithetic(3)])
def test_impossible_counts_are_refused(make):
    with pytest.raises(ValueError, match=r"needs (at least one|an even number)"):
        make()

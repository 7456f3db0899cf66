"""Where an exact answer exists, inference gives it."""

import numpy as np
import pytest
import torch

from tests.linear_gaussian import LinearGaussian
from weft import MDMM, Antithetic, Gaussian, MonteCarlo, Sequences
from weft.scaling import Scaling

CASES = [
    # seed, latent, modalities, lengths, missing
    (0, 1, 1, [1], 0.0),
    (1, 1, 1, [1, 2], 0.5),
    (2, 2, 2, [5, 3, 8], 0.3),
    (3, 3, 2, [12, 1, 7], 0.6),
    (4, 2, 3, [20, 13], 0.9),
    (5, 4, 1, [50], 0.5),
    (6, 2, 2, [4, 6], 1.0),
    (7, 3, 3, [50, 17, 31], 0.4),
]


def scenario(case):
    seed, latent, modalities, lengths, missing = case
    truth = LinearGaussian.random(seed, latent, modalities)
    data = truth.simulate(seed, lengths, missing)
    module = truth.module()
    return truth, data, module, module.batch(data)


def assert_equal(found, exact, steps, b, subset=0, tolerance=1e-5):
    mean, variance = exact
    for got, want in ((found.mean, mean), (found.variance, variance)):
        got = got[:steps, subset, b].detach().numpy()
        np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_filters_equal_the_dense_posterior(case, backward):
    truth, data, module, batch = scenario(case)
    found = module.filter(batch, backward=backward).posterior
    for b, steps in enumerate(data.lengths):
        assert_equal(found, truth.filtered(data, b, backward=backward), steps, b)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_filter_marginals_equal_the_dense_posterior(case):
    truth, data, module, batch = scenario(case)
    found = module.smooth(batch)
    for b, steps in enumerate(data.lengths):
        assert_equal(found.posterior, truth.marginals(data, b), steps, b)
    assert not found.tempered.any()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("samples", [0, 3])
def test_conditional_smoothing_equals_the_dense_conditional(case, samples):
    truth, data, module, batch = scenario(case)
    found = module.sequence(batch, samples=samples, generator=torch.Generator().manual_seed(0))
    z = found.latents.detach().numpy()
    for b, steps in enumerate(data.lengths):
        for t in range(steps):
            for k in range(max(samples, 1)):
                fixed = {t - 1: z[k, t - 1, 0, b]} if t else {}
                mean, variance = truth.marginals(data, b, first=t, fixed=fixed)
                posterior = found.posterior[k, t, 0, b]
                np.testing.assert_allclose(posterior.mean.detach(), mean[t], atol=1e-5)
                np.testing.assert_allclose(posterior.variance.detach(), variance[t], atol=1e-5)


def test_the_map_recursion_gives_the_smoothing_means():
    """In a Gaussian chain, conditional means of conditional means are the marginal means."""
    truth, data, module, batch = scenario(CASES[7])
    found = module.sequence(batch).latents[0].detach().numpy()
    for b, steps in enumerate(data.lengths):
        mean, _ = truth.marginals(data, b)
        np.testing.assert_allclose(found[:steps, 0, b], mean, atol=1e-5)


def test_every_subset_of_modalities_equals_its_own_dense_posterior():
    truth, data, module, batch = scenario(CASES[7])
    subsets = [["m0"], ["m1", "m2"], [], ["m2", "m0", "m1"]]
    smoothed = module.smooth(batch, subsets=subsets).posterior
    filtered = module.filter(batch, backward=True, subsets=subsets).posterior
    for s, names in enumerate(subsets):
        for b, steps in enumerate(data.lengths):
            assert_equal(smoothed, truth.marginals(data, b, names=names), steps, b, s)
            exact = truth.filtered(data, b, backward=True, names=names)
            assert_equal(filtered, exact, steps, b, s)


def test_whole_modalities_missing_in_some_sequences():
    truth = LinearGaussian.random(11, 2, 3)
    full = truth.simulate(11, [9, 9, 9], 0.2)
    arrays: dict[str, list[np.ndarray | None]] = {n: [*full.arrays(n)] for n in truth.names}
    arrays["m0"][1] = None
    arrays["m1"][1] = None
    arrays["m2"][2] = None
    data = Sequences.from_arrays(arrays)
    module = truth.module()
    found = module.smooth(module.batch(data)).posterior
    for b in range(3):
        assert_equal(found, truth.marginals(data, b), 9, b)


@pytest.mark.parametrize("particles", [MonteCarlo(256), Antithetic(256)], ids=str)
@pytest.mark.parametrize("verb", ["forward", "backward", "smooth"])
def test_random_particles_agree_within_four_standard_errors(particles, verb):
    """64 independent runs of one sequence; their mean against the dense posterior."""
    runs = 64
    truth = LinearGaussian.random(21, 2, 2)
    data = truth.simulate(21, [6], 0.4)
    module = truth.module()
    batch = module.batch(data[[0] * runs])
    generator = torch.Generator().manual_seed(5)
    if verb == "smooth":
        found = module.smooth(batch, particles=particles, generator=generator).posterior
        exact = truth.marginals(data, 0)
    else:
        backward = verb == "backward"
        filtered = module.filter(batch, backward=backward, particles=particles, generator=generator)
        found, exact = filtered.posterior, truth.filtered(data, 0, backward=backward)
    for estimates, want in zip((found.mean, found.variance), exact, strict=True):
        estimates = estimates[:, 0].detach()
        error = estimates.mean(1).numpy() - want
        standard_error = estimates.std(1).numpy() / np.sqrt(runs)
        assert (np.abs(error) <= 4 * standard_error + 1e-9).all()


def test_sampled_trajectories_have_the_exact_covariance_between_neighbours():
    truth, data, module, _ = scenario((31, 2, 2, [8], 0.5))
    count = 40_000
    found = module.sequence(
        module.batch(data), samples=count, generator=torch.Generator().manual_seed(1)
    )
    z = found.latents[:, :, 0, 0].detach().numpy()
    mean, covariance = truth.posterior(data, 0)
    variance = np.einsum("tdtd->td", covariance)
    assert (np.abs(z.mean(0) - mean) < 4 * np.sqrt(variance / count)).all()
    centred = z - mean
    for d in range(truth.latent):
        for t in range(7):
            want = covariance[t, d, t + 1, d]
            got = (centred[:, t, d] * centred[:, t + 1, d]).mean()
            error = np.sqrt((variance[t, d] * variance[t + 1, d] + want**2) / count)
            assert abs(got - want) < 4 * error


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("samples", [1, 7])
def test_the_score_of_an_exact_model_is_the_exact_likelihood(case, samples):
    """With the true posterior as proposal, every importance weight is p(x)."""
    truth, data, module, _ = scenario(case)
    model = MDMM(module.model.modalities, truth.latent, 2 * truth.latent)
    model._module, model._scaling = module, Scaling({})
    found = model.score_sequences(data, samples=samples)
    exact = [truth.log_likelihood(data, b) for b in range(len(data))]
    np.testing.assert_allclose(found, exact, atol=1e-5)


def test_algorithm_2_is_exact_when_the_future_is_silent():
    truth = LinearGaussian.random(41, 2, 1)
    data = truth.simulate(41, [10], 0.0)
    data = data.delete({"m0": data.step_of_row > 0})
    module = truth.module()
    found = module.smooth_forward(module.batch(data)).posterior
    assert_equal(found, truth.marginals(data, 0), 10, 0)


def test_algorithm_2_counts_the_future_twice():
    """With several forward particles its variances are too small; the two-filter form's are not."""
    truth = LinearGaussian.random(42, 1, 1)
    data = truth.simulate(42, [60], 0.5)
    module = truth.module()
    _, exact = truth.marginals(data, 0)
    found = module.smooth_forward(module.batch(data)).posterior.variance[:, 0, 0].detach().numpy()
    assert (found <= exact + 1e-9).all()
    assert found.min() < 0.95 * exact[found.argmin()]


def test_a_nonlinear_push_matches_quadrature():
    """One particle step of a random network against a grid integral over its input."""
    torch.manual_seed(0)
    truth = LinearGaussian.random(0, 1, 1)
    model = truth.module().model
    for parameter in model.forward_factor.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    state = Gaussian.from_moments(
        torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.8], dtype=torch.float64)
    )
    grid = torch.linspace(-6, 6, 20_001, dtype=torch.float64)[:, None] * 0.8 + 0.3
    weight = torch.softmax(state.log_prob(grid), 0)
    with torch.no_grad():
        component = model.step_forward(grid)
        mean = (weight[:, None] * component.mean).sum(0)
        second = (weight[:, None] * (component.variance + component.mean**2)).sum(0)
        draws = model.step_forward(state.sample(torch.Generator().manual_seed(0), 200_000))
        found = draws.moment_match()
    assert abs(found.mean - mean) < 4 * draws.mean.std() / 200_000**0.5
    spread = (draws.variance + (draws.mean - found.mean) ** 2).std() / 200_000**0.5
    assert abs(found.variance - (second - mean**2)) < 4 * spread

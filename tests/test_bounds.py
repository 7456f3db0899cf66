"""The particle bound lies where the exact likelihood says."""

import numpy as np
import pytest
import torch

from tests.linear_gaussian import ExactEncoder, LinearGaussian
from weft import Sequences, bounds
from weft.inference import METHODS, build
from weft.modality import Modality


def with_a_poor_guide(truth: LinearGaussian):
    """The exact model, with encoders that trust observations too little and shift them."""
    module = truth.module()
    for encoder in module.encoders:
        assert isinstance(encoder, ExactEncoder)
        encoder.noise = 4 * encoder.noise
        encoder.offset = encoder.offset + 0.3
    return module


def bound_of(module, data, count, seed=0):
    batch = module.batch(data)
    generator = torch.Generator().manual_seed(seed)
    return bounds.importance_bound(module.guide(batch), batch, count, generator)


def plain_bound(module, data, count, seed=0):
    """The same without ever drawing trajectories anew: the textbook's importance-weighted bound."""
    batch = module.batch(data)
    guide = module.guide(batch)
    noise = torch.randn(
        (count, *guide.shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    path = guide.sequence(noise)
    weights = (path.prior.log_prob(path.latents) - path.posterior.log_prob(path.latents))[:, :, 0]
    for name in module.model.names:
        log_prob = module.model.log_prob(
            name, path.latents[:, :, 0], batch.values[name], batch.observed[name]
        )
        weights = weights + torch.where(batch.seen(name), log_prob, 0.0)
    total = (weights * batch.valid).sum(1)
    return (torch.logsumexp(total, 0) - np.log(count)).detach().numpy()


@pytest.mark.parametrize("method", METHODS)
def test_a_step_is_that_of_a_sequence(method):
    torch.manual_seed(0)
    module = build(method, [Modality("x", 2), Modality("y")], 3, 5).double().eval()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 7, 2))
    x[rng.random((4, 7)) < 0.4] = np.nan
    batch = module.batch(Sequences.from_arrays({"x": x, "y": rng.normal(size=(4, 7, 1))}))
    guide = module.guide(batch)
    noise = torch.randn(3, *guide.shape, dtype=torch.float64)
    whole, past = guide.sequence(noise), None
    for t in range(7):
        step = guide.step(t, past, noise[:, t])
        past = step.latents
        torch.testing.assert_close(past, whole.latents[:, t])
        for found, wanted in ((step.posterior, whole.posterior), (step.prior, whole.prior)):
            torch.testing.assert_close(found.mean, wanted[:, t].mean)
            torch.testing.assert_close(found.std, wanted[:, t].std)


def test_with_the_exact_posterior_one_trajectory_is_enough():
    truth = LinearGaussian.random(1, 2, 2)
    data = truth.simulate(1, [30, 11], 0.4)
    exact = [truth.log_likelihood(data, b) for b in range(2)]
    np.testing.assert_allclose(bound_of(truth.module(), data, 1), exact, rtol=1e-4)


def test_likelihoods_are_right_on_average_whatever_the_guide(monkeypatch):
    drawn = []
    resample = bounds.resample

    def watched(weights, generator):
        drawn.append(len(weights))
        return resample(weights, generator)

    monkeypatch.setattr(bounds, "resample", watched)
    truth = LinearGaussian.random(3, 1, 1)
    data = truth.simulate(3, [8], 0.2)
    many = Sequences.concatenate([data] * 4000)
    found = bound_of(with_a_poor_guide(truth), many, 4)
    ratio = np.exp(found - truth.log_likelihood(data, 0))
    assert drawn
    assert ratio.std() > 0.1
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_drawing_anew_keeps_the_bound_of_long_sequences_close():
    truth = LinearGaussian.random(4, 2, 1)
    data = truth.simulate(4, [400], 0.2)
    module, exact = with_a_poor_guide(truth), truth.log_likelihood(data, 0)
    found = np.array([bound_of(module, data, 100, seed)[0] for seed in range(5)])
    plain = np.array([plain_bound(module, data, 100, seed)[0] for seed in range(5)])
    assert (found < exact + 10).all()
    assert exact - found.mean() < 0.2 * (exact - plain.mean())


def test_trajectories_are_kept_in_proportion_to_their_weight():
    generator = torch.Generator().manual_seed(0)
    weights = 3 * torch.randn(50, 20, generator=generator, dtype=torch.float64)
    kept = bounds.resample(weights, generator)
    wanted = 50 * torch.softmax(weights, 0)
    for b in range(20):
        counts = torch.bincount(kept[:, b], minlength=50)
        assert ((counts - wanted[:, b]).abs() < 1).all()


def test_a_sequence_does_not_depend_on_its_batch():
    truth = LinearGaussian.random(5, 2, 1)
    data = truth.simulate(5, [40, 12], 0.2)
    module = with_a_poor_guide(truth)
    together = np.array([bound_of(module, data, 200, s) for s in range(20)]).mean(0)
    alone = [np.mean([bound_of(module, data[[b]], 200, s) for s in range(20)]) for b in (0, 1)]
    np.testing.assert_allclose(together, alone, atol=1.0)

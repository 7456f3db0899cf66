"""Posterior linearisation is exact for linear models, coupled ones included."""

import numpy as np
import pytest
import torch

from tests.linear_gaussian import LinearGaussian, inverse_softplus
from weft import BFVI, MDMM, Bernoulli, Gaussian, Modality, Sequences, TrainingConfig
from weft.gaussian import STD_FLOOR
from weft.inference.linearized import linearize
from weft.networks import MLPDecoder
from weft.scaling import Scaling


def anywhere(model, *shape):
    """A start within the prior's reach that knows nothing of the data."""
    generator = torch.Generator().manual_seed(0)
    prior = model.prior().expand(*shape, model.latent)
    mean, width = torch.rand((2, *prior.shape), generator=generator).to(prior.mean)
    return Gaussian.from_moments(prior.at(mean), 0.1 + width)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(
    ("lengths", "missing"), [([1], 0.0), ([12, 1, 7], 0.5), ([30, 20], 0.9), ([4, 6], 1.0)]
)
def test_marginals_equal_the_dense_posterior(lengths, missing, rounds):
    """From the first observation on."""
    truth = LinearGaussian.random(3, 3, 2)
    data = truth.simulate(1, lengths, missing)
    module = truth.module()
    batch = module.batch(data)
    start = anywhere(module.model, max(lengths), len(lengths))
    found = linearize(module.model, batch, start, rounds)
    for b, steps in enumerate(lengths):
        mean, variance = truth.marginals(data, b)
        begun = found.begun[:steps, b].numpy()
        marginals = found.marginals[:steps, b]
        np.testing.assert_allclose(marginals.mean[begun], mean[begun], atol=1e-6)
        np.testing.assert_allclose(marginals.variance[begun], variance[begun], atol=1e-6)


class Rotation:
    """A noisy rotation of the plane whose first coordinate is observed, with a dense posterior."""

    steps, noise, speed, sight = 15, 0.1, 0.4, 0.2

    def __init__(self):
        turn = np.array(
            [
                [np.cos(self.speed), -np.sin(self.speed)],
                [np.sin(self.speed), np.cos(self.speed)],
            ]
        )
        # prior × factor: the factor's mean must make up for the pull towards the prior's
        pull = 1 / (1 + self.noise)
        self.turn, self.left = pull * turn, self.noise * pull
        module = BFVI([Modality("x")], 2, 4).double()
        with torch.no_grad():
            module.model.prior_spread.fill_(float(inverse_softplus(torch.tensor(1 - STD_FLOOR))))
            network = module.model.forward_factor
            network.gate.bias.fill_(-1e6)
            network.gate.weight.zero_()
            network.linear.weight.copy_(torch.tensor(turn))
            network.linear.bias.zero_()
            network.spread.weight.zero_()
            spread = torch.tensor(self.noise**0.5 - STD_FLOOR, dtype=torch.float64)
            network.spread.bias.fill_(float(inverse_softplus(spread)))
            decoder = module.model.decoders[0]
            assert isinstance(decoder, MLPDecoder)
            decoder.hidden.weight.copy_(
                torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
            )
            decoder.hidden.bias.zero_()
            decoder.output.weight.zero_()
            decoder.output.weight[0, :2] = torch.tensor([1.0, -1.0])
            decoder.output.bias[0] = 0
            sight = torch.tensor(self.sight - STD_FLOOR, dtype=torch.float64)
            decoder.output.bias[1] = float(inverse_softplus(sight))
        self.module = module

    def posterior(self, x):
        """Mean and covariance of all states together, by the textbook formula."""
        size = 2 * self.steps
        innovations = np.eye(size) * self.left
        innovations[:2, :2] = np.eye(2)
        carry = np.eye(size) - np.kron(np.eye(self.steps, k=-1), self.turn)
        covariance = np.linalg.solve(carry, np.linalg.solve(carry, innovations.T).T)
        seen = np.flatnonzero(~np.isnan(x))
        look = np.zeros((len(seen), size))
        look[np.arange(len(seen)), 2 * seen] = 1
        gain = np.linalg.solve(
            look @ covariance @ look.T + self.sight**2 * np.eye(len(seen)), look @ covariance
        ).T
        return gain @ x[seen], covariance - gain @ look @ covariance


@pytest.fixture(scope="module")
def rotation():
    truth = Rotation()
    rng = np.random.default_rng(0)
    x = rng.normal(size=truth.steps)
    x[1:][rng.uniform(size=truth.steps - 1) < 0.5] = np.nan
    batch = truth.module.batch(Sequences.from_arrays({"x": [x]}))
    found = linearize(truth.module.model, batch, anywhere(truth.module.model, truth.steps, 1), 1)
    return truth, found, truth.posterior(x)


def test_what_is_never_observed_is_learned_through_the_coupling(rotation):
    """One coordinate of two is seen; the exact means and covariances of both are found."""
    truth, found, (mean, covariance) = rotation
    blocks = covariance.reshape(truth.steps, 2, truth.steps, 2)
    own = blocks[np.arange(truth.steps), :, np.arange(truth.steps), :]
    np.testing.assert_allclose(found.mean[:, 0], mean.reshape(-1, 2), atol=1e-8)
    np.testing.assert_allclose(found.covariance[:, 0], own, atol=1e-8)


def test_walks_have_the_joint_covariance(rotation):
    """Walking along unit vectors of noise gives a root of the covariance of whole trajectories."""
    truth, found, (mean, covariance) = rotation
    size = 2 * truth.steps
    units = torch.eye(size, dtype=torch.float64).reshape(size, truth.steps, 1, 2)
    paths = torch.stack(list(found.walk(units.unbind(1))), 1).reshape(size, size).numpy()
    root = paths - mean
    np.testing.assert_allclose(root.T @ root, covariance, atol=1e-7)


def test_other_likelihoods_go_by_their_moments():
    """Binary and categorical observations move the state, missing ones do not, in any precision."""
    torch.manual_seed(0)
    modalities = [Modality("on", 2, likelihood=Bernoulli()), Modality("kind", categories="abc")]
    module = BFVI(modalities, 3, 8)
    data = Sequences.from_arrays(
        {"on": [[[0, 1], [np.nan, 1], [0, 0]]] * 2, "kind": [["a", None, "c"], [None] * 3]},
        categories={"kind": "abc"},
    )
    batch = module.batch(data)
    start = anywhere(module.model, 3, 2)
    found = linearize(module.model, batch, start, 2).marginals
    assert found.mean.isfinite().all()
    assert (found.variance > 0).all()
    assert not torch.allclose(found.mean[:, 0], found.mean[:, 1])
    nothing = linearize(module.model, module.batch(data.hide("on")), start, 2).marginals
    prior = module.model.prior()
    torch.testing.assert_close(nothing.mean[0, 1].float(), prior.mean, atol=1e-6, rtol=0)


def test_a_number_of_rounds_is_asked_for():
    module = BFVI([Modality("x")], 2, 4)
    batch = module.batch(Sequences.from_arrays({"x": [[0.1, 0.2]]}))
    with pytest.raises(ValueError, match="at least one round"):
        linearize(module.model, batch, anywhere(module.model, 2, 1), 0)


def test_a_refined_model_predicts_by_the_linearised_posterior():
    """Smoothing, its predictions and the MAP sequence agree for a linear model; so do tasks."""
    truth = LinearGaussian.random(2, 2, 2)
    data = truth.simulate(0, [9, 6], 0.4)
    model = MDMM([Modality(name, 2) for name in truth.names], 2, 4, refine=1)
    model._module, model._scaling = truth.module(), Scaling({})
    found = model.smooth(data, samples=4000)
    path = model.sequence(data)
    for b, steps in enumerate(data.lengths):
        mean, variance = truth.marginals(data, b)
        np.testing.assert_allclose(found.posterior.mean[b, :steps], mean, atol=1e-6)
        np.testing.assert_allclose(found.posterior.std[b, :steps] ** 2, variance, atol=1e-6)
        np.testing.assert_allclose(path.latents[0, b, :steps], mean, atol=1e-6)
        signal = truth.gain[0] * mean + truth.offset[0]
        spread = np.abs(truth.gain[0]) * np.sqrt(variance / 4000)
        off = found["m0"].mean[b, :steps] - signal
        assert (np.abs(off) < 5 * spread).all()
    longer = model.forecast(data, steps=3)["m1"]
    assert longer.mean.shape == (2, 3, 2)
    assert np.isfinite(longer.quantile(0.9)).all()


def test_before_the_first_observation_nothing_is_refined():
    torch.manual_seed(0)
    gap, rest = [np.nan] * 4, [0.3, -0.2, 0.1]
    data = Sequences.from_arrays({"x": [gap + rest, rest + gap]})
    model = MDMM([Modality("x")], latent=2, hidden=4)
    model.fit(data, training=TrainingConfig(epochs=1), progress=False)
    plain = model.sequence(data).latents[0]
    smooth = model.smooth(data, samples=1).posterior.mean
    model.refine = 1
    refined = model.sequence(data).latents[0]
    resmooth = model.smooth(data, samples=1).posterior.mean
    for before, after in ((plain, refined), (smooth, resmooth)):
        np.testing.assert_allclose(after[0, :4], before[0, :4], atol=1e-6)
        assert (after[0, 4:] != before[0, 4:]).all()
        assert (after[1] != before[1]).all()


def test_rounds_are_not_negative():
    with pytest.raises(ValueError, match="at least 0"):
        MDMM([Modality("x")], refine=-1)

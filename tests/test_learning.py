"""Learning finds a known process; `make evidence` measures the same at length."""

import numpy as np

from tests.linear_gaussian import LinearGaussian
from weft import MDMM, Modality, TrainingConfig


def test_a_learned_model_approaches_the_exact_likelihood_and_smoother():
    """A scalar AR(1) seen by two noisy sensors, 30 % of the entries missing."""
    truth = LinearGaussian(
        a=np.array([0.9]),
        m=np.array([1.0]),
        v=np.array([2.0]),
        gain=np.array([[1.0], [-0.5]]),
        offset=np.array([[0.0], [3.0]]),
        noise=np.array([[0.5], [0.2]]),
    )
    train = truth.simulate(1, [20] * 300, 0.3)
    clean, test = truth.simulate_pair(2, [20] * 100, 0.3)
    model = MDMM([Modality("m0"), Modality("m1")], latent=1, hidden=8)
    config = TrainingConfig(epochs=40, batch_size=50, learning_rate=0.02)
    model.fit(train, training=config, progress=False)

    exact_score = sum(truth.log_likelihood(test, b) for b in range(100)) / test.rows
    gap = (exact_score - model.score(test)) / abs(exact_score)
    assert -0.005 < gap < 0.03

    found = model.smooth(test)["m0"].mean
    exact = np.stack([truth.marginals(test, b)[0] for b in range(100)])
    signal = clean.padded("m0")
    assert np.square(found - signal).mean() < 1.10 * np.square(exact - signal).mean()
    assert np.isfinite(model.history[-1].loss)

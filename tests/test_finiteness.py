"""No NaN, ever: values and gradients stay finite where data are absent, long or extreme."""

import numpy as np
import pytest
import torch

from tests.verbs import MODALITIES, VERBS, declare, random_data
from weft import BFVI, Cubature, MonteCarlo, Sequences

SCHEMES = [Cubature(), MonteCarlo(5)]


def extreme_data(value, steps=6):
    rng = np.random.default_rng(0)
    scalar = np.full((2, steps), value)
    vector = np.full((2, steps, 3), value) * rng.choice([-1, 1], (2, steps, 3))
    vector[0, -1] = np.nan
    label = rng.integers(0, 3, (2, steps))
    return Sequences.from_arrays({"scalar": scalar, "vector": vector, "label": label})


DATA = {
    "everything missing": random_data(missing=1.0),
    "single steps": random_data(lengths=(1, 1), missing=0.3),
    "single steps, missing": random_data(lengths=(1,), missing=1.0),
    "half missing": random_data(missing=0.5),
    "1e6": extreme_data(1e6),
    "-1e6": extreme_data(-1e6),
    "one step of 1e6": extreme_data(1e6, steps=1),
}


def assert_finite_with_gradients(module, batch, verb, particles):
    generator = torch.Generator().manual_seed(0)
    posterior = VERBS[verb](module, batch, particles=particles, generator=generator)
    assert posterior.is_proper.all()
    z = posterior.at(torch.zeros_like(posterior.mean))[:, 0]
    total = posterior.kl(module.model.prior()).mean()
    for name in MODALITIES:
        total = (
            total - module.model.log_prob(name, z, batch.values[name], batch.observed[name]).mean()
        )
    assert total.isfinite()
    total.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("particles", SCHEMES, ids=str)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("data", DATA)
def test_values_and_gradients_are_finite(data, verb, particles):
    torch.manual_seed(0)
    module = BFVI(declare(), latent=4, hidden=16)
    assert_finite_with_gradients(module, module.batch(DATA[data]), verb, particles)


@pytest.mark.parametrize("verb", ["smooth", "smooth forward", "sequence"])
def test_ten_thousand_steps_stay_finite(verb):
    torch.manual_seed(0)
    module = BFVI(declare(), latent=4, hidden=16)
    data = random_data(lengths=(10_000,), missing=0.8)
    assert_finite_with_gradients(module, module.batch(data), verb, Cubature())

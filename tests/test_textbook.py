"""The yardstick of the bench computes the same function as the package."""

import pytest
import torch
from benchmarks.textbook import textbook_loss, textbook_smooth

from weft import BFVI, Cubature, Modality, Pixels, Sequences
from weft.objective import Objective, ObjectiveConfig

CONFIG = ObjectiveConfig(particles=Cubature(), match_particles=Cubature())


def cubature(state):
    mean, variance = state
    points = Cubature().noise(mean)
    return mean + variance.sqrt() * points


def problem(*, images=False):
    torch.manual_seed(0)
    modalities = [Modality("x"), Modality("kind", categories=3, weight=2.0)]
    generator = torch.Generator().manual_seed(1)
    steps, batch = 6, 4
    values = {
        "x": torch.randn(steps, batch, 1, generator=generator, dtype=torch.float64),
        "kind": torch.randint(3, (steps, batch), generator=generator),
    }
    values["x"][torch.rand(steps, batch, generator=generator) < 0.3] = torch.nan
    if images:
        modalities.append(Modality("image", (1, 8, 8), likelihood=Pixels()))
        values["image"] = torch.rand(
            steps, batch, 1, 8, 8, generator=generator, dtype=torch.float64
        )
    module = BFVI(modalities, latent=3, hidden=6).double().eval()
    data = Sequences.from_arrays(
        {name: list(v.transpose(0, 1).numpy()) for name, v in values.items()}
    )
    return module, values, module.batch(data)


@pytest.mark.parametrize("images", [False, True])
def test_losses_and_gradients_agree(images, monkeypatch):
    module, values, batch = problem(images=images)
    subsets, latent = len(values) + 1, 3
    noise = torch.randn(
        (2, 6, subsets, 4, latent),
        generator=torch.Generator().manual_seed(3),
        dtype=torch.float64,
    )
    swarm = Cubature().noise(torch.zeros(latent, dtype=torch.float64))
    expected = textbook_loss(module, values, CONFIG, cubature, noise, swarm)
    found = Objective(module, CONFIG)(batch, torch.Generator().manual_seed(3)).total
    torch.testing.assert_close(found, expected)
    leaves = list(module.parameters())
    for a, b in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_marginals_agree():
    module, values, batch = problem()
    mean, variance = textbook_smooth(module, values, cubature)
    found = module.smooth(batch).posterior
    torch.testing.assert_close(found.mean[:, 0], mean)
    torch.testing.assert_close(found.variance[:, 0], variance)

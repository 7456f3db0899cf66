"""Measures of predictions against their definitions."""

import math

import numpy as np
import pytest
import torch

from weft.metrics import crps, structural_similarity


def brute_force(image, truth, sigma=1.5, reach=5):
    """Structural similarity of two planes, pixel by pixel."""
    height, width = image.shape
    offsets = range(-reach, reach + 1)
    weights = {
        (i, j): math.exp(-(i * i + j * j) / (2 * sigma**2)) for i in offsets for j in offsets
    }
    total = sum(weights.values())
    values = []
    for row in range(reach, height - reach):
        for column in range(reach, width - reach):
            x = {o: float(image[row + o[0], column + o[1]]) for o in weights}
            y = {o: float(truth[row + o[0], column + o[1]]) for o in weights}
            mean_x = sum(w * x[o] for o, w in weights.items()) / total
            mean_y = sum(w * y[o] for o, w in weights.items()) / total
            var_x = sum(w * (x[o] - mean_x) ** 2 for o, w in weights.items()) / total
            var_y = sum(w * (y[o] - mean_y) ** 2 for o, w in weights.items()) / total
            both = sum(w * (x[o] - mean_x) * (y[o] - mean_y) for o, w in weights.items()) / total
            above = (2 * mean_x * mean_y + 1e-4) * (2 * both + 9e-4)
            values.append(above / (mean_x**2 + mean_y**2 + 1e-4) / (var_x + var_y + 9e-4))
    return sum(values) / len(values)


def test_structural_similarity_is_its_definition():
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(2, 2, 13, 14, generator=generator, dtype=torch.float64)
    images = (truth + 0.3 * torch.rand(truth.shape, generator=generator)).clamp(0, 1)
    found = structural_similarity(images, truth)
    for row in range(2):
        expected = sum(brute_force(images[row, c], truth[row, c]) for c in range(2)) / 2
        assert found[row].item() == pytest.approx(expected, abs=1e-12)


def test_equal_images_have_similarity_one_and_noise_has_none():
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(3, 1, 64, 64, generator=generator)
    others = torch.rand(3, 1, 64, 64, generator=generator)
    assert torch.allclose(structural_similarity(images, images), torch.ones(3), atol=1e-5)
    assert structural_similarity(images, others).abs().max() < 0.05


def test_images_that_do_not_compare_are_refused():
    with pytest.raises(ValueError, match="do not compare"):
        structural_similarity(torch.zeros(1, 1, 16, 16), torch.zeros(1, 3, 16, 16))
    with pytest.raises(ValueError, match="smaller than the window"):
        structural_similarity(torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 8, 16))


def test_crps_is_its_definition():
    rng = np.random.default_rng(2)
    draws, truth = rng.normal(size=(7, 4)), rng.normal(size=4)
    pairs = [np.abs(draws[i] - draws[j]) for i in range(7) for j in range(7) if i != j]
    expected = np.abs(draws - truth).mean(0) - np.mean(pairs, 0) / 2
    np.testing.assert_allclose(crps(draws, truth), expected, rtol=1e-12)


def test_crps_of_a_normal_is_the_closed_form():
    rng = np.random.default_rng(3)
    found = crps(rng.normal(size=(200_000, 1)), np.array([0.7]))
    density = math.exp(-0.5 * 0.7**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + math.erf(0.7 / math.sqrt(2)))
    expected = 0.7 * (2 * below - 1) + 2 * density - 1 / math.sqrt(math.pi)
    assert found[0] == pytest.approx(expected, abs=0.005)

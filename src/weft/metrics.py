"""How well predictions match what was there."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.columns import Array

__all__ = ["crps", "structural_similarity"]

STEADY = (0.01**2, 0.03**2)
"""Small numbers that keep the quotients steady where images are dark or flat."""


def structural_similarity(
    images: Tensor, truth: Tensor, *, sigma: float = 1.5, reach: int = 5
) -> Tensor:
    r"""Structural similarity (Wang et al. 2004) of images ``(rows, channels, height, width)``.

    .. math::
        \frac{(2 μ_x μ_y + c_1)(2 σ_{xy} + c_2)}{(μ_x^2 + μ_y^2 + c_1)(σ_x^2 + σ_y^2 + c_2)}

    Means and (co)variances are local, under a Gaussian window of ``2 · reach + 1`` pixels that lies
    wholly in the image. Brightness goes from 0 to 1. The result ``(rows,)`` is averaged over
    pixels and channels; it is 1 for equal images.

    Examples
    --------
    >>> image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> structural_similarity(image, image)
    tensor([1.])
    """
    if images.shape != truth.shape:
        raise ValueError(
            f"Images of shape {tuple(images.shape)} and {tuple(truth.shape)} do not compare."
        )
    if min(images.shape[-2:]) <= 2 * reach:
        raise ValueError(f"Images of {tuple(images.shape[-2:])} are smaller than the window.")
    along = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = torch.softmax(-0.5 * (along / sigma).square(), 0)

    def local(pixels: Tensor) -> Tensor:
        lines = F.conv2d(pixels.flatten(0, 1)[:, None], weights[None, None, :, None])
        return F.conv2d(lines, weights[None, None, None, :]).reshape(*pixels.shape[:2], -1)

    mean_x, mean_y = local(images), local(truth)
    variance_x = local(images.square()) - mean_x.square()
    variance_y = local(truth.square()) - mean_y.square()
    covariance = local(images * truth) - mean_x * mean_y
    level, contrast = STEADY
    similarity = (2 * mean_x * mean_y + level) * (2 * covariance + contrast)
    similarity /= mean_x.square() + mean_y.square() + level
    similarity /= variance_x + variance_y + contrast
    return similarity.mean((1, 2))


def crps(draws: Array, truth: Array) -> Array:
    r"""Continuous ranked probability score of samples ``(draw, …)`` at the true values ``(…)``.

    .. math::
        \mathbb{E}|X - y| - \tfrac12 \mathbb{E}|X - X'|

    with the second expectation over pairs of different draws, so that it does not depend on their
    number on average. Zero is best; for a single sure value it is the absolute error.

    Examples
    --------
    >>> crps(np.array([[0.0], [2.0]]), np.array([1.0]))
    array([0.])
    """
    count = len(draws)
    spread = np.zeros(truth.shape)
    if count > 1:  # Σ_{i<j} |x_i - x_j|, from sorted draws
        weights = 2 * np.arange(count) - (count - 1)
        spread = np.tensordot(weights, np.sort(draws, 0), 1) / (count * (count - 1) / 2)
    found: Array = np.abs(draws - truth).mean(0) - spread / 2
    return found

"""Convolutional encoders and decoders of square images (supplement, "Encoders and Decoders").

Both have three layers of stride 2, with batch norm and ReLU after all but the last. An image of any
side is halved, rounding up, to an eighth of it; the decoder goes back through the same sides.

`layers` say what a network computes. In training, on a CPU, compiled operations compute the same:
normalisation and ReLU in one, together with the decoder's last convolution if they lie in front of
it, and a convolution's bias in front of them left out, as the mean takes it out again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft import native_images

__all__ = ["ImageDecoder", "ImageFeatures"]

WIDTHS = (16, 32, 64)
"""Channels after each convolution."""

SMALLEST = 5
"""Below this side a normalisation layer would see one pixel, and a single image has no variance."""

MOST_OUTPUTS = 8
"""Channels of an image up to which the compiled convolution is the faster one."""


class ImageFeatures(nn.Module):
    """Three convolutions over an image, flattened.

    Parameters
    ----------
    channels : int
        Channels of the input; twice the image's where the modality has ``mask_input=True``.
    size : int
        Height and width of the image.

    Examples
    --------
    >>> import torch
    >>> ImageFeatures(3, 64)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 4096])
    >>> ImageFeatures(1, 28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1024])
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        _check(channels, size)
        first, second, third = WIDTHS
        self.width = third * _sides(size)[-1] ** 2
        self.layers = nn.Sequential(
            _ChannelsLast(),
            nn.Conv2d(channels, first, 3, stride=2, padding=1),
            nn.BatchNorm2d(first),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.BatchNorm2d(second),
            nn.ReLU(inplace=True),
            nn.Conv2d(second, third, 3, stride=2, padding=1),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(rows, channels, size, size)`` to ``(rows, 64 · ⌈size / 8⌉²)``."""
        kernels = _compiled(self, images)
        features: Tensor = self.layers(images) if kernels is None else self._fast(images, kernels)
        return features

    def _fast(self, images: Tensor, kernels: str) -> Tensor:
        """Run the layers by compiled operations."""
        layers: list[Any] = list(self.layers)
        lay_out, first, first_norm, _, second, second_norm, _, third, flatten = layers
        images = _down(first, first_norm, lay_out(images), kernels)
        images = _down(second, second_norm, images, kernels)
        features: Tensor = flatten(third(images))
        return features


class ImageDecoder(nn.Module):
    """A linear layer and three transposed convolutions from a latent state to an image.

    The output is raw, as for every decoder: one log-odds per pixel and channel. The supplement's
    sigmoid belongs to the likelihood, `weft.Pixels` (or `weft.Bernoulli` for silhouettes).

    Parameters
    ----------
    latent : int
        Width of the state.
    channels : int
        Channels of the output; twice the image's for likelihoods of two numbers per entry.
    size : int
        Height and width of the image.

    Examples
    --------
    >>> import torch
    >>> ImageDecoder(8, 1, 28)(torch.zeros(2, 8)).shape
    torch.Size([2, 784])
    """

    def __init__(self, latent: int, channels: int, size: int) -> None:
        super().__init__()
        _check(channels, size)
        half, quarter, eighth = _sides(size)
        third, second, first = reversed(WIDTHS)
        self.hidden = nn.Linear(latent, third * eighth**2)
        self.layers = nn.Sequential(
            nn.ReLU(inplace=True),
            nn.Unflatten(1, (third, eighth, eighth)),
            _ChannelsLast(),
            nn.ConvTranspose2d(third, second, 4, stride=2, padding=1),
            _Crop(quarter),
            nn.BatchNorm2d(second),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(second, first, 4, stride=2, padding=1),
            _Crop(half),
            nn.BatchNorm2d(first),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(first, channels, 4, stride=2, padding=1),
            _Crop(size),
            nn.Flatten(),
        )

    @torch.no_grad()
    def start(self, raw: Tensor) -> None:
        """Let images lie around raw numbers ``(channels,)`` before anything is learned."""
        last: Any = self.layers[-3]
        last.bias.copy_(raw)

    def forward(self, z: Tensor) -> Tensor:
        """Map ``(rows, latent)`` to ``(rows, channels · size²)``."""
        kernels = _compiled(self, z)
        raw: Tensor = self.layers(self.hidden(z)) if kernels is None else self._fast(z, kernels)
        return raw

    def _fast(self, z: Tensor, kernels: str) -> Tensor:
        """Run the layers by compiled operations."""
        images = self._smallest(z)
        layers: list[Any] = list(self.layers)[3:]
        first, crop, norm, _, second, next_crop, next_norm, _, last, last_crop, flatten = layers
        images = crop(_without_bias(first, images))
        images = native_images.rectified(images, norm, first.bias, kernels)
        images = next_crop(_without_bias(second, images))
        if last.out_channels > MOST_OUTPUTS:
            images = native_images.rectified(images, next_norm, second.bias, kernels)
            raw: Tensor = flatten(last_crop(last(images)))
            return raw
        side = last_crop.side
        return native_images.enlarged(images, next_norm, second.bias, last, side, kernels)

    def _smallest(self, z: Tensor) -> Tensor:
        """Images before the first convolution, channels last.

        Either the images are put in that order, or, if there are more of them than columns of
        weights, the linear layer's weights are.
        """
        if len(z) <= self.hidden.in_features:
            images: Tensor = self.layers[:3](self.hidden(z))
            return images
        third, side = WIDTHS[-1], math.isqrt(self.hidden.out_features // WIDTHS[-1])
        hidden = F.linear(z, *(_pixelwise(x, third) for x in self.hidden.parameters()))
        return F.relu(hidden, inplace=True).view(-1, side, side, third).permute(0, 3, 1, 2)


def _compiled(network: nn.Module, given: Tensor) -> str | None:
    """Kernels to train a network with, if there are any for what it is given."""
    trained = network.training and len(given) > 0
    return native_images.fitting(given, *network.parameters()) if trained else None


def _down(layer: nn.Conv2d, norm: nn.BatchNorm2d, images: Tensor, kernels: str) -> Tensor:
    """Convolve, normalise and rectify images."""
    images = F.conv2d(images, layer.weight, stride=2, padding=1)
    return native_images.rectified(images, norm, layer.bias, kernels)


def _pixelwise(parameter: Tensor, channels: int) -> Tensor:
    """Put a linear layer's outputs ``(channel, pixel)`` in the order ``(pixel, channel)``."""
    return parameter.view(channels, -1, *parameter.shape[1:]).transpose(0, 1).flatten(0, 1)


def _without_bias(layer: nn.ConvTranspose2d, images: Tensor) -> Tensor:
    """Convolve images, transposed."""
    return F.conv_transpose2d(images, layer.weight, stride=2, padding=1)


class _ChannelsLast(nn.Module):
    """Lay images out pixel by pixel, in which convolutions are faster on a CPU."""

    def forward(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


class _Crop(nn.Module):
    """Cut ``(rows, channels, height, width)`` to a side.

    A convolution rounds half a side up, so doubling it again gives one row and column too many if
    the side was odd. They lie at the end, where the encoder's last window reached past the image.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        return images[..., : self.side, : self.side]


def _sides(size: int) -> list[int]:
    """Side of an image after each convolution."""
    return [-(-size // 2**layer) for layer in range(1, len(WIDTHS) + 1)]


def _check(channels: int, size: int) -> None:
    if channels < 1:
        raise ValueError(f"An image needs at least one channel, got {channels}.")
    if size < SMALLEST:
        raise ValueError(
            f"An image needs at least {SMALLEST} × {SMALLEST} pixels for convolutions, got size "
            f"{size}. Leave encoder and decoder out to get perceptrons."
        )

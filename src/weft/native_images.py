"""Compiled operations of image networks and their densities, each with a gradient.

Every one has a twin in PyTorch that computes the same function; `weft.networks.image` and
`weft.likelihoods` use the twins where these do not fit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft import native

try:
    from weft import _images
except ImportError:  # installed without a compiler
    _images = None  # type: ignore[assignment]

__all__ = ["density", "enlarged", "fitting", "rectified"]

DTYPES = (torch.float32, torch.float64)


def fitting(*tensors: Tensor) -> str | None:
    """Kernels to use for tensors, if there are any for their device and all are of one type."""
    dtype = tensors[0].dtype
    if dtype not in DTYPES or any(x.device.type != "cpu" or x.dtype != dtype for x in tensors):
        return None
    return native.active()


def rectified(images: Tensor, norm: nn.BatchNorm2d, offset: Tensor | None, kernels: str) -> Tensor:
    """Normalise each channel as a layer does in training, and cut off what is negative.

    Does what ``relu(norm(images + offset))`` does for ``(rows, channels, height, width)``. The
    offset, a convolution's bias, makes no difference but to the running mean: the mean takes it
    out, and its gradient is zero.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    found: tuple[Tensor, Tensor] = _Rectified.apply(  # type: ignore[no-untyped-call]
        images, norm.weight, norm.bias, offset, norm.eps, kernels
    )
    output, moments = found
    _remember(norm, moments, offset, images.numel() // images.shape[1])
    return output


@torch.no_grad()
def _remember(norm: nn.BatchNorm2d, moments: Tensor, offset: Tensor | None, count: int) -> None:
    """Take a batch's mean and variance ``(2, channel)`` into the running statistics."""
    mean, variance = moments
    if norm.running_mean is None or norm.running_var is None or norm.momentum is None:
        return
    mean = mean if offset is None else mean + offset
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    unbiased = variance * (count / (count - 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)


class _Rectified(torch.autograd.Function):
    """Output of a normalisation with ReLU, and mean and variance of the input ``(2, channel)``."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        offset: Tensor | None,
        epsilon: float,
        kernels: str,
    ) -> tuple[Tensor, Tensor]:
        output = torch.empty_like(images)
        moments = torch.empty(2, len(weight), dtype=torch.float64)
        parameters = (weight.detach(), bias.detach(), epsilon)
        _images.normalise(
            _pixels(images), *parameters, _pixels(output), moments, kernels, _threads()
        )
        ctx.save_for_backward(images, weight, bias, moments)
        ctx.epsilon, ctx.kernels, ctx.offset = epsilon, kernels, offset is not None
        ctx.mark_non_differentiable(moments)
        return output, moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, bias, moments = ctx.saved_tensors
        cotangent = cotangent.contiguous(memory_format=torch.channels_last)
        gradients = [torch.empty_like(x) for x in (images, weight, bias)]
        _images.normalise_gradient(
            _pixels(images),
            *(weight.detach(), bias.detach(), ctx.epsilon, moments),
            _pixels(cotangent),
            *(_pixels(gradients[0]), *gradients[1:]),
            *(ctx.kernels, _threads()),
        )
        return *gradients, torch.zeros_like(bias) if ctx.offset else None, None, None


def _pixels(images: Tensor) -> Tensor:
    """View images that lie channels last as ``(pixel, channel)``."""
    return images.detach().permute(0, 2, 3, 1).view(-1, images.shape[1])


def enlarged(
    images: Tensor,
    norm: nn.BatchNorm2d,
    offset: Tensor | None,
    last: nn.ConvTranspose2d,
    side: int,
    kernels: str,
) -> Tensor:
    """Normalise and rectify images, convolve them to twice the side, cut to ``side`` and flatten.

    Does what `rectified` and then ``last``, a transposed convolution of 4 × 4, stride 2 and padding
    1, do, but never holds what is between the two, and lays its output out channel by channel.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    found: tuple[Tensor, Tensor] = _Enlarged.apply(  # type: ignore[no-untyped-call]
        images, norm.weight, norm.bias, offset, norm.eps, last.weight, last.bias, side, kernels
    )
    output, moments = found
    _remember(norm, moments, offset, images.numel() // images.shape[1])
    return output.flatten(1)


class _Enlarged(torch.autograd.Function):
    """Enlarged images, and mean and variance of what was given ``(2, channel)``."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        gain: Tensor,
        shift: Tensor,
        offset: Tensor | None,
        epsilon: float,
        weight: Tensor,
        bias: Tensor,
        side: int,
        kernels: str,
    ) -> tuple[Tensor, Tensor]:
        output = images.new_empty(len(images), weight.shape[1], side, side)
        moments = torch.empty(2, len(gain), dtype=torch.float64)
        _images.enlarge(
            *(_pixels(images), gain.detach(), shift.detach(), epsilon, moments),
            *(weight.detach().contiguous(), bias.detach(), output, kernels, _threads()),
        )
        ctx.save_for_backward(images, gain, shift, moments, weight, bias)
        ctx.epsilon, ctx.kernels, ctx.offset = epsilon, kernels, offset is not None
        ctx.mark_non_differentiable(moments)
        return output, moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        images, gain, shift, moments, weight, bias = ctx.saved_tensors
        d_images, d_gain, d_shift, d_bias = (
            torch.empty_like(x) for x in (images, gain, shift, bias)
        )
        d_weight = weight.new_empty(weight.shape[1], 4, 4, weight.shape[0])
        _images.enlarge_gradient(
            *(_pixels(images), gain.detach(), shift.detach(), ctx.epsilon, moments),
            *(weight.detach().contiguous(), bias.detach(), cotangent.contiguous()),
            *(_pixels(d_images), d_gain, d_shift, d_weight, d_bias),
            *(ctx.kernels, _threads()),
        )
        d_offset = torch.zeros_like(shift) if ctx.offset else None
        d_weight = d_weight.permute(3, 0, 1, 2).contiguous()
        return d_images, d_gain, d_shift, d_offset, None, d_weight, d_bias, None, None


def density(raw: Tensor, value: Tensor, observed: Tensor, kernels: str) -> Tensor:
    """Sum ``value · raw - softplus(raw)`` over the observed entries of ``(row, entry)``.

    This is the log-density of numbers between 0 and 1 given log-odds. What is not observed
    contributes nothing to the sum or to the gradient.
    """
    score: Tensor = _Density.apply(raw, value, observed, kernels)  # type: ignore[no-untyped-call]
    return score


class _Density(torch.autograd.Function):
    """Keeps its inputs alone: the gradient is as fast to compute as to read."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, value: Tensor, observed: Tensor, kernels: str) -> Tensor:
        raw, value, observed = raw.contiguous(), value.contiguous(), observed.contiguous()
        score = raw.new_empty(len(raw))
        _images.density(raw.detach(), value, observed, score, kernels, _threads())
        ctx.save_for_backward(raw, value, observed)
        ctx.kernels = kernels
        return score

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        raw, value, observed = ctx.saved_tensors
        d_raw = torch.empty_like(raw)
        _images.density_gradient(
            *(raw.detach(), value, observed),
            *(cotangent.contiguous(), d_raw, ctx.kernels, _threads()),
        )
        return d_raw, None, None, None


def _threads() -> int:
    return torch.get_num_threads()

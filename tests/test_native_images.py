"""Compiled operations on images compute what their twins in PyTorch do, and their gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft import Bernoulli, Pixels, likelihoods, native, native_images
from weft.networks import ImageDecoder, ImageFeatures

pytestmark = pytest.mark.skipif(
    native.active() is None, reason="the package was installed without its compiled operations"
)
KERNELS = pytest.mark.parametrize("kernels", native.KERNELS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
CHANNELS = pytest.mark.parametrize("channels", [1, 3, 5, 16, 33])
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


def normal(*shape, seed=0, dtype=torch.float64):
    """Numbers that are the same in either precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def uniform(*shape, seed=5):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).double()


def images(*shape, seed=0, dtype=torch.float64):
    return normal(*shape, seed=seed, dtype=dtype).contiguous(memory_format=torch.channels_last)


def leaves(tensors, dtype):
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def assert_same(found, expected, tolerance):
    """Equal within a tolerance relative to the largest entry, tensor by tensor."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=0.1)


def with_gradient(output, inputs, seed=9):
    """An output and the gradient of a random linear function of it."""
    cotangent = normal(*output.shape, seed=seed, dtype=output.dtype)
    return [output.detach(), *torch.autograd.grad(output, inputs, cotangent)]


def layer(channels, dtype, seed=0):
    norm = nn.BatchNorm2d(channels).to(dtype)
    norm.weight.data.copy_(normal(channels, seed=seed + 1))
    norm.bias.data.copy_(normal(channels, seed=seed + 2))
    return norm


def convolution(channels, outputs, dtype):
    last = nn.ConvTranspose2d(channels, outputs, 4, stride=2, padding=1).to(dtype)
    for seed, parameter in enumerate(last.parameters(), 1):
        parameter.data.copy_(normal(*parameter.shape, seed=seed))
    return last


def statistics(norm):
    return [norm.running_mean, norm.running_var, norm.num_batches_tracked.double()]


@KERNELS
@DTYPES
@CHANNELS
@pytest.mark.parametrize("shape", [(1, 3, 5), (7, 8, 8), (40, 17, 19)], ids=str)
def test_normalising_and_rectifying_is_what_the_layers_do(shape, channels, dtype, kernels):
    """Also far from zero; the bias in front makes no difference but to the running mean."""
    rows, height, width = shape
    given = 2 * images(rows, channels, height, width) + 30
    x, offset = leaves([given.float(), normal(channels, seed=3)], dtype)
    norm = layer(channels, dtype)
    twin = copy.deepcopy(norm).double()
    found = with_gradient(
        native_images.rectified(x, norm, offset, kernels), [x, norm.weight, norm.bias, offset]
    )
    y, moved = leaves([x, offset], torch.float64)
    output = F.relu(twin(y + moved[:, None, None]))
    expected = with_gradient(output, [y, twin.weight, twin.bias])
    tolerance = 10 * TOLERANCE[dtype]  # far from zero
    assert_same(found[:-1], expected, tolerance)
    assert (found[-1] == 0).all()
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert_same(statistics(norm), statistics(twin), TOLERANCE[dtype])


@KERNELS
@DTYPES
@CHANNELS
@pytest.mark.parametrize("outputs", [1, 3, 4, 5])
@pytest.mark.parametrize(("rows", "side", "cut"), [(1, 3, 1), (3, 16, 0), (35, 9, 1)])
def test_enlarging_is_what_the_layers_do(rows, side, cut, outputs, channels, dtype, kernels):
    """A normalisation, a ReLU and a transposed convolution, cut to a side."""
    large = 2 * side - cut
    x, offset = leaves([images(rows, channels, side, side), normal(channels, seed=3)], dtype)
    norm, last = layer(channels, dtype), convolution(channels, outputs, dtype)
    norm_twin, last_twin = copy.deepcopy(norm).double(), copy.deepcopy(last).double()
    found = with_gradient(
        native_images.enlarged(x, norm, offset, last, large, kernels),
        [x, *norm.parameters(), *last.parameters(), offset],
    )
    y, moved = leaves([x, offset], torch.float64)
    hidden = F.relu(norm_twin(y + moved[:, None, None]))
    expected = with_gradient(
        last_twin(hidden)[..., :large, :large].flatten(1),
        [y, *norm_twin.parameters(), *last_twin.parameters()],
    )
    assert_same(found[:-1], expected, TOLERANCE[dtype])
    assert (found[-1] == 0).all()
    assert_same(statistics(norm), statistics(norm_twin), TOLERANCE[dtype])


@KERNELS
def test_enlarging_is_rectifying_and_convolving(kernels):
    """At a layer's real size, in single precision, and with the same running statistics."""
    (x,) = leaves([images(4, 16, 32, 32)], torch.float32)
    norm, last = layer(16, torch.float32), convolution(16, 3, torch.float32)
    twin = copy.deepcopy(norm)
    found = with_gradient(
        native_images.enlarged(x, norm, None, last, 64, kernels),
        [x, *norm.parameters(), *last.parameters()],
    )
    expected = with_gradient(
        last(native_images.rectified(x, twin, None, kernels)).flatten(1),
        [x, *twin.parameters(), *last.parameters()],
    )
    assert_same(found, expected, 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(statistics(norm), statistics(twin), strict=True))


@KERNELS
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (40, 1000)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_densities_leave_out_what_is_missing(scale, shape, dtype, kernels):
    """Whatever lies there: a missing entry adds nothing to the sum, and its gradient is zero."""
    raw = scale * normal(*shape)
    value = uniform(*shape)
    observed = normal(*shape, seed=2) > -0.5
    (own,) = leaves([raw.masked_fill(~observed, torch.nan)], dtype)
    score = native_images.density(own, value.to(dtype), observed, kernels)
    found = with_gradient(score, [own])
    (twin,) = leaves([raw], torch.float64)
    entries = -F.binary_cross_entropy_with_logits(twin, value, reduction="none")
    expected = with_gradient(entries.masked_fill(~observed, 0).sum(1), [twin])
    assert_same(found, expected, TOLERANCE[dtype])
    assert (found[1][~observed] == 0).all()


@KERNELS
def test_gradients_are_those_of_the_functions(kernels):
    for stage, side in ((Rectify(kernels), 4), (Enlarge(kernels), 3)):
        names, parameters = zip(*stage.named_parameters(), strict=True)

        def run(x, *given, stage=stage, names=names):
            state = dict(zip(names, given, strict=True))
            return torch.func.functional_call(stage, state, (x,))

        given = leaves([images(2, 3, side, side), *parameters], torch.float64)
        assert torch.autograd.gradcheck(run, tuple(given))
    value, observed = uniform(3, 7), uniform(3, 7, seed=6) > 0.3
    (raw,) = leaves([normal(3, 7)], torch.float64)
    assert torch.autograd.gradcheck(
        lambda raw: native_images.density(raw, value, observed, kernels), raw
    )


class Rectify(nn.Module):
    """A stage that `functional_call` can give parameters to."""

    def __init__(self, kernels):
        super().__init__()
        self.norm, self.kernels = layer(3, torch.float64), kernels

    def forward(self, x):
        return native_images.rectified(x, self.norm, None, self.kernels)


class Enlarge(Rectify):
    def __init__(self, kernels):
        super().__init__(kernels)
        self.last = convolution(3, 2, torch.float64)

    def forward(self, x):
        return native_images.enlarged(x, self.norm, None, self.last, 5, self.kernels)


@KERNELS
def test_results_do_not_depend_on_threads(kernels):
    given, norm = images(70, 5, 9, 9, dtype=torch.float32), layer(5, torch.float32)
    next_norm, last = layer(5, torch.float32, seed=3), convolution(5, 3, torch.float32)

    def run(count):
        torch.set_num_threads(count)
        (x,) = leaves([given], torch.float32)
        hidden = native_images.rectified(x, norm, None, kernels)
        raw = native_images.enlarged(hidden, next_norm, None, last, 17, kernels)
        observed = torch.ones_like(raw, dtype=torch.bool)
        score = native_images.density(raw, torch.zeros_like(raw), observed, kernels)
        layers = nn.ModuleList([norm, next_norm, last])
        return with_gradient(score, [x, *layers.parameters()])

    before = torch.get_num_threads()
    try:
        one, two, three = run(1), run(2), run(3)
    finally:
        torch.set_num_threads(before)
    for found in (two, three):
        assert all(torch.equal(a, b) for a, b in zip(one, found, strict=True))


@DTYPES
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rows", [6, 11])
@pytest.mark.parametrize(("channels", "size"), [(1, 5), (3, 13), (2, 16), (9, 8)])
def test_networks_compute_what_their_layers_say(channels, size, rows, training, dtype):
    """Both for fewer rows than latent dimensions and for more."""
    torch.manual_seed(0)
    encoder: ImageFeatures | ImageDecoder = ImageFeatures(channels, size)
    decoder = ImageDecoder(7, channels, size)
    given = [normal(rows, channels, size, size, seed=1), normal(rows, 7, seed=2)]
    for network, inputs in zip((encoder, decoder), given, strict=True):
        own = copy.deepcopy(network).to(dtype).train(training)
        twin = copy.deepcopy(network).double().train(training)
        found = with_gradient(own(inputs.to(dtype)), list(own.parameters()))
        hidden = twin.hidden(inputs) if isinstance(twin, ImageDecoder) else inputs
        expected = with_gradient(twin.layers(hidden), list(twin.parameters()))
        assert_same(found, expected, 50 * TOLERANCE[dtype])
        assert_same(own.double().buffers(), twin.buffers(), 10 * TOLERANCE[dtype])


@pytest.mark.parametrize("likelihood", [Bernoulli(), Pixels()], ids=str)
def test_large_outputs_are_scored_by_the_compiled_density(likelihood, monkeypatch):
    (raw,) = leaves([normal(2, 3, 24)], torch.float64)
    value, observed = uniform(2, 3, 4, 6).round(), uniform(2, 3, 4, 6, seed=6) > 0.3
    expected = with_gradient(likelihood.log_prob(raw, value, observed, 2), [raw])
    monkeypatch.setattr(likelihoods, "PIECE", 1)
    monkeypatch.setattr(likelihoods, "_Pieces", None)
    found = with_gradient(likelihood.log_prob(raw, value, observed, 2), [raw])
    assert_same(found, expected, 1e-12)


def test_kernels_are_for_cpus_and_floats_of_one_kind(monkeypatch):
    single, double = torch.zeros(1), torch.zeros(1).double()
    assert native_images.fitting(single) == native_images.fitting(double) == native.active()
    assert native_images.fitting(single, double) is None
    assert native_images.fitting(single.half()) is None
    assert native_images.fitting(single.to("meta")) is None
    monkeypatch.setattr(native, "_ACTIVE", None)
    assert native_images.fitting(single) is None


@pytest.mark.parametrize("kernels", ["", "sse9"])
def test_unknown_kernels_are_refused(kernels):
    flat = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="no kernels called"):
        native_images.density(flat, flat, flat == 0, kernels)

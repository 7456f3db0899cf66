"""Compiled passes over large particles compute what PyTorch does, and its gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import BFVI, Cubature, Gaussian, Modality, MonteCarlo, native
from weft.gaussian import STD_FLOOR
from weft.inference import moments as moments_module
from weft.inference import recursions
from weft.inference import scan as scan_module
from weft.inference.moments import moments
from weft.inference.scan import Link, expect
from weft.networks import GatedTransition

_moments = pytest.importorskip("weft._moments")
pytestmark = pytest.mark.skipif(
    native.active() is None, reason="the package was installed without compiled kernels"
)
KERNELS = pytest.mark.parametrize("kernels", native.KERNELS)
KEPT = pytest.mark.parametrize("kept", [0, 2**24])
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


class Problem:
    """A random transition and random states, the same numbers in either precision."""

    def __init__(self, seed, shape, hidden, count, dtype, shared=False):
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = BFVI([Modality("x")], shape[-1], hidden)
            for parameter in module.parameters():
                parameter.data.add_(0.4 / parameter.shape[-1] ** 0.5 * torch.randn_like(parameter))
        self.model = module.to(dtype).model
        self.link = Link.forward(self.model)
        width = 0.2 + torch.randn(shape, generator=generator).abs()
        information = 3 * torch.randn(shape, generator=generator)
        self.state = Gaussian((width**-2).to(dtype), information.to(dtype))
        places = (*(1 for _ in shape[:-1]), shape[-1]) if shared else shape
        self.points = torch.randn(count, *places, generator=generator).to(dtype)
        self.state.precision.requires_grad_()
        self.state.information.requires_grad_()

    @property
    def network(self):
        assert isinstance(self.link.network, GatedTransition)
        return self.link.network

    @property
    def leaves(self):
        state = (self.state.precision, self.state.information)
        prior = (self.model.prior_mean, self.model.prior_spread)
        return (*state, *prior, *self.network.parameters())

    def compiled(self, kernels):
        link = Link.forward(self.model)
        state = (self.state.precision, self.state.information)
        return moments(kernels, self.network.hidden, 1, link.weights, state, self.points)

    def plain(self):
        """The same in PyTorch, as the model says it."""
        prior, states = self.model.prior(), self.state.at(self.points)
        found = self.model.step(self.network, states, prior).moment_match()
        return found.precision, found.information

    def cotangents(self, seed=0):
        """Weights of a random linear function of mean and standard deviation."""
        generator = torch.Generator().manual_seed(seed)
        shape, dtype = self.state.shape, self.points.dtype
        return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]

    def gradients(self, found):
        outputs = (Gaussian(*found).mean, Gaussian(*found).std)
        return torch.autograd.grad(outputs, self.leaves, self.cotangents(), retain_graph=True)


def assert_same(found, expected, tolerance):
    """Equal within a tolerance relative to the largest entry of each."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max().item() <= tolerance * b.abs().max().item()


sizes: st.SearchStrategy[tuple[int, list[int], int, int, int]] = st.tuples(
    st.integers(0, 10_000),  # seed
    st.lists(st.integers(1, 5), min_size=1, max_size=3),  # row axes
    st.integers(1, 70),  # latent
    st.integers(1, 40),  # hidden
    st.sampled_from([1, 2, 3, 10, 25]),  # particles
)


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(size=sizes, shared=st.booleans())
def test_moments_and_gradients_match_pytorch(kernels, dtype, size, shared):
    seed, rows, latent, hidden, count = size
    shape = (*rows, latent)
    problem = Problem(seed, shape, hidden, count, dtype, shared)
    exact = Problem(seed, shape, hidden, count, torch.float64, shared)
    found, expected = problem.compiled(kernels), exact.plain()
    assert_same(found, expected, TOLERANCE[dtype])
    a, b = problem.gradients(found), exact.gradients(expected)
    assert_same([torch.cat([x.flatten() for x in a])], [torch.cat([x.flatten() for x in b])], 1e-5)


@KERNELS
@KEPT
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_the_gradient_is_that_of_the_function(kernels, kept, shared, count, monkeypatch):
    monkeypatch.setattr(moments_module, "KEPT", kept)
    monkeypatch.setattr(moments_module, "PIECE", 30)
    problem = Problem(3, (2, 2, 5), 3, count, torch.float64, shared)
    packed, prior, bounds = problem.link.weights
    leaves = [x.detach().requires_grad_() for x in (packed, prior, *problem.leaves[:2])]

    def function(weights, prior, precision, information):
        arrays = ((weights, prior, bounds.detach()), (precision, information), problem.points)
        return moments(kernels, 3, 1, *arrays)

    assert torch.autograd.gradcheck(function, leaves, atol=1e-6, rtol=1e-5)


@KERNELS
@KEPT
@pytest.mark.parametrize("piece", [1, 2**8, 2**11])
def test_pieces_change_nothing(kernels, kept, piece, monkeypatch):
    problem = Problem(5, (3, 7, 19), 11, 6, torch.float64)
    whole = problem.compiled(kernels)
    expected = (*whole, *problem.gradients(whole))
    monkeypatch.setattr(moments_module, "KEPT", kept)
    monkeypatch.setattr(moments_module, "PIECE", piece)
    found = problem.compiled(kernels)
    assert_same((*found, *problem.gradients(found)), expected, 1e-11)


@KEPT
def test_a_gradient_can_be_taken_again(kept, monkeypatch):
    monkeypatch.setattr(moments_module, "KEPT", kept)
    problem = Problem(1, (4, 20), 9, 5, torch.float32)
    found = problem.compiled(native.KERNELS[0])
    for a, b in zip(problem.gradients(found), problem.gradients(found), strict=True):
        assert torch.equal(a, b)


@KERNELS
def test_states_beyond_the_bounds_are_at_the_edge(kernels):
    problem = Problem(2, (6, 21), 8, 3, torch.float64)
    with torch.no_grad():
        problem.state.information[::2] *= 1e3
    found, expected = problem.compiled(kernels), problem.plain()
    assert_same(found, expected, 1e-11)
    gradients = problem.gradients(found)
    assert_same(gradients, problem.gradients(expected), 1e-9)
    clamped = problem.state.mean.abs() > 20
    assert clamped.any()
    assert (gradients[1][clamped] == 0).all()


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_spreads(kernels, dtype):
    """Standard deviations reach their floor, and grow without bound."""
    problem = Problem(4, (3, 18), 5, 4, dtype)
    with torch.no_grad():
        problem.network.spread.bias[::2] = -300.0
        problem.network.spread.bias[1::2] = 300.0
        problem.network.gate.bias[:6] = 300.0
        problem.network.gate.bias[6:12] = -300.0
    found, expected = problem.compiled(kernels), problem.plain()
    assert_same(found, expected, 5e-5 if dtype == torch.float32 else 1e-10)
    assert all(x.isfinite().all() for x in problem.gradients(found))


@KERNELS
def test_the_floor_of_standard_deviations_is_the_package_s(kernels):
    problem = Problem(4, (1, 3), 2, 1, torch.float64)
    with torch.no_grad():
        problem.network.spread.weight.zero_()
        problem.network.spread.bias.fill_(-300.0)
    expected = STD_FLOOR**-2 + problem.model.prior().precision
    torch.testing.assert_close(problem.compiled(kernels)[0][0], expected, rtol=1e-12, atol=0)


@KERNELS
def test_far_means_leave_variances_positive(kernels):
    problem = Problem(6, (5, 40), 8, 7, torch.float32)
    with torch.no_grad():
        problem.network.linear.bias.fill_(1e6)
        problem.network.gate.bias.fill_(-30.0)
    precision = problem.compiled(kernels)[0]
    assert (precision > 0).all()
    assert precision.isfinite().all()


@KERNELS
def test_what_is_not_a_number_stays_so(kernels):
    problem = Problem(1, (3, 20), 6, 2, torch.float32)
    with torch.no_grad():
        problem.network.gate_hidden.weight[0, 0] = float("nan")
    assert problem.compiled(kernels)[1].isnan().all()


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_do_not_change_a_bit(kernels, dtype):
    """Every pass has the same results, and the same sums, by one thread and by four."""
    problem = Problem(7, (90, 37), 13, 3, dtype)
    weights, prior, bounds = (x.detach() for x in problem.link.weights)
    state = (problem.state.precision.detach(), problem.state.information.detach())
    generator = torch.Generator().manual_seed(0)

    def random(width):
        return torch.randn(90, 3, width, generator=generator).to(dtype)

    z, *products = (random(width) for width in (37, 63, 37, 37, 37))
    gradients = [random(width) for width in (63, 37, 37, 37)]

    def run(threads):
        way = (kernels, threads)
        to = [x.clone() for x in gradients]
        sums, hidden_sums = z.new_zeros(6, 37), z.new_zeros(26)
        placed, inward = z.clone(), products[0].clone()
        found = [torch.empty_like(x) for x in state]
        _moments.place(*state, problem.points, bounds, placed, *way)
        _moments.rectify(weights, inward, 13, *way)
        _moments.settle(weights, prior, inward, *products[1:], *found, *way)
        _moments.unsettle(weights, prior, inward, *products[1:], *found, *to, sums, *way)
        _moments.unrectify(inward, to[0], hidden_sums, *way)
        d_state = [torch.empty_like(x) for x in state]
        _moments.unplace(*state, problem.points, bounds, z, *d_state, *way)
        return placed, inward, *found, *to, sums, hidden_sums, *d_state

    for a, b in zip(run(1), run(4), strict=True):
        assert torch.equal(a, b)


# Use


def large(particles):
    """Messages of a filter at sizes that the compiled scan leaves to others."""
    model = Problem(0, (1, 66), 5, 1, torch.float64).model
    generator = torch.Generator().manual_seed(0)
    shape = (4, 2, 3, 66)
    precision = torch.rand(shape, generator=generator).double().requires_grad_()
    information = torch.randn(shape, generator=generator).double().requires_grad_()
    factors = Gaussian(precision, information)
    found = recursions.backward_filter(model, factors, particles, generator).message
    leaves = [precision, information, *model.backward_factor.parameters()]
    total = found.mean.sin().sum() + found.std.sum()
    return [found.mean, found.std, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("particles", [Cubature(), MonteCarlo(3)])
def test_large_filters_use_the_passes_and_agree_with_pytorch(particles, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return moments(*arguments)

    monkeypatch.setattr(scan_module, "moments", counted)
    compiled = large(particles)
    assert len(calls) == 4
    monkeypatch.setattr(native, "_ACTIVE", None)
    assert_same(compiled, large(particles), 1e-9)
    assert len(calls) == 4


def test_other_networks_run_in_pytorch(monkeypatch):
    monkeypatch.setattr(scan_module, "moments", lambda *_: pytest.fail("the passes were used"))
    problem = Problem(0, (2, 66), 5, 3, torch.float32)
    wrapped = Link(problem.model, torch.nn.Sequential(problem.network), reverse=False)
    small = Problem(0, (2, 6), 5, 3, torch.float32)
    for link, each in ((wrapped, problem), (small.link, small)):
        found = expect(link, each.state, each.points, link.prior, 1)
        assert_same((found.precision, found.information), each.plain(), 1e-5)


def test_beyond_a_bound_nothing_is_kept_per_particle(monkeypatch):
    """What autograd holds on to is then the points, and one size for any number of particles."""

    def held(count, kept):
        monkeypatch.setattr(moments_module, "KEPT", kept)
        problem = Problem(0, (4, 9), 5, count, torch.float32)
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            problem.compiled(native.KERNELS[0])
        return sum(sizes) - problem.points.numel()

    assert held(10, 359) == held(25, 359) == held(100, 359)
    assert held(10, 360) == held(10, 359) + 10 * 4 * (5 * 9 + 2 * 5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights": torch.zeros(3)}, "weights have another size"),
        ({"inward": torch.zeros(4, 2, 10)}, "What the state's layers give"),
        ({"candidate": torch.zeros(4, 1, 5)}, "Particles must be"),
        ({"prior": torch.zeros(2, 4)}, "prior must be"),
        ({"precision": torch.zeros(3, 5)}, "Gaussians must be"),
        ({"kernels": "fast"}, "no kernels called 'fast'"),
    ],
)
def test_wrong_arguments_are_refused(change, sentence):
    problem = Problem(0, (4, 5), 3, 2, torch.float32)
    weights, prior, _ = (x.detach() for x in problem.link.weights)
    arguments = {
        "weights": weights,
        "prior": prior,
        "inward": torch.zeros(4, 2, 11),
        "gate": torch.zeros(4, 2, 5),
        "candidate": torch.zeros(4, 2, 5),
        "spread": torch.zeros(4, 2, 5),
        "precision": torch.zeros(4, 5),
        "information": torch.zeros(4, 5),
        "kernels": native.KERNELS[0],
        "threads": 1,
    }
    with pytest.raises(ValueError, match=sentence):
        _moments.settle(**(arguments | change))


def test_arrays_are_never_copied():
    """A pass writes into what it is given, or refuses it."""
    bounds, state = torch.zeros(2, 5), torch.ones(4, 5)
    points, z = torch.zeros(2, 4, 5), torch.zeros(4, 2, 10)[..., ::2]
    with pytest.raises(TypeError):
        _moments.place(state, state, points, bounds, z, native.KERNELS[0], 1)
    with pytest.raises(TypeError):
        _moments.place(state, state, points, bounds, z.double().contiguous(), native.KERNELS[0], 1)

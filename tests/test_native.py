"""The compiled scan computes what the reference does, and its gradient."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import BFVI, Antithetic, Cubature, Gaussian, Modality, MonteCarlo
from weft import native as choice
from weft.datasets import make_spirals
from weft.gaussian import STD_FLOOR
from weft.inference import native, recursions
from weft.inference import scan as scan_module
from weft.inference.native import Draws, Way
from weft.inference.scan import Link, carry, draw, reference
from weft.networks import GatedTransition
from weft.objective import Objective, ObjectiveConfig
from weft.particles import Particles

pytestmark = pytest.mark.skipif(
    native.active() is None, reason="the package was installed without its compiled scan"
)
EITHER = pytest.mark.parametrize("direction", [Link.forward, Link.backward])
KERNELS = pytest.mark.parametrize("kernels", native.KERNELS)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def network(link: Link) -> GatedTransition:
    assert isinstance(link.network, GatedTransition)
    return link.network


class Problem:
    """A random model with random factors, a third of them missing, and random messages ahead.

    Its numbers are the same in either precision, so that single precision can be held to what the
    reference finds in double: the reference's own rounding is often the larger.
    """

    def __init__(self, seed, steps, rows, latent, hidden, dtype, missing=0.35):
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = BFVI([Modality("x")], latent, hidden)
            for parameter in module.parameters():
                parameter.data.add_(0.2 * torch.randn_like(parameter))
            module = module.to(dtype)
        self.model = module.model
        self.shape = (steps, rows, latent)

        def normal():
            return torch.randn(self.shape, generator=generator).to(dtype)

        seen = torch.rand(self.shape[:2], generator=generator) > missing
        self.factors = Gaussian(
            seen[..., None] / (0.2 + normal().abs()).square(), seen[..., None] * 3 * normal()
        )
        self.future = Gaussian(1 / (0.4 + normal().abs()).square(), normal())
        for gaussian in (self.factors, self.future):  # as rounded in single precision
            gaussian.precision.copy_(gaussian.precision.float())
            gaussian.information.copy_(gaussian.information.float())
        self.seen = seen[..., None].cumsum(0) > 0
        for gaussian in (self.factors, self.future):
            gaussian.precision.requires_grad_()
            gaussian.information.requires_grad_()

    def parameters(self, link):
        model = self.model
        leaves = [model.prior_mean, model.prior_spread, *link.network.parameters()]
        for gaussian in (self.factors, self.future):
            leaves += [gaussian.precision, gaussian.information]
        return leaves

    def compiled(self, link, draws, kernels, points=None, states=False):
        """Messages, posteriors and states of the compiled scan, as `native.scan` gives them."""
        prior = self.model.prior()
        start = prior.expand(*self.shape[1:])
        return native.scan(
            Way(network(link).hidden, draws, link.reverse, states, kernels),
            network(link).packed(),
            torch.stack([prior.precision, prior.information]),
            self.model.bounds(prior),
            (start.precision, start.information),
            (self.factors.precision, self.factors.information),
            (self.future.precision, self.future.information),
            self.seen[..., 0],
            points,
        )

    def plain(self, link, points):
        """The same of the reference, given points ``(time, particle, row, latent)``."""
        start = self.model.prior().expand(*self.shape[1:])
        noise = link.order(points.unbind())
        steps = list(reference(link, start, self.factors, self.future, self.seen, noise))
        messages = Gaussian.stack(link.order([*(step.message for step in steps), steps[-1].last]))
        ordered = link.order(steps)
        posterior = Gaussian.stack([step.posterior for step in ordered])
        states = torch.stack([step.states for step in ordered])
        return messages, posterior, states


def assert_same(found, expected, tolerance):
    """Equal within a tolerance relative to the largest entry of all."""
    a, b = (torch.cat([x.flatten() for x in each]) for each in (found, expected))
    assert len(a) == len(b)
    assert (a - b).abs().max().item() <= tolerance * b.abs().max().item()


def gradients(outputs, leaves, seed=0):
    """Gradient of a random linear function of the outputs' natural scale."""
    generator = torch.Generator().manual_seed(seed)
    total = sum((torch.randn(x.shape, generator=generator).to(x.dtype) * x).sum() for x in outputs)
    return torch.autograd.grad(total, leaves, retain_graph=True)


sizes: st.SearchStrategy[tuple[int, int, int, int, int]] = st.tuples(
    st.integers(0, 10_000),  # seed
    st.integers(1, 9),  # steps
    st.integers(1, 40),  # rows
    st.integers(1, 9),  # latent
    st.integers(1, 21),  # hidden
)


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@EITHER
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(size=sizes, count=st.sampled_from([1, 2, 3, 4, 5, 10, 25, 60]), mirrored=st.booleans())
def test_many_particles_match_the_reference(direction, dtype, kernels, size, count, mirrored):
    seed, steps, rows, latent, hidden = size
    problem = Problem(seed, steps, rows, latent, hidden, dtype)
    exact = Problem(seed, steps, rows, latent, hidden, torch.float64)
    link, exact_link = direction(problem.model), direction(exact.model)
    count += mirrored and count % 2
    draws = Draws(count, seed=seed * 2**33 + 7, mirrored=bool(mirrored))
    points = native.normal((steps, count, rows, latent), draws, dtype, kernels)
    messages, *_ = exact.plain(exact_link, points.double())
    expected = (messages.mean, messages.std)
    for given_points in (None, points):
        found = Gaussian(*problem.compiled(link, draws, kernels, given_points)[:2])
        outputs = (found.mean, found.std)
        assert_same(outputs, expected, TOLERANCE[dtype])
        assert_same(
            gradients(outputs, problem.parameters(link)),
            gradients(expected, exact.parameters(exact_link)),
            TOLERANCE[dtype],
        )


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@EITHER
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(size=sizes)
def test_single_particles_match_the_reference(direction, dtype, kernels, size):
    seed, steps, rows, latent, hidden = size
    problem = Problem(seed, steps, rows, latent, hidden, dtype)
    exact = Problem(seed, steps, rows, latent, hidden, torch.float64)
    link, exact_link = direction(problem.model), direction(exact.model)
    points = native.normal((steps, 1, rows, latent), Draws(1, seed), dtype)
    messages, posterior, states = exact.plain(exact_link, points.double())
    *found, latents = problem.compiled(link, Draws(1), kernels, points, states=True)
    after, before = Gaussian(*found[:2]), Gaussian(*found[2:])
    expected = (messages.mean, messages.std, posterior.mean, posterior.std, states[:, 0])
    outputs = (after.mean, after.std, before.mean, before.std, latents)
    assert_same(outputs, expected, TOLERANCE[dtype])
    assert_same(
        gradients(outputs, problem.parameters(link)),
        gradients(expected, exact.parameters(exact_link)),
        TOLERANCE[dtype],
    )


@pytest.mark.parametrize(("latent", "hidden"), [(64, 64), (64, 1), (1, 64), (33, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_sizes_match_the_reference(latent, hidden, dtype):
    problem = Problem(3, 3, 5, latent, hidden, dtype)
    exact = Problem(3, 3, 5, latent, hidden, torch.float64)
    link, exact_link = Link.backward(problem.model), Link.backward(exact.model)
    draws = Draws(6, seed=5)
    points = native.normal((3, 6, 5, latent), draws, dtype)
    messages, *_ = exact.plain(exact_link, points.double())
    found = Gaussian(*problem.compiled(link, draws, native.KERNELS[0])[:2])
    outputs, expected = (found.mean, found.std), (messages.mean, messages.std)
    assert_same(outputs, expected, TOLERANCE[dtype])
    assert_same(
        gradients(outputs, problem.parameters(link)),
        gradients(expected, exact.parameters(exact_link)),
        TOLERANCE[dtype],
    )


@KERNELS
@EITHER
@pytest.mark.parametrize(("steps", "rows", "count"), [(1, 1, 1), (4, 3, 1), (3, 2, 5), (2, 1, 17)])
def test_gradients_pass_gradcheck(direction, kernels, steps, rows, count):
    problem = Problem(11, steps, rows, 2, 3, torch.float64)
    link = direction(problem.model)
    points = native.normal((steps, count, rows, 2), Draws(count, 1), torch.float64)
    start = problem.model.prior().expand(rows, 2)
    leaves = [
        network(link).packed().detach(),
        torch.stack([start.precision[0], start.information[0]]).detach(),
        problem.model.bounds(problem.model.prior()),
        start.precision.detach() + 0.5,  # as wide as the prior lies a kink
        start.information.detach().clone(),
        *(x.detach() for x in (problem.factors.precision, problem.factors.information)),
        *(x.detach() for x in (problem.future.precision, problem.future.information)),
    ]
    for i, leaf in enumerate(leaves):
        leaf.requires_grad_(i != 2)
    way = Way(3, Draws(count), link.reverse, count == 1, kernels)
    seen = problem.seen[..., 0]

    def run(weights, prior, bounds, sp, si, fp, fi, ap, ai):
        found = native.scan(way, weights, prior, bounds, (sp, si), (fp, fi), (ap, ai), seen, points)
        return found if count == 1 else found[:2]

    assert torch.autograd.gradcheck(run, leaves)


def test_rows_may_share_their_data():
    """Trajectories read the same factors, and their gradients add up."""
    problem = Problem(5, 6, 4, 3, 7, torch.float64)
    link = Link.forward(problem.model)
    points = native.normal((6, 3, 4, 3), Draws(3, 9), torch.float64)
    start = problem.model.prior().expand(3, 4, 3)
    together = draw(link, start, problem.factors, problem.future, problem.seen, points)
    apart = [
        draw(link, start[i], problem.factors, problem.future, problem.seen, points[:, i])
        for i in range(3)
    ]
    expected = torch.stack([passage.states for passage in apart], 1)
    torch.testing.assert_close(together.states, expected)
    leaves = problem.parameters(link)
    assert_same(gradients([together.states], leaves), gradients([expected], leaves), 1e-12)


# Noise


def test_noise_is_standard_normal_and_uncorrelated():
    """Within four standard errors: moments, tails, and neighbours along every axis."""
    shape = (20, 50, 40, 10)
    noise = native.normal(shape, Draws(50, seed=2**61 - 3), torch.float64)
    count = noise.numel()
    for power, moment, spread in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)]:
        assert abs(noise.pow(power).mean() - moment) < 4 * (spread / count) ** 0.5
    uniform = torch.special.ndtr(noise).flatten().sort().values
    distance = (uniform - (torch.arange(count, dtype=torch.float64) + 0.5) / count).abs().max()
    assert distance < 1.95 / count**0.5  # Kolmogorov–Smirnov at 0.1 %
    for values in (noise, noise.square() - 1):
        scale = values.square().mean()
        for axis in range(4):
            for lag in (1, 2, 3, 4):
                size = values.shape[axis] - lag
                pairs = values.narrow(axis, 0, size) * values.narrow(axis, lag, size)
                assert abs(pairs.mean() / scale) < 4.5 / pairs.numel() ** 0.5


def test_noise_depends_on_nothing_but_its_place():
    """Neither on the instruction set, nor on how many rows, particles or steps there are."""
    draws = Draws(30, seed=77)
    whole = native.normal((4, 30, 50, 5), draws, torch.float64)
    for kernels in native.KERNELS:
        single = native.normal((4, 30, 50, 5), draws, torch.float32, kernels)
        torch.testing.assert_close(single.double(), whole, rtol=0, atol=4e-6)
        for rows in (1, 2, 7):
            part = native.normal((2, 30, rows, 5), draws, torch.float64, kernels)
            torch.testing.assert_close(part, whole[:2, :, :rows])
        few = native.normal((4, 6, 50, 5), Draws(6, seed=77), torch.float64, kernels)
        torch.testing.assert_close(few, whole[:, :6])


def test_mirrored_noise_comes_in_pairs():
    noise = native.normal((2, 6, 3, 4), Draws(6, seed=1, mirrored=True), torch.float64)
    assert torch.equal(noise[:, ::2], -noise[:, 1::2])


def test_other_seeds_give_other_noise():
    def first(seed):
        return native.normal((1, 4, 2, 3), Draws(4, seed), torch.float64)

    base = first(5)
    for seed in (6, 5 + 2**32, 5 + 2**61):
        assert (first(seed) - base).abs().min() > 1e-6


# Use


def test_threads_do_not_change_a_bit():
    problem = Problem(2, 7, 90, 5, 20, torch.float32)
    link = Link.backward(problem.model)

    def run(threads):
        torch.set_num_threads(threads)
        try:
            found = problem.compiled(link, Draws(25, seed=3), native.KERNELS[0])
            return (*found[:2], *gradients(found[:2], problem.parameters(link)))
        finally:
            torch.set_num_threads(1)

    for a, b in zip(run(1), run(4), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("particles", [Cubature(), MonteCarlo(3), Antithetic(4)])
def test_verbs_use_the_compiled_scan(particles, monkeypatch):
    calls = []
    scan = native.scan

    def counted(*arguments):
        calls.append(arguments)
        return scan(*arguments)

    monkeypatch.setattr(native, "scan", counted)
    module = BFVI([Modality("x")], 3, 8)
    batch = module.batch(make_spirals(torch.Generator(), count=3, steps=5).noisy.keep("x"))
    generator = torch.Generator()
    module.smooth(batch, particles=particles, generator=generator)
    assert len(calls) == 2
    config = ObjectiveConfig(particles=particles)
    Objective(module, config)(batch, generator).total.backward()
    assert len(calls) == 5


class Outermost(Particles):
    def noise(self, like, generator):
        return torch.full((2, *like.shape), 1.0) * torch.tensor([1.0, -1.0]).reshape(-1, 1, 1, 1)


def test_what_does_not_fit_runs_in_pytorch(monkeypatch):
    monkeypatch.setattr(native, "scan", lambda *_: pytest.fail("the compiled scan was used"))
    data = make_spirals(torch.Generator(), count=3, steps=5).noisy.keep("x")
    small, large = BFVI([Modality("x")], 3, 8), BFVI([Modality("x")], 3, 65)
    small.smooth(small.batch(data), particles=Outermost())
    large.smooth(large.batch(data))
    wrapped = torch.nn.Sequential(small.model.forward_factor)
    monkeypatch.setattr(small.model, "forward_factor", wrapped)
    small.filter(small.batch(data))


@EITHER
def test_without_it_the_numbers_are_the_same(direction, monkeypatch):
    problem = Problem(8, 6, 5, 3, 4, torch.float64)
    link = direction(problem.model)
    inputs = (problem.factors, problem.future, problem.seen)
    points = native.normal((6, 2, 5, 3), Draws(2, 4), torch.float64)
    start = problem.model.prior().expand(2, 5, 3)

    def run():
        message = carry(link, *inputs, Cubature(), None)
        passage = draw(link, start, *inputs, points)
        gaussians = (message, passage.message, passage.posterior, passage.last)
        return [passage.states, *(g.mean for g in gaussians), *(g.std for g in gaussians)]

    compiled = run()
    monkeypatch.setattr(choice, "_ACTIVE", None)
    assert_same(compiled, run(), 1e-12)


@pytest.mark.parametrize("particles", [Cubature(), MonteCarlo(7)])
@pytest.mark.parametrize("piece", [1, 60, 200])
def test_the_reference_in_pieces_gives_the_same_numbers(particles, piece, monkeypatch):
    monkeypatch.setattr(choice, "_ACTIVE", None)
    problem = Problem(6, 4, 5, 3, 4, torch.float64)
    link = Link.backward(problem.model)

    def run():
        inputs = (problem.factors, problem.future, problem.seen)
        found = carry(link, *inputs, particles, torch.Generator().manual_seed(0))
        outputs = (found.mean, found.std)
        return [*outputs, *gradients(outputs, problem.parameters(link))]

    whole = run()
    monkeypatch.setattr(scan_module, "PIECE", piece)
    assert_same(run(), whole, 1e-12)


def test_nothing_is_kept_per_particle():
    """What autograd holds on to has one size for any number of particles."""
    module = BFVI([Modality("x"), Modality("y")], 5, 20)
    batch = module.batch(make_spirals(torch.Generator(), count=4, steps=20).noisy)

    def held(count):
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            recursions.backward_filter(
                module.model, module.factors(batch), MonteCarlo(count), torch.Generator()
            )
        return sum(sizes)

    assert held(10) == held(25) == held(100)


def test_the_floor_of_standard_deviations_is_the_package_s():
    """A transition whose spread is far below zero has the floor for its standard deviation."""
    problem = Problem(1, 1, 1, 1, 1, torch.float64, missing=0.0)
    link = Link.forward(problem.model)
    with torch.no_grad():
        network(link).spread.weight.zero_()
        network(link).spread.bias.fill_(-200.0)
    precision = problem.compiled(link, Draws(1), native.KERNELS[0])[0][-1].item()
    expected = STD_FLOOR**-2 + problem.model.prior().precision.item()
    assert precision == pytest.approx(expected, rel=1e-12)


def test_what_is_not_a_number_stays_so():
    problem = Problem(1, 4, 3, 2, 3, torch.float32, missing=0.0)
    link = Link.forward(problem.model)
    with torch.no_grad():
        network(link).gate_hidden.weight[0, 0] = float("nan")
    found = problem.compiled(link, Draws(5), native.KERNELS[0])
    assert found[1][1:].isnan().all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights": torch.zeros(3)}, "weights have another size"),
        ({"prior": torch.zeros(2, 5)}, "Prior and bounds"),
        ({"seen": torch.ones(4, 2, dtype=torch.bool)}, "mask must be"),
        ({"points": torch.zeros(4, 2, 3, 2)}, "Points must be"),
    ],
)
def test_wrong_shapes_are_refused(change, sentence):
    problem = Problem(1, 4, 3, 2, 3, torch.float32)
    link = Link.forward(problem.model)
    prior = problem.model.prior()
    start = prior.expand(3, 2)
    inputs = {
        "weights": network(link).packed(),
        "prior": torch.stack([prior.precision, prior.information]),
        "bounds": problem.model.bounds(prior),
        "start": (start.precision, start.information),
        "factors": (problem.factors.precision, problem.factors.information),
        "future": (problem.future.precision, problem.future.information),
        "seen": problem.seen[..., 0],
        "points": None,
    }
    with pytest.raises(ValueError, match=sentence):
        native.scan(Way(3, Draws(5), False, False, native.KERNELS[0]), **(inputs | change))


@pytest.mark.parametrize(
    ("wish", "answer"), [("off", "None"), ("baseline", "baseline"), ("", native.KERNELS[:1])]
)
def test_the_environment_chooses_the_kernels(wish, answer):
    code = "from weft.inference import native; print(native.active())"
    answer = answer[0] if isinstance(answer, tuple) else answer
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WEFT_NATIVE": wish},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == answer


def test_unknown_kernels_are_an_error():
    with pytest.raises(ValueError, match="WEFT_NATIVE is 'fast'; it may be 'off' or one of"):
        choice._choose("fast")


def test_drawn_and_given_noise_agree_in_the_verbs():
    """A Monte Carlo filter is the reference on the numbers its seed stands for."""
    problem = Problem(4, 5, 6, 3, 7, torch.float64)
    link = Link.forward(problem.model)
    seed = MonteCarlo(9).seed(torch.Generator().manual_seed(3))
    points = native.normal((5, 9, 6, 3), Draws(9, seed), torch.float64)
    start = problem.model.prior().expand(6, 3)
    inputs = (problem.factors, problem.future, problem.seen)
    found = carry(link, *inputs, MonteCarlo(9), torch.Generator().manual_seed(3))
    steps = list(reference(link, start, *inputs, points.unbind()))
    np.testing.assert_allclose(
        found.mean.detach(), torch.stack([s.message.mean for s in steps]).detach(), rtol=1e-10
    )

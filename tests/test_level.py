"""A sequence's own level: what predictions are off by on average where there are observations."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from weft import (
    MDMM,
    Bernoulli,
    Likelihood,
    Modality,
    Normal,
    Pixels,
    Poisson,
    Sequences,
    StudentT,
    TrainingConfig,
)

NAN = float("nan")
LENGTHS = (6, 9, 4)


def waves(shift=0.0):
    """A pair of waves with single entries and steps missing, and nothing at all in the last."""
    rng = np.random.default_rng(0)
    found = []
    for steps in LENGTHS:
        phase = rng.uniform(0, 6) + np.arange(steps)
        wave = np.stack([np.sin(phase), 3 * np.cos(phase)], 1) + shift
        wave[rng.uniform(size=wave.shape) < 0.3] = NAN
        found.append(wave)
    found[-1][:] = NAN
    dark = [rng.integers(0, 2, steps).astype(float) for steps in LENGTHS]
    return Sequences.from_arrays({"wave": found, "dark": dark})


def declare(level):
    return [Modality("wave", 2, level=level), Modality("dark", likelihood=Bernoulli())]


@pytest.fixture(scope="module")
def pair():
    """A model with levels and one without, alike but for that."""
    plain, levelled = (
        MDMM(declare(level), latent=3, hidden=6).fit(
            waves(), training=TrainingConfig(epochs=3, batch_size=3), progress=False
        )
        for level in (False, True)
    )
    return plain, levelled


def offsets(data, mean, scale):
    """Mean residual of each sequence and entry, one step without any counted besides."""
    residual = (data.padded("wave") - mean) / scale
    count = np.isfinite(residual).sum(1)
    return scale * np.nansum(residual, 1) / (count + 1)


@pytest.mark.parametrize("likelihood", [Normal(), StudentT(), Bernoulli(), Pixels(), Poisson()])
def test_a_constant_prediction_is_moved_to_the_mean_of_what_was_seen(likelihood: Likelihood):
    """With one more step at a raw number of zero, which keeps it finite."""
    torch.manual_seed(0)
    raw = torch.randn(likelihood.parameters_per_entry * 3, dtype=torch.float64)
    share = torch.tensor([0.3, 0.9, 0.1], dtype=torch.float64)
    zero, expected = (likelihood.moments(r, (3,))[0] for r in (0 * raw, raw))
    for steps in (0.0, 2.0, 1e9):
        offset = likelihood.offset(steps * share, steps * expected, torch.tensor(steps))
        seen, mean = ((steps * x + zero) / (steps + 1) for x in (share, expected))
        torch.testing.assert_close(offset, likelihood.link(seen) - likelihood.link(mean))
        if steps == 0:
            assert torch.equal(offset, torch.zeros_like(offset))
    moved, _ = likelihood.moments(likelihood.moved(raw, offset), (3,))
    torch.testing.assert_close(moved, share, rtol=1e-5, atol=1e-5)


def test_links_turn_means_into_raw_numbers():
    raw = torch.linspace(-4, 4, 9, dtype=torch.float64)
    for likelihood in (Bernoulli(), Pixels(), Poisson()):
        mean, _ = likelihood.moments(raw, (9,))
        torch.testing.assert_close(likelihood.link(mean), raw, rtol=1e-5, atol=1e-5)


def test_offsets_leave_the_spread_alone():
    raw = torch.randn(4, 5, 2 * 6)
    offset = torch.randn(4, 5, 2, 3)
    before, after = (Normal().distribution(r, (2, 3)) for r in (raw, Normal().moved(raw, offset)))
    torch.testing.assert_close(after.mean, before.mean + offset)
    assert torch.equal(after.scale, before.scale)


@pytest.mark.parametrize("samples", [0, 7])
def test_predictions_move_by_the_mean_residual_everywhere(pair, samples):
    plain, levelled = pair
    data = waves(shift=5.0)
    before = plain.sequence(data, samples=samples)["wave"]
    after = levelled.sequence(data, samples=samples)["wave"]
    scale = plain._fitted().scales["wave"].scale
    wanted = offsets(data, before.mean, scale)
    assert (wanted[:-1] > 1).all()
    assert (wanted[-1] == 0).all()  # nothing was seen
    np.testing.assert_allclose(after.mean, before.mean + wanted[:, None], rtol=1e-4, atol=1e-5)


def test_only_the_modality_that_has_a_level_moves(pair):
    data = waves(shift=5.0)
    before, after = (model.smooth(data, samples=5)["dark"].mean for model in pair)
    np.testing.assert_array_equal(before, after)


def test_draws_and_quantiles_move_along(pair):
    data = waves(shift=5.0)
    before, after = (model.sequence(data)["wave"] for model in pair)
    move = (after.mean - before.mean)[:, 0]
    low = after.quantile(0.3) - before.quantile(0.3)
    np.testing.assert_allclose(low, move[:, None] + 0 * before.mean, rtol=1e-4, atol=1e-4)
    drawn = after.sample(2) - before.sample(2)
    np.testing.assert_allclose(drawn[:, 0, 0], np.stack([move[0]] * 2), rtol=1e-4, atol=1e-4)


def test_forecasts_and_backcasts_know_the_level_of_what_was_observed(pair):
    plain, _ = pair
    data = waves(shift=5.0)
    scale = plain._fitted().scales["wave"].scale
    longer = data.extend(after=2)
    wanted = offsets(longer, plain.smooth(longer, samples=20)["wave"].mean, scale)
    ahead = [model.forecast(data, 2, samples=20)["wave"].mean for model in pair]
    np.testing.assert_allclose(ahead[1], ahead[0] + wanted[:, None], rtol=1e-4, atol=1e-5)
    back = [model.backcast(data, 2, samples=20)["wave"].mean for model in pair]
    assert (back[1] - back[0])[:2].min() > 1


def test_filters_and_streams_do_without_it(pair):
    data = waves(shift=5.0)
    before, after = (model.filter(data, samples=5)["wave"].mean for model in pair)
    np.testing.assert_array_equal(before, after)
    heard = []
    for model in pair:
        stream = model.stream(1, samples=5)
        stream.update({"wave": [7.0, 8.0]})
        heard.append(stream.predict()["wave"].mean)
    np.testing.assert_array_equal(*heard)


def test_a_level_does_not_depend_on_other_sequences(pair):
    _, levelled = pair
    data = waves(shift=5.0)
    together = levelled.sequence(data)["wave"].mean
    for i, steps in enumerate(LENGTHS):
        alone = levelled.sequence(data[[i]])["wave"].mean
        np.testing.assert_allclose(together[[i], :steps], alone, rtol=1e-4, atol=1e-5)


def test_images_keep_what_stays_of_them():
    """A picture that never was in the training data is there behind all frames."""
    rng = np.random.default_rng(0)
    films = Sequences.from_arrays({"film": rng.uniform(size=(4, 5, 1, 8, 8))})
    walls = rng.uniform(0.2, 0.8, size=(2, 1, 1, 8, 8)) + np.zeros((2, 30, 1, 8, 8))
    walls[:, 20:] = NAN
    errors = []
    for level in (False, True):
        film = Modality("film", (1, 8, 8), likelihood=Pixels(), level=level)
        model = MDMM([film], latent=2, hidden=4).fit(
            films, training=TrainingConfig(epochs=2), progress=False
        )
        found = model.sequence(Sequences.from_arrays({"film": walls}))["film"].mean
        errors.append(np.abs(found - walls[:, :1]).max())
    assert errors[0] > 0.2
    assert errors[1] < 0.05


def test_labels_have_no_level():
    with pytest.raises(ValueError, match="'who' is categorical and cannot have level=True"):
        Modality("who", categories=["a", "b"], level=True)


def test_softplus_is_undone_where_it_is_nearly_flat():
    rate = torch.tensor([1e-4, 1.0, 50.0], dtype=torch.float64)
    raw = Poisson().link(rate)
    torch.testing.assert_close(F.softplus(raw) + 1e-6, rate)

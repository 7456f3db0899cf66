"""Levels: what predictions are off by where there are observations is expected elsewhere, too."""

from dataclasses import replace

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
    load,
)
from weft.errors import TRUSTS, closest_trust
from weft.levels import meet

NAN = float("nan")
LENGTHS = (6, 9, 4)


def waves(shift=0.0):
    """A pair of waves with single entries and steps missing, and nothing of it in the last."""
    rng = np.random.default_rng(0)
    found, lamps = [], []
    for steps in LENGTHS:
        phase = rng.uniform(0, 6) + np.arange(steps)
        wave = np.stack([np.sin(phase), 3 * np.cos(phase)], 1) + shift + 5 * rng.normal(size=2)
        wave[rng.uniform(size=wave.shape) < 0.3] = NAN
        found.append(wave)
        lamps.append((rng.uniform(size=steps) < 0.8).astype(float))
    found[-1][:] = NAN
    lamps[1][3:] = NAN
    return Sequences.from_arrays({"wave": found, "lamp": lamps})


@pytest.fixture(scope="module")
def pair():
    """A model without levels and one with them, alike but for that."""
    plain, levelled = (
        MDMM(
            [
                Modality("wave", 2, level=level),
                Modality("lamp", likelihood=Bernoulli(), level=level),
            ],
            latent=3,
            hidden=6,
        ).fit(waves(), training=TrainingConfig(epochs=3, batch_size=3), progress=False)
        for level in (False, True)
    )
    return plain, levelled


def views(pair, data, ask):
    """Means and deviations, in the user's units, that errors say of two kinds of predictions.

    Those from everything that was observed, and those from the lamp alone.
    """
    plain, levelled = pair
    scale, known = plain._fitted().scales["wave"].scale, levelled._errors["wave"]
    for errors, given in ((known.everything, data), (known.others, data.hide("wave"))):
        found = ask(plain, given)["wave"]
        off = (data.padded("wave") - found.mean) / scale
        expected, share = (x.swapaxes(0, 1) for x in errors.expect(off.swapaxes(0, 1)))
        yield found.mean + scale * expected, found.std * np.sqrt(1 - share)


def together(pair, data, ask):
    """Both of them, each by its precision and trust; their deviations add up."""
    (mean, std), (other, its_std) = views(pair, data, ask)
    trust = pair[1]._errors["wave"].trust
    precision, its = (1 - trust) * std**-2, trust * its_std**-2
    total = precision + its
    return (precision * mean + its * other) / total, (precision * std + its * its_std) / total


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


def test_offsets_leave_the_spread_alone_and_shares_are_taken_of_it():
    raw = torch.randn(4, 5, 2 * 6)
    offset = torch.randn(4, 5, 2, 3)
    before, after = (Normal().distribution(r, (2, 3)) for r in (raw, Normal().moved(raw, offset)))
    torch.testing.assert_close(after.mean, before.mean + offset)
    assert torch.equal(after.scale, before.scale)
    share = torch.rand(5, 2, 3)
    narrow = Normal().distribution(Normal().narrowed(raw, share), (2, 3))
    torch.testing.assert_close(narrow.mean.mean(0), before.mean.mean(0))
    for left, whole in (
        (narrow.variance, before.variance),
        (narrow.mean.var(0), before.mean.var(0)),
    ):
        torch.testing.assert_close(left, (1 - share) * whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("samples", [0, 7])
def test_numbers_move_by_the_errors_expected_of_them(pair, samples, monkeypatch):
    def ask(model, data):
        return model.sequence(data, samples=samples)

    plain, levelled = pair
    data = waves(shift=2.0)
    for trust in (levelled._errors["wave"].trust, np.array([0.0, 1.0]), np.array([0.3, 0.6])):
        errors = replace(levelled._errors["wave"], trust=trust)
        monkeypatch.setattr(levelled, "_errors", {"wave": errors})
        before, after = (ask(model, data)["wave"] for model in pair)
        wanted, _ = together(pair, data, ask)
        assert np.nanmax(np.abs(wanted - before.mean)[:2]) > 0.5
        np.testing.assert_allclose(after.mean, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(after.mean[2], before.mean[2], rtol=1e-5)  # nothing was seen
    assert plain._errors == {}


@pytest.mark.parametrize("samples", [0, 7])
def test_bands_get_narrower_by_what_is_known(pair, samples):
    def ask(model, data):
        return model.sequence(data, samples=samples)

    data = waves(shift=2.0)
    before, after = (ask(model, data)["wave"] for model in pair)
    mean, std = together(pair, data, ask)
    np.testing.assert_allclose(after.std, std, rtol=1e-3)
    moved = mean + (before.quantile(0.1) - before.mean) * std / before.std
    np.testing.assert_allclose(after.quantile(0.1), moved, rtol=1e-3, atol=1e-3)


def test_two_views_are_never_surer_than_the_surer_of_them():
    std, other = (torch.rand(100, dtype=torch.float64) + 0.1 for _ in range(2))
    mean, theirs = torch.randn(2, 100, dtype=torch.float64)
    half = torch.tensor(0.5, dtype=torch.float64)
    met, deviation = meet((mean, std), (theirs, other), half)
    assert (deviation >= torch.minimum(std, other)).all()
    assert (deviation <= torch.maximum(std, other)).all()
    torch.testing.assert_close(meet((theirs, other), (mean, std), half), (met, deviation))
    torch.testing.assert_close(meet((mean, std), (mean, std), half), (mean, std))
    torch.testing.assert_close(meet((mean, 1e-9 * std), (theirs, other), half)[0], mean)
    torch.testing.assert_close(meet((mean, std), (theirs, other), 0 * half), (mean, std))
    torch.testing.assert_close(meet((mean, std), (theirs, other), 2 * half), (theirs, other))


def test_trust_is_what_errs_least():
    losses = np.stack([np.square(TRUSTS - best) + 0.1 for best in (0.0, 0.3, 1.0)], 1)
    counts = np.array([1e6, 1e6, 1e6])
    np.testing.assert_allclose(closest_trust(losses * counts, counts), [0, 0.3, 1])
    np.testing.assert_array_equal(closest_trust(0 * losses, 0 * counts), 0)  # nothing was tried
    counts = np.array([1e6, 1e6, 0])
    usual = losses[:, :2].mean(1) / losses[0, :2].mean()
    assert closest_trust(losses * counts, counts)[2] == pytest.approx(
        TRUSTS[usual.argmin()], abs=0.1
    )


def test_other_likelihoods_move_by_one_offset_per_sequence(pair):
    data = waves()
    before, after = (model.sequence(data)["lamp"].mean for model in pair)
    seen = np.isfinite(data.padded("lamp"))
    for i, steps in enumerate(LENGTHS):
        total, expected = (
            torch.tensor(np.where(seen, x, 0)[i].sum(0)) for x in (data.padded("lamp"), before)
        )
        offset = Bernoulli().offset(total, expected, torch.tensor(seen[i].sum(0)))
        odds = torch.logit(torch.tensor(before[i, :steps])) + offset
        np.testing.assert_allclose(after[i, :steps], torch.sigmoid(odds), rtol=1e-4)


def test_a_sensor_that_dies_stays_as_far_off_as_it_was():
    """One that reads another's number plus an offset of each sequence, and has learned little."""
    rng = np.random.default_rng(0)
    number = rng.normal(size=(40, 12, 1))
    data = {"one": number, "other": number + rng.normal(scale=5.0, size=(40, 1, 1))}
    died = np.where(np.arange(12)[:, None] < 6, data["other"], NAN)
    errors = []
    for level in (False, True):
        model = MDMM([Modality("one"), Modality("other", level=level)], latent=2, hidden=4)
        model.fit(data, training=TrainingConfig(epochs=3), progress=False)
        found = model.smooth({**data, "other": died}, samples=20)["other"].mean
        errors.append(np.sqrt(np.square(found - data["other"])[:, 6:].mean()))
    assert errors[0] > 3
    assert errors[1] < 1.5


def test_errors_are_learned_from_varied_sequences():
    """So a model that was shown shifted sequences knows that shifts stay."""

    def shifted(data, generator):
        column = data.columns["wave"]
        shifts = 5 * torch.randn(len(data), generator=generator, dtype=torch.float64).numpy()
        values = column.values + shifts[data.sequence_of_row, None]
        return replace(data, columns={"wave": replace(column, values=values)})

    data = {"wave": np.random.default_rng(0).normal(size=(50, 12, 1))}
    level = {}
    for augment in (None, shifted):
        model = MDMM([Modality("wave", level=True)], latent=2, hidden=4)
        model.fit(data, training=TrainingConfig(epochs=1), augment=augment, progress=False)
        level[augment] = model._errors["wave"].others.level.item()
    assert level[None] < 0.3
    assert level[shifted] > 0.8


def test_draws_move_along(pair):
    data = waves(shift=2.0)
    before, after = (model.sequence(data)["wave"] for model in pair)
    drawn = (after.sample(2) - after.mean) / after.std
    np.testing.assert_allclose(drawn, (before.sample(2) - before.mean) / before.std, atol=1e-2)


def test_forecasts_and_backcasts_know_what_was_observed(pair):
    data = waves(shift=2.0)
    longer = data.extend(after=2)
    wanted, _ = together(pair, longer, lambda model, given: model.smooth(given, samples=20))
    ahead = [model.forecast(data, 2, samples=20)["wave"].mean for model in pair]
    for i, steps in enumerate(LENGTHS):
        np.testing.assert_allclose(ahead[1][i], wanted[i, steps : steps + 2], rtol=1e-4, atol=1e-4)
    back = [model.backcast(data, 2, samples=20)["wave"].mean for model in pair]
    assert np.abs(back[1] - back[0])[:2].min() > 0.05


def test_what_is_known_of_errors_survives_a_file(pair, tmp_path):
    _, levelled = pair
    levelled.save(tmp_path / "m.weft")
    twin = load(tmp_path / "m.weft")
    mine, theirs = (model.smooth(waves(), samples=5)["wave"].mean for model in (levelled, twin))
    np.testing.assert_array_equal(mine, theirs)


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

"""Errors that last: a level, a fading part and white noise, against the dense Gaussian process."""

import numpy as np
import pytest

from weft.errors import DECAYS, LEAST, Errors, _closest

NAN = float("nan")
STEPS = 12


def process(level=0.2, fading=0.6, decay=0.8, entries=2):
    """Process of entries that are all alike."""
    return Errors(*(np.full(entries, float(x)) for x in (level, fading, decay)))


def covariance(errors, steps=STEPS, entry=0):
    """Of one entry with a variance of one."""
    level, fading, decay = (x.ravel()[entry] for x in vars(errors).values())
    lags = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    return level + fading * decay**lags + (1 - level - fading) * np.eye(steps)


def draw(errors, count, steps=STEPS, seed=0):
    """Errors ``(sequence, time, entry)``, each entry twice as large as the one before."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(count, steps, len(errors.level)))
    parts = [
        2**i * noise[..., i] @ np.linalg.cholesky(covariance(errors, steps, i)).T
        for i in range(len(errors.level))
    ]
    return np.stack(parts, -1)


def by_hand(errors, series, entry):
    """Mean and explained share of every step, given all others that are known."""
    found = []
    whole = covariance(errors, len(series), entry)
    for t in range(len(series)):
        known = np.isfinite(series) & (np.arange(len(series)) != t)
        across = whole[t, known]
        weights = np.linalg.solve(whole[np.ix_(known, known)], across)
        found.append((weights @ series[known], weights @ across))
    return np.array(found).T


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_expectations_are_those_of_the_gaussian_process(alike, at_once, monkeypatch):
    monkeypatch.setattr("weft.errors.BLOCK", at_once)
    errors = Errors(np.array([0.2, 0.5]), np.array([0.6, 0.1]), np.array([0.8, 0.3]))
    drawn = draw(errors, 3)
    rng = np.random.default_rng(1)
    drawn[rng.uniform(size=(3, STEPS, 1 if alike else 2)).repeat(2 if alike else 1, -1) < 0.4] = NAN
    drawn[2] = NAN
    expected, share = errors.expect(drawn.swapaxes(0, 1))
    for b in range(3):
        for entry in range(2):
            mean, explained = by_hand(errors, drawn[b, :, entry], entry)
            np.testing.assert_allclose(expected[:, b, entry], mean, atol=1e-9)
            np.testing.assert_allclose(share[:, b, entry], explained, atol=1e-9)
    assert (expected[:, 2] == 0).all()


def test_a_level_stays_and_a_fading_part_fades():
    series = np.full((30, 1, 1), NAN)
    series[:5] = 1.0
    stays, _ = process(level=0.9, fading=0.05, entries=1).expect(series)
    fades, share = process(level=0.0, fading=0.95, decay=0.5, entries=1).expect(series)
    assert stays[-1, 0, 0] > 0.9
    assert 0.4 < fades[5, 0, 0] < 0.6
    assert abs(fades[-1, 0, 0]) < 0.01
    assert share[5, 0, 0] > share[8, 0, 0] > share[-1, 0, 0]


def test_an_error_says_nothing_of_its_own_step():
    series = draw(process(), 1).swapaxes(0, 1)
    expected, _ = process().expect(series)
    series[4] += 10
    again, _ = process().expect(series)
    np.testing.assert_allclose(again[4], expected[4], atol=1e-9)
    assert (np.abs(again - expected)[[3, 5]] > 0.1).all()


@pytest.mark.parametrize(
    ("level", "fading", "decay"), [(0.2, 0.6, 0.8), (0.7, 0.0, 0.5), (0.0, 0.9, 0.4), (0, 0, 0.5)]
)
def test_shares_and_decay_are_found_again(level, fading, decay):
    drawn = draw(process(level, fading, decay), 2000, steps=25)
    drawn[np.random.default_rng(0).uniform(size=drawn.shape) < 0.3] = NAN
    found = Errors.estimate(drawn)
    for entry in range(2):
        wanted, learned = (
            covariance(e, 25, entry)[0] for e in (process(level, fading, decay), found)
        )
        np.testing.assert_allclose(learned, wanted, atol=0.04)


def test_entries_have_memories_of_their_own():
    """An entry that was hardly ever seen is taken to be like the others."""
    stays, fades = process(0.8, 0.0, entries=1), process(0.0, 0.9, 0.5, entries=1)
    drawn = np.concatenate([draw(x, 2000, steps=25) for x in (stays, fades, fades)], -1)
    found = Errors.estimate(drawn)
    np.testing.assert_allclose(found.level, [0.8, 0, 0], atol=0.05)
    np.testing.assert_allclose(found.fading, [0, 0.9, 0.9], atol=0.05)
    drawn[1:, :, 0] = NAN
    found = Errors.estimate(drawn)
    np.testing.assert_allclose(found.level, [0, 0, 0], atol=0.2)
    np.testing.assert_allclose(found.fading, [0.9, 0.9, 0.9], atol=0.2)


def test_shares_are_the_closest_of_all_that_are_not_negative():
    """Against a search by brute force."""
    rng = np.random.default_rng(0)
    lags, wanted, weights = (
        np.arange(1, 7),
        rng.normal(0.2, 0.4, (6, 20)),
        rng.uniform(1, 9, (6, 20)),
    )
    level, fading, decay = _closest(lags, wanted, weights)
    assert (level >= 0).all()
    assert (fading >= 0).all()

    def loss(level, fading, decay):
        off = level + fading * decay ** lags[:, None, None, None] - wanted[:, :, None, None]
        return (weights[:, :, None, None] * np.square(off)).sum(0)

    found = loss(*(x[:, None, None] for x in (level, fading, decay)))[:, 0, 0]
    grid = np.linspace(0, 1.5, 76)
    for each in DECAYS[::6]:
        tried = loss(grid[:, None], grid, each).reshape(20, -1).min(1)
        assert (found <= tried + 1e-9).all()


def test_images_of_errors_keep_their_shape():
    errors = process(0.5, 0.3, 0.9, entries=(2, 3))
    expected, share = errors.expect(np.random.default_rng(0).normal(size=(4, 5, 2, 3)))
    assert expected.shape == share.shape == (4, 5, 2, 3)


@pytest.mark.parametrize("shape", [(3, 1, 2), (1, 2, 1), (1, 1, 1)])
def test_few_errors_or_none_teach_nothing_harmful(shape):
    for errors in (np.full(shape, NAN), np.zeros(shape), np.ones(shape)):
        found = Errors.estimate(errors)
        assert (found.level >= 0).all()
        assert (found.fading >= 0).all()
        assert (found.level + found.fading <= 1).all()
        expected, share = found.expect(errors.swapaxes(0, 1))
        assert np.isfinite(expected).all()
        assert ((share >= 0) & (share < 1)).all()


def test_perfect_memory_stays_a_density():
    """All of the variance in the level or in what fades leaves a little for the rest."""
    for level, fading in ((1.0, 0.0), (0.0, 1.0)):
        errors = process(level, fading, 0.98)
        expected, share = errors.expect(np.ones((50, 1, 2)))
        assert np.isfinite(expected).all()
        assert (share <= 1 - LEAST).all()


def test_long_sequences_lose_no_precision():
    errors = process(0.5, 0.4, 0.95, entries=1)
    drawn = np.random.default_rng(0).normal(size=(5000, 1, 1))
    drawn[2000:3000] = NAN
    expected, share = errors.expect(drawn)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(expected[:1500], errors.expect(drawn[::-1])[0][::-1][:1500])
    assert ((share > 0.4) & (share < 1)).all()  # at least the level is known

"""What the studies on real data are made of."""

import numpy as np
import pytest
import torch
from benchmarks.real import peers, study
from benchmarks.real.physionet import Answer, auroc
from benchmarks.real.physionet_data import GROUPS, HOURS, Split, Stays
from benchmarks.real.utd import clip_labels, stretched, tables
from benchmarks.real.utd_data import ACTIONS, SENSORS, binned
from benchmarks.real.utd_gaps import CHANCES, LEAST, MOST, lose
from benchmarks.real.utd_tasks import LABELS, VALUES, Clips, Filled, errors
from benchmarks.real.utd_vary import between, rotations, vary, walk

from weft import Sequences
from weft.columns import Column

NAN = np.nan
GAPS = np.array([[[NAN, 1.0], [2.0, NAN], [NAN, NAN], [4.0, NAN]]])


def test_filling_without_learning():
    last, between = peers.last_value(GAPS)[0], peers.interpolate(GAPS)[0]
    np.testing.assert_array_equal(last, [[0, 1], [2, 1], [2, 1], [4, 1]])
    np.testing.assert_array_equal(between, [[2, 1], [2, 1], [3, 1], [4, 1]])


def test_ridge_finds_a_linear_map_of_a_window():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 30, 2))
    y = x[..., :1] + 2 * np.roll(x, 1, 1)[..., 1:]
    y[:, 0] = NAN  # nothing is known before the start
    found = peers.ridge(x[:10], y[:10], x[10:], reach=2, penalty=1e-9)
    np.testing.assert_allclose(found[:, 1:], y[10:, 1:], atol=1e-6)


def test_a_recurrent_network_learns_which_half_is_larger():
    rng = np.random.default_rng(0)
    code = np.arange(40) % 2
    x = rng.normal(size=(40, 6, 1)) + 4 * code[:, None, None]
    lengths = np.full(40, 6)
    gru = peers.GRU(1, 2, hidden=8).train_on(x, code, lengths, epochs=20, seed=0, rate=0.02)
    assert (gru.classify(x, lengths) == code).mean() > 0.9


def test_bins_keep_the_mean_whatever_their_number():
    samples = np.random.default_rng(0).normal(size=(11, 3))
    for bins in (1, 4, 11):
        np.testing.assert_allclose(binned(samples, bins).mean(0), samples.mean(0))
    np.testing.assert_allclose(binned(samples, 11), samples)


def test_area_under_the_curve_by_hand():
    happened = np.array([True, True, False, False])
    assert auroc(np.array([0.9, 0.3, 0.3, 0.1]), happened) == 0.875
    assert auroc(-np.array([0.9, 0.3, 0.3, 0.1]), happened) == 0.125


def test_answers_are_judged_at_the_points_held_out_only():
    truth = np.array([[[1.0], [2.0], [NAN]]])
    given = np.array([[[1.0], [NAN], [NAN]]])
    draws = np.array([[[[9.0], [1.5], [9.0]]], [[[9.0], [2.5], [9.0]]]])
    found = Answer(draws).judge(Split(truth, given, np.array([True])))
    assert found["mae"] == found["rmse"] == 0
    assert found["coverage"] == 1


def test_a_split_shares_stays_out_and_standardises_by_the_training_ones():
    rng = np.random.default_rng(0)
    names = tuple(name for group in GROUPS.values() for name in group)
    values = rng.normal(3, 2, size=(4000, 2, len(names)))
    train, validation, test = Stays(values, names, rng.random(4000) < 0.1).split(0)
    assert [len(part.died) for part in (train, validation, test)] == [2560, 640, 800]
    assert np.nanmean(train.given) == pytest.approx(0, abs=1e-9)
    assert np.nanstd(train.given) == pytest.approx(1, abs=1e-2)
    assert test.hidden.mean() == pytest.approx(0.1, abs=0.01)
    assert HOURS == 48


def test_a_study_writes_its_results_and_its_table_into_the_page(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- toy -->\nold\n<!-- end of toy -->\nafter\n")
    monkeypatch.setattr(study, "PAGE", page)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "commit", lambda: "abc")
    study.write_study("toy", {"error": 1.0}, study.table(["", "error"], [["weft", "1.0"]]))
    rows = "|  | error |\n| --- | ---: |\n| weft | 1.0 |"
    assert page.read_text() == f"before\n<!-- toy -->\n{rows}\n<!-- end of toy -->\nafter\n"
    assert '"commit": "abc"' in (tmp_path / "results" / "toy.json").read_text()
    assert rows in capsys.readouterr().out


def test_a_study_says_where_recordings_are_expected(monkeypatch, tmp_path):
    monkeypatch.delenv("WEFT_DATA", raising=False)
    with pytest.raises(SystemExit, match="Set WEFT_DATA"):
        study.recordings("jsb_chorales")
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="no folder"):
        study.recordings("jsb_chorales")


def few_clips(count=3, steps=8):
    """Clips of both sensors in arbitrary units."""
    rng = np.random.default_rng(0)
    return Sequences.from_arrays(
        {
            "inertial": list(rng.normal(5, 2, (count, steps, 6))),
            "skeleton": list(rng.normal(-1, 3, (count, steps, 60))),
            "action": [np.full(steps, ACTIONS[i], object) for i in range(count)],
        },
        categories={"action": ACTIONS},
    )


def test_a_question_takes_away_what_it_asks_for_and_the_action():
    clips = Clips(few_clips(), few_clips())
    for question in VALUES:
        left = clips.asked(question, clips.test)
        assert left.observed_fraction("action") == 0
        assert left.observed_fraction(question.target) < 1
        again = clips.asked(question, clips.test)
        np.testing.assert_array_equal(clips.both(left), clips.both(again))
    shares = {
        question.name: [
            clips.asked(question, clips.test).observed_fraction(name)
            for name in ("inertial", "skeleton")
        ]
        for question in LABELS
    }
    assert shares == {
        "inertial alone": [1, 0],
        "skeleton alone": [0, 1],
        "both": [1, 1],
        "first half of both": [0.5, 0.5],
    }


def test_sensors_are_judged_in_standard_units_where_they_were_lost():
    clips = Clips(few_clips(), few_clips())
    assert clips.standard(clips.train, "inertial").mean() == pytest.approx(0, abs=1e-9)
    assert clips.standard(clips.train, "inertial").std((0, 1)) == pytest.approx(1)
    assert clips.codes(clips.test).tolist() == [0, 1, 2]
    died = next(q for q in VALUES if q.name == "inertial dies halfway")
    answer = clips.standard(clips.test, "inertial")
    answer[:, :4] = 99.0  # these were given
    assert clips.judge(died, Filled(answer, answer - 1, answer + 1)) == {
        "rmse": 0,
        "mae": 0,
        "coverage": 1,
    }


def test_errors_by_hand():
    truth, where = np.array([[[0.0], [1.0], [5.0]]]), np.array([[[True], [True], [False]]])
    found = errors(
        Filled(truth + 2, truth - 1, truth + np.array([[[1.0], [-0.5], [1.0]]])), truth, where
    )
    assert found == {"rmse": 2, "mae": 2, "coverage": 0.5}


def test_a_clip_s_action_is_what_its_own_steps_speak_for():
    chances = np.array([[[0.9, 0.1], [0.8, 0.2], [0.0, 1.0]], [[0.4, 0.6]] * 3])
    assert clip_labels(chances, np.array([2, 3])).tolist() == [0, 1]


def test_stretching_keeps_the_sensors_that_are_left():
    clips = Clips(few_clips(), few_clips())
    for question, channels in zip(LABELS, (6, 60, 66, 66), strict=True):
        found = stretched(clips.asked(question, clips.test), clips, steps=20)
        assert found.shape == (3, channels, 20)
        assert np.isfinite(found).all()


def test_tables_show_what_an_approach_answers_and_leave_the_rest_out():
    answers = {VALUES[0].name: {"rmse": 0.5, "coverage": 0.9}, VALUES[1].name: {"rmse": 1.0}}
    ours = {"tasks": answers | {LABELS[2].name: {"accuracy": 0.75}}, "models": 1, "seconds": 60.4}
    theirs = {"tasks": {VALUES[0].name: {"rmse": 0.7}}, "models": 6, "seconds": 3.0}
    lines = tables({"weft": ours, "ridge": theirs}).splitlines()
    assert lines[2] == "| weft | 0.500 (90%) | 1.000 |  |  |  |  | 1 | 60 |"
    assert lines[3] == "| ridge | 0.700 |  |  |  |  |  | 6 | 3 |"
    assert lines[7:] == ["| weft |  |  | 0.750 |  | 1 | 60 |"]


def test_clips_lose_what_questions_take():
    steps, count = 20, 300
    data = Sequences.from_arrays({name: np.ones((count, steps, 1)) for name in SENSORS})
    left, again = (lose(data, torch.Generator().manual_seed(0)) for _ in range(2))
    seen = {name: left.columns[name].observed.reshape(count, steps) for name in SENSORS}
    for name in SENSORS:
        np.testing.assert_array_equal(left.columns[name].observed, again.columns[name].observed)
    whole = {name: seen[name].all(1) for name in SENSORS}
    dies = {name: ~whole[name] & (np.diff(seen[name].astype(int)) <= 0).all(1) for name in SENSORS}
    for name in SENSORS:
        lost = 1 - seen[name][dies[name]].mean(1)
        assert lost.min() >= 1 - MOST - 1 / steps
        assert lost.max() <= 1 - LEAST + 1 / steps
    one, other = SENSORS
    kinds = (
        whole[one] & whole[other],
        dies[one] & whole[other],
        whole[one] & dies[other],
        dies[one] & dies[other],
        ~whole[one] & ~whole[other] & ~(dies[one] & dies[other]),
    )
    assert np.sum(kinds, 0).tolist() == [1] * count
    np.testing.assert_allclose([kind.mean() for kind in kinds], CHANCES, atol=0.06)


def test_a_varied_clip_is_another_body_s_at_another_pace_and_of_the_same_action():
    data = few_clips().hide("skeleton")
    varied = vary(data, torch.Generator().manual_seed(0))
    again = vary(data, torch.Generator().manual_seed(0))
    for name, column in varied.columns.items():
        np.testing.assert_array_equal(column.values, again.columns[name].values)
        np.testing.assert_array_equal(column.observed, data.columns[name].observed)
    np.testing.assert_array_equal(varied.columns["action"].values, data.columns["action"].values)
    assert not np.allclose(varied.columns["inertial"].values, data.columns["inertial"].values)
    assert not varied.columns["skeleton"].values.any()  # nothing was known of it


def test_a_changing_pace_walks_from_first_to_last_row_of_every_clip():
    data = few_clips()
    place, speed = walk(data, np.array([[2.0, -1.0, 0.5, 0.0]] * len(data)))
    for first, steps in zip(data.starts, data.lengths, strict=True):
        own = place[first : first + steps]
        assert own[0] == first
        assert own[-1] == first + steps - 1
        np.testing.assert_allclose(np.diff(own), speed[first + 1 : first + steps])
    place, speed = walk(data, np.zeros((len(data), 4)))
    np.testing.assert_allclose(place, np.arange(data.rows))
    np.testing.assert_allclose(speed, 1)
    place, _ = walk(data.segments(1), np.ones((data.rows, 4)))
    np.testing.assert_array_equal(place, np.arange(data.rows))


def test_values_between_rows_lie_on_a_line_if_both_ends_are_known():
    values, seen = np.array([[0.0], [2.0], [0.0]]), np.array([[True], [True], [False]])
    found, known = between(Column(values, seen), np.array([0.0, 0.25, 1.0, 1.5]))
    assert found[:3, 0].tolist() == [0.0, 0.5, 2.0]
    assert known[:, 0].tolist() == [True, True, True, False]


def test_turns_keep_lengths_and_angles():
    found = rotations(np.array([[0.0, np.pi / 2, 0.0], [0.3, -0.2, 0.9]]))
    np.testing.assert_allclose(found @ found.swapaxes(1, 2), [np.eye(3)] * 2, atol=1e-12)
    np.testing.assert_allclose(found[0] @ [1.0, 0, 0], [0, 0, -1.0], atol=1e-12)

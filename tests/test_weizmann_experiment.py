"""The experiment on video in small, on made-up clips laid out like the prepared arrays."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from weft import Sequences
from weft.cli import app
from weft.experiments import weizmann, weizmann_steps, weizmann_weak
from weft.experiments.tasks import VIDEO_TASKS
from weft.experiments.weizmann import run_weizmann
from weft.experiments.weizmann_budgets import BUDGETS
from weft.experiments.weizmann_fits import (
    EXPERIMENTS,
    WeizmannJob,
    clips_of,
    declare,
    steps_made,
)
from weft.experiments.weizmann_images import move_images
from weft.networks import FilmFeatures

CLIPS = ("ido_bend", "ido_jack", "eli_bend", "eli_jack", "shahar_bend", "shahar_jack")


@pytest.fixture
def data(tmp_path):
    """Six clips of twelve frames in a folder weizmann."""
    folder = tmp_path / "data" / "weizmann"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    video = {n: rng.integers(0, 256, (12, 64, 64, 3), dtype=np.uint8) for n in CLIPS}
    masks = {n: rng.integers(0, 256, (12, 64, 64), dtype=np.uint8) for n in CLIPS}
    np.savez(folder / "weizmann_rgb64.npz", allow_pickle=False, **video)
    np.savez(folder / "weizmann_masks64_aligned_to_rgb.npz", allow_pickle=False, **masks)
    index = {name: {"box_xywh": [30, 20, 74, 75], "frames": 12} for name in CLIPS}
    (folder / "weizmann_rgb64_index.json").write_text(json.dumps(index))
    return folder.parent


def test_a_budget_of_steps_is_the_same_for_few_clips_and_many():
    wanted = BUDGETS["short"].steps
    assert wanted is not None
    for count in (3, 17):
        clips = Sequences.from_arrays({"x": [np.zeros((60, 1))] * count})
        training = BUDGETS["short"].training_on(clips)
        pieces = math.ceil(60 / 8) * count
        steps = math.ceil(pieces / 16) * training.epochs
        assert wanted <= steps < wanted + pieces
    assert BUDGETS["paper"].training_on(clips) is BUDGETS["paper"].training


def test_the_paper_budget_is_the_supplement_s_table():
    budget = BUDGETS["paper"]
    training, objective = budget.training, budget.objective
    assert (training.epochs, training.batch_size, training.learning_rate) == (400, 25, 5e-4)
    assert (training.weight_decay, training.burst, training.segment) == (1e-4, 0.2, 25)
    assert training.temperature(125).beta == 0.5
    assert training.temperature(250).beta == 1.0
    assert {training.rate(step, 3000) for step in (0, 1500, 2999)} == {5e-4}
    assert objective.each_alone
    assert (budget.latent, budget.hidden) == (256, 256)
    weights = {name: budget.weight(name) for name in ("video", "person", "action")}
    assert weights == {"video": 1, "person": 10, "action": 10}


def test_steps_can_be_asked_for(data, tmp_path):
    words = "reproduce weizmann --experiment w36 --method bfvi --budget quick --steps 7"
    words += f" --processes 1 --data {data} --out {tmp_path}"
    found = CliRunner().invoke(app, words.split())
    assert found.exit_code == 0, found.output
    run = json.loads((tmp_path / "weizmann.json").read_text())["w36"]["bfvi"]["run"]
    assert 7 <= run["steps"] < 7 + 3  # whole epochs of three steps
    assert (tmp_path / "weizmann" / "w36-quick-bfvi-0-7steps.json").exists()


def test_a_budget_of_films_reads_what_is_given_from_both_ends(data, tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", replace(BUDGETS["quick"], films=True))
    job = WeizmannJob("w36", "bfvi", 0, data / "weizmann", tmp_path, "quick")
    encoders = {modality.name: modality.encoder for modality in declare(job)}
    assert isinstance(encoders.pop("video"), FilmFeatures)
    assert set(encoders.values()) == {None}
    twice = [run_weizmann(job)]
    (tmp_path / f"{job.name}.fit.json").unlink()
    shutil.rmtree(tmp_path / job.name)
    twice.append(run_weizmann(job))
    for task in VIDEO_TASKS:
        assert twice[0][task.name] == twice[1][task.name]  # first weights are the seed's


def test_one_person_is_held_out(data):
    job = WeizmannJob("w36", "bfvi", 0, data / "weizmann", data)
    train, test = clips_of(job)
    assert train.ids == ("eli_bend", "eli_jack", "ido_bend", "ido_jack")
    assert test.ids == ("shahar_bend", "shahar_jack")
    assert train.names == EXPERIMENTS["w36"].modalities


def test_some_clips_lose_their_label_only(data):
    job = WeizmannJob("w36", "bfvi", 0, data / "weizmann", data, unlabelled=0.5)
    train, test = clips_of(job)
    assert train.observed_fraction("action") == 0.5
    assert train.observed_fraction("video") == 1
    assert test.observed_fraction("action") == 1
    assert job.name == "w36-paper-bfvi-0-unlabelled50"


@pytest.mark.parametrize("mirror", [True, False])
def test_images_of_a_sequence_move_together(data, mirror):
    train, _ = clips_of(WeizmannJob("w36", "bfvi", 0, data / "weizmann", data))
    moved = move_images(train, torch.Generator().manual_seed(0), 3, mirror=mirror)
    assert moved.names == train.names
    assert np.array_equal(moved.columns["action"].values, train.columns["action"].values)
    ways = set()
    for i in range(len(train)):
        found = []
        for name in ("video", "silhouette"):
            before, after = train.arrays(name)[i], moved.arrays(name)[i]
            wide = np.pad(before, ((0, 0), (0, 0), (3, 3), (3, 3)), mode="edge")
            found.append(
                {
                    (top, left, side)
                    for top in range(7)
                    for left in range(7)
                    for side in (1, -1)
                    if np.array_equal(
                        wide[:, :, top : top + 64, left : left + 64][..., ::side], after
                    )
                }
            )
        assert found[0] == found[1]
        assert len(found[0]) == 1
        ways |= found[0]
    assert len(ways) > 1
    assert (-1 in {side for _, _, side in ways}) == mirror


def test_stretching_takes_pixels_as_they_are(data):
    train, _ = clips_of(WeizmannJob("w36", "bfvi", 0, data / "weizmann", data))
    wider = move_images(train, torch.Generator().manual_seed(0), 0, mirror=False, stretch=0.2)
    for before, after in zip(train.arrays("video"), wider.arrays("video"), strict=True):
        assert not np.array_equal(before, after)
        assert set(np.unique(after)) <= set(np.unique(before))
        centre = slice(31, 33)  # stays where it is
        assert np.array_equal(before[..., centre, centre], after[..., centre, centre])


def test_results_of_other_experiments_and_methods_stay(tmp_path):
    file = tmp_path / "weizmann.json"
    new = {"w36": {"bfvi": 1, "b-mask-direct": 2}}
    assert weizmann.beside(file, new) == new
    file.write_text(json.dumps({"w90": {"bfvi": 3}, "w36": {"bfvi": 4, "f-skip-direct": 5}}))
    together = weizmann.beside(file, new)
    assert together == {"w36": new["w36"] | {"f-skip-direct": 5}, "w90": {"bfvi": 3}}
    assert list(together) == ["w36", "w90"]


def test_the_experiment_runs_in_small(data, tmp_path, monkeypatch):
    words = "reproduce weizmann --experiment w36 --method bfvi --method b-mask-direct"
    words += f" --budget quick --processes 1 --data {data} --out {tmp_path}"
    found = CliRunner().invoke(app, words.split())
    assert found.exit_code == 0, found.output
    summary = json.loads((tmp_path / "weizmann.json").read_text())
    assert list(summary["w36"]) == ["bfvi", "b-mask-direct"]
    for tasks in summary["w36"].values():
        assert list(tasks) == [*(task.name for task in VIDEO_TASKS), "run"]
        for task in VIDEO_TASKS:
            assert -1 <= tasks[task.name]["mean"] <= 1
            assert set(tasks[task.name]) == {"mean", "sd", "seeds", "epochs", "seconds"}
        assert tasks["run"]["peak_gb"] > 0
    assert "b-mask-direct" in (tmp_path / "weizmann.md").read_text()
    assert (tmp_path / "weizmann_w36.png").stat().st_size > 10_000
    with Image.open(tmp_path / "weizmann_w36.gif") as animation:
        assert getattr(animation, "n_frames", 1) == 12
    monkeypatch.setattr(weizmann, "run_weizmann", lambda job: pytest.fail("a fit was repeated"))
    assert CliRunner().invoke(app, words.split()).exit_code == 0


def test_a_fit_counts_the_steps_it_made_and_times_them(data, tmp_path):
    job = WeizmannJob("w36", "bfvi", 0, data / "weizmann", tmp_path, "quick", steps=6)
    assert steps_made(tmp_path / job.name) == 0
    run = run_weizmann(job)
    assert run["seconds"] == pytest.approx(run["steps"] * run["seconds_per_step"])
    assert steps_made(tmp_path / job.name) == run["steps"]


def test_learning_from_unlabelled_clips_runs_in_small(data, tmp_path):
    summary = weizmann_weak.reproduce_weizmann_weak(
        data / "weizmann",
        tmp_path,
        experiments=["w36"],
        methods=["bfvi"],
        budget="quick",
        levels=(0.0, 0.5),
        processes=1,
        progress=False,
    )
    assert list(summary["w36"]["bfvi"]) == ["0.00", "0.50"]
    assert json.loads((tmp_path / "weizmann_weak.json").read_text()) == summary
    assert (tmp_path / "weizmann_weak.png").stat().st_size > 5_000


def test_figures_over_the_steps_of_a_fit_are_written(data, tmp_path):
    summary = weizmann_steps.reproduce_weizmann_steps(
        data / "weizmann",
        tmp_path,
        budget="quick",
        lengths=(None, 7),
        processes=1,
        progress=False,
    )
    assert list(summary) == ["3", "9"]  # whole epochs of three steps
    kept = json.loads((tmp_path / "weizmann_steps.json").read_text())
    assert kept == {"w36": {"bfvi": summary}}
    assert (tmp_path / "weizmann_steps.png").stat().st_size > 5_000

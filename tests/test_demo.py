"""The demo runs to its end, prints its table and leaves its files."""

from typing import cast

import numpy as np
import torch

import weft
from weft import demo
from weft.datasets import make_spirals
from weft.experiments.tasks import SPIRAL_TASKS, squared_distance


def test_the_demo_prints_a_table_and_writes_a_figure(tmp_path, monkeypatch, capsys):
    small = ["demo", "--epochs", "1", "--train", "20", "--test", "4", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", small)
    demo.main()
    printed = capsys.readouterr().out
    for task in SPIRAL_TASKS:
        assert task.title in printed
    assert (tmp_path / "spirals.png").read_bytes()[1:4] == b"PNG"
    assert weft.load(tmp_path / "spirals.weft").latent == 5


def test_spirals_are_the_papers():
    spirals = make_spirals(torch.Generator().manual_seed(0), count=400)
    x, y = spirals.clean.padded("x")[..., 0], spirals.clean.padded("y")[..., 0]
    residual = spirals.noisy.padded("x")[..., 0] - x
    assert abs(residual.std() - 0.1) < 4 * 0.1 / np.sqrt(2 * residual.size)
    turn = x[:, 49] * y[:, 50] - y[:, 49] * x[:, 50]
    assert ((turn > 0) == (np.arange(400) % 2 == 0)).all()
    squared_radius = np.square(x) + np.square(y)
    assert 2.0 < squared_radius.mean() < 4.0
    assert squared_radius.max() < 2 * 2.75**2


def test_tasks_take_away_what_the_paper_says():
    data = make_spirals(torch.Generator().manual_seed(0), count=3).noisy
    left = {
        task.name: [
            task.corrupt(data, torch.Generator().manual_seed(0)).observed_fraction(name)
            for name in ("x", "y")
        ]
        for task in SPIRAL_TASKS
    }
    assert left == {
        "recon": [1.0, 1.0],
        "half": [0.5, 0.5],
        "forward": [0.75, 0.75],
        "backward": [0.75, 0.75],
        "conditional": [1.0, 0.25],
    }


def test_the_error_is_the_squared_distance_per_step():
    truth = weft.Sequences.from_arrays({"x": [[0.0, 0.0], [1.0]], "y": [[0.0, 1.0], [1.0]]})

    class Fixed:
        mean = np.array([[[3.0], [0.0]], [[1.0], [np.nan]]])

    fixed = cast(weft.Prediction, Fixed())
    found = squared_distance({"x": fixed, "y": fixed}, truth)
    np.testing.assert_allclose(found, [(9 + 9 + 0 + 1) / 2, 0.0])

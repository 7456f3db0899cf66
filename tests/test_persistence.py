"""A file is whole or refused; an interrupted write leaves the previous file."""

import os

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import nn

import weft
from tests.verbs import declare, random_data
from weft import (
    MDMM,
    Antithetic,
    Cubature,
    FileError,
    Modality,
    MonteCarlo,
    StudentT,
    TrainingConfig,
    persistence,
)
from weft.persistence import read_file, write_file

ONE_EPOCH = TrainingConfig(epochs=1, batch_size=5)
DATA = random_data(0, lengths=(5, 3, 6), missing=0.3)


def fitted(modalities=None, data=DATA):
    model = MDMM(modalities or declare(), latent=2, hidden=4)
    return model.fit(data, training=ONE_EPOCH, progress=False)


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.zeros(0, 2)}


def test_files_hold_what_was_written(tmp_path):
    write_file(tmp_path / "x", "thing", {"n": 1, "name": "ß"}, TENSORS)
    stored = read_file(tmp_path / "x", "thing")
    assert stored.header == {"n": 1, "name": "ß"}
    for name, tensor in TENSORS.items():
        assert torch.equal(stored.tensors[name], tensor)


def test_columns_keep_their_order(tmp_path):
    """Tables of a loaded model come out like those of the one that was saved."""
    frame = pd.DataFrame({"z": [1.0, 2.0, 4.0], "a": [0.5, None, 0.1]})
    data = weft.Sequences.from_frame(frame)
    model = MDMM(weft.infer_modalities(data), latent=2, hidden=4)
    model.fit(data, training=TrainingConfig(epochs=1), progress=False).save(tmp_path / "m.weft")
    assert weft.load(tmp_path / "m.weft").read(frame).names == ("z", "a")


@pytest.mark.parametrize("keep", [0, 5, 50, 200, -1])
def test_truncated_files_are_refused(tmp_path, keep):
    path = tmp_path / "x"
    write_file(path, "thing", {"n": 1}, TENSORS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileError, match="truncated, damaged"):
        read_file(path, "thing")


def test_any_changed_byte_is_refused(tmp_path):
    path = tmp_path / "x"
    write_file(path, "thing", {"n": 1, "text": "hello"}, TENSORS)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        if content[position : position + 1] == b" ":
            continue
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(FileError):
            read_file(path, "thing")


def test_an_edited_header_is_refused(tmp_path):
    path = tmp_path / "x"
    write_file(path, "thing", {"text": "hello"}, TENSORS)
    path.write_bytes(path.read_bytes().replace(b"hello", b"jello"))
    with pytest.raises(FileError, match="edited or damaged"):
        read_file(path, "thing")


def test_wrong_kinds_newer_formats_and_foreign_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_file(path, "thing", {}, TENSORS)
    with pytest.raises(FileError, match="holds a thing, not a model"):
        read_file(path, "model")
    monkeypatch.setattr(persistence, "FORMAT", 99)
    write_file(path, "thing", {}, TENSORS)
    monkeypatch.setattr(persistence, "FORMAT", 1)
    with pytest.raises(FileError, match="has format 99"):
        read_file(path, "thing")
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(FileError, match="not written by weft"):
        read_file(path, "thing")
    with pytest.raises(FileNotFoundError, match="no file"):
        read_file(tmp_path / "absent", "thing")


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_an_interrupted_save_leaves_the_previous_file(tmp_path, monkeypatch, moment):
    path = tmp_path / "x"
    write_file(path, "thing", {"version": 1}, TENSORS)

    def fail(*args):
        raise OSError("the disk is full")

    if moment == "write":
        monkeypatch.setattr(safetensors.torch, "save", fail)
    elif moment == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(OSError, match="disk is full"):
        write_file(path, "thing", {"version": 2}, TENSORS)
    monkeypatch.undo()
    assert read_file(path, "thing").header == {"version": 1}
    assert os.listdir(tmp_path) == ["x"]


def test_a_loaded_model_predicts_the_same_to_the_bit(tmp_path):
    model = fitted()
    model.save(tmp_path / "m.weft")
    twin = weft.load(tmp_path / "m.weft")
    assert model.score(DATA) == twin.score(DATA)
    for name in ("scalar", "vector"):
        mine, theirs = (m.smooth(DATA)[name] for m in (model, twin))
        np.testing.assert_array_equal(mine.mean, theirs.mean)
        np.testing.assert_array_equal(mine.quantile(0.9), theirs.quantile(0.9))
        np.testing.assert_array_equal(mine.sample(2), theirs.sample(2))
    np.testing.assert_array_equal(
        model.classify(DATA, "label").probabilities, twin.classify(DATA, "label").probabilities
    )
    twin.save(tmp_path / "again.weft")
    assert (tmp_path / "again.weft").read_bytes() == (tmp_path / "m.weft").read_bytes()


def test_declarations_survive_a_round_trip(tmp_path):
    declared = [
        Modality(
            "scalar", likelihood=StudentT(df=3.5), whole=True, gaps=True, level=True, weight=2.0
        ),
        Modality("vector", 3, mask_input=False, context=2, skip=True),
        Modality("label", categories=["a", "b", "c"]),
    ]
    fitted(declared).save(tmp_path / "m.weft")
    twin = weft.load(tmp_path / "m.weft")
    assert [repr(m) for m in twin.modalities] == [repr(m) for m in declared]
    assert twin.modalities[0].weight == 2.0
    assert twin.modalities[0].whole
    assert twin.modalities[0].gaps
    assert twin.modalities[0].level
    assert not twin.modalities[1].mask_input
    assert twin.modalities[1].skip
    assert twin.modalities[1].context == 2


class Doubler(nn.Module):
    def forward(self, x):
        return torch.cat([x, -x], 1)


def test_networks_of_the_user_are_named_and_come_back_with_the_declaration(tmp_path):
    def declaration(weight=1.0):
        encoder = nn.Sequential(Doubler(), nn.Linear(6, 4))
        return [Modality("vector", 3, encoder=encoder, weight=weight)]

    data = DATA.keep("vector")
    model = fitted(declaration(), data)
    model.save(tmp_path / "m.weft")
    with pytest.raises(FileError, match=r"encoder of its own for modality 'vector' \(torch\.nn"):
        weft.load(tmp_path / "m.weft")
    twin = weft.load(tmp_path / "m.weft", declaration())
    np.testing.assert_array_equal(
        model.smooth(data)["vector"].mean, twin.smooth(data)["vector"].mean
    )
    with pytest.raises(FileError, match=r"saved with weight 1\.0 for modality 'vector'"):
        weft.load(tmp_path / "m.weft", declaration(weight=2.0))
    with pytest.raises(FileError, match=r"but 'torch\.nn\.modules\.linear\.Linear' was declared"):
        weft.load(tmp_path / "m.weft", [Modality("vector", 3, encoder=nn.Linear(3, 4))])
    with pytest.raises(FileError, match="were declared"):
        weft.load(tmp_path / "m.weft", [Modality("other", 3)])


def test_a_model_is_never_pickled(tmp_path):
    fitted().save(tmp_path / "m.weft")
    content = (tmp_path / "m.weft").read_bytes()
    assert b"pickle" not in content
    assert content[8:9] == b"{"


@pytest.mark.parametrize("particles", [Cubature(), MonteCarlo(7), Antithetic(6)])
def test_settings_of_inference_are_kept(tmp_path, particles):
    model = MDMM([Modality("x")], latent=2, hidden=4, particles=particles, refine=1)
    model.fit({"x": [[0.0, 1.0, 2.0]]}, training=ONE_EPOCH, progress=False)
    model.save(tmp_path / "m.weft")
    again = weft.load(tmp_path / "m.weft")
    assert (again.particles, again.refine) == (particles, 1)

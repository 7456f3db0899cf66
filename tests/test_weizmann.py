"""Reading the Weizmann recordings, whole and broken."""

import json
import shutil
import zipfile

import av
import numpy as np
import pytest
from scipy.io import loadmat, savemat

from tests.data import FOLDER, needs
from weft import DataError
from weft.datasets.weizmann import ACTIONS, PERSONS, Window, read_prepared, read_weizmann

CLIPS = [f"{person}_{action}" for person in PERSONS for action in ACTIONS]
REAL = FOLDER / "weizmann"


def write_video(path, frames):
    """An uncompressed AVI of frames (time, height, width, 3)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(path, "w") as container:
        stream = container.add_stream("rawvideo", rate=25)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr24"
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def write_masks(path, repeat_lena=False):
    """Silhouettes of all clips: three frames, a square whose place tells the clip."""
    masks = {}
    for i, name in enumerate(CLIPS):
        mask = np.zeros((144, 180, 3), np.uint8)
        mask[20 : 30 + i, 40 : 50 + i] = 1
        if repeat_lena and name in ("lena_run", "lena_skip", "lena_walk"):
            masks[f"{name}2"], masks[f"{name}1"] = np.zeros_like(mask), mask
        else:
            masks[name] = mask
    savemat(path, {"original_masks": masks})


@pytest.fixture
def folder(tmp_path):
    """Two videos of three frames and a silhouette file, as distributed."""
    rng = np.random.default_rng(0)
    for name in ("ido_run", "lena_run1"):
        frames = rng.integers(0, 256, (3, 144, 180, 3), dtype=np.uint8)
        write_video(tmp_path / name.split("_")[1][:3] / f"{name}.avi", frames)
        np.save(tmp_path / f"{name}.npy", frames)
    write_masks(tmp_path / "classification_masks.mat", repeat_lena=True)
    return tmp_path


def clip(data, name):
    return data[[data.ids.index(name)]]


def test_frames_are_cropped_and_averaged(folder):
    data = read_weizmann(folder, missing_ok=True)
    frames = np.load(folder / "ido_run.npy").astype(float)
    inside = frames[:, 8:136, 26:154].reshape(3, 64, 2, 64, 2, 3).mean((2, 4)) / 255
    found = clip(data, "ido_run").arrays("video")[0]
    assert found.shape == (3, 3, 64, 64)
    assert np.abs(found - np.moveaxis(inside, -1, 1)).max() < 0.51 / 255  # kept as bytes


def test_silhouettes_share_the_video_s_window(folder):
    data = read_weizmann(folder, missing_ok=True)
    mask = np.zeros((144, 180))
    mask[20 : 30 + CLIPS.index("ido_run"), 40 : 50 + CLIPS.index("ido_run")] = 1
    inside = mask[8:136, 26:154].reshape(64, 2, 64, 2).mean((1, 3))
    found = clip(data, "ido_run").arrays("silhouette")[0]
    assert np.abs(found[:, 0] - inside).max() < 0.51 / 255


def test_all_ninety_clips_are_there_with_their_labels(folder):
    data = read_weizmann(folder, videos=False)
    assert data.names == ("silhouette", "person", "action")
    assert list(data.ids) == CLIPS
    labels = zip(data.arrays("person"), data.arrays("action"), strict=True)
    assert [f"{person[0]}_{action[0]}" for person, action in labels] == CLIPS


def test_of_lena_s_repeated_clips_the_first_is_taken(folder):
    shutil.copy(folder / "run" / "ido_run.avi", folder / "run" / "lena_run2.avi")
    data = read_weizmann(folder, missing_ok=True)
    frames = np.load(folder / "lena_run1.npy").astype(float)
    inside = frames[:, 8:136, 26:154].reshape(3, 64, 2, 64, 2, 3).mean((2, 4)) / 255
    lena = clip(data, "lena_run")
    assert np.abs(lena.arrays("video")[0] - np.moveaxis(inside, -1, 1)).max() < 0.51 / 255
    assert lena.arrays("silhouette")[0].max() == 1


def test_archives_hold_the_same(folder, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed")
    for name in ("ido_run", "lena_run1"):
        with zipfile.ZipFile(packed / f"{name.split('_')[1]}.zip", "w") as archive:
            archive.write(next(folder.rglob(f"{name}.avi")), f"some/{name}.avi")
    shutil.copy(folder / "classification_masks.mat", packed / "original_masks.mat")
    loose, zipped = (read_weizmann(place, missing_ok=True) for place in (folder, packed))
    for name in loose.names:
        assert np.array_equal(loose.columns[name].values, zipped.columns[name].values)


def test_another_window_and_size(folder):
    data = read_weizmann(folder, missing_ok=True, window=Window(0, 0, 180, 144), size=32)
    assert clip(data, "ido_run").arrays("video")[0].shape == (3, 3, 32, 32)
    assert clip(data, "ido_run").arrays("silhouette")[0].shape == (3, 1, 32, 32)


def test_where_one_stream_is_shorter_its_end_is_missing(folder):
    write_video(folder / "eli_bend.avi", np.zeros((5, 144, 180, 3), np.uint8))
    eli = clip(read_weizmann(folder, missing_ok=True), "eli_bend")
    assert eli.lengths.tolist() == [5]
    assert np.isnan(eli.arrays("silhouette")[0]).all((1, 2, 3)).tolist() == [False] * 3 + [True] * 2


def test_the_cache_is_used_until_something_changes(folder, tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache") / "deep" / "weizmann.npz"
    first = read_weizmann(folder, missing_ok=True, cache=cache)
    decoded = []
    real = av.open

    def counted(*args):
        decoded.append(args)
        return real(*args)

    monkeypatch.setattr(av, "open", counted)
    again = read_weizmann(folder, missing_ok=True, cache=cache)
    assert not decoded
    for name in first.names:
        assert np.array_equal(first.columns[name].values, again.columns[name].values)
        assert np.array_equal(first.columns[name].observed, again.columns[name].observed)
    read_weizmann(folder, missing_ok=True, cache=cache, size=32)
    assert len(decoded) == 2
    cache.write_bytes(cache.read_bytes()[:1000])
    read_weizmann(folder, missing_ok=True, cache=cache)
    assert len(decoded) == 4
    assert [file.name for file in cache.parent.iterdir()] == ["weizmann.npz"]


def test_missing_files_are_named(folder, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match=r"lacks the videos of 'daria_bend', .*missing_ok"):
        read_weizmann(folder)
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        read_weizmann(folder / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no silhouettes: put classification_masks\.mat"):
        read_weizmann(tmp_path_factory.mktemp("empty"))
    with pytest.raises(FileNotFoundError, match=r"weizmann_rgb64_index\.json"):
        read_prepared(folder)


def test_broken_files_are_named(folder):
    whole = (folder / "classification_masks.mat").read_bytes()
    (folder / "run" / "ido_run.avi").write_bytes(b"RIFF, and nothing more")
    with pytest.raises(DataError, match=r"ido_run\.avi \(the video of ido_run\) cannot be read"):
        read_weizmann(folder, missing_ok=True)
    (folder / "run.zip").write_bytes(b"PK, and nothing more")
    with pytest.raises(DataError, match=r"run\.zip cannot be read"):
        read_weizmann(folder, missing_ok=True)
    (folder / "classification_masks.mat").write_bytes(whole[:5000])
    with pytest.raises(DataError, match=r"classification_masks\.mat"):
        read_weizmann(folder, videos=False)
    savemat(folder / "classification_masks.mat", {"original_masks": {"ido_run": np.zeros((9, 9))}})
    with pytest.raises(DataError, match=r"masks\.mat lacks 'daria_bend'"):
        read_weizmann(folder, videos=False)
    savemat(folder / "classification_masks.mat", {"something": 1})
    with pytest.raises(DataError, match="no variable 'original_masks'"):
        read_weizmann(folder, videos=False)


def test_prepared_arrays_are_read_by_window(tmp_path):
    rng = np.random.default_rng(1)
    boxes = {"ido_run": [26, 8, 128, 128], "eli_bend": [30, 20, 74, 75]}
    video = {n: rng.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8) for n in boxes}
    masks = {n: rng.integers(0, 256, (4, 64, 64), dtype=np.uint8) for n in boxes}
    np.savez(tmp_path / "weizmann_rgb64.npz", allow_pickle=False, **video)
    np.savez(tmp_path / "weizmann_masks64_aligned_to_rgb.npz", allow_pickle=False, **masks)
    index = {name: {"box_xywh": box, "frames": 4} for name, box in boxes.items()}
    (tmp_path / "weizmann_rgb64_index.json").write_text(json.dumps(index))
    assert read_prepared(tmp_path).ids == ("eli_bend", "ido_run")
    close = read_prepared(tmp_path, (74, 75))
    assert close.ids == ("eli_bend",)
    expected = np.moveaxis(video["eli_bend"], -1, 1).astype(np.float32) / 255
    assert np.array_equal(close.arrays("video")[0], expected)
    with pytest.raises(DataError, match=r"No clip has a window of \(1, 1\)"):
        read_prepared(tmp_path, (1, 1))


@needs("weizmann")
def test_the_real_files_agree_with_the_prepared_arrays():
    raw = read_weizmann(REAL, missing_ok=True)
    wide = read_prepared(REAL, (128, 128))
    assert (len(raw), len(wide), len(read_prepared(REAL, (74, 75)))) == (90, 27, 36)
    for name in ("daria_run", "ido_run", "lyova_jump", "shahar_jump"):
        for kind in ("video", "silhouette"):  # resized by another filter
            ours, theirs = (clip(data, name).arrays(kind)[0] for data in (raw, wide))
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).mean() < 0.01


@needs("weizmann")
def test_real_silhouettes_are_the_distributed_ones():
    record = loadmat(REAL / "original_masks.mat")["original_masks"][0, 0]
    data = read_weizmann(REAL, videos=False)
    assert data.lengths.tolist() == [
        record[name if name in record.dtype.names else f"{name}1"].shape[-1] for name in data.ids
    ]
    run = clip(data, "lena_run").arrays("silhouette")[0][:, 0]
    inside = np.moveaxis(record["lena_run1"], -1, 0)[:, 8:136, 26:154].astype(float)
    assert np.abs(run - inside.reshape(-1, 64, 2, 64, 2).mean((2, 4))).max() < 0.51 / 255

"""Weizmann human actions (Gorelick et al. 2007): video, silhouettes, persons and actions.

`read_weizmann` takes the files as they are distributed, `read_prepared` arrays that were cropped
and resized before. Both give `Sequences` with the modalities ``video`` (3, size, size) and
``silhouette`` (1, size, size), brightness from 0 to 1, and the labels ``person`` and ``action``.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from weft.columns import Array, DataError, listing
from weft.persistence import write_whole
from weft.sequences import Sequences

__all__ = ["ACTIONS", "PERSONS", "Window", "read_prepared", "read_weizmann"]

PERSONS = ("daria", "denis", "eli", "ido", "ira", "lena", "lyova", "moshe", "shahar")
ACTIONS = ("bend", "jack", "jump", "pjump", "run", "side", "skip", "walk", "wave1", "wave2")
MASKS = ("classification_masks.mat", "original_masks.mat")
BROKEN = (
    OSError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What readers raise at broken files."""

LOGGER = logging.getLogger("weft")


@dataclass(frozen=True)
class Window:
    """The part of a frame that is kept, in pixels of the original 180 × 144."""

    left: int = 26
    top: int = 8
    width: int = 128
    height: int = 128

    def cut(self, frames: Array) -> Array:
        """Crop ``(time, height, width, …)``."""
        return frames[:, self.top : self.top + self.height, self.left : self.left + self.width]


def read_weizmann(
    folder: str | Path,
    *,
    videos: bool = True,
    missing_ok: bool = False,
    window: Window = Window(),
    size: int = 64,
    cache: str | Path | None = None,
) -> Sequences:
    """Read the data set as distributed: AVI files and a MATLAB file of silhouettes.

    Parameters
    ----------
    folder : path
        Where the files are, at any depth: ``<person>_<action>.avi``, loose or in zip archives, and
        ``classification_masks.mat`` or ``original_masks.mat``. Of lena's two runs, skips and walks
        the first is taken.
    videos : bool
        Whether to read the videos too, which needs PyAV (``pip install 'weft[video]'``).
    missing_ok : bool
        Whether sequences may lack their video; otherwise a missing one is an error.
    window, size : Window, int
        What is kept of each frame, video and silhouette alike, and the side it is resized to.
    cache : path, optional
        A file to keep the result in. It is made again when the files or the settings change.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}. Check the path.")
    sources = _find_videos(folder) if videos else {}
    masks = _find_masks(folder)
    wanted = [f"{person}_{action}" for person in PERSONS for action in ACTIONS]
    absent = [name for name in wanted if name not in sources]
    if videos and absent and not missing_ok:
        raise FileNotFoundError(
            f"{folder} lacks the videos of {listing(absent, 5)}. Put them there as "
            "<person>_<action>.avi, or pass missing_ok=True to have them marked as missing."
        )
    settings = repr((window, size, sorted(sources), _stamp(masks), *map(_stamp, _files(sources))))
    kept = None if cache is None else _read_cache(Path(cache), settings)
    if kept is None:
        silhouettes = _read_masks(masks)
        _require(masks, wanted, silhouettes)
        kept = {f"silhouette/{name}": _shrink(silhouettes[name], window, size) for name in wanted}
        for name in sources:
            kept[f"video/{name}"] = _shrink(_decode(name, sources[name]), window, size)
        if cache is not None:
            _write_cache(Path(cache), settings, kept)
    return _sequences(wanted, kept)


def read_prepared(folder: str | Path, window: tuple[int, int] | None = None) -> Sequences:
    """Read arrays that were cropped and resized before.

    Parameters
    ----------
    folder : path
        Where ``weizmann_rgb64.npz``, ``weizmann_masks64_aligned_to_rgb.npz`` and
        ``weizmann_rgb64_index.json`` are.
    window : tuple of int, optional
        Take only the clips cropped to this width and height. Which window a clip has tells
        something about its action, so an honest experiment has clips of one.
    """
    folder = Path(folder)
    index = json.loads(_existing(folder / "weizmann_rgb64_index.json").read_text())
    wanted = [
        name
        for name, entry in index.items()
        if window is None or tuple(entry["box_xywh"][2:]) == window
    ]
    if not wanted:
        windows = sorted({tuple(entry["box_xywh"][2:]) for entry in index.values()})
        raise DataError(f"No clip has a window of {window}; there are {listing(windows)}.")
    files = {
        "video": folder / "weizmann_rgb64.npz",
        "silhouette": folder / "weizmann_masks64_aligned_to_rgb.npz",
    }
    kept: dict[str, Array] = {}
    for kind, file in files.items():
        stored = _opened(file, _arrays)
        _require(file, wanted, stored)
        kept |= {f"{kind}/{name}": stored[name] for name in wanted}
    return _sequences(sorted(wanted), kept)


def _sequences(names: Sequence[str], kept: Mapping[str, Array]) -> Sequences:
    """Put clips of bytes together. Where one stream of a clip is shorter, its end is missing."""
    streams: dict[str, list[Any]] = {"video": [], "silhouette": [], "person": [], "action": []}
    for name in names:
        parts = {kind: kept.get(f"{kind}/{name}") for kind in ("video", "silhouette")}
        steps = max(len(part) for part in parts.values() if part is not None)
        for kind, part in parts.items():
            streams[kind].append(None if part is None else _brightness(part, steps))
        person, action = name.split("_")
        streams["person"].append([person] * steps)
        streams["action"].append([action] * steps)
    there = {kind: clips for kind, clips in streams.items() if any(c is not None for c in clips)}
    return Sequences.from_arrays(
        there, categories={"person": PERSONS, "action": ACTIONS}, ids=list(names)
    )


def _brightness(frames: Array, steps: int) -> Array:
    """Bytes ``(time, height, width[, channel])`` to numbers ``(steps, channel, height, width)``."""
    images = frames[..., None] if frames.ndim == 3 else frames
    found = np.full((steps, *images.shape[1:]), np.nan, np.float32)
    found[: len(images)] = images.astype(np.float32) / 255
    return np.moveaxis(found, -1, 1)


def _shrink(frames: Array, window: Window, size: int) -> Array:
    """Cut out the window and average its pixels to a square, in bytes as it came."""
    images = frames[..., None] if frames.ndim == 3 else frames
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(window.cut(images), -1, 1)))
    resized = F.interpolate(pixels.float(), (size, size), mode="area").round().byte()
    found: Array = np.moveaxis(resized.numpy(), 1, -1)
    return found[..., 0] if frames.ndim == 3 else found


# Files


@dataclass(frozen=True)
class _Source:
    """A file, or one inside a zip archive."""

    file: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.file) if self.member is None else f"{self.member} in {self.file}"

    def read(self) -> bytes:
        if self.member is None:
            return self.file.read_bytes()
        with zipfile.ZipFile(self.file) as archive:
            return archive.read(self.member)


def _find_videos(folder: Path) -> dict[str, _Source]:
    """Every clip's AVI, loose files before those in archives, of repeated clips the first."""
    found = [(Path(file).stem, _Source(file)) for file in sorted(folder.rglob("*.avi"))]
    for file in sorted(folder.rglob("*.zip")):
        with _opened(file, zipfile.ZipFile) as archive:
            members = [name for name in archive.namelist() if name.endswith(".avi")]
            found += [(Path(name).stem, _Source(file, name)) for name in sorted(members)]
    sources: dict[str, _Source] = {}
    for stem, source in found:
        sources.setdefault(_clip(stem), source)
    return {name: source for name, source in sources.items() if _known(name)}


def _clip(name: str) -> str:
    """Call lena's ``run1`` and ``run2`` both ``run``; wave1 and wave2 are actions of their own."""
    person, _, action = name.partition("_")
    return name if action in ACTIONS else f"{person}_{action.rstrip('12')}"


def _known(name: str) -> bool:
    person, _, action = name.partition("_")
    return person in PERSONS and action in ACTIONS


def _find_masks(folder: Path) -> Path:
    for name in MASKS:
        found = sorted(folder.rglob(name))
        if found:
            return found[0]
    raise FileNotFoundError(f"{folder} has no silhouettes: put {' or '.join(MASKS)} there.")


def _read_masks(file: Path) -> dict[str, Array]:
    """Silhouettes ``(time, height, width)`` of bytes by clip."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError("MATLAB files need SciPy: pip install 'weft[video]'.") from error
    content = _opened(file, loadmat)
    if "original_masks" not in content:
        raise DataError(f"{file} holds no variable 'original_masks'. Use the file as distributed.")
    record = content["original_masks"][0, 0]
    clips: dict[str, Array] = {}
    for field in sorted(record.dtype.names):  # so that run1 comes before run2
        clips.setdefault(_clip(field), 255 * np.moveaxis(record[field], -1, 0).astype(np.uint8))
    return clips


def _decode(name: str, source: _Source) -> Array:
    """Frames ``(time, height, width, 3)`` of bytes of a video."""
    try:
        import av
    except ImportError as error:
        raise ImportError("Videos need PyAV: pip install 'weft[video]'.") from error

    def frames(source: _Source) -> Array:
        with av.open(io.BytesIO(source.read()), "r") as container:
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        if not decoded:
            raise ValueError("no frames")
        return np.stack(decoded)

    found: Array = _opened(source, frames, f" (the video of {name})")
    return found


def _opened(source: Any, read: Callable[[Any], Any], what: str = "") -> Any:
    """Read a file, or say which one is broken."""
    if isinstance(source, Path):
        _existing(source)
    try:
        return read(source)
    except BROKEN as error:
        raise DataError(f"{source}{what} cannot be read ({error}). Get a new copy.") from error


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}. Check the folder.")
    return file


def _require(file: Path, wanted: Sequence[str], there: Collection[str]) -> None:
    absent = [name for name in wanted if name not in there]
    if absent:
        raise DataError(f"{file} lacks {listing(absent, 5)}. Get a whole copy.")


# Cache


def _files(sources: Mapping[str, _Source]) -> list[Path]:
    return sorted({source.file for source in sources.values()})


def _stamp(file: Path) -> tuple[str, int, int]:
    found = file.stat()
    return file.name, found.st_size, found.st_mtime_ns


def _read_cache(file: Path, settings: str) -> dict[str, Array] | None:
    """What was kept, if it was made from the same files in the same way and is whole."""
    if not file.is_file():
        return None
    try:
        stored = _arrays(file)
    except BROKEN as error:
        LOGGER.warning("%s cannot be read (%s); it is made again.", file, error)
        return None
    return stored if str(stored.pop("settings", None)) == settings else None


def _arrays(file: Path) -> dict[str, Array]:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return dict(stored)


def _write_cache(file: Path, settings: str, kept: Mapping[str, Array]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, settings=np.array(settings), **dict(kept))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(content.getvalue(), file)

"""Files that are whole or not there: safetensors with a JSON header and a digest.

A file holds named tensors and, as safetensors metadata, one JSON text with the kind of the file,
its format version and a header of plain values. A digest over both is checked on reading, so that
a truncated or edited file is refused. Writing goes to a temporary neighbour that replaces the old
file in one step; an interrupted write leaves the old file as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

__all__ = ["FileError", "Stored", "digest", "read_file", "write_file", "write_whole"]

FORMAT = 1


class FileError(ValueError):
    """A file that cannot be used; the message says which and why."""


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file holds."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose name starts with ``prefix/``, by the rest of their name."""
        start = prefix + "/"
        return {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}


def write_file(
    path: Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a file in one step; on any failure the previous file stays."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"kind": kind, "format": FORMAT, "header": header})
    content = safetensors.torch.save(whole, {"weft": f"{digest(text, whole)} {text}"})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(content, path)


def write_whole(content: bytes, path: Path) -> None:
    """Write a whole file or none; on any failure the previous file stays."""
    temporary = path.with_name(f".{path.name}.tmp")  # a killed writer's rest is overwritten
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_file(path: Path, kind: str) -> Stored:
    """Read a file and check that it is whole, unedited and of the right kind."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Check the path.")
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            # Copies are aligned in memory like any other tensor, so that sums round as they did.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FileError(
            f"{path} cannot be read ({error}). It is truncated, damaged or not a weft file; use a "
            "copy."
        ) from error
    if "weft" not in metadata:
        raise FileError(f"{path} holds tensors but was not written by weft.")
    written, _, text = metadata["weft"].partition(" ")
    if written != digest(text, tensors):
        raise FileError(
            f"{path} was edited or damaged after it was written: its digest does not match. Use "
            "an untouched copy."
        )
    content = json.loads(text)
    if content["format"] > FORMAT:
        raise FileError(
            f"{path} has format {content['format']}, but this version reads up to {FORMAT}. "
            "Update weft."
        )
    if content["kind"] != kind:
        raise FileError(f"{path} holds a {content['kind']}, not a {kind}.")
    return Stored(content["header"], tensors)


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of named tensors."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

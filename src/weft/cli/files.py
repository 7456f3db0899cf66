"""Tables on disk: CSV, TSV, Parquet and Arrow, whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["check_output", "read_frame", "read_frames", "write_frame"]

NOTHING = ["", "NA", "N/A", "NaN", "nan", "null", "None"]
SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")


def read_frames(paths: Sequence[Path]) -> Any:
    """Read one table, or several to be merged on time."""
    frames = [read_frame(path) for path in paths]
    return frames[0] if len(frames) == 1 else frames


def read_frame(path: Path) -> Any:
    """Read a table; dates are recognised, and the usual words for nothing are gaps."""
    pl = _polars()
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Check the path.")
    suffix = _suffix(path)
    frame: Any
    try:
        if suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif suffix in (".arrow", ".feather"):
            frame = pl.read_ipc(path)
        else:
            frame = pl.read_csv(
                path,
                separator="\t" if suffix == ".tsv" else ",",
                null_values=NOTHING,
                infer_schema_length=None,
                try_parse_dates=True,
            )
    except pl.exceptions.NoDataError as error:
        raise ValueError(f"{path} is empty. Give a file with a header and rows.") from error
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "utf" in text.lower():
            text = "it is not UTF-8 text; convert it first"
        raise ValueError(f"{path} cannot be read as a table ({text}).") from error
    return frame


def write_frame(frame: Any, path: Path | None) -> None:
    """Write a table in the form its name says, or as CSV to the standard output."""
    pl = _polars()
    found = frame if isinstance(frame, pl.DataFrame) else pl.DataFrame(frame)
    if path is None:
        sys.stdout.write(found.write_csv())
        return
    suffix = _suffix(path)
    temporary = _beside(path)
    try:
        if suffix == ".parquet":
            found.write_parquet(temporary)
        elif suffix in (".arrow", ".feather"):
            found.write_ipc(temporary)
        else:
            found.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")
        temporary.replace(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise OSError(
            f"{path} cannot be written ({str(error).splitlines()[0]}). What was there before is "
            "still there; make room, or choose another path."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_output(path: Path | None, *, table: bool = True) -> None:
    """Say at once what would go wrong at the end."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Name a file.")
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder} to write {path.name} to. Make it.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"Nothing may be written to the folder {folder}. Choose another.")
    if table:
        _suffix(path)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path} has no ending that says what table it is. Use one of {', '.join(SUFFIXES)}."
        )
    return suffix


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise ImportError("Tables on disk need Polars: pip install 'weft[frames]'.") from error
    return polars

"""What every study shares: where recordings lie, what a run costs, and where results go."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.spirals import ROOT, commit
from weft.experiments.runner import write_json

__all__ = ["KEPT", "Clock", "recordings", "table", "write_study"]

PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / "results" / "studies"
"""Where what was run is kept, so that a study goes on where it stopped."""


def recordings(folder: str) -> Path:
    """A folder of the recordings that WEFT_DATA names."""
    if "WEFT_DATA" not in os.environ:
        raise SystemExit("Set WEFT_DATA to the folder of the recordings.")
    found = Path(os.environ["WEFT_DATA"]) / folder
    if not found.is_dir():
        raise SystemExit(f"There is no folder {found}. Set WEFT_DATA to the recordings.")
    return found


class Clock:
    """Seconds since it was made, and the most memory that its process ever had."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def read(self) -> dict[str, float]:
        """Seconds and gigabytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return {"seconds": time.monotonic() - self.started, "peak_gb": peak}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in Markdown; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_study(name: str, results: Mapping[str, Any], text: str) -> None:
    """Write results/<name>.json, and the study's table into the page of all of them.

    The table goes between two comments that name the study.
    """
    write_json(ROOT / "results" / f"{name}.json", {"commit": commit(), **results})
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    page = PAGE.read_text()
    before, rest = page.split(begin)
    PAGE.write_text(before + begin + text.strip() + "\n" + end + rest.split(end)[1])
    print(text)

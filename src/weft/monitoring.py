"""What a long run shows and leaves behind: metrics files, a progress bar, interruption."""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["METRICS", "MetricsLog", "interruptible", "progress_bar"]

METRICS = "metrics.jsonl"


class MetricsLog:
    """Append records to ``metrics.jsonl`` and, if it is installed, to TensorBoard.

    ``past`` records are written first, so that the file of a resumed run holds each one once.
    Without a directory nothing is written.
    """

    def __init__(self, directory: Path | None, past: Sequence[Mapping[str, Any]]) -> None:
        self.directory = directory
        self.past = past
        self.board: Any = None

    def __enter__(self) -> Self:
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(record) + "\n" for record in self.past]
            (self.directory / METRICS).write_text("".join(lines))
            if importlib.util.find_spec("tensorboard") is not None:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(self.directory))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.board is not None:
            self.board.close()

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        """Write one record."""
        if self.directory is None:
            return
        with (self.directory / METRICS).open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self.board is not None:
            for name, value in _numbers(record):
                self.board.add_scalar(name, value, step)


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in _numbers(value))
        elif isinstance(value, int | float):
            yield name, float(value)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag that the caller reads; the second one acts at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread receives signals
        return
    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[float, str], None]]:
    """Show progress; the yielded function takes a share done and a remark.

    On a terminal this is a bar with the time left, elsewhere a line for every tenth, both on the
    standard error, which leaves the standard output to results.
    """
    console = Console(stderr=True)
    if shown and not console.is_terminal:
        yield _lines(title, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}"),
    )
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task(title, total=1.0, remark="")

        def update(share: float, remark: str) -> None:
            bar.update(task, completed=share, remark=remark)

        yield update


def _lines(title: str, console: Console) -> Callable[[float, str], None]:
    """Print a line whenever another tenth is done."""
    tenths = 0

    def update(share: float, remark: str) -> None:
        nonlocal tenths
        if int(10 * share + 1e-9) > tenths:
            tenths = int(10 * share + 1e-9)
            console.print(f"{title} {10 * tenths} %: {remark}", soft_wrap=True, highlight=False)

    return update

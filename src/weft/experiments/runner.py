"""Many fits side by side, each written down when it is done.

An experiment is a list of jobs; a job's result is a JSON file of its name. What is there is not run
again, so an experiment goes on where it stopped.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from weft.monitoring import progress_bar
from weft.persistence import write_whole

__all__ = ["Job", "run_jobs", "write_json"]


class Job(Protocol):
    """One piece of work, told apart by its name."""

    @property
    def name(self) -> str:
        """A name that serves as a file name."""
        ...


J = TypeVar("J", bound=Job)
Result = dict[str, Any]


def run_jobs(
    work: Callable[[J], Result],
    jobs: Sequence[J],
    directory: Path,
    *,
    processes: int | None = None,
    progress: bool = True,
) -> dict[str, Result]:
    """Run what is missing, in so many processes (one per core), and return all results by name.

    ``work`` must be a function of a module, so that other processes find it; each has one thread.
    If a job fails, the others go on and are written down, and then its error is raised.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {job.name: directory / f"{job.name}.json" for job in jobs}
    todo = [job for job in jobs if not files[job.name].exists()]
    count = min(processes or os.cpu_count() or 1, max(len(todo), 1))
    failed: list[Exception] = []
    with progress_bar("fits", progress) as update:
        update(1 - len(todo) / max(len(jobs), 1), f"{len(todo)} to go")
        for i, (job, result) in enumerate(_each(work, todo, count)):
            try:
                write_json(files[job.name], result())
            except Exception as error:
                error.add_note(f"This was {job.name}.")
                failed.append(error)
            update(1 - (len(todo) - i - 1) / len(jobs), f"{job.name} done")
    if failed:
        raise failed[0]
    return {name: json.loads(file.read_text()) for name, file in files.items()}


def _each(
    work: Callable[[J], Result], jobs: Sequence[J], processes: int
) -> Iterator[tuple[J, Callable[[], Result]]]:
    """Give each job with its result to be called for, as they come: here, or in other processes."""
    if processes == 1:
        yield from ((job, partial(work, job)) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result


def write_json(path: Path, content: Any) -> None:
    """Write a whole file or none."""
    text = json.dumps(content, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(text.encode(), path)

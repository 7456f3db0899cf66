"""Many fits side by side, each written down when it is done.

An experiment is a list of jobs; a job's result is a JSON file of its name. What is there is not run
again, so an experiment goes on where it stopped.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {job.name: directory / f"{job.name}.json" for job in jobs}
    todo = [job for job in jobs if not files[job.name].exists()]
    count = min(processes or os.cpu_count() or 1, max(len(todo), 1))
    with progress_bar("fits", progress) as update:
        update(1 - len(todo) / max(len(jobs), 1), f"{len(todo)} to go")
        if count == 1:
            for i, job in enumerate(todo):
                write_json(files[job.name], work(job))
                update(1 - (len(todo) - i - 1) / len(jobs), f"{job.name} done")
        else:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(count, context, torch.set_num_threads, (1,)) as pool:
                waiting = {pool.submit(work, job): job for job in todo}
                for i, done in enumerate(as_completed(waiting)):
                    name = waiting[done].name
                    write_json(files[name], done.result())
                    update(1 - (len(todo) - i - 1) / len(jobs), f"{name} done")
    return {name: json.loads(file.read_text()) for name, file in files.items()}


def write_json(path: Path, content: Any) -> None:
    """Write a whole file or none."""
    text = json.dumps(content, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(text.encode(), path)

"""Teaches the kinds of attention of several layers side by side on a Ray cluster.

The layers are dealt out to as many jobs as there are workers, but for those that were begun
together. Each job runs the checkpoint for itself, for layers need what comes out of those below.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from latency.turns import computing
from nas.executors.ray_jobs import RESTARTS, Began, JobKind, JobRoom, side_by_side
from nas.executors.ray_mail import Mailbox
from nas.run.events import Note
from nas.run.layer_distillation import parts_left, teach
from nas.run.opened import OpenedRun, shared_run
from search_spaces.errors import NasError
from supernet.inheritance.local import LocalReport

if TYPE_CHECKING:
    from nas.executors.board import Board
    from nas.executors.ray_nodes import Nodes

STAGE = "distil"


def distil_side_by_side(
    run: OpenedRun, width: int, room: JobRoom, board: Board, nodes: Nodes
) -> Generator[LocalReport | Note, None, None]:
    """Teach all layers that have not learnt yet; Ray has to be connected.

    Args:
        run: the run.
        width: see `parts_left`.
        room: for each job.
        board: where it is told what they do.
        nodes: those of the cluster.

    Yields:
        Notes, and a report of each update, in the mean over all jobs, with the mean of the errors
        of those that have begun.

    Raises:
        NasError, OSError: the first that ended one of them; the others are finished before.
    """
    jobs = {f"{part[0]}-{part[-1]}": part for part in parts_left(run, width)}
    if not jobs:
        return
    latest: dict[str, LocalReport] = {}
    told = 0
    for item in side_by_side(_Teaching(run, room, jobs), list(jobs), room.workers, board, nodes):
        if isinstance(item, Note):
            yield item
            continue
        key, report = item
        latest[key] = report
        done = sum(one.update for one in latest.values()) // len(jobs)
        if done > told:
            told = done
            errors = [one.error for one in latest.values()]
            error = float(np.average(errors, weights=[len(jobs[one]) for one in latest]))
            yield LocalReport(done, report.updates, error)


class _Teaching(JobKind):
    """Teaches layers; a job is known by the first and the last of them."""

    doing = "distilling"
    worker = "the worker that taught layers"

    def __init__(self, run: OpenedRun, room: JobRoom, jobs: dict[str, list[int]]) -> None:
        self._run, self._room, self._jobs = run, room, jobs

    def name(self, key: str) -> str:
        return f"distil-{key}"

    def stage(self, key: str) -> str:
        return STAGE

    def lost(self, key: str) -> str:
        first, last = (int(number) + 1 for number in key.split("-"))
        return f"the worker that taught layers {first} to {last}"

    def start(self, key: str, mailbox: Mailbox) -> Any:
        task: Any = ray.remote(_job)
        path = str(self._run.folder.path.resolve())
        return task.options(
            max_retries=RESTARTS, num_cpus=self._room.cpus, num_gpus=self._room.gpus
        ).remote(path, key, self._jobs[key], mailbox)


def _job(path: str, key: str, layers: Sequence[int], mailbox: Mailbox) -> None:
    """Some layers, in a worker."""
    mailbox.put(Began.here(key))
    try:
        run = shared_run(path)
        with computing(run.computes_on):
            for report in teach(run, layers, run.spec.device):
                mailbox.put((key, report))
    except (NasError, OSError) as error:
        mailbox.fail(error)

"""Retrains several networks side by side on a Ray cluster.

Every network is a task that opens the run folder, does the stage there is for it, and tells its
events; a task whose worker dies is started again and goes on from its checkpoint. The settings of
a network are tuned by Ray Tune from within such a task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ray

from nas.events import Event
from nas.executors.ray_mail import Mailbox
from nas.executors.ray_run import shared_run
from nas.tuning_record import asked_trials
from search_spaces.errors import ExecutorError, NasError

if TYPE_CHECKING:
    from nas.executors.base import ExecutorSettings
    from nas.stages.base import Run

RESTARTS = 8


def retrain_side_by_side(
    run: Run, ids: Sequence[str], settings: ExecutorSettings, cpus: int
) -> Iterator[Event]:
    """Retrain networks, as many at once as there is room for; Ray has to be connected.

    Args:
        run: the run.
        ids: of the networks.
        settings: how many workers.
        cpus: reserved for each.

    Raises:
        NasError, OSError: the first that ended one of them; the others are finished before.
    """
    mailbox = Mailbox()
    jobs = _Jobs(run, list(ids), settings, cpus, mailbox)
    try:
        for event in mailbox.items(jobs.ended):
            run.folder.log(event)
            yield event
    finally:
        jobs.cancel()
        known = mailbox.failure
        mailbox.close()
    failure = known or jobs.failure
    if failure is not None:
        raise failure


class _Jobs:
    """Tasks that wait for their turn, and those that work."""

    def __init__(
        self, run: Run, ids: list[str], settings: ExecutorSettings, cpus: int, mailbox: Mailbox
    ) -> None:
        self._run, self._waiting = run, ids
        self._most = settings.workers
        self._cpus, self._gpus = cpus, int(run.spec.device.startswith("cuda"))
        self._mailbox = mailbox
        self._working: list[Any] = []
        self.failure: Exception | None = None

    def ended(self, seconds: float) -> bool:
        """Wait a little; whether all are done."""
        while self._waiting and (self._most is None or len(self._working) < self._most):
            self._working.append(self._start(self._waiting.pop(0)))
        done, self._working = ray.wait(
            self._working, num_returns=len(self._working), timeout=seconds
        )
        for one in done:
            self._see(one)
        return not (self._working or self._waiting)

    def _start(self, network_id: str) -> Any:
        tuned = asked_trials(self._run.folder, network_id) > 0
        task: Any = ray.remote(_job)
        # A task that tunes only waits for its trials.
        room = {"num_cpus": 0} if tuned else {"num_cpus": self._cpus, "num_gpus": self._gpus}
        path = str(self._run.folder.path.resolve())
        return task.options(max_retries=RESTARTS, **room).remote(
            path, network_id, self._mailbox, self._cpus, self._gpus, self._most
        )

    def _see(self, job: Any) -> None:
        try:
            ray.get(job)
        except Exception as error:
            self.failure = self.failure or _explained(error)

    def cancel(self) -> None:
        """End what still works."""
        for job in self._working:
            ray.cancel(job, force=True, recursive=True)


def _explained(error: Exception) -> Exception:
    if isinstance(error, ray.exceptions.RayTaskError):
        return error
    return ExecutorError(
        f"the worker that retrained a network died {RESTARTS + 1} times ({type(error).__name__}); "
        "what is finished is kept: look after the cluster and go on with the same command"
    )


def _job(
    path: str, network_id: str, mailbox: Mailbox, cpus: int, gpus: int, most: int | None
) -> None:
    """The stage of one network, in a worker."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    from nas.retrain import retrain_stage
    from nas.stage_runner import stage_events
    from nas.tuning import RayTuner

    run = shared_run(path)
    tuner = RayTuner(mailbox.put, cpus, gpus, most)
    try:
        for event in stage_events(run, retrain_stage(run, network_id, tuner)):
            mailbox.put(event)
    except (NasError, OSError) as error:
        mailbox.fail(error)

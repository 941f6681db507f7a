"""A worker: takes jobs one after the other and sees each to its end.

The work itself is done by a process of its own; the worker passes on what it tells, gives signs of
life, and stops it when the job is cancelled or was given to somebody else. Started by ``nas serve``
a worker reads its settings from stdin, and gives its job back and ends when that pipe closes, so
that none outlives its service.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time

from service.home import open_home
from service.jobs.database import DatabaseAwayError
from service.jobs.retention import make_room
from service.jobs.states import Job, LeaseLostError, State
from service.jobs.store import Store
from service.logs import log_to_stderr
from service.settings import Settings
from service.worker.attempt import Attempt
from service.worker.runner import ProcessRunner, Runner

HOUSEKEEPING_S = 60.0
HELD_AGAIN_S = 60.0  # before a job whose run was held is taken by this worker again

log = logging.getLogger("service.worker.worker")


def worker_name() -> str:
    """A name that tells owners of jobs nothing of the machine."""
    return f"worker-{secrets.token_hex(4)}"


class Worker:
    """One worker; it has one job at a time."""

    def __init__(self, store: Store, settings: Settings, runner: Runner, name: str) -> None:
        self._store = store
        self._settings = settings
        self._runner = runner
        self._name = name
        self._host = socket.gethostname()[:128]
        self._held: dict[str, float] = {}  # job → when it may be tried again
        self._lost: tuple[Job, str] | None = None  # a job let go of, and why, unless given back
        self._beaten = self._kept_house = -1e9

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping` is set; a job in hand is then given back."""
        where = {"worker": self._name, "host": self._host, "pid": os.getpid()}
        log.info("worker begins", extra=where)
        while not stopping.is_set():
            try:
                worked = self.work_once(stopping)
                self._keep_house()
            except DatabaseAwayError as error:
                log.warning("waiting for the database", extra={"error": str(error)[:200]})
                worked = False
            if not worked:
                stopping.wait(self._settings.poll_s)
        try:
            self._give_back()
            self._store.workers.leave(self._name)
        except DatabaseAwayError as error:  # it will be missed soon enough
            log.warning("left without a word", extra={"error": str(error)[:200]})

    def work_once(self, stopping: threading.Event) -> bool:
        """Take one job and see it to its end; False when there was none."""
        self._beat(None)
        self._give_back()
        settings = self._settings
        asked_at = time.monotonic()
        self._held = {one: again for one, again in self._held.items() if again > asked_at}
        job = self._store.leases.claim(
            self._name,
            stale_s=settings.stale_s,
            jobs_per_owner=settings.jobs_per_owner,
            max_losses=settings.max_losses,
            passing=self._held.keys(),
        )
        if job is None:
            return False
        log.info("job taken", extra={"job": job.id, "attempt": job.attempt})
        try:
            given = job, self._store, settings, self._runner, stopping, self._beat, asked_at
            job = Attempt(*given).finish()
        except LeaseLostError as lost:
            log.warning("job lost", extra={"job": job.id, "reason": str(lost)})
            self._lost = job, str(lost)
            return True
        if job.state is State.queued:
            self._held[job.id] = time.monotonic() + HELD_AGAIN_S
        log.info("job left", extra={"job": job.id, "state": job.state, "attempt": job.attempt})
        return True

    def _give_back(self) -> None:
        """Let a job wait again whose process was ended here, unless somebody else has it by now.

        Nobody works on it, and others would first have to see it silent for a while.
        """
        if self._lost is None:
            return
        job, why = self._lost
        self._store.leases.give_back(job, self._settings.max_losses, why)
        self._lost = None

    def _beat(self, job: str | None) -> None:
        now = time.monotonic()
        if now - self._beaten >= self._settings.heartbeat_s:
            self._store.workers.beat(self._name, job, self._host)
            self._store.leases.look(self._settings.stale_s)
            self._beaten = now

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now - self._kept_house >= HOUSEKEEPING_S:
            make_room(self._store, self._settings)
            self._kept_house = now


def run_worker(settings: Settings, stopping: threading.Event | None = None) -> None:
    """Work until the process is asked to end.

    Raises:
        NasError: as `service.home.open_home` does.
    """
    stopping = stopping or threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    settings, store = open_home(settings)
    store.database.reserve.keep()
    try:
        Worker(store, settings, ProcessRunner(settings), worker_name()).run(stopping)
    finally:
        store.database.close()


def main() -> None:
    """Work for the process at the other end of stdin."""
    log_to_stderr()
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    stopping = threading.Event()

    def wait() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
    run_worker(settings, stopping)


if __name__ == "__main__":
    main()

"""One attempt at a job: start its process, pass on what it tells, see it to its end."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from nas.request.spec import build_spec
from nas.run.folder import RunFolder
from nas.run.layout import EVENTS_FILE, SPEC_FILE
from search_spaces.errors import NasError
from service.api.catalog import Catalog
from service.data_uploads import check_not_deleted
from service.jobs.database import DatabaseAwayError
from service.jobs.retention import disk_bytes
from service.jobs.states import Action, Job, Kind, LeaseLostError
from service.jobs.store import Store
from service.settings import Settings, without_home
from service.worker.event_reader import read_new, summarise
from service.worker.runner import Child, Outcome, Runner

LOOK_S = 0.25  # between two looks at a job's process and its events
AGAIN_S = 0.5  # before the database, or a run that somebody else holds, is tried again
GIVE_UP = 0.8  # of the time after which a silent worker counts as gone
ALL_ASKED_S = 2.0  # within which a worker that is asked to end with its job learns of it
HELD_S = 5.0  # for which such a run is tried again before others' jobs go first
DISK_S = 30.0

T = TypeVar("T")

log = logging.getLogger("service.worker.attempt")


class Attempt:
    """A job in the hands of a worker.

    Args:
        job: as it was claimed.
        store: where to tell.
        settings: of the service.
        runner: starts the job's process.
        stopping: set when the worker has to end.
        beat: the worker's own sign of life.
        claimed_at: when the job was asked for, by the monotonic clock.
    """

    def __init__(
        self,
        job: Job,
        store: Store,
        settings: Settings,
        runner: Runner,
        stopping: threading.Event,
        beat: Callable[[str | None], None],
        claimed_at: float,
    ) -> None:
        self._job = job
        self._store = store
        self._settings = settings
        self._runner = runner
        self._stopping = stopping
        self._beat = beat
        self._folder = settings.runs / job.run
        self._child: Child | None = None
        self._beaten = self._weighed = claimed_at
        self._watchdog = Watchdog(GIVE_UP * settings.stale_s, claimed_at)

    def finish(self) -> Job:
        """Do the job.

        Returns:
            The job as it was left: ended, or waiting again because the worker has to end or a
            process of an earlier attempt, perhaps a frozen one, still holds the run.

        Raises:
            LeaseLostError: when it was given to another worker.
        """
        with self._watchdog:
            if self._job.cancel_requested:
                return self._end(Action.stop)
            try:
                self._prepare()
                self._tell()
                return self._work()
            except LeaseLostError:
                raise
            except NasError as error:
                return self._end(Action.fail, self._hidden(error))
            except Exception as error:
                # Whatever is wrong with this job, the worker is needed for others.
                log.exception("a job could not be worked on", extra={"job": self._job.id})
                what = f"this should not have happened: {type(error).__name__}: {error}"
                return self._end(Action.fail, self._hidden(what))

    def _work(self) -> Job:
        try:
            return self._follow(self._start())
        except BaseException:
            if self._child is not None:
                self._child.stop(0.0)
            raise

    def _start(self) -> Child:
        """Start the job's process in its run folder, which another one may have moved away."""
        self._make_folder()
        self._watchdog.check()
        self._child = child = self._runner.start(self._job, self._folder)
        self._watchdog.guard(child)
        return child

    def _hidden(self, error: object) -> str:
        """A sentence that does not tell where the server keeps things."""
        text = error.marked if isinstance(error, NasError) else str(error)
        return without_home(text, self._settings.home)

    def _make_folder(self) -> None:
        """Make the run folder, or take it up again, where its data are still there."""
        if self._job.kind is Kind.search:
            text = self._patiently(lambda: self._store.jobs.spec(self._job.run))
            spec = build_spec(**json.loads(text))
            there = (self._folder / SPEC_FILE).exists()
            catalog = Catalog(self._settings)
            attached = {} if there else catalog.attached(self._job.request, spec)
            RunFolder.create(self._folder, spec, attached)
        else:
            spec = RunFolder.open(self._folder).spec
        check_not_deleted(spec.data, self._settings.uploaded_data)

    def _prepare(self) -> None:
        self._make_folder()
        if self._job.events_offset < 0:
            journal = self._folder / EVENTS_FILE
            begun = self._job.kind is not Kind.search and journal.exists()
            self._append([], journal.stat().st_size if begun else 0)

    def _follow(self, child: Child) -> Job:
        held_until = time.monotonic() + HELD_S
        while True:
            outcome = child.wait(LOOK_S)
            self._watchdog.check()
            if outcome is not None:
                ended = self._after(outcome)
                if ended is not None:
                    return ended
                if time.monotonic() > held_until:
                    return self._end(Action.release, why="another process still holds its run")
                self._stopping.wait(AGAIN_S)
                child = self._start()
            self._tell()
            self._give_signs()
            if self._job.cancel_requested or self._stopping.is_set():
                child.stop(self._settings.stop_grace_s)
                self._tell()
                cancelled = self._job.cancel_requested
                return self._end(Action.stop if cancelled else Action.release)

    def _after(self, outcome: Outcome) -> Job | None:
        """End the job, or None when its run is still held by a process that is about to end."""
        self._tell()
        if outcome.ok:
            return self._end(Action.succeed)
        if outcome.busy:
            return None
        # Who shuts a machine or a service down asks all of its processes at once.
        asked = outcome.asked or self._stopping.is_set()
        if asked and self._stopping.wait(ALL_ASKED_S):
            return self._end(Action.stop if self._job.cancel_requested else Action.release)
        return self._end(Action.fail, outcome.error)

    def _tell(self) -> None:
        """Pass on everything that is new in the run's journal."""
        while True:
            offset, home = self._job.events_offset, self._settings.home
            events, after = read_new(self._folder / EVENTS_FILE, offset, home)
            if after == offset:
                return
            self._append(events, after)

    def _append(self, events: list[dict[str, object]], offset: int) -> None:
        summary = summarise(self._job.summary, events)
        self._keep(lambda: self._store.leases.append(self._job, events, offset, summary))

    def _give_signs(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= self._settings.heartbeat_s:
            self._keep(lambda: self._store.leases.beat(self._job))
            self._patiently(lambda: self._beat(self._job.id))
        if now - self._weighed >= DISK_S:
            self._weigh()

    def _weigh(self) -> None:
        size = disk_bytes(self._folder)
        self._patiently(lambda: self._store.retention.note(self._job.run, size))
        self._weighed = time.monotonic()

    def _end(self, action: Action, error: str | None = None, why: str = "") -> Job:
        self._weigh()
        return self._keep(lambda: self._store.leases.end(self._job, action, error, why))

    def _keep(self, call: Callable[[], Job]) -> Job:
        """Write something that only the holder of the job may write."""
        sent = time.monotonic()
        self._job = self._patiently(call)
        self._beaten = sent
        self._watchdog.confirm(sent)
        return self._job

    def _patiently(self, call: Callable[[], T]) -> T:
        """Ask the database again while it does not answer and the job is still surely ours."""
        while True:
            try:
                return call()
            except DatabaseAwayError:
                self._watchdog.check()
                time.sleep(AGAIN_S)


class Watchdog:
    """Watches a lease in a thread of its own, whatever the worker is waiting for.

    Args:
        lease_s: seconds after which a lease that was not confirmed counts as lost.
        confirmed_at: when it was confirmed last, by the monotonic clock.
    """

    def __init__(self, lease_s: float, confirmed_at: float) -> None:
        self._lease_s = lease_s
        self._until = confirmed_at + lease_s
        self._changed = threading.Condition()
        self._child: Child | None = None
        self._leaving = False
        self._expired = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._leaving = True
            self._changed.notify()
        self._thread.join()

    def confirm(self, at: float) -> None:
        """The lease was confirmed by a request that was sent at that moment."""
        with self._changed:
            self._until = at + self._lease_s

    def guard(self, child: Child) -> None:
        """Stop this process when the lease is lost.

        Raises:
            LeaseLostError: when it is lost already.
        """
        with self._changed:
            self._child = child
        self.check()

    def check(self) -> None:
        """See that the lease still holds.

        Raises:
            LeaseLostError: when it was not confirmed in time.
        """
        with self._changed:
            self._expired = self._expired or time.monotonic() >= self._until
            if self._expired:
                raise LeaseLostError(
                    f"the database did not confirm the lease for {self._lease_s:g} s"
                )

    def _watch(self) -> None:
        with self._changed:
            while not self._leaving and (left := self._until - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._leaving:
                return
            self._expired = True
            child = self._child
        if child is not None:
            child.stop(0.0)

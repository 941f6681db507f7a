"""What users do with jobs: submit, look, cancel, retry, delete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)

from search_spaces.errors import UsageError
from service.jobs.database import Database
from service.jobs.listing import Filter, Order
from service.jobs.rows import (
    JOB_COLUMNS,
    LISTED_COLUMNS,
    change,
    event_text,
    job_of,
    search_text,
    write_events,
)
from service.jobs.states import Action, Job, JobStateError, Kind, State
from service.jobs.submissions import Quotas, Submission, submit
from service.jobs.tables import events, jobs, owners, runs

NO_QUOTAS = Quotas()
NEVER = 1e12  # later than any end of a job


@dataclass(frozen=True, slots=True)
class Words:
    """What an owner says about a job; None leaves it as it is."""

    title: str | None = None
    tags: tuple[str, ...] | None = None
    notes: str | None = None


class JobStore:
    """Jobs as their owners see them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, given: Submission, quotas: Quotas = NO_QUOTAS) -> tuple[Job, bool]:
        """Add a job; see `service.jobs.submissions.submit`."""
        return submit(self._database, given, quotas)

    def get(self, identity: str) -> Job | None:
        """The job of that id."""
        with self._database.reading() as connection:
            return _one(connection, identity)

    def list(self, wanted: Filter, limit: int) -> Sequence[Job]:
        """The first jobs that fit; what was requested is told of exports alone.

        Raises:
            UsageError: when the job that the page goes on after is gone, and with it its place.
        """
        by, conditions = self._place(wanted.order), [*self._conditions(wanted)]
        order = [by.asc() if wanted.ascends else by.desc()]
        if wanted.order is not Order.created:
            order.append(jobs.c.id.desc())
        with self._database.reading() as connection:
            if wanted.before is not None:
                conditions.append(_after(connection, wanted, by))
            # They are chosen by the indexes in the order of the list; only what is shown is read.
            found = select(jobs.c.id).where(*conditions).order_by(*order).limit(limit)
            query = select(*LISTED_COLUMNS).where(jobs.c.id.in_(found)).order_by(*order)
            return [job_of(row._mapping) for row in connection.execute(query)]

    def _place(self, order: Order) -> ColumnElement[Any]:
        """What decides where a job is listed."""
        match order:
            case Order.created:
                return jobs.c.id
            case Order.ended:  # who has not ended will be the last to
                return func.coalesce(jobs.c.ended_at, literal(NEVER))
            case Order.work:
                return self._database.number_in(jobs.c.summary, "worked_s")
            case Order.hypervolume:
                return self._database.number_in(jobs.c.summary, "hypervolume")
            case Order.titled:
                return func.lower(jobs.c.title)
            case _:
                return jobs.c[order.value]

    def _conditions(self, wanted: Filter) -> Iterator[ColumnElement[bool]]:
        for name in ("owner", "kind", "space", "run"):
            value = getattr(wanted, name)
            if value is not None:
                yield jobs.c[name] == value
        if wanted.states:
            yield jobs.c.state.in_(wanted.states)
        for tag in wanted.tags:
            yield self._database.contains(jobs.c.tags, literal(json.dumps(tag)))
        if wanted.since is not None:
            yield jobs.c.created_at >= _midnight(wanted.since)
        if wanted.until is not None:
            yield jobs.c.created_at < _midnight(wanted.until) + timedelta(days=1).total_seconds()
        if wanted.text:
            yield self._database.contains(jobs.c.search, literal(wanted.text.lower()))

    def counts(self, owner: str | None = None) -> dict[State, int]:
        """How many jobs are in each state."""
        query = select(jobs.c.state, func.count())
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        with self._database.reading() as connection:
            found = {
                State(state): n for state, n in connection.execute(query.group_by(jobs.c.state))
            }
        return {state: found.get(state, 0) for state in State}

    def tags(self, owner: str | None = None) -> Sequence[str]:
        """All tags of an owner's jobs, or of everybody's."""
        query = select(jobs.c.tags).where(jobs.c.tags != "[]").distinct()
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        with self._database.reading() as connection:
            found = connection.execute(query).scalars()
            return sorted({tag for tags in found for tag in json.loads(tags)})

    def owners(self) -> Sequence[str]:
        """Whoever has submitted a job."""
        with self._database.reading() as connection:
            return list(connection.execute(select(owners.c.name).order_by(owners.c.name)).scalars())

    def edit(self, identity: str, words: Words, by: str, quotas: Quotas = NO_QUOTAS) -> Job | None:
        """Change what the owner has to say about a job, with an event where anything changes.

        Args:
            identity: of the job.
            words: what to change.
            by: who changes it, for the event.
            quotas: of its owner, of which those of the database count.

        Returns:
            The job as it is now, or None when there is none.

        Raises:
            NoRoomError: when the owner has no room left in the database.
        """
        with self._database.writing() as connection:
            job = _locked(connection, identity)
            if job is None:
                return None
            changes = {
                name: value
                for name, value in asdict(words).items()
                if value is not None and value != getattr(job, name)
            }
            if not changes:
                return job
            replace(quotas, owner_disk_bytes=None, disk_bytes=None).check_room(
                connection, job.owner
            )
            job = replace(job, **changes)
            event = {"event": "JobEdited", "by": by, "message": f"{', '.join(changes)} by {by}"}
            more = len(event_text(event)) + len(changes.get("notes", ""))
            row = connection.execute(
                update(jobs)
                .where(jobs.c.id == identity)
                .values(
                    title=job.title,
                    tags=json.dumps(job.tags),
                    notes=job.notes,
                    search=search_text(job.title, job.space, job.dataset, job.id, *job.tags),
                    last_seq=jobs.c.last_seq + 1,
                    stored_bytes=jobs.c.stored_bytes + more,
                )
                .returning(*JOB_COLUMNS, self._database.now().label("now"))
            ).one()
            columns = dict(row._mapping)
            moment = columns.pop("now")
            changed = job_of(columns)
            write_events(connection, changed, moment, [event])
            return changed

    def spec(self, run: str) -> str:
        """The spec of a run, as JSON."""
        with self._database.reading() as connection:
            return str(connection.execute(select(runs.c.spec).where(runs.c.id == run)).scalar_one())

    def cancel(self, identity: str, stale_s: float) -> Job | None:
        """Cancel a job: at once when it waits or its worker is gone, else ask the worker.

        Returns:
            The job as it is now, or None when there is none.

        Raises:
            JobStateError: when it has ended otherwise.
        """
        return self._database.even_when_full(lambda: self._cancel(identity, stale_s))

    def _cancel(self, identity: str, stale_s: float) -> Job | None:
        with self._database.writing() as connection:
            now = self._database.now()
            row = connection.execute(
                select(*JOB_COLUMNS, now.label("now"))
                .where(jobs.c.id == identity)
                .with_for_update()
            ).one_or_none()
            if row is None:
                return None
            columns = dict(row._mapping)
            moment = columns.pop("now")
            job = job_of(columns)
            if job.state is State.cancelled:
                return job
            if job.state.ended:
                raise JobStateError(f"the job has {job.state} and cannot be cancelled any more")
            # Also when its last sign is of the future: then the clock was set back. Should it be
            # alive, it can write nothing any more, and stops.
            gone = job.beat_at is None or abs(moment - job.beat_at) > stale_s
            if job.state is State.queued or gone:
                values = {"ended_at": now, "attempt": jobs.c.attempt + 1, "cancel_requested": True}
                return change(connection, now, Action.cancel, job, values)
            if job.cancel_requested:
                return job
            asked = connection.execute(
                update(jobs)
                .where(jobs.c.id == identity)
                .values(cancel_requested=True, last_seq=jobs.c.last_seq + 1)
                .returning(*JOB_COLUMNS)
            ).one()
            job = job_of(asked._mapping)
            write_events(connection, job, moment, [{"event": "CancelRequested"}])
            return job

    def retry(self, identity: str, quotas: Quotas = NO_QUOTAS) -> Job | None:
        """Let a failed or cancelled job wait again; it goes on where it stopped.

        Raises:
            JobStateError: when it is in another state.
            QueueFullError: when its owner has too many jobs waiting.
        """
        with self._database.writing() as connection:
            job = _locked(connection, identity)
            if job is None:
                return None
            if job.state not in (State.failed, State.cancelled):
                raise JobStateError(
                    f"the job is {job.state}; only failed and cancelled jobs can be retried"
                )
            quotas.check_queue(connection, job.owner)
            values = {"cancel_requested": False, "error": None, "ended_at": None, "losses": 0}
            return change(connection, self._database.now(), Action.retry, job, values)

    def needing(self, folder: Path) -> Sequence[str]:
        """The ids of jobs that have not ended and whose run began with what is in that folder.

        Specs name it by the home's path; those of older versions by the path behind all links.
        """
        paths = {json.dumps(str(one), ensure_ascii=False) for one in (folder, folder.resolve())}
        begun = or_(*(self._database.contains(runs.c.spec, literal(one)) for one in sorted(paths)))
        going = jobs.c.state.in_((State.queued, State.running))
        query = select(jobs.c.id).join(runs, runs.c.id == jobs.c.run).where(going, begun)
        with self._database.reading() as connection:
            return list(connection.execute(query.order_by(jobs.c.id)).scalars())

    def on_run(self, run: str) -> Sequence[str]:
        """The ids of all jobs on a run, that of its search among them."""
        query = select(jobs.c.id).where(jobs.c.run == run).order_by(jobs.c.id)
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def check_deletable(self, identity: str) -> None:
        """See that a job can be deleted, without writing anything.

        Raises:
            JobStateError: when it, or another job on its run, has not ended.
        """
        with self._database.reading() as connection:
            job = _one(connection, identity)
            if job is not None:
                _check_ended(job, connection.execute(_deleted_with(job)).all())

    def delete(self, identity: str) -> Job | None:
        """Delete an ended job with its events, and with a search the jobs on its run.

        Raises:
            JobStateError: when it, or another job on its run, has not ended.
            DatabaseFullError: when there is no room even for that.
        """
        return self._database.even_when_full(lambda: self._delete(identity))

    def _delete(self, identity: str) -> Job | None:
        with self._database.writing() as connection:
            job = _one(connection, identity)
            if job is None:
                return None
            # In this order everywhere: the run, then its jobs. Nobody gets a job of it meanwhile.
            connection.execute(select(runs.c.id).where(runs.c.id == job.run).with_for_update())
            found = connection.execute(_deleted_with(job).with_for_update()).all()
            _check_ended(job, found)
            ids = [one for one, _ in found]
            connection.execute(delete(events).where(events.c.job.in_(ids)))
            connection.execute(delete(jobs).where(jobs.c.id.in_(ids)))
            if job.kind is Kind.search:
                connection.execute(delete(runs).where(runs.c.id == job.run))
            return job


def _after(connection: Connection, wanted: Filter, by: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a job comes after the one that a page ended with."""
    last = wanted.before
    if wanted.order is Order.created:
        return jobs.c.id > last if wanted.ascends else jobs.c.id < last
    place = connection.execute(select(by).where(jobs.c.id == last)).scalar_one_or_none()
    if place is None:
        raise UsageError(f"the job {last}, after which this page begins, is gone; begin anew")
    beyond = by > place if wanted.ascends else by < place
    return or_(beyond, and_(by == place, jobs.c.id < last))


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def _one(connection: Connection, identity: str) -> Job | None:
    row = connection.execute(select(*JOB_COLUMNS).where(jobs.c.id == identity)).one_or_none()
    return None if row is None else job_of(row._mapping)


def _locked(connection: Connection, identity: str) -> Job | None:
    row = connection.execute(
        select(*JOB_COLUMNS).where(jobs.c.id == identity).with_for_update()
    ).one_or_none()
    return None if row is None else job_of(row._mapping)


def _deleted_with(job: Job) -> Select[str, str]:
    """Id and state of a job, and of all that goes with it."""
    mine = jobs.c.run == job.run if job.kind is Kind.search else jobs.c.id == job.id
    return select(jobs.c.id, jobs.c.state).where(mine).order_by(jobs.c.id)


def _check_ended(job: Job, found: Iterable[Any]) -> None:
    for other, state in found:
        if not State(state).ended:
            name = "the job" if other == job.id else f"its job {other}"
            raise JobStateError(f"{name} is {state}; cancel it first")

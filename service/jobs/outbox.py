"""Webhooks of owners, and the outbox of what is still to be delivered to them.

A delivery is written in the transaction that ends its job, so none is lost and none is of an end
that did not happen. Who delivers holds the owner's webhook by its turn number: deliveries of one
owner go out one at a time, owners take turns, and whoever was taken a webhook away, because it was
frozen for longer than its lease or the owner has changed the address, can write nothing any more.
A delivery that its receiver has answered may come again when its sender is killed just then:
receivers know it by its id.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError

from service.jobs.database import Database
from service.jobs.states import Job, Outcome, new_id
from service.jobs.tables import deliveries, webhooks
from service.wording import for_programs

LEASE_S = 60.0  # for which a delivery may be under way
BACKOFF_S = (10.0, 60.0, 300.0, 1800.0, 7200.0, 21600.0, 43200.0)  # between the tries
MOST_TRIES = len(BACKOFF_S) + 1
KEPT = 1000  # of one owner, waiting ones included: the oldest go
KEPT_S = 30 * 86400.0  # for which those that have ended can be seen
LONGEST_ERROR = 1000
SECRET = "whsec_"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where an owner is told of jobs that end.

    Attributes:
        owner: whose.
        url: where to.
        created_at: when the owner has named it.
    """

    owner: str
    url: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to a webhook.

    Attributes:
        id: by which a receiver knows it again.
        job: whose end it tells of; None where it only says that the webhook is set.
        created_at: when the job ended.
        outcome: what has become of it.
        tries: how often it was sent.
        next_at: when it is sent again; None once it has ended.
        status: of the last answer; None where there was none.
        answer: its first words, or why there was none.
        ended_at: when it was delivered or given up.
    """

    id: str
    job: str | None
    created_at: float
    outcome: Outcome
    tries: int
    next_at: float | None
    status: int | None
    answer: str
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Sending:
    """A delivery that this process holds.

    Attributes:
        id: of the delivery.
        owner: whose webhook.
        turn: by which the webhook is held.
        url: where to.
        secret: that its signature is made with.
        body: JSON.
        tries: how often it was sent, this time included.
    """

    id: str
    owner: str
    turn: int
    url: str
    secret: str
    body: str
    tries: int


_SEEN = [deliveries.c[name] for name in Delivery.__slots__]


class Outbox:
    """Webhooks and deliveries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, owner: str) -> Webhook | None:
        """An owner's webhook."""
        query = select(webhooks.c.owner, webhooks.c.url, webhooks.c.created_at)
        with self._database.reading() as connection:
            row = connection.execute(query.where(webhooks.c.owner == owner)).one_or_none()
        return None if row is None else Webhook(**row._mapping)

    def set(self, owner: str, url: str) -> str:
        """Name an owner's webhook, in place of the one before, and send it a first message.

        What waits is sent there after that, at once as well; who sends to the one before notes
        nothing any more.

        Returns:
            Its secret, which is new.
        """
        secret = SECRET + base64.b64encode(secrets.token_bytes(32)).decode()
        try:
            self._set(owner, url, secret)
        except IntegrityError:  # somebody has named the first one at the same moment
            self._set(owner, url, secret)
        return secret

    def _set(self, owner: str, url: str, secret: str) -> None:
        with self._database.writing() as connection:
            now = self._database.now()
            values = {"url": url, "secret": secret, "created_at": now}
            row = connection.execute(
                update(webhooks)
                .where(webhooks.c.owner == owner)
                .values(turn=webhooks.c.turn + 1, held_until=0, **values)
                .returning(webhooks.c.created_at)
            ).one_or_none()
            if row is None:
                row = connection.execute(
                    insert(webhooks).values(owner=owner, **values).returning(webhooks.c.created_at)
                ).one()
            waiting = (deliveries.c.owner == owner, deliveries.c.outcome == Outcome.waiting)
            connection.execute(update(deliveries).where(*waiting).values(next_at=row.created_at))
            _add(connection, owner, None, row.created_at, "webhook.set", {"owner": owner})

    def remove(self, owner: str) -> bool:
        """Forget an owner's webhook and its deliveries; False where there is none."""
        with self._database.writing() as connection:
            connection.execute(delete(deliveries).where(deliveries.c.owner == owner))
            gone = connection.execute(delete(webhooks).where(webhooks.c.owner == owner))
            return bool(gone.rowcount)

    def last(self, owner: str, limit: int) -> Sequence[Delivery]:
        """An owner's deliveries, newest first."""
        query = select(*_SEEN).where(deliveries.c.owner == owner)
        query = query.order_by(deliveries.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query)]
        return [Delivery(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]

    def claim(self) -> Sending | None:
        """Hold the webhook that has waited longest among those with something to deliver."""
        now = self._database.now()
        due = (
            deliveries.c.outcome == Outcome.waiting,
            _past(deliveries.c.next_at, now, BACKOFF_S[-1]),
        )
        with self._database.reading() as connection:
            if connection.execute(select(deliveries.c.id).where(*due).limit(1)).first() is None:
                return None
        with self._database.writing() as connection:
            any_due = select(deliveries.c.id).where(deliveries.c.owner == webhooks.c.owner, *due)
            hook = connection.execute(
                select(webhooks.c.owner, webhooks.c.turn, webhooks.c.url, webhooks.c.secret)
                .where(_past(webhooks.c.held_until, now, LEASE_S), any_due.exists())
                .order_by(webhooks.c.held_until)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).one_or_none()
            if hook is None:
                return None
            connection.execute(
                update(webhooks)
                .where(webhooks.c.owner == hook.owner)
                .values(turn=hook.turn + 1, held_until=now + literal(LEASE_S))
            )
            theirs = select(deliveries.c.id).where(deliveries.c.owner == hook.owner, *due)
            # First the message that the webhook is set, then of jobs, the oldest first.
            first = theirs.order_by(deliveries.c.job.is_not(None), deliveries.c.id).limit(1)
            row = connection.execute(
                update(deliveries)
                .where(deliveries.c.id == first.scalar_subquery())
                .values(tries=deliveries.c.tries + 1, next_at=now + literal(LEASE_S))
                .returning(deliveries.c.id, deliveries.c.body, deliveries.c.tries)
            ).one()
            return Sending(
                row.id, hook.owner, hook.turn + 1, hook.url, hook.secret, row.body, row.tries
            )

    def finish(self, sent: Sending, status: int | None, answer: str, *, good: bool) -> bool:
        """Note what has become of a delivery, and let go of its webhook.

        Returns:
            False when the webhook is somebody else's by now, or was changed: nothing is noted.
        """
        with self._database.writing() as connection:
            now = self._database.now()
            # One that was removed and named anew counts its turns anew, and has other deliveries.
            there = select(deliveries.c.id).where(deliveries.c.id == sent.id)
            held = connection.execute(
                update(webhooks)
                .where(webhooks.c.owner == sent.owner, webhooks.c.turn == sent.turn, there.exists())
                .values(held_until=now)
            )
            if not held.rowcount:
                return False
            values: dict[str, Any] = {"status": status, "answer": answer}
            if good or sent.tries >= MOST_TRIES:
                outcome = Outcome.delivered if good else Outcome.failed
                values |= {"outcome": outcome, "next_at": None, "ended_at": now}
            else:
                values["next_at"] = now + literal(BACKOFF_S[sent.tries - 1])
            connection.execute(
                update(deliveries).where(deliveries.c.id == sent.id).values(**values)
            )
            return True

    def tidy(self) -> None:
        """Forget what nobody will look at any more."""
        now = self._database.now()
        old = deliveries.c.ended_at < now - literal(KEPT_S)
        nobodys = deliveries.c.owner.not_in(select(webhooks.c.owner))
        found = select(deliveries.c.id).where(or_(old, nobodys)).limit(1)
        with self._database.reading() as connection:
            if connection.execute(found).first() is None:
                return
        with self._database.writing() as connection:
            connection.execute(delete(deliveries).where(or_(old, nobodys)))


def tell_end(connection: Connection, job: Job, moment: float) -> None:
    """Add a message about a job that has just ended, if its owner has a webhook.

    Args:
        connection: the transaction that ends it.
        job: as it is now.
        moment: the database's clock.
    """
    known = select(webhooks.c.owner).where(webhooks.c.owner == job.owner)
    if connection.execute(known).one_or_none() is None:
        return
    told = ("id", "kind", "state", "owner", "run", "space", "dataset", "preset", "title", "pick")
    data: dict[str, Any] = {name: getattr(job, name) for name in told}
    data |= {"tags": job.tags, "error": for_programs(job.error or "")[:LONGEST_ERROR] or None}
    for name in ("created_at", "started_at", "ended_at"):
        seconds = getattr(job, name)
        data[name] = None if seconds is None else _written(seconds)
    for name in ("measured", "front_size", "hypervolume"):
        data[name] = getattr(job.summary, name)
    _add(connection, job.owner, job.id, moment, f"job.{job.state}", data)


def _add(
    connection: Connection,
    owner: str,
    job: str | None,
    moment: float,
    kind: str,
    data: dict[str, Any],
) -> None:
    body = json.dumps({"type": kind, "timestamp": _written(moment), "data": data})
    connection.execute(
        insert(deliveries).values(
            id=new_id(),
            owner=owner,
            job=job,
            body=body,
            created_at=moment,
            outcome=Outcome.waiting,
            next_at=moment,
        )
    )
    mine = select(deliveries.c.id).where(deliveries.c.owner == owner)
    newest_too_many = mine.order_by(deliveries.c.id.desc()).offset(KEPT).limit(1)
    connection.execute(
        delete(deliveries).where(
            deliveries.c.owner == owner, deliveries.c.id <= newest_too_many.scalar_subquery()
        )
    )


def _past(
    moment: ColumnElement[Any], now: ColumnElement[float], at_most_s: float
) -> ColumnElement[bool]:
    """Whether a moment is over; one that is further away than any is of a clock set back."""
    return or_(moment <= now, moment > now + literal(at_most_s))


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()

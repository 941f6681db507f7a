"""Which jobs a list shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, literal, select

from service.jobs import Kind, State
from service.store.database import Database
from service.store.rows import LISTED_COLUMNS
from service.store.tables import jobs


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs to list; None and the empty tuple mean any.

    Attributes:
        owner: whose.
        states: in one of these states.
        kind: of that kind.
        space: of that space.
        run: of that run.
        text: part of title, space, data set or id, whatever the case.
        before: only jobs older than this id, for the next page.
    """

    owner: str | None = None
    states: tuple[State, ...] = ()
    kind: Kind | None = None
    space: str | None = None
    run: str | None = None
    text: str | None = None
    before: str | None = None


def newest(database: Database, wanted: Filter, limit: int) -> Select[Any]:
    """The query for the newest jobs that fit, newest first.

    Jobs are chosen by the indexes in the order of the list; only those that are shown are read.
    """
    last_first = jobs.c.id.desc()
    found = select(jobs.c.id).where(*_conditions(database, wanted)).order_by(last_first)
    query = select(*LISTED_COLUMNS).where(jobs.c.id.in_(found.limit(limit)))
    return query.order_by(last_first)


def _conditions(database: Database, wanted: Filter) -> Iterator[ColumnElement[bool]]:
    for name in ("owner", "kind", "space", "run"):
        value = getattr(wanted, name)
        if value is not None:
            yield jobs.c[name] == value
    if wanted.states:
        yield jobs.c.state.in_(wanted.states)
    if wanted.before is not None:
        yield jobs.c.id < wanted.before
    if wanted.text:
        yield database.contains(jobs.c.search, literal(wanted.text.lower()))

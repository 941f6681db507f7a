"""Which jobs a list shows, found without sorting the table or reading rows that are not shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, select, union_all

from service.jobs import Kind, State
from service.store.database import Database
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


def newest(database: Database, query: Select[Any], wanted: Filter, limit: int) -> Select[Any]:
    """Narrow a query to the newest jobs that fit, newest first.

    Where there is an index in the order of the list, a database walks it and stops at `limit`.
    There is none for several states together, so each is asked for by itself; and a text is looked
    for in the index that holds it, before any row is read.
    """
    last_first = jobs.c.id.desc()
    if not wanted.text and len(wanted.states) < 2:
        return _filtered(database, query, wanted).order_by(last_first).limit(limit)
    parts = [
        _filtered(database, select(jobs.c.id), replace(wanted, states=states))
        .order_by(last_first)
        .limit(limit)
        .subquery()
        for states in ([(state,) for state in dict.fromkeys(wanted.states)] or [()])
    ]
    found = union_all(*(select(part.c.id) for part in parts))
    return query.where(jobs.c.id.in_(found)).order_by(last_first).limit(limit)


def _filtered(database: Database, query: Select[Any], wanted: Filter) -> Select[Any]:
    for column in ("owner", "kind", "space", "run"):
        value = getattr(wanted, column)
        if value is not None:
            query = query.where(jobs.c[column] == value)
    if wanted.states:
        (state,) = wanted.states
        query = query.where(jobs.c.state == state)
    if wanted.before is not None:
        query = query.where(jobs.c.id < wanted.before)
    if wanted.text:
        query = query.where(database.contains(jobs.c.search, wanted.text.lower()))
    return query

"""Which jobs a list shows, found without sorting the table or reading rows that are not shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    bindparam,
    literal_column,
    select,
    union_all,
)

from service.jobs import Kind, State
from service.store.database import Database
from service.store.prepared import Prepared, Row
from service.store.tables import jobs

STATE = "state_"
SIZES = (26, 51, 101, 201)


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


class Listing:
    """Queries for lists, each put into words once for every combination of filters.

    Where there is an index in the order of the list, a database walks it and stops at the limit.
    There is none for several states together, so each is asked for by itself; and a text is looked
    for in the index that holds it, before any row is read.

    Args:
        database: they are asked of.
        columns: to select.
    """

    def __init__(self, database: Database, columns: Sequence[ColumnElement[Any]]) -> None:
        self._database = database
        self._columns = columns
        self._prepared: dict[tuple[frozenset[str], int], Prepared] = {}

    def newest(self, wanted: Filter, limit: int) -> list[Row]:
        """The newest jobs that fit, newest first."""
        given = _parameters(wanted)
        # A number in words and not a parameter: PostgreSQL plans for a parameter as for a tenth of
        # the table, which it then sorts. A few numbers are enough.
        most = next((size for size in SIZES if size >= limit), limit)
        shape = frozenset(given), most
        if shape not in self._prepared:  # two threads may both do it, to the same end
            query = self._query(*shape)
            self._prepared[shape] = Prepared(self._database, query, many=True)
        rows = self._prepared[shape].rows(**given)
        return sorted(rows, key=itemgetter("id"), reverse=True)[:limit]

    def _query(self, shape: frozenset[str], most: int) -> Select[Any]:
        limit, last_first = literal_column(str(most), Integer), jobs.c.id.desc()
        states = sorted(name for name in shape if name.startswith(STATE))
        query = select(*self._columns)
        if "text" not in shape and len(states) < 2:
            narrowed = query.where(*self._conditions(shape, states))
            return narrowed.order_by(last_first).limit(limit)
        parts = [
            select(jobs.c.id)
            .where(*self._conditions(shape, one))
            .order_by(last_first)
            .limit(limit)
            .subquery()
            for one in ([[state] for state in states] or [[]])
        ]
        found = union_all(*(select(part.c.id) for part in parts))
        return query.where(jobs.c.id.in_(found)).order_by(last_first).limit(limit)

    def _conditions(
        self, shape: frozenset[str], states: Sequence[str]
    ) -> Iterator[ColumnElement[bool]]:
        for name in ("owner", "kind", "space", "run"):
            if name in shape:
                yield jobs.c[name] == bindparam(name)
        for state in states:
            yield jobs.c.state == bindparam(state)
        if "before" in shape:
            yield jobs.c.id < bindparam("before")
        if "text" in shape:
            text = bindparam("text", type_=String)
            yield self._database.contains(jobs.c.search, text)


def _parameters(wanted: Filter) -> dict[str, str]:
    """What a filter asks for, by the name of its parameter."""
    names = ("owner", "kind", "space", "run", "before")
    given = {name: str(value) for name in names if (value := getattr(wanted, name)) is not None}
    states = dict.fromkeys(wanted.states)
    given |= {f"{STATE}{number}": str(state) for number, state in enumerate(states)}
    if wanted.text:
        given["text"] = wanted.text.lower()
    return given

"""Queries that are put into words once: what is asked most is then asked without delay.

SQLAlchemy builds and recognises a statement anew for every execution, which for the columns of a
job takes several times as long as the database takes to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json
from sqlalchemy import BigInteger, Boolean, Double, Select, cast, func, select
from sqlalchemy.sql.elements import ColumnElement

from service.store.database import Database

MICRO = 1_000_000

Row = Mapping[str, Any]
Read = Callable[[Any], Any]


class Prepared:
    """A query, whose parameters are `bindparam` by name.

    Args:
        database: it is asked of.
        query: what to select.
        many: whether many rows are expected. SQLite's driver gives the interpreter away and takes
            it back for every row; where many threads read at once, that takes longer than reading
            them, so there the rows come as one. Moments are then exact to the microsecond.
    """

    def __init__(self, database: Database, query: Select[Any], *, many: bool = False) -> None:
        self._database = database
        columns = list(query.selected_columns)
        self._names = [column.name for column in columns]
        self._as_one = many and database.is_sqlite
        self._readers = [_reader(column, self._as_one) for column in columns]
        compiled = (_as_one(query) if self._as_one else query).compile(database.engine)
        self._sql, self._order = str(compiled), compiled.positiontup
        self._fixed = compiled.params

    def rows(self, **given: Any) -> list[Row]:
        """The rows, by column name; on SQLite in any order where they are `many`."""
        values = {**self._fixed, **given}
        sent = values if self._order is None else tuple(values[name] for name in self._order)
        with self._database.reading() as connection:
            found = connection.exec_driver_sql(self._sql, sent)
            rows = from_json(found.scalar_one()) if self._as_one else found.all()
        return [self._read(row) for row in rows]

    def _read(self, row: Sequence[Any]) -> Row:
        parts = zip(self._names, self._readers, row, strict=True)
        return {name: value if read is None else read(value) for name, read, value in parts}


def _as_one(query: Select[Any]) -> Select[Any]:
    """One row with one value: the rows of a query as JSON."""
    inner = query.subquery()
    return select(func.json_group_array(func.json_array(*map(_plain, inner.c))))


def _plain(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column as SQLite's JSON can hold it: its decimals have 15 digits, too few for a moment."""
    if isinstance(column.type, Double):
        return cast(func.round(column * MICRO), BigInteger)
    return column


def _reader(column: ColumnElement[Any], as_one: bool) -> Read | None:
    """What makes the value of a column out of what the driver gives; None for nothing."""
    if isinstance(column.type, Boolean):
        return bool
    if as_one and isinstance(column.type, Double):
        return lambda value: None if value is None else value / MICRO
    return None

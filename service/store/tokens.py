"""Who may use the service."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, insert, or_, select, update

from service.auth import Role, Token
from service.store.database import Database
from service.store.tables import tokens

_COLUMNS = [
    tokens.c[name] for name in ("id", "name", "role", "created_at", "expires_at", "revoked_at")
]


class TokenStore:
    """Tokens, of which only digests are kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, token: Token, digest: str) -> None:
        """Keep a new token."""
        with self._database.writing() as connection:
            connection.execute(
                insert(tokens).values(
                    id=token.id,
                    name=token.name,
                    role=token.role,
                    digest=digest,
                    created_at=token.created_at,
                    expires_at=token.expires_at,
                )
            )

    def valid(self, digest: str) -> Token | None:
        """The token with that digest, unless it has expired or was revoked."""
        return self._good(tokens.c.digest == digest)

    def good(self, identity: str) -> bool:
        """Whether the token of that id has neither expired nor been revoked."""
        return self._good(tokens.c.id == identity) is not None

    def _good(self, which: ColumnElement[bool]) -> Token | None:
        unexpired = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > self._database.now())
        query = select(*_COLUMNS).where(which, tokens.c.revoked_at.is_(None), unexpired)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _token(row)

    def list(self) -> Sequence[Token]:
        """All tokens, oldest first."""
        query = select(*_COLUMNS).order_by(tokens.c.created_at, tokens.c.id)
        with self._database.reading() as connection:
            return [_token(row) for row in connection.execute(query)]

    def count(self) -> int:
        """How many tokens there are or were."""
        with self._database.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(tokens)).scalar_one())

    def revoke(self, identity: str) -> bool:
        """Make a token worthless; False when there is none of that id that was not already."""
        with self._database.writing() as connection:
            done = connection.execute(
                update(tokens)
                .where(tokens.c.id == identity, tokens.c.revoked_at.is_(None))
                .values(revoked_at=self._database.now())
                .returning(tokens.c.id)
            ).one_or_none()
            return done is not None


def _token(row: object) -> Token:
    values = dict(row._mapping)  # type: ignore[attr-defined]
    return Token(**{**values, "role": Role(values["role"])})

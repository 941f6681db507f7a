"""Tokens, roles and what each may do.

A token is 32 random bytes, so a plain sha256 of it is as hard to guess as itself: no salt and no
slow hash is needed, unlike for passwords that people choose.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum

from search_spaces.errors import UsageError

PREFIX = "nas_"
_SECRET = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SPAN = re.compile(r"(\d{1,5})\s*([hdwy])")
_LONGEST_S = 100 * 365 * 86400
_UNIT_S = {"h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}


class Role(StrEnum):
    """What a token may do; each role includes those before it."""

    reader = "reader"  # look at the jobs of its name
    submitter = "submitter"  # submit, cancel, retry and delete jobs of its name
    admin = "admin"  # all of that with everybody's jobs

    def includes(self, other: Role) -> bool:
        """Whether this role may do what the other may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Token:
    """Who is asking. The secret itself is kept nowhere.

    Attributes:
        id: to list and revoke it by.
        name: the owner of the jobs submitted with it; several tokens may share a name.
        role: what it may do.
        created_at: seconds since 1970, as all times here.
        expires_at: None for never.
        revoked_at: None while it is good.
    """

    id: str
    name: str
    role: Role
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def may_see(self, owner: str) -> bool:
        """Whether jobs of that owner may be seen."""
        return self.role is Role.admin or owner == self.name


# Everybody, where authentication is switched off.
ANYBODY = Token("no-auth", "local", Role.admin, 0.0)


def new_token(name: str, role: Role, expires_at: float | None = None) -> tuple[Token, str]:
    """A token and its secret.

    Raises:
        UsageError: for a name that is no name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a token's name is up to 64 letters, digits and . _ @ -, beginning with a letter or "
            f"digit; given {name!r}"
        )
    secret = PREFIX + secrets.token_urlsafe(32)
    return Token(secrets.token_hex(4), name, role, time.time(), expires_at), secret


def is_owner(text: str) -> bool:
    """Whether a text has the form of a token's name."""
    return _NAME.fullmatch(text) is not None


def is_secret(text: str) -> bool:
    """Whether a text has the form of a secret; nobody needs to be asked about any other."""
    return _SECRET.fullmatch(text) is not None


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def feed_key_of(digest: str) -> str:
    """What opens the feed of a token, and nothing else."""
    return hmac.digest(digest.encode(), b"feed", "sha256").hex()


def read_expiry(text: str, now: float) -> float | None:
    """When ``30d``, ``12h``, ``2w``, ``1y`` or ``never`` from now is.

    Raises:
        UsageError: for anything else.
    """
    if text == "never":
        return None
    match = _SPAN.fullmatch(text.strip())
    if match is None or not 0 < int(match[1]) * _UNIT_S[match[2]] <= _LONGEST_S:
        raise UsageError(
            f"--expires takes 12h, 30d, 2w, 1y or never, and at most 100y; given {text!r}"
        )
    return now + int(match[1]) * _UNIT_S[match[2]]

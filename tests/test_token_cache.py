"""Which tokens are taken for good without asking, and for how long."""

from __future__ import annotations

import pytest

from service.auth import Role, Token, digest_of
from service.token_cache import MOST_TOKENS, TokenCache

ALICE = Token("1", "alice", Role.reader, 0.0)


class Asked:
    """A database with one good token, and a clock."""

    def __init__(self) -> None:
        self.good = {digest_of("secret"): ALICE}
        self.questions = 0
        self.now = 0.0

    def look_up(self, digest: str) -> Token | None:
        self.questions += 1
        return self.good.get(digest)

    def cache(self, fresh_s: float = 1.0) -> TokenCache:
        return TokenCache(self.look_up, fresh_s, lambda: self.now)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_good_token_is_looked_up_once_in_a_while(asked: Asked) -> None:
    cache = asked.cache()
    assert cache.recent("secret") is None
    for now, questions in ((0.0, 1), (0.9, 1), (1.0, 2), (1.5, 2), (2.1, 3)):
        asked.now = now
        assert (cache.valid("secret"), asked.questions) == (ALICE, questions)
        assert cache.recent("secret") == ALICE


def test_a_revoked_token_is_refused_soon(asked: Asked) -> None:
    cache = asked.cache()
    assert cache.valid("secret") == ALICE
    asked.good.clear()
    asked.now = 0.99
    assert cache.valid("secret") == ALICE
    asked.now = 1.0
    assert cache.valid("secret") is None
    asked.now = 0.5  # and is not remembered from before either
    assert cache.recent("secret") is None


def test_a_wrong_token_is_never_remembered(asked: Asked) -> None:
    cache = asked.cache()
    assert cache.valid("guess") is None
    asked.good[digest_of("guess")] = ALICE
    assert (cache.valid("guess"), asked.questions) == (ALICE, 2)


def test_without_a_time_every_question_is_asked(asked: Asked) -> None:
    cache = asked.cache(fresh_s=0.0)
    assert [cache.valid("secret") for _ in range(3)] == [ALICE] * 3
    assert (asked.questions, cache.recent("secret")) == (3, None)


def test_a_slow_database_makes_no_token_good_for_longer(asked: Asked) -> None:
    def slow(digest: str) -> Token | None:
        asked.now += 0.8
        return ALICE

    cache = TokenCache(slow, 1.0, lambda: asked.now)
    cache.valid("secret")
    asked.now = 1.0
    assert cache.recent("secret") is None


def test_it_does_not_grow_without_end(asked: Asked) -> None:
    cache = asked.cache()
    for number in range(MOST_TOKENS + 1):
        asked.good[digest_of(str(number))] = ALICE
        cache.valid(str(number))
    assert cache.recent("0") is None
    assert cache.recent("1") == cache.recent(str(MOST_TOKENS)) == ALICE

"""Attacks on those who are let in: wrong tokens, and names of clients that are not true."""

from __future__ import annotations

from experiments.siege.attack import Attack, Finding, counted
from experiments.siege.ground import PEEPER, Target

WRONG = 40  # twice as many as one address may get wrong in a minute
PROXY = "127.0.0.9"  # which the camps trust
STRANGER = "127.0.0.77"  # whom they do not
GOOD_CLIENT, BAD_CLIENT = "198.51.100.7", "198.51.100.66"
GUESS = {"Authorization": "Bearer nas_0123456789abcdef0123456789abcdef"}
PATH = "/api/v1/jobs"


def wrong_tokens(target: Target) -> Finding:
    """Wrong tokens, and after them a good one from the same address."""
    wrong = [target.ask(None, "GET", PATH, headers=GUESS).status for _ in range(WRONG)]
    good = [target.ask(PEEPER, "GET", PATH).status for _ in range(3)]
    return _judged(wrong, good)


def behind_a_proxy(target: Target) -> Finding:
    """The same through a proxy that says who asks: the guesser is slowed down, others are not."""

    def through(client: str) -> dict[str, str]:
        return {"X-Forwarded-For": client}

    wrong = [
        target.ask(None, "GET", PATH, headers=GUESS | through(BAD_CLIENT), source=PROXY).status
        for _ in range(WRONG)
    ]
    good = [
        target.ask(PEEPER, "GET", PATH, headers=through(name), source=PROXY).status
        for name in (GOOD_CLIENT, BAD_CLIENT)
    ]
    first = target.ask(None, "GET", PATH, headers=GUESS | through(GOOD_CLIENT), source=PROXY)
    found = _judged(wrong, good)
    if first.status != "401":
        told = f"another client of the proxy is told {first.status} to its first wrong token"
        return Finding(found.told, (*found.problems, told))
    return found


def false_names(target: Target) -> Finding:
    """Wrong tokens of a client that nobody trusts, which names another client each time."""
    names = [{"X-Forwarded-For": f"203.0.113.{n}"} for n in range(WRONG)]
    wrong = [
        target.ask(None, "GET", PATH, headers=GUESS | name, source=STRANGER).status
        for name in names
    ]
    return _judged(wrong, [target.ask(PEEPER, "GET", PATH, source=STRANGER).status])


def _judged(wrong: list[str], good: list[str]) -> Finding:
    problems = []
    if set(wrong) - {"401", "429"}:
        problems.append(f"wrong tokens got {counted(wrong)}")
    if "429" not in wrong:
        problems.append(f"{len(wrong)} wrong tokens in a row were not slowed down")
    if set(good) != {"200"}:
        problems.append(f"good tokens got {counted(good)}")
    return Finding(f"wrong {counted(wrong)}; good {counted(good)}", tuple(problems))


ATTACKS = (
    Attack("wrong-tokens", "forty wrong tokens, then a good one", wrong_tokens),
    Attack("behind-a-proxy", "the same through a trusted proxy", behind_a_proxy),
    Attack("false-names", "wrong tokens under forwarded names, without a proxy", false_names),
)

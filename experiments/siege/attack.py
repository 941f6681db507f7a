"""What an attack is, and what it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from experiments.siege.ground import Ground

USUAL = "usual"
# Ways to say no to a request that asks for too much, or that never ends.
REFUSALS = ("400", "408", "413", "422", "429", "431", "503", "closed")


@dataclass(frozen=True, slots=True)
class Finding:
    """What an attack came to.

    Attributes:
        told: what it was answered with, in a few words.
        problems: what is not as it should be.
    """

    told: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack; it ends by itself, after a bounded number of requests and a bounded time.

    Attributes:
        name: to ask for it by.
        what: what is done, in a sentence.
        run: does it.
        camp: name of the service that it is made on, one of `experiments.siege.camps.CAMPS`.
        reads_wait: whether it takes away what reads need, so that only the health is held to time
            and reads may be refused with 503.
        postgres: whether it is for PostgreSQL alone.
    """

    name: str
    what: str
    run: Callable[[Ground], Finding]
    camp: str = USUAL
    reads_wait: bool = False
    postgres: bool = False


def counted(answers: Iterable[str]) -> str:
    """How often there was which answer: ``422 ×6, closed ×1``."""
    return ", ".join(f"{answer} ×{n}" for answer, n in sorted(Counter(answers).items()))


def refused(answers: Iterable[str], allowed: Iterable[str] = REFUSALS) -> Finding:
    """An attack of which every request has to be refused in one of the ways allowed."""
    given = list(answers)
    bad = [answer for answer in given if answer not in set(allowed)]
    problems = (f"not refused: {counted(bad)}",) if bad else ()
    return Finding(f"{'answered' if bad else 'refused'} {counted(given)}", problems)


def survived(answers: Iterable[str], problems: Iterable[str] = ()) -> Finding:
    """An attack whose requests may be answered with anything but a fault of the service."""
    given = list(answers)
    faults = [a for a in given if a == "no answer" or (a.startswith("5") and a != "503")]
    wrong = [*problems, *([f"faults: {counted(faults)}"] if faults else [])]
    return Finding(f"survived {counted(given)}" if given else "survived", tuple(wrong))

"""Evaluators from outside: quality and costs of networks by a table, a command, a Python object.

An *evaluator* is asked for networks in batches and answers with the quality of each: less is
better. It may say how noisy a quality is, what else the network costs, and that it failed.
`observe` asks it and takes every wrong answer for a failure of the networks it concerns, so that
one bad network, or an evaluator that breaks, never ends a search.

A network is a plain dict from gene to value, see `search_spaces.genes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from search_spaces.genes import Network

MOST_WORDS = 300  # of another's message that a failure repeats
LARGEST = 1e100  # a number that can still be squared and multiplied with others


@dataclass(frozen=True)
class Answer:
    """What an evaluator says about one network.

    Attributes:
        quality: less is better; None where the network failed.
        std: standard deviation of the quality, 0 where it is exact.
        costs: name → number, less is better; those that are only known by evaluating.
        failure: why the network has no quality, or None.
    """

    quality: float | None
    std: float = 0.0
    costs: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None

    @classmethod
    def failed(cls, reason: str) -> Answer:
        """The answer about a network that could not be evaluated."""
        return cls(None, failure=reason[:MOST_WORDS])


@dataclass(frozen=True)
class Question:
    """A network that an evaluator is asked for.

    Attributes:
        id: of the network.
        network: in its JSON form.
        costs: those that are known already.
    """

    id: str
    network: Mapping[str, Any]
    costs: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """What a worker is sent."""
        return {"network": self.network, "costs": self.costs}


class Evaluator(Protocol):
    """Tells what networks are worth.

    It may have three things more. ``batch`` is the number of networks that it is asked for at most
    at once, 1 where it does not say: what a search has been told is kept, what it was about to be
    told when it was killed is asked for again. ``costs`` is a method that tells costs of any
    networks without evaluating them, see `nas.run.evaluators.offered`. ``digest`` is a text or
    a whole number that says what version it is, see `version_of`: a run goes on with no other.
    """

    def evaluate(self, networks: Sequence[Network]) -> Sequence[Answer | float | Mapping[str, Any]]:
        """One answer for each network, in their order.

        Instead of an `Answer` it may give the quality alone, or a mapping with ``quality``,
        ``std``, ``costs`` and ``failure``, as far as they apply. What it raises counts as a
        failure.
        """


def version_of(digest: object) -> str | int | None:
    """The version that an attribute ``digest`` of an evaluator tells; None for other values.

    Whoever wrote the evaluator may call something else so.
    """
    return digest if isinstance(digest, str | int) else None


def observe(evaluator: Evaluator, networks: Sequence[Network]) -> list[Answer]:
    """Ask for networks and check what comes back.

    A batch that raises, or that is answered by another number of answers, is asked for once more,
    each network alone, so that one of them does not take the others along.

    Returns:
        One answer for each network: a quality up to `LARGEST` in size, or a failure that says what
        was wrong.

    Raises:
        TimeoutError: when the evaluator raises it, or whoever limits its time.
    """
    try:
        answers = list(evaluator.evaluate([dict(network) for network in networks]))
        problem = f"the evaluator gave {len(answers)} answers for {len(networks)} networks"
    except TimeoutError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error).strip().split("\n")[0]
        answers, problem = [], f"the evaluator raised {type(error).__name__}: {said}"
    if len(answers) == len(networks):
        return [_comparable(_checked(answer)) for answer in answers]
    if len(networks) == 1:
        return [Answer.failed(problem)]
    return [observe(evaluator, [network])[0] for network in networks]


def _checked(given: object) -> Answer:
    """An answer with a finite quality, or a failure."""
    if isinstance(given, Mapping):
        unknown = set(given) - {"quality", "std", "costs", "failure"}
        if unknown:
            return Answer.failed(f"the evaluator gave the unknown key {min(map(str, unknown))!r}")
        given = Answer(
            given.get("quality"),
            given.get("std", 0.0),
            given.get("costs", {}),
            given.get("failure"),
        )
    elif not isinstance(given, Answer):
        given = Answer(given)  # type: ignore[arg-type]
    if given.failure is not None:
        return Answer.failed(str(given.failure))
    quality = finite(given.quality)
    if quality is None:
        return Answer.failed(
            f"the evaluator gave no finite number as the quality: {given.quality!r}"
        )
    std = finite(given.std)
    if std is None or std < 0:
        return Answer.failed(f"the evaluator gave the standard deviation {given.std!r}")
    costs_given: object = given.costs
    if not isinstance(costs_given, Mapping):
        return Answer.failed(f"the evaluator gave the costs {given.costs!r}: not a mapping")
    costs = {str(name): finite(value) for name, value in costs_given.items()}
    wrong = [name for name, value in costs.items() if value is None]
    if wrong:
        return Answer.failed(f"the evaluator gave a cost {wrong[0]!r} that is not a number")
    return Answer(quality, std, {name: value for name, value in costs.items() if value is not None})


def _comparable(answer: Answer) -> Answer:
    """The same, or a failure where a number of it is too large."""
    costs = {f"cost {name!r}": value for name, value in answer.costs.items()}
    numbers = {"quality": answer.quality, "standard deviation": answer.std, **costs}
    for what, value in numbers.items():
        if value is not None and abs(value) > LARGEST:
            return Answer.failed(
                f"the evaluator gave {value:g} as the {what}, too large to be compared: of a "
                f"network that does not work it tells a failure, and no number beyond {LARGEST:g}"
            )
    return answer


def finite(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool | str | bytes):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None

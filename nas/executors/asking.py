"""Asks an evaluator of others, each network once: in this process a few at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout

from nas.executors.attempts import sentence, time_limit
from nas.executors.base import ExecutorSettings, Failure, Outcome
from nas.objectives import QUALITY
from nas.run.evaluators import Answer, Evaluator, Question, observe
from search_spaces.errors import UsageError
from search_spaces.wording import mark

# Two tellings of the same cost may differ by so much of it: by rounding.
SAME = 1e-6
STD = f"{QUALITY}_std"


def check_named(evaluator: Evaluator | None, where: ExecutorSettings) -> None:
    """Refuse an evaluator at hand where other processes would have to ask it.

    Raises:
        UsageError: saying so.
    """
    if evaluator is not None and where.kind != "local":
        raise UsageError(
            f"{mark('executor')} {where.kind} asks an evaluator that has a name, such as "
            "package.module:Name; one that is at hand is asked in this process"
        )


def batch_of(evaluator: Evaluator) -> int:
    """How many networks an evaluator is asked for at once.

    Raises:
        UsageError: when it says something else than a whole number of at least 1.
    """
    batch: object = getattr(evaluator, "batch", 1)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise UsageError(f"the evaluator's batch is a whole number of at least 1; it is {batch!r}")
    return batch


def asked(
    evaluator: Evaluator, questions: Sequence[Question], wanted: Sequence[str], timeout_s: float
) -> Iterator[list[Outcome]]:
    """What networks are worth, in their order.

    Args:
        evaluator: who tells.
        questions: what to ask.
        wanted: names of the costs that have to be known of each.
        timeout_s: for each network.

    Yields:
        The outcomes of the networks that were asked for together.
    """
    size = batch_of(evaluator)
    for start in range(0, len(questions), size):
        yield _in_time(evaluator, questions[start : start + size], wanted, timeout_s)


def _in_time(
    evaluator: Evaluator, questions: Sequence[Question], wanted: Sequence[str], timeout_s: float
) -> list[Outcome]:
    """What each is worth; where several take too long, each is asked for alone."""
    try:
        with time_limit(timeout_s * len(questions)):
            return told(evaluator, questions, wanted)
    except TimeoutError as error:
        if len(questions) == 1:
            return [Failure("timeout", sentence(error), 1)]
    return [_in_time(evaluator, [one], wanted, timeout_s)[0] for one in questions]


def told(
    evaluator: Evaluator, questions: Sequence[Question], wanted: Sequence[str]
) -> list[Outcome]:
    """What networks are worth that are asked for together, however long it takes; see `asked`.

    Raises:
        TimeoutError: when the evaluator raises it, or whoever limits its time.
    """
    with redirect_stdout(sys.stderr):  # what an evaluator prints is no part of what a command does
        answers = observe(evaluator, [one.network for one in questions])
    pairs = zip(answers, questions, strict=True)
    return [_outcome(answer, one.costs, wanted) for answer, one in pairs]


def _outcome(answer: Answer, known: Mapping[str, float], wanted: Sequence[str]) -> Outcome:
    if answer.failure is not None or answer.quality is None:
        reason = " ".join((answer.failure or "the evaluator told no quality").split())
        return Failure("error", reason, 1)
    costs: dict[str, float] = {}
    for name in wanted:
        value = known.get(name, answer.costs.get(name))
        if value is None:
            others = f"; it told {', '.join(answer.costs)}" if answer.costs else ""
            return Failure("error", f"the evaluator told no cost {name!r}{others}", 1)
        if value <= 0:
            return Failure("error", f"the evaluator gave the cost {name}={value:g}: not above 0", 1)
        other = answer.costs.get(name, value)
        if abs(other - value) > SAME * value:
            return Failure(
                "error", f"the evaluator gave {name}={other:g}, and {value:g} among its costs", 1
            )
        costs[name] = value
    return {QUALITY: answer.quality, **({STD: answer.std} if answer.std else {}), **costs}

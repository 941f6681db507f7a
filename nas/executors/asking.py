"""Asks an evaluator of others, each network once: in this process a few at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout

from nas.executors.attempts import sentence, time_limit
from nas.executors.base import Failure, Outcome
from nas.objectives import QUALITY
from nas.run.evaluators import Answer, Evaluator, observe
from search_spaces.errors import UsageError
from search_spaces.genotypes import Network

# Two tellings of the same cost may differ by so much of it: by rounding.
SAME = 1e-6
STD = f"{QUALITY}_std"


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
    evaluator: Evaluator,
    networks: Sequence[Network],
    costs: Sequence[Mapping[str, float]],
    wanted: Sequence[str],
    timeout_s: float,
) -> Iterator[list[Outcome]]:
    """What networks are worth, in their order.

    Args:
        evaluator: who tells.
        networks: to ask for.
        costs: of each network, those that are known already.
        wanted: names of the costs that have to be known of each.
        timeout_s: for each network.

    Yields:
        The outcomes of the networks that were asked for together.
    """
    size = batch_of(evaluator)
    for start in range(0, len(networks), size):
        part = slice(start, start + size)
        yield _in_time(evaluator, networks[part], costs[part], wanted, timeout_s)


def _in_time(
    evaluator: Evaluator,
    networks: Sequence[Network],
    costs: Sequence[Mapping[str, float]],
    wanted: Sequence[str],
    timeout_s: float,
) -> list[Outcome]:
    """What each is worth; where several take too long, each is asked for alone."""
    try:
        with time_limit(timeout_s * len(networks)):
            return told(evaluator, networks, costs, wanted)
    except TimeoutError as error:
        if len(networks) == 1:
            return [Failure("timeout", sentence(error), 1)]
    pairs = zip(networks, costs, strict=True)
    return [_in_time(evaluator, [n], [known], wanted, timeout_s)[0] for n, known in pairs]


def told(
    evaluator: Evaluator,
    networks: Sequence[Network],
    costs: Sequence[Mapping[str, float]],
    wanted: Sequence[str],
) -> list[Outcome]:
    """What networks are worth that are asked for together, however long it takes; see `asked`.

    Raises:
        TimeoutError: when the evaluator raises it, or whoever limits its time.
    """
    with redirect_stdout(sys.stderr):  # what an evaluator prints is no part of what a command does
        answers = observe(evaluator, [network.to_json() for network in networks])
    pairs = zip(answers, costs, strict=True)
    return [_outcome(answer, known, wanted) for answer, known in pairs]


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

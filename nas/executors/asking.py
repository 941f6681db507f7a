"""Asks an evaluator of others, a few networks at a time, each once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

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
        answers = _answers(evaluator, [n.to_json() for n in networks[part]], timeout_s)
        yield [
            answer if isinstance(answer, Failure) else _outcome(answer, known, wanted)
            for answer, known in zip(answers, costs[part], strict=True)
        ]


def _answers(
    evaluator: Evaluator, networks: Sequence[Mapping[str, Any]], timeout_s: float
) -> list[Answer | Failure]:
    """An answer about each; where several take too long, each is asked for alone."""
    try:
        # What an evaluator prints is no part of what the command does.
        with time_limit(timeout_s * len(networks)), redirect_stdout(sys.stderr):
            return [*observe(evaluator, networks)]
    except TimeoutError as error:
        if len(networks) == 1:
            return [Failure("timeout", sentence(error), 1)]
    return [_answers(evaluator, [network], timeout_s)[0] for network in networks]


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

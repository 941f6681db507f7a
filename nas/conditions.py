"""Conditions on measured values, as ``--pick`` takes them: ``latency_ms<=12,params<=2e5``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nas.objectives import OBJECTIVES
from search_spaces.errors import UnknownNameError, UsageError

# What is measured beside the objectives; of these scores more is better.
MORE_IS_BETTER = ("valid_accuracy", "valid_bleu")
NAMES = (*OBJECTIVES, "valid_loss", *MORE_IS_BETTER)

_FORM = re.compile(r"\s*([\w.]+)\s*(<=|>=|≤|≥|=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A measured value is at most (or, of a score, at least) a bound."""

    name: str
    bound: float

    @property
    def at_least(self) -> bool:
        """Whether more is better."""
        return self.name in MORE_IS_BETTER

    def __str__(self) -> str:
        return f"{self.name} {'≥' if self.at_least else '≤'} {self.bound:g}"

    def missed_by(self, measured: Mapping[str, float]) -> float:
        """By how much a network misses it, as a share of the bound; 0 where it is met."""
        difference = measured[self.name] - self.bound
        missed = max(0.0, -difference if self.at_least else difference)
        return missed / (abs(self.bound) or 1.0)


def is_condition(text: str) -> bool:
    """Whether a text is meant to be a condition, and not a word or an id."""
    return any(sign in text for sign in "<>=≤≥")


def read_conditions(text: str) -> tuple[Condition, ...]:
    """``latency_ms<=12,params<=2e5`` → two conditions; ``=`` is the side that makes sense.

    Raises:
        UsageError: for another form, a bound that is no number, or the side that nobody wants.
        UnknownNameError: for a value that is not measured, naming the nearest.
    """
    read = tuple(_condition(part) for part in text.split(","))
    names = [condition.name for condition in read]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} has two conditions in {text!r}; one is enough")
    return read


def _condition(text: str) -> Condition:
    match = _FORM.fullmatch(text)
    bound = _number(match[3]) if match else None
    if match is None or bound is None:
        raise UsageError(
            f"a condition is NAME<=NUMBER, for example latency_ms<=12; given {text.strip()!r}"
        )
    name, sign = match[1], match[2]
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnknownNameError(f"no {name!r} is measured{hint} (there are {', '.join(NAMES)})")
    condition = Condition(name, bound)
    if sign in ("<=", "≤", "<", ">=", "≥", ">") and condition.at_least != (sign in ">=≥"):
        better = "more" if condition.at_least else "less"
        raise UsageError(f"of {name} {better} is better: ask for {str(condition).replace(' ', '')}")
    return condition


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def joined(conditions: Sequence[Condition]) -> str:
    """``latency_ms ≤ 12 and params ≤ 200000``."""
    return " and ".join(map(str, conditions))

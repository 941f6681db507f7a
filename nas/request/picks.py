"""The vocabulary of picks: how a network of a front is chosen.

A pick is a word of `WORDS`, conditions on values (``latency_ms<=12,params<=2e5``), or the id of a
network or its first letters. `read_pick` is the only parser; `nas.search.front.pick` finds the
network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nas.objectives import (
    MORE_IS_BETTER,
    OBJECTIVES,
    QUALITIES,
    QUALITY,
    SCORES,
    Quality,
    QualityMetric,
)
from nas.request.fields import nearest
from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.tasks import TaskName
from search_spaces.wording import mark

SENSIBLE, BEST, KNEE, CHEAPEST = "sensible", "best", "knee", "cheapest"
# Word → the network that it names, for people.
WORDS: Mapping[str, str] = {
    SENSIBLE: "the lowest cost within 1 % of the best",
    BEST: "the lowest loss",
    KNEE: "the knee of the front, a compromise",
    CHEAPEST: "the lowest cost",
}
SAVING = "1.5x"  # where a search begins with a checkpoint, whose own loss nothing beats
METAVAR = f"{'|'.join(WORDS)}|{SAVING}|CONDITIONS|ID"
HELP = (
    "The network to train after the search: the cheapest whose quality is within 1 % of the best "
    "(sensible), the lowest loss, the best compromise, the lowest cost, the best that is so many "
    "times cheaper than the checkpoint, or without one than the lowest loss (1.5x), the best that "
    "meets conditions ('latency_ms<=12,params<=2e5', 'quality<=0.35'), an id."
)
SHORTEST_ID, LONGEST_ID = 4, 12

NAMES = (*OBJECTIVES, *SCORES)
# Scores that networks have whatever quality is, where their task has them.
USUAL: tuple[QualityMetric, ...] = (
    "loss",
    "accuracy",
    "recall_nats",
    "similarity",
    "recall_at_10",
)

_TIMES = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)x")
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


@dataclass(frozen=True, slots=True)
class Pick:
    """One way to choose a network.

    Attributes:
        text: as given; a word of `WORDS` or the first letters of an id where there is no condition.
        conditions: what the network has to meet.
    """

    text: str
    conditions: tuple[Condition, ...] = ()

    def reason(self, quality: Quality, *, begun: bool) -> str:
        """Why the network was chosen, for people.

        Args:
            quality: what quality is.
            begun: the search has a checkpoint, from which a saving counts.
        """
        if self.conditions:
            return f"asked for with {joined(self.conditions)}"
        if self.text == BEST:
            return quality.winner
        if (times := saving_of(self.text)) is not None:
            whole = "the checkpoint" if begun else "the one with the lowest loss"
            return f"the best that costs {times:g} times less than {whole}, or else the cheapest"
        return WORDS.get(self.text, "asked for by its id")

    def check_measured(
        self, asked: Collection[str], quality: QualityMetric, *, counted: bool = True
    ) -> None:
        """Refuse conditions on what a search does not measure.

        Args:
            asked: its objectives, and what it limits.
            quality: what its quality is.
            counted: whether its networks are this project's, whose `Objective.always` are counted
                whatever is asked for; those of an evaluator have the costs alone that it tells.

        Raises:
            UsageError: naming the condition and what to ask for instead.
        """
        for condition in self.conditions:
            one = OBJECTIVES.get(condition.name)
            known = one is None or one.name in (QUALITY, *asked) or (counted and one.always)
            if not known:
                raise UsageError(
                    f"{mark('pick')} asks for {condition}, which this search does not measure: "
                    f"add {condition.name} to {mark('objectives')}"
                )
            if condition.name == "valid_loss" and quality == "loss":
                raise UsageError(
                    f"{mark('pick')} asks for {condition}, and this search does not: quality is "
                    "the validation loss"
                )


def check_scored(
    pick: Pick,
    task: TaskName | None,
    quality: QualityMetric = "loss",
    *,
    windowed: bool = True,
) -> None:
    """Refuse conditions on scores that networks of a search do not have.

    Args:
        pick: what is asked for.
        task: what the networks do; None for those of an evaluator, which have no scores.
        quality: what their quality is.
        windowed: there is a window beyond which tokens count as recalled.

    Raises:
        UsageError: naming the condition and why.
    """
    scores = {one.measured_name: one for one in QUALITIES.values()}
    for condition in pick.conditions:
        score = scores.get(condition.name)
        if score is None:
            continue
        measured = task in score.tasks and score.name in (quality, *USUAL)
        if measured and (windowed or score.name != "recall_nats"):
            continue
        if task is None:
            other = "an evaluator tells quality and costs alone"
        elif measured:
            other = (
                "its space has no window beyond which tokens count as recalled; set recall_window "
                "in its [data] table, or offer layers with a window"
            )
        elif task in score.tasks:
            other = f"it is measured with {mark('quality')} {score.name}"
        else:
            others = " and ".join(score.tasks).replace("_", " ")
            other = f"it is a score of {others}, and not of {task.replace('_', ' ')}"
        raise UsageError(f"{mark('pick')} asks for {condition}, and this search does not: {other}")


def read_pick(text: str, more: Collection[str] = ()) -> Pick:
    """A way to choose a network, as far as it can be told wrong before there is a front.

    Args:
        text: as given.
        more: names of costs that an evaluator tells, on which there may be conditions.

    Raises:
        UsageError: when it is neither a word known here, nor conditions, nor an id.
        UnknownNameError: for a condition on what is not measured.
    """
    if conditions := conditions_of(text, more):
        return Pick(text, conditions)
    is_id = re.fullmatch(f"[0-9a-f]{{{SHORTEST_ID},{LONGEST_ID}}}", text)
    if text in WORDS or saving_of(text) is not None or is_id:
        return Pick(text)
    raise UsageError(
        f"{mark('pick')} takes {', '.join(WORDS)}, a saving such as {SAVING}, a condition such as "
        f"'params<=2e5' or the id of a network; given {text!r}"
    )


def saving_of(text: str) -> float | None:
    """How many times cheaper a network is wanted than the whole; None for another pick."""
    found = _TIMES.fullmatch(text)
    return float(found[1]) if found is not None and float(found[1]) >= 1.0 else None


def saves(value: float, whole: float, times: float, *, maximise: bool = False) -> bool:
    """Whether a cost is so many times lower than another; a rate so many times higher."""
    return value >= times * whole if maximise else value * times <= whole


def conditions_of(text: str, more: Collection[str] = ()) -> tuple[Condition, ...]:
    """The conditions of a pick; none where it is a word or an id, which have no comparison."""
    return read_conditions(text, more) if any(sign in text for sign in "<>=≤≥") else ()


def read_conditions(text: str, more: Collection[str] = ()) -> tuple[Condition, ...]:
    """``latency_ms<=12,params<=2e5`` → two conditions; ``=`` is the side that makes sense.

    Raises:
        UsageError: for another form, a bound that is no number, or the side that nobody wants.
        UnknownNameError: for a value that is not measured, naming the nearest.
    """
    known = tuple(dict.fromkeys((*NAMES, *more)))
    read = tuple(_condition(part, known) for part in text.split(","))
    names = [condition.name for condition in read]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} has two conditions in {text!r}; one is enough")
    return read


def _condition(text: str, known: Collection[str]) -> Condition:
    match = _FORM.fullmatch(text)
    bound = _number(match[3]) if match else None
    if match is None or bound is None:
        raise UsageError(
            f"a condition is NAME<=NUMBER, for example latency_ms<=12; given {text.strip()!r}"
        )
    name, sign = match[1], match[2]
    if name not in known:
        hint = nearest(name, known)
        raise UnknownNameError(f"no {name!r} is measured{hint} (there are {', '.join(known)})")
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

"""Decides whether a noisy measurement satisfies a limit.

A single timing is no proof. Candidates are taken by an upper confidence bound of the prediction.
What is on the front under a limit is timed again in several short sessions, each with the networks
built anew beside a reference, and is judged by an upper confidence bound of the median session.
Where nothing can be timed, because the device is another one, the prediction
has to keep the limit with a larger margin.

Why sessions: within one, rounds repeat each other, but where a network's tensors lie in memory
and what else the machine does stay as they are. On a shared processor, with more work than cores,
sessions of 5 rounds scatter as much as sessions of 15 (3.5 and 3.2 %, median of the rounds'
ratios), so eight short ones tell more than two long ones: their median scatters by 1.2 %.

Why all of the front, and not only what was measured near the limit: on the same machine a slow
spell once made a network's single measurement 0.39 of what it took afterwards, and another one,
measured at 0.77 of its limit, took 1.11 of it (`experiments.limits_hold`).

What is timed while other work disturbs the machine is timed again later, and what never was calm
is doubtful, see `latency.acceptance`: it keeps only a limit that is `DOUBT` times as large. A limit
far above all times would else leave out whatever was timed in a bad moment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from nas.objectives import LATENCY, OBJECTIVES, TIMED, uncertainty_name
from search_spaces.json_text import finite_number

# Standard deviations on top of a prediction: where finalists are measured afterwards a candidate
# that breaks the limit only costs its measurement; where they are not it would be wrong.
MEASURED_STDS = 1.0
PREDICTED_STDS = 2.0

SESSIONS = 8
CONFIDENCE = 0.95
# The worst single timing that was seen said 0.39 of what the network took afterwards.
DOUBT = 3.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfirmedLatency:
    """The time of a network that was timed in several sessions.

    Attributes:
        latency_ms: of the median session.
        upper_ms: the true median is below with a confidence of at least 95 %.
        sessions: how many.
        doubtful: why the times should not be believed; empty where nothing speaks against them.
    """

    latency_ms: float
    upper_ms: float
    sessions: int
    doubtful: str = ""

    def values(self, name: str = LATENCY) -> dict[str, float]:
        """As they stand among what was measured of a network for a timed objective."""
        return {name: self.latency_ms, OBJECTIVES[name].upper_name: self.upper_ms}

    def to_json(self, architecture_id: str, name: str = LATENCY) -> dict[str, Any]:
        """A line of the journal."""
        return {
            "id": architecture_id,
            **self.values(name),
            "sessions": self.sessions,
            **({"doubtful": self.doubtful} if self.doubtful else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> tuple[str, str, Self]:
        """A line of the journal.

        Returns:
            The architecture's id, the objective that was timed, and what `to_json` was called on.
        """
        name = next(name for name in TIMED if name in data)
        value, upper = finite_number(data[name]), finite_number(data[OBJECTIVES[name].upper_name])
        doubtful = str(data.get("doubtful", ""))
        return str(data["id"]), name, cls(value, upper, int(data["sessions"]), doubtful)


@dataclass(frozen=True)
class Timed(Generic[T]):
    """What the timer said of some networks.

    Attributes:
        values: one for each network, in order; what should not be believed says so.
        repeated: sessions of the timer that were disturbed and done again.
        waited_s: for the machine to become quiet.
        shorter: factor by which times that were told before are too long, since the machine has
            meanwhile shown to be faster; 1 where it has not.
        slower: factor by which the machine was slower than it has been in earlier searches, when
            the unit of these times was set; 1 where it was not.
    """

    values: tuple[T, ...]
    repeated: int = 0
    waited_s: float = 0.0
    shorter: float = 1.0
    slower: float = 1.0


def upper_rank(count: int) -> int:
    """Which of `count` values, sorted and counted from 1, bounds their median from above.

    The number of values below the median is binomial, whatever they are spread like: of eight,
    the seventh is above the median with a probability of 1 - 9/256, or 96.5 %.

    Returns:
        The smallest rank with a confidence of at least 95 %; `count` where even the largest value
        has less, which takes fewer than five.

    Source: David and Nagaraja, Order Statistics (2003), section 7.1.
    """
    total = 0.0
    for rank in range(1, count + 1):
        total += math.comb(count, rank - 1) / 2**count
        if total >= CONFIDENCE:
            return rank
    return count


def upper_of_median(values: Sequence[float]) -> float:
    """The value of that rank."""
    return sorted(values)[upper_rank(len(values)) - 1]


def upper_value(measured: Mapping[str, float], predicted: Mapping[str, float], name: str) -> float:
    """What a limit on `name` is held against: the largest value that has to be expected.

    Of a value that is to be maximised that is the smallest, as one of which less is better, see
    `nas.objectives.base.Objective.minimised`.

    Args:
        measured: of a network; of what was timed in sessions, their upper bound is taken.
        predicted: of the network; stands in, with its margin, for what is not measured.
        name: of an objective.
    """
    one = OBJECTIVES[name]
    if name in measured:
        return one.minimised(measured.get(one.upper_name, measured[name]))
    std = predicted.get(uncertainty_name(name), 0.0)
    return one.largest(predicted[name], std, PREDICTED_STDS)


def keeps(
    measured: Mapping[str, float],
    predicted: Mapping[str, float],
    limits: Mapping[str, float],
    doubtful: Collection[str] = (),
) -> bool:
    """Whether a network keeps all limits; a doubtful value with a margin of `DOUBT`."""

    def margin(name: str) -> float:
        return DOUBT if name in doubtful else 1.0

    return all(
        margin(name) * upper_value(measured, predicted, name) <= OBJECTIVES[name].minimised(most)
        for name, most in limits.items()
    )

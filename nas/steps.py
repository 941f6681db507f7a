"""What a step along the front costs: from each network to the next dearer one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nas.objectives import QUALITY
from nas.search.front import Front, FrontEntry, pick


@dataclass(frozen=True)
class Change:
    """How a value changes: absolutely, and as a share of what it was (None from 0)."""

    absolute: float
    share: float | None


@dataclass(frozen=True)
class Step:
    """From one network of the front to the next.

    Attributes:
        start: the cheaper network.
        end: the dearer one.
        changes: objective → how it changes on the way.
    """

    start: FrontEntry
    end: FrontEntry
    changes: Mapping[str, Change]


def by_cost(front: Front) -> list[FrontEntry]:
    """The networks of the front, the cheapest (by the first cost) first."""
    cost = front.objectives[1].name
    return sorted(front.entries, key=lambda e: (e.value(cost), -e.value(QUALITY), e.id))


def steps(front: Front) -> list[Step]:
    """All steps from the cheapest network to the dearest."""
    ordered = by_cost(front)
    names = [objective.name for objective in front.objectives]
    return [
        Step(a, b, {name: _change(a.value(name), b.value(name)) for name in names})
        for a, b in pairwise(ordered)
    ]


def landmarks(front: Front) -> dict[str, str]:
    """``knee``, ``best`` and ``cheapest`` → id."""
    return {how: pick(front, how).id for how in ("cheapest", "knee", "best")}


def steps_json(front: Front) -> list[dict[str, Any]]:
    """The steps as plain JSON."""
    return [
        {
            "from": step.start.id,
            "to": step.end.id,
            "changes": {
                name: {"absolute": change.absolute, "share": change.share}
                for name, change in step.changes.items()
            },
        }
        for step in steps(front)
    ]


def _change(before: float, after: float) -> Change:
    share = (after - before) / abs(before) if before else None
    return Change(after - before, share)

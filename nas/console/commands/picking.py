"""Help with choosing from the front, and what each step along it costs: `nas show RUN --pick`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.table import Table
from typer.core import TyperCommand

from nas.console.formatting import NOTHING, compact
from nas.console.tables import PICKED, front_cells, table
from nas.objectives import OBJECTIVES, QUALITY
from nas.request.picks import WORDS
from nas.search.front import Front, FrontEntry, pick
from search_spaces.errors import UsageError

STEPS = "steps"
FRONT = "front"


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
    return sorted(front.entries, key=lambda e: (e.minimised(cost), -e.value(QUALITY), e.id))


def steps(front: Front) -> list[Step]:
    """All steps from the cheapest network to the dearest."""
    ordered = by_cost(front)
    names = [objective.name for objective in front.objectives]
    return [
        Step(a, b, {name: _change(a.value(name), b.value(name)) for name in names})
        for a, b in pairwise(ordered)
    ]


def named_picks(front: Front) -> dict[str, str]:
    """The words of a pick → id of the network that each names."""
    return {how: pick(front, how).id for how in WORDS}


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


class OptionalPick(TyperCommand):
    """A command whose ``--pick`` may stand without a value: then it shows the whole front."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a lone ``--pick`` its value."""
        following = [*args[1:], "--"]
        filled = [
            f"--pick={STEPS}" if one == "--pick" and after.startswith("-") else one
            for one, after in zip(args, following, strict=False)
        ]
        return super().parse_args(ctx, filled)


def chosen(front: Front, how: str) -> FrontEntry | None:
    """What ``--pick HOW`` names; None for the whole front."""
    return None if how == STEPS else pick(front, how)


def winners(front: Front, hows: Sequence[str], top: int | None) -> list[str]:
    """The ids of the networks to retrain, each once.

    Args:
        front: where from.
        hows: each as `nas.search.front.pick`, or ``front`` for all.
        top: of all only so many, those with the best quality.

    Raises:
        UsageError: for a number of something else, or a network that is not there.
    """
    if top is not None and FRONT not in hows:
        raise UsageError(
            f"--top {top} is for --pick front: the best of the front; --pick {hows[0]} is one "
            "network"
        )
    ordered = sorted(front.entries, key=lambda entry: (entry.measured[QUALITY], entry.id))
    best = [entry.id for entry in ordered[:top]]
    ids = [one for how in hows for one in (best if how == FRONT else [pick(front, how).id])]
    return list(dict.fromkeys(ids))


def picking_json(front: Front, how: str) -> dict[str, Any]:
    """The picked network, the named picks and the steps, for scripts."""
    entry = chosen(front, how)
    return {
        "pick": None if entry is None else how,
        "picked": None if entry is None else entry.to_json(),
        "landmarks": named_picks(front),
        "steps": steps_json(front),
    }


def step_table(front: Front, picked: str | None) -> Table:
    """The front from the cheapest network to the dearest: what each step costs and brings."""
    names = [objective.name for objective in front.objectives]
    shown = front_cells(front, names)
    short = {one.name: one.head for one in front.objectives}
    changes = [part for name in names for part in (f"Δ {short[name]}", f"Δ %\n{short[name]}")]
    columns = ["", "id", *shown, *changes, "is"]
    made = table(
        "From the cheapest to the best",
        columns,
        right=["id", *shown, *changes],
        spare=[title for title in reversed(changes) if "%" in title],
    )
    marks = {id_: [] for id_ in named_picks(front).values()}  # type: dict[str, list[str]]
    for word, id_ in named_picks(front).items():
        marks[id_].append(word)
    before: Sequence[Step | None] = [None, *steps(front)]
    for entry, step in zip(by_cost(front), before, strict=True):
        cells = [cell(entry) for cell in shown.values()]
        differences = [text for name in names for text in _difference(name, step)]
        mark = PICKED if entry.id == picked else ""
        made.add_row(mark, entry.id, *cells, *differences, ", ".join(marks.get(entry.id, [])))
    return made


def _difference(name: str, step: Step | None) -> tuple[str, str]:
    """The change and its share in percent."""
    if step is None:
        return "", ""
    change: Change = step.changes[name]
    digits = 4 if name == QUALITY else 2
    small = name != QUALITY and abs(change.absolute) < 1  # as the costs themselves are written
    absolute = f"{change.absolute:+.3g}" if small else f"{change.absolute:+.{digits}f}"
    if OBJECTIVES[name].whole:
        absolute = ("-" if change.absolute < 0 else "+") + compact(abs(change.absolute))
    return absolute, NOTHING if change.share is None else f"{100 * change.share:+.1f}"

"""Help with choosing from the front: `nas show RUN --pick`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from typer.core import TyperCommand

from nas.cli.tables import PICKED, front_cells, table
from nas.cli.wording import NOTHING, compact
from nas.conditions import is_condition, read_conditions
from nas.objectives import OBJECTIVES, QUALITY
from nas.run.spec import SearchSpec
from nas.search.front import Front, FrontEntry, pick
from nas.steps import Change, Step, by_cost, landmarks, steps, steps_json
from search_spaces.errors import UsageError

STEPS = "steps"
FRONT = "front"


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


def check_pick(spec: SearchSpec) -> None:
    """Refuse a pick by a value that this search will not measure.

    Raises:
        UsageError: naming it and what asks for it.
    """
    if not is_condition(spec.pick):
        return
    for condition in read_conditions(spec.pick):
        cost = OBJECTIVES.get(condition.name)
        if cost is not None and cost.predicted and not spec.asks_for(cost.name):
            raise UsageError(
                f"--pick asks for {condition}, and this search does not measure that: add "
                f"{cost.name} to --objectives"
            )
        if condition.name in ("valid_bleu", "valid_loss") and spec.quality == "loss":
            other = (
                "quality is the validation loss"
                if condition.name == "valid_loss"
                else ("BLEU is measured with --quality bleu")
            )
            raise UsageError(f"--pick asks for {condition}, and this search does not: {other}")


def chosen(front: Front, how: str) -> FrontEntry | None:
    """What ``--pick HOW`` names; None for the whole front."""
    return None if how == STEPS else pick(front, how)


def winners(front: Front, how: str, top: int | None) -> list[str]:
    """The ids of the networks to retrain.

    Args:
        front: where from.
        how: as `nas.search.front.pick`, or ``front`` for all.
        top: of all only so many, those with the best quality.

    Raises:
        UsageError: for a number of something else, or a network that is not there.
    """
    if how == FRONT:
        ordered = sorted(front.entries, key=lambda entry: (entry.measured[QUALITY], entry.id))
        return [entry.id for entry in ordered[:top]]
    if top is not None:
        raise UsageError(
            f"--top {top} is for --pick front: the best of the front; --pick {how} is one network"
        )
    return [pick(front, how).id]


def picking_json(front: Front, how: str) -> dict[str, Any]:
    """The picked network, the landmarks and the steps, for scripts."""
    entry = chosen(front, how)
    return {
        "pick": None if entry is None else how,
        "picked": None if entry is None else entry.to_json(),
        "landmarks": landmarks(front),
        "steps": steps_json(front),
    }


def step_table(front: Front, picked: str | None) -> Table:
    """The front from the cheapest network to the dearest: what each step costs and brings."""
    names = [objective.name for objective in front.objectives]
    shown = front_cells(front, names)
    changes = [title for name in names for title in (f"Δ {_short(name)}", f"Δ %\n{_short(name)}")]
    columns = ["", "id", *shown, *changes, "is"]
    made = table(
        "From the cheapest to the best",
        columns,
        right=["id", *shown, *changes],
        spare=[title for title in reversed(changes) if "%" in title],
    )
    marks = {id_: [] for id_ in landmarks(front).values()}  # type: dict[str, list[str]]
    for word, id_ in landmarks(front).items():
        marks[id_].append(word)
    before: Sequence[Step | None] = [None, *steps(front)]
    for entry, step in zip(by_cost(front), before, strict=True):
        cells = [cell(entry) for cell in shown.values()]
        differences = [text for name in names for text in _difference(name, step)]
        mark = PICKED if entry.id == picked else ""
        made.add_row(mark, entry.id, *cells, *differences, ", ".join(marks.get(entry.id, [])))
    return made


def _short(name: str) -> str:
    return OBJECTIVES[name].head


def _difference(name: str, step: Step | None) -> tuple[str, str]:
    """The change and its share in percent."""
    if step is None:
        return "", ""
    change: Change = step.changes[name]
    digits = 4 if name == QUALITY else 2
    absolute = f"{change.absolute:+.{digits}f}"
    if OBJECTIVES[name].whole:
        absolute = ("-" if change.absolute < 0 else "+") + compact(abs(change.absolute))
    return absolute, NOTHING if change.share is None else f"{100 * change.share:+.1f}"

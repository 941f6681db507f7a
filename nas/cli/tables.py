"""The tables the command prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import JustifyMethod
from rich.table import Table

from nas.cli.scores import called, digits, headline, test_score
from nas.cli.sheets import Folding, Sheet
from nas.cli.wording import NOTHING, compact, decimal, duration, milliseconds, network
from nas.objectives import LISTED_COSTS, OBJECTIVES, QUALITY, Objective
from nas.search.doubts import marked
from nas.search.front import Front, FrontEntry
from search_spaces.costs import Cost
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    from nas.executors.board import WorkerState
    from nas.outcomes import FailedNetwork
    from nas.search.sensitivity import Feature

PICKED = "★"


def table(
    title: str,
    columns: Sequence[str],
    right: Iterable[str] = (),
    *,
    whole: Iterable[str] = (),
    spare: Sequence[str] = (),
) -> Sheet:
    """An empty table, which is never cut.

    Args:
        title: above it; empty for none.
        columns: headings.
        right: the columns that hold numbers: on the right, and never folded.
        whole: other columns whose cells are never folded: names and ids.
        spare: columns that are left out in a narrow terminal, those to go first first.
    """
    made = Sheet(title, spare)
    numbers, unfolded = set(right), set(whole)
    for column in columns:
        justify: JustifyMethod = "right" if column in numbers else "left"
        made.add_column(column, justify=justify, no_wrap=column in numbers | unfolded)
    return made


def front_table(front: Front, picked: str | None, title: str | None = None) -> Table:
    """The Pareto front: one line for each network, predictions beside measurements.

    A narrow terminal shows the ids, the objectives and the networks.

    Args:
        front: the front of a run.
        picked: id of the network that is marked, if any.
        title: in place of the usual one.
    """
    shown = _front_columns(front)
    kept = {_front_titles(front).get(objective.name) for objective in front.objectives}
    predictions = ["pred. ms", "predicted"]
    others = [name for name in reversed(shown) if name not in {*kept, *predictions}]
    columns = ["", "id", *shown, "network"]
    made = table(
        title or _front_title(front), columns, ["id", *shown], spare=[*predictions, *others]
    )
    for entry in front.entries:
        cells = [cell(entry) for cell in shown.values()]
        mark = PICKED if entry.id == picked else ""
        made.add_row(mark, entry.id, *cells, Folding(network(entry.architecture)))
    return made


def _front_title(front: Front) -> str:
    names = " and ".join(objective.name for objective in front.objectives)
    count = f"{len(front.entries)} network" + ("" if len(front.entries) == 1 else "s")
    title = f"Pareto front of {names}: {count}, hypervolume {front.hypervolume:.4f}"
    for name, device in front.predicted_for.items():
        title += f"\n{name} with ± is not measured: predicted for {device}, with its deviation"
    return title


def workers_table(workers: Iterable[WorkerState], now: float) -> Table:
    """What each worker does, and for how long; `now` in seconds since 1970."""
    columns = ["worker", "machine", "process", "does", "network", "for", "done", "failed", "lost"]
    numbers = ["process", "for", "done", "failed", "lost"]
    spare = ["process", "machine", "lost", "for"]
    made = table("Workers", columns, numbers, whole=["worker", "machine", "network"], spare=spare)
    for one in workers:
        place = (one.host or NOTHING, str(one.pid or NOTHING))
        counts = (str(one.done), str(one.failed), str(one.lost))
        lasting = duration(max(0.0, now - one.since))
        made.add_row(one.name, *place, one.doing, one.network or NOTHING, lasting, *counts)
    return made


def failed_table(networks: Iterable[FailedNetwork]) -> Table:
    """The networks that could not be evaluated, and why."""
    made = table("Could not be evaluated", ["id", "what", "tries", "reason"], right=["tries"])
    for one in networks:
        failure = one.failure
        made.add_row(one.architecture.id, failure.kind, str(failure.tries), failure.reason)
    return made


def front_cells(front: Front, names: Sequence[str]) -> dict[str, Callable[[FrontEntry], str]]:
    """Title → cell of the columns of these objectives."""
    titles, columns = _front_titles(front), _front_columns(front)
    return {titles[name]: columns[titles[name]] for name in names}


def _front_titles(front: Front) -> dict[str, str]:
    """Objective → title of its column."""
    return {name: one.head for name, one in OBJECTIVES.items()} | {QUALITY: _quality_title(front)}


def _quality_title(front: Front) -> str:
    return "100−BLEU" if any("valid_bleu" in e.measured for e in front.entries) else "loss"


def _front_columns(front: Front) -> dict[str, Callable[[FrontEntry], str]]:
    """Title → cell of the columns that have something to show."""
    by_bleu = any("valid_bleu" in entry.measured for entry in front.entries)
    of_texts = any(entry.architecture.decoder for entry in front.entries)
    columns: dict[str, Callable[[FrontEntry], str]] = {
        _quality_title(front): lambda entry: decimal(entry.measured.get(QUALITY), 4),
        "predicted": lambda entry: decimal(entry.predicted.get(QUALITY), 4),
        **({"loss": lambda entry: decimal(entry.measured.get("valid_loss"), 4)} if by_bleu else {}),
        "tokens right" if of_texts else "accuracy": lambda entry: decimal(
            entry.measured.get("valid_accuracy"), 4
        ),
    }
    known = {name for entry in front.entries for name in entry.values}
    for one in [OBJECTIVES[name] for name in LISTED_COSTS if name in known]:
        columns[one.head] = partial(_cost_cell, one)
        if one.timed and any(one.name in entry.measured for entry in front.entries):
            columns[f"pred. {one.head}"] = partial(_predicted_cell, one)
    return columns


def _predicted_cell(cost: Objective, entry: FrontEntry) -> str:
    return milliseconds(entry.predicted.get(cost.name))


def _cost_cell(cost: Objective, entry: FrontEntry) -> str:
    if cost.whole:
        return compact(entry.measured.get(cost.name))
    return _or_predicted(entry, cost.name)


def _or_predicted(entry: FrontEntry, name: str) -> str:
    """A measured value, marked if doubtful, or the predicted one with its standard deviation."""
    if name in entry.measured or name not in entry.predicted:
        return marked(milliseconds(entry.measured.get(name)), name, entry.doubtful)
    deviation = milliseconds(entry.predicted.get(OBJECTIVES[name].std_name))
    return f"{milliseconds(entry.predicted[name])} ± {deviation}"


def stage_table(stages: Iterable[tuple[str, str, float | None]]) -> Table:
    """Stages of a run: name, state, seconds."""
    made = table("Stages", ["stage", "state", "time"], right=["time"], whole=["stage"])
    for name, state, seconds in stages:
        made.add_row(name, state, duration(seconds))
    return made


def feature_table(title: str, features: Iterable[Feature]) -> Table:
    """The most important features of an objective: share and direction."""
    made = table(title, ["", "feature", "share", "direction"], right=["", "share"])
    for place, one in enumerate(features, start=1):
        made.add_row(str(place), one.name, f"{100 * one.share:.1f} %", one.direction)
    return made


def retrained_table(results: Iterable[Mapping[str, Any]]) -> Table:
    """Networks trained from scratch, with their one score on the test split."""
    results = list(results)
    score = next((found for result in results if (found := headline(result))), "accuracy")
    numbers = ["test", f"valid {called(score)}", "valid loss", "params", "epochs"]
    spare = ["epochs", "params", "valid loss"]
    made = table("Trained from scratch", ["id", *numbers], numbers, whole=["id"], spare=spare)
    for result in results:
        made.add_row(
            str(result.get("id", NOTHING)),
            test_score(result),
            decimal(result.get(f"valid_{score}"), digits(score)),
            decimal(result.get("valid_loss"), 4),
            compact(result.get("params")),
            str(result.get("epochs", NOTHING)),
        )
    return made


def cost_table(cost: Cost, title: str) -> Table:
    """Parameters and operations of every part of a network, and their sums."""
    made = table(title, ["part", "params", "FLOPs"], right=["params", "FLOPs"])
    for part in cost.parts:
        made.add_row(part.name, f"{part.params:,}", f"{part.flops:,}")
    made.add_section()
    made.add_row("total", f"{cost.params:,}", f"{cost.flops:,}", style="bold")
    return made


def gene_table(space: SearchSpace) -> Table:
    """Each gene with its choices; layers that offer others get lines of their own."""
    made = table("Genes", ["gene", "layers", "choices"])
    for gene, layers, choices in gene_rows(space):
        made.add_row(gene, layers, "  ".join(map(str, choices)))
    return made


def gene_rows(space: SearchSpace) -> list[tuple[str, str, tuple[int | str, ...]]]:
    """(gene, layers from 0 as ``0-5`` or empty, choices), one row per set of choices."""
    groups: dict[tuple[str, tuple[int | str, ...]], list[int]] = {}
    for slot in space.slots:
        layers = groups.setdefault((slot.gene_name, slot.choices), [])
        if slot.layer is not None:
            layers.append(slot.layer)
    return [(gene, _ranges(layers), choices) for (gene, choices), layers in groups.items()]


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 → ``0-2, 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)

"""Tables in which no id, number or name is ever cut, however narrow the terminal is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text, TextType

from nas.console.formatting import (
    NOTHING,
    called,
    compact,
    decimal,
    digits,
    duration,
    headline,
    milliseconds,
    network,
    test_score,
)
from nas.console.output import out, say
from nas.objectives import LISTED_COSTS, OBJECTIVES, QUALITY, Objective
from nas.run.duration import not_told
from nas.run.events import DurationTold
from nas.search.doubtful import key, marked
from nas.search.front import Front, FrontEntry
from search_spaces.costs import Cost
from search_spaces.genes import GeneNetwork
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    from nas.executors.board import WorkerState
    from nas.results.failures import FailedNetwork
    from nas.search.sensitivity import Feature

PICKED = "★"
# Columns are left out where a text would be folded to fewer characters than this.
READABLE = 24
# As wide as no table gets.
_ENDLESS = 100_000


def table(
    title: str,
    columns: Sequence[str],
    right: Iterable[str] = (),
    *,
    whole: Iterable[str] = (),
    spare: Sequence[str] = (),
) -> AdaptiveTable:
    """An empty table, which is never cut.

    Args:
        title: above it; empty for none.
        columns: headings.
        right: the columns that hold numbers: on the right, and never folded.
        whole: other columns whose cells are never folded: names and ids.
        spare: columns that are left out in a narrow terminal, those to go first first.
    """
    made = AdaptiveTable(title, spare)
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
    predictions = [*(name for name in shown if name.startswith("pred. ")), "predicted"]
    others = [name for name in reversed(shown) if name not in {*kept, *predictions}]
    columns = ["", "id", *shown, "network"]
    made = table(
        title or _front_title(front), columns, ["id", *shown], spare=[*predictions, *others]
    )
    for entry in front.entries:
        cells = [cell(entry) for cell in shown.values()]
        mark = PICKED if entry.id == picked else ""
        made.add_row(mark, entry.id, *cells, WrappingText(network(entry.network)))
    return made


def show_front(front: Front, picked: str | None) -> None:
    """Print a front, and below it what the marks of doubtful values mean, if there are any."""
    out().print(front_table(front, picked))
    if doubtful_key := key(front.entries):
        say(doubtful_key)


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
        made.add_row(one.network.id, failure.kind, str(failure.tries), failure.reason)
    return made


def front_cells(front: Front, names: Sequence[str]) -> dict[str, Callable[[FrontEntry], str]]:
    """Title → cell of the columns of these objectives."""
    titles, columns = _front_titles(front), _front_columns(front)
    return {titles[name]: columns[titles[name]] for name in names}


def _front_titles(front: Front) -> dict[str, str]:
    """Objective → title of its column."""
    return {one.name: one.head for one in (*OBJECTIVES.values(), *front.objectives)}


def _front_columns(front: Front) -> dict[str, Callable[[FrontEntry], str]]:
    """Title → cell of the columns that have something to show."""
    apart = any("valid_loss" in entry.measured for entry in front.entries)
    external = any(isinstance(entry.network, GeneNetwork) for entry in front.entries)
    of_texts = not external and any(entry.architecture.decoder for entry in front.entries)
    columns: dict[str, Callable[[FrontEntry], str]] = {
        _front_titles(front)[QUALITY]: lambda entry: decimal(entry.measured.get(QUALITY), 4),
        "predicted": lambda entry: decimal(entry.predicted.get(QUALITY), 4),
        **({"loss": lambda entry: decimal(entry.measured.get("valid_loss"), 4)} if apart else {}),
    }
    scores = {} if external else {"valid_accuracy": "tokens right" if of_texts else "accuracy"}
    if any("valid_similarity" in entry.measured for entry in front.entries):
        scores = {"valid_similarity": "similarity", "valid_recall_at_10": "recall@10"}
    for name, head in scores.items():
        columns[head] = partial(_score_cell, name)
    known = {name for entry in front.entries for name in entry.values}
    listed = [one.name for one in front.objectives[1:]] if external else LISTED_COSTS
    for one in [OBJECTIVES[name] for name in listed if name in known]:
        columns[one.head] = partial(_cost_cell, one)
        if one.timed and any(one.name in entry.measured for entry in front.entries):
            columns[f"pred. {one.head}"] = partial(_predicted_cell, one)
    return columns


def _score_cell(name: str, entry: FrontEntry) -> str:
    return decimal(entry.measured.get(name), 4)


def _predicted_cell(cost: Objective, entry: FrontEntry) -> str:
    return milliseconds(entry.predicted.get(cost.name))


def _cost_cell(cost: Objective, entry: FrontEntry) -> str:
    if isinstance(entry.network, GeneNetwork):
        return f"{entry.value(cost.name):.4g}"
    if cost.whole:
        return compact(entry.measured.get(cost.name))
    if cost.count is not None:
        value = entry.measured.get(cost.name)
        return NOTHING if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
    return _or_predicted(entry, cost.name)


def _or_predicted(entry: FrontEntry, name: str) -> str:
    """A measured value, marked if doubtful, or the predicted one with its standard deviation."""
    if name in entry.measured or name not in entry.predicted:
        return marked(milliseconds(entry.measured.get(name)), name, entry.doubtful)
    deviation = milliseconds(entry.predicted.get(OBJECTIVES[name].std_name))
    return f"{milliseconds(entry.predicted[name])} ± {deviation}"


def duration_table(told: DurationTold) -> Table | Text:
    """How long a search will take, stage by stage; or why that is not told."""
    if told.reason:
        return Text(f"no duration is told: {told.reason}")
    left = sum(one["seconds"] or 0.0 for one in told.stages)
    title = "How long it will take"
    made = table(title, ["stage", "what", "time"], right=["time"], spare=["what"])
    for one in told.stages:
        made.add_row(one["label"], one["what"], duration(one["seconds"]))
    made.add_section()
    whole = "" if math.isclose(left, told.seconds) else f"of {duration(told.seconds)} told; "
    lacking = not_told(one["label"] for one in told.stages if one["seconds"] is None)
    made.add_row("in all", f"{whole}{told.about}{lacking}", duration(left), style="bold")
    return made


def stage_table(stages: Iterable[tuple[str, str, float | None, float | None]]) -> Table:
    """Stages of a run: name, state, seconds told where any were, and taken."""
    rows = list(stages)
    told = ["told"] * any(one[2] is not None for one in rows)
    made = table("Stages", ["stage", "state", *told, "time"], [*told, "time"], whole=["stage"])
    for name, state, before, seconds in rows:
        made.add_row(name, state, *([duration(before)] if told else []), duration(seconds))
    return made


def feature_table(title: str, features: Iterable[Feature]) -> Table:
    """The most important features of an objective: share and direction."""
    made = table(title, ["", "feature", "share", "direction"], right=["", "share"])
    for place, one in enumerate(features, start=1):
        made.add_row(str(place), one.name, f"{100 * one.share:.1f} %", one.direction)
    return made


def retrained_table(
    results: Iterable[Mapping[str, Any]],
    title: str = "Trained from scratch",
    roles: Mapping[str, str] | None = None,
    front: Front | None = None,
) -> Table:
    """Networks trained after the search, with their one score on the test split.

    Args:
        results: of each.
        title: above it.
        roles: id → what the network is, where that is known of any.
        front: of the run, which knows what they cost.
    """
    results = list(results)
    score = next((found for result in results if (found := headline(result))), "accuracy")
    numbers = ["test", f"valid {called(score)}", "valid loss", "params", "epochs"]
    spare = ["epochs", "params", "valid loss"]
    networks = {} if front is None else {entry.id: entry for entry in front.networks}
    costs: dict[str, Callable[[FrontEntry], str]] = {}
    if front is not None:
        names = [one.name for one in front.objectives[1:] if one.name != "params"]
        costs = front_cells(front, names)
    columns = ["id", *numbers, *costs, *(["is"] if roles else [])]
    made = table(title, columns, [*numbers, *costs], whole=["id"], spare=[*spare, *costs])
    for result in results:
        made.add_row(
            str(result.get("id", NOTHING)),
            test_score(result),
            decimal(result.get(f"valid_{score}"), digits(score)),
            decimal(result.get("valid_loss"), 4),
            compact(result.get("params")),
            str(result.get("epochs", NOTHING)),
            *(
                cell(entry) if (entry := networks.get(str(result.get("id")))) else NOTHING
                for cell in costs.values()
            ),
            *([roles.get(str(result.get("id")), "")] if roles else []),
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


class WrappingText:
    """Text that is folded at spaces, and after strokes and plus signs: ``softmax/`` ``linear``."""

    def __init__(self, text: str) -> None:
        """Keep the text."""
        self.text = text
        self.parts = re.findall(r"[^/+ ]+[/+ ]?|[/+ ]", text)

    def __str__(self) -> str:
        """The text in one line."""
        return self.text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest part to all of it."""
        longest = max((len(part.rstrip()) for part in self.parts), default=0)
        return Measurement(longest, len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many parts in each line as there is room for."""
        lines = [""]
        for part in self.parts:
            if lines[-1] and len((lines[-1] + part).rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(line.rstrip() for line in lines))


class AdaptiveTable(Table):
    """A table that keeps words whole.

    Where it is too wide, headings fold at spaces, then texts; then the columns that can be spared
    are left out, and named below it. What is still too wide is printed as it is: a terminal that
    wraps lines loses nothing, a cut number is lost.
    """

    def __init__(self, title: str, spare: Sequence[str] = ()) -> None:
        """An empty table.

        Args:
            title: above it; empty for none.
            spare: headings of the columns that can be left out, those to go first first.
        """
        super().__init__(title=title or None)
        self.spare = tuple(spare)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The width of what is printed."""
        return Measurement.get(console, options.update(width=_ENDLESS), self._fitted(console))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as it fits."""
        fitted = self._fitted(console, options.max_width)
        needed = Measurement.get(console, options.update(width=_ENDLESS), fitted).maximum
        yield from console.render(fitted, options.update(width=max(options.max_width, needed)))

    def _fitted(self, console: Console, width: int = _ENDLESS) -> Table:
        """A plain table with the columns there is room for, each of a fixed width."""
        columns = [_sized(console, column) for column in self.columns]
        left_out: list[str] = []
        for name in self.spare:
            if sum(one.readable for one in columns) <= width - _frame(console, len(columns)):
                break
            left_out += [name for one in columns if one.column.header == name]
            columns = [one for one in columns if one.column.header != name]
        made = _plain(self.title, left_out)
        widths = _shared_out(columns, width - _frame(console, len(columns)))
        for one, own in zip(columns, widths, strict=True):
            made.add_column(
                one.column.header, justify=one.column.justify, overflow="fold", width=own
            )
        lines = zip(*(one.column.cells for one in columns), strict=True)
        for row, cells in zip(self.rows, lines, strict=True):
            made.add_row(*cells, style=row.style, end_section=row.end_section)
        return made


@dataclass(frozen=True)
class _Sized:
    """A column, the fewest characters it needs and the most it fills."""

    column: Column
    least: int
    most: int

    @property
    def readable(self) -> int:
        """How narrow it may be without leaving columns out for it."""
        return self.least if self.column.no_wrap else min(self.most, max(self.least, READABLE))


def _sized(console: Console, column: Column) -> _Sized:
    options = console.options.update(width=_ENDLESS)
    heading = Measurement.get(console, options, column.header)
    cells = [Measurement.get(console, options, cell) for cell in column.cells]
    whole = [cell.maximum if column.no_wrap else cell.minimum for cell in cells]
    least = max([1, heading.minimum, *whole])
    return _Sized(column, least, max([least, heading.maximum, *(cell.maximum for cell in cells)]))


def _shared_out(columns: Sequence[_Sized], room: int) -> list[int]:
    """The widths: headings give way first, then texts, the widest first."""
    widths = [one.most for one in columns]
    for numbers in (True, False):
        while sum(widths) > room:
            narrower = [
                at
                for at, one in enumerate(columns)
                if widths[at] > one.least and bool(one.column.no_wrap) >= numbers
            ]
            if not narrower:
                break
            widths[max(narrower, key=widths.__getitem__)] -= 1
    return widths


def _frame(console: Console, count: int) -> int:
    """The characters between and around so many columns."""
    empty = _plain(None, ())
    for _ in range(count):
        empty.add_column("", width=1)
    return Measurement.get(console, console.options.update(width=_ENDLESS), empty).maximum - count


def _plain(title: TextType | None, left_out: Sequence[str]) -> Table:
    names = ", ".join(" ".join(name.split()) for name in left_out)
    return Table(
        title=title,
        caption=f"a wider terminal also shows: {names}" if names else None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )

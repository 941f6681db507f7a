"""Fronts side by side as pages show them. Imported where it is used, like `run_views`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nas.objectives import QUALITY
from nas.report import words
from nas.report.charts import Trace, axis, chart, hover
from nas.report.front_section import (
    SQUARES,
    checkpoint_traces,
    cost_axis,
    front_traces,
    good_corner,
    marks_in_words,
    retrained_traces,
)
from nas.report.markup import Html, cell, join, missing, table, tag
from nas.results.comparison import ComparedNetwork, Comparison, gene_summaries
from nas.results.retrained_points import RetrainedPoint, retrained_points
from search_spaces.space import Choice
from service.api.run_cache import MOST_IN_ALL, sample
from service.dashboard.run_views import drawn

LONGEST_NAME = 40  # characters in a legend
MOST_LISTED = 300  # networks in the table
MOST_LINES = 150  # networks in the parallel coordinates
LONG = 1e4  # beyond that, k and M
ABOVE_NONE = 0.125  # where values begin on an axis on which some networks have none
AXIS_REM = 5.5  # room for each axis of the parallel coordinates
UNLIKE = "The searches measure quality differently"
# As many as fronts are compared; a symbol of its own for those who see no colours.
LOOKS = (
    ("var(--softmax)", "circle"),
    ("var(--retrained)", "square"),
    ("var(--omni)", "diamond"),
    ("var(--predicted)", "triangle-up"),
    ("var(--linear)", "cross"),
    ("var(--observed)", "x"),
)


def fronts_drawing(made: Comparison) -> Html:
    """A chart for each cost that all runs have."""
    if not made.runs:
        return missing("There is no front to draw. Tick searches in the list of jobs.")
    if QUALITY not in made.alike:
        return missing(f"{UNLIKE}, so their fronts share no chart.")
    costs = made.objectives[1:]
    if not costs:
        return missing("These searches have no cost in common, so their fronts share no chart.")
    return tag("div", [_cost_chart(made, cost) for cost in costs], class_="charts")


def _cost_chart(made: Comparison, cost: str) -> Html:
    traces: list[Trace] = []
    every: list[RetrainedPoint] = []
    first = made.runs[0].contents
    most = MOST_IN_ALL // len(made.runs) // len(made.objectives[1:])
    looks = list(enumerate(zip(made.runs, LOOKS, strict=False), start=1))
    for number, (compared, (colour, symbol)) in looks:
        run = compared.contents
        front_drawn = drawn(run, most, cost).front
        entries = front_drawn.entries if front_drawn else ()
        name = _name(made, number - 1)
        traces += front_traces(run, entries, cost, name, colour, symbol)
        trained = retrained_points(run)
        names = (f"{number}. retrained", f"{number}. baseline")
        traces += retrained_traces(run, trained, cost, names, (colour, colour))
        every += trained
    others = _all(traces, "y")
    for number, (compared, (colour, _)) in looks:
        begun = f"{number}. its checkpoint"
        traces += checkpoint_traces(compared.contents, cost, others, begun, colour)
    shown = [trace for trace in traces if trace["x"]]
    layout: dict[str, Any] = {
        "xaxis": cost_axis(words.axis_label(first, cost), cost, _all(shown, "x")),
        "yaxis": axis(words.axis_label(first, QUALITY), _all(shown, "y"), tickformat="~g"),
    }
    caption = (
        f"The fronts, {words.metric(first, QUALITY)} against {words.metric(first, cost)}: "
        f"{good_corner(first, [cost])}. A star is a network once trained, a cross a plain one "
        "that the winner is held against."
    )
    caption += marks_in_words(every)
    if any(one.contents.origin is not None for one in made.runs):
        caption += SQUARES
    return chart(f"compare-{cost}", shown, layout, caption, 28)


def _name(made: Comparison, place: int) -> str:
    """What a front is called; titles may be alike, and the number tells them apart."""
    return f"{place + 1}. {made.runs[place].title[:LONGEST_NAME]}"


def _all(traces: Sequence[Trace], coordinate: str) -> list[float]:
    return [number for trace in traces for number in trace[coordinate]]


# -- networks -------------------------------------------------------------------------------------


def network_table(
    made: Comparison, networks: Sequence[ComparedNetwork], jobs: Sequence[str]
) -> Html:
    """Networks of all fronts, of each what the runs have in common."""
    if not networks:
        return missing("No network meets these conditions: ease one, or leave it out.")
    first = made.runs[0].contents
    heads = ["network", "front", "test, retrained"]
    heads += [words.axis_label(first, name) for name in made.alike] + ["what it is"]
    rows = []
    for one in networks[:MOST_LISTED]:
        entry = one.entry
        link = tag("a", entry.id, href=f"/jobs/{jobs[one.run]}/networks/{entry.id}")
        link = join(link, " ", tag("span", "baseline", class_="small")) if one.baseline else link
        row = [cell(link), cell(_name(made, one.run))]
        if one.result is None:
            row.append(cell("–", -1.0))
        else:
            score = one.result.test_scores[one.result.headline]
            text = f"{words.SCORES[one.result.headline]} {words.score(one.result.headline, score)}"
            row.append(cell(text, score))
        for name in made.alike:
            value = entry.values.get(name)
            guess = "" if name in entry.measured or value is None else " (predicted)"
            row.append(cell(words.value(name, value) + guess, -1.0 if value is None else value))
        rows.append([*row, cell(words.outline(entry.network))])
    caption = f"{words.plural(len(networks), 'network')} of the fronts. A click on a head sorts."
    if len(networks) > MOST_LISTED:
        caption += f" The table has the first {MOST_LISTED}; CSV and JSON have all."
    if QUALITY not in made.alike:
        caption += f" {UNLIKE}, so it has no column here; CSV and JSON have it."
    return table(heads, rows, caption, sortable=True)


# -- parallel coordinates -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """One coordinate: what it is called, and a value for each network, None where it has none."""

    label: str
    values: Sequence[Choice | float | None]

    @property
    def tells(self) -> bool:
        """Whether networks differ in it."""
        return len(set(self.values)) > 1

    def scaled(self) -> list[float]:
        """The values from the least of all to 1; names in the order of the alphabet.

        The least is at 0, or at `ABOVE_NONE` where there are networks without a value, which are
        at 0 then.
        """
        known = [one for one in self.values if one is not None]
        numbers = [one for one in known if isinstance(one, int | float)]
        if len(numbers) < len(known):
            texts = sorted({self.text(one) for one in known})
            numbers = [texts.index(self.text(one)) for one in known]
        bottom = 0.0 if len(known) == len(self.values) else ABOVE_NONE
        high, extent = max(numbers), max(numbers) - min(numbers) or 1
        below = iter([(high - number) / extent for number in numbers])
        return [0.0 if one is None else 1 - (1 - bottom) * next(below) for one in self.values]

    def ends(self) -> list[tuple[float, str]]:
        """What stands where: the least value, the largest, and what no value is, from 0 to 1."""
        texts = dict(zip(self.scaled(), map(self.text, self.values), strict=True))
        places = (0.0, ABOVE_NONE, 1.0) if None in self.values else (0.0, 1.0)
        return [(place, texts[place]) for place in places if place in texts]

    @staticmethod
    def text(value: Choice | float | None) -> str:
        """A value on an axis."""
        if isinstance(value, float):
            return words.whole(value) if value > LONG else f"{value:.4g}"
        return "–" if value is None else str(value)


def coordinates(made: Comparison, networks: Sequence[ComparedNetwork]) -> Html:
    """Genes and objectives of networks as lines, a colour for each front."""
    networks = [one for one in networks if one.entry.values.keys() >= set(made.alike)]
    if len(networks) < 2:
        return missing("Parallel coordinates need at least two networks.")
    known, networks = len(networks), _spread(networks)
    first = made.runs[0].contents
    genes = [gene_summaries(made.runs[one.run].contents, one.entry) for one in networks]
    names = dict.fromkeys(name for row in genes for name in row)
    axes = [_Axis(gene_label(name), [row.get(name) for row in genes]) for name in names]
    axes += [
        _Axis(words.axis_label(first, name), [one.entry.value(name) for one in networks])
        for name in made.alike
    ]
    shown = [one for one in axes if one.tells]
    if not shown:
        return missing("These networks are alike in all genes and objectives.")
    heights = [one.scaled() for one in shown]
    traces = [
        _lines(made, place, networks, shown, heights)
        for place in range(len(made.runs))
        if any(one.run == place for one in networks)
    ]
    small = {"showarrow": False, "font": {"size": 11}}
    ends = [
        {**small, "x": x, "y": y + shift, "yanchor": anchor, "text": text}
        for x, one in enumerate(shown)
        for y, text in one.ends()
        for shift, anchor in [(-0.02, "top") if y < 1 else (0.02, "bottom")]
    ]
    line = {"color": "var(--muted)", "width": 1}
    layout = {
        "xaxis": axis(
            "",
            tickvals=list(range(len(shown))),
            ticktext=[one.label for one in shown],
            tickangle=-35,
            showgrid=False,
            zeroline=False,
            range=[-0.4, len(shown) - 0.6],
        ),
        "yaxis": {"visible": False, "range": [-0.1, 1.1]},
        "shapes": [
            {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "layer": "below", "line": line}
            for x in range(len(shown))
        ],
        "annotations": ends,
        "margin": {"l": 90, "r": 14, "t": 8, "b": 8},
    }
    caption = (
        "Each line is a network, in the colour of its front; genes come first, then the "
        "objectives. Of a size that each layer has it is the mean, of kinds of attention the "
        "number of layers. Conditions above choose the lines."
    )
    if len(networks) < known:
        caption += f" {len(networks)} of the {known:,} networks are drawn, spread over each front."
    room = tag(
        "div",
        chart("coordinates", traces, layout, caption, 28),
        style=f"min-width:{AXIS_REM * len(shown):g}rem",
    )
    return tag(
        "div", room, class_="scroll", tabindex="0", role="region", aria_label="Genes and objectives"
    )


def _spread(networks: Sequence[ComparedNetwork]) -> list[ComparedNetwork]:
    """About `MOST_LINES` of the networks: of each front its share, both ends, and baselines."""
    found: list[ComparedNetwork] = []
    for run in dict.fromkeys(one.run for one in networks):
        own = [one for one in networks if one.run == run]
        front = {one.entry.id: one for one in own if not one.baseline}
        most = max(2, MOST_LINES * len(front) // len(networks))
        chosen = sample([one.entry for one in front.values()], most)
        found += [front[entry.id] for entry in chosen]
        found += [one for one in own if one.baseline]
    return found


def _lines(
    made: Comparison,
    place: int,
    networks: Sequence[ComparedNetwork],
    axes: Sequence[_Axis],
    heights: Sequence[Sequence[float]],
) -> Trace:
    """The lines of one front as one trace, with gaps between them."""
    x: list[int | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for row, one in enumerate(networks):
        if one.run != place:
            continue
        x += [*range(len(axes)), None]
        y += [*(column[row] for column in heights), None]
        texts += [f"{one.entry.id}, {a.label}: {a.text(a.values[row])}" for a in axes] + [""]
    colour, symbol = LOOKS[place]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _name(made, place),
        "x": x,
        "y": y,
        "text": texts,
        "hovertemplate": hover("%{text}"),
        "line": {"color": colour, "width": 1.3},
        "marker": {"color": colour, "symbol": symbol, "size": 6},
        "opacity": 0.75,
    }


def gene_label(name: str) -> str:
    """A gene's name in words."""
    bare = name.removeprefix("encoder.").removeprefix("decoder.")
    stack = "decoder " if name.startswith("decoder.") else ""
    gene, _, rest = bare.partition(" ")
    if rest.startswith("= "):
        return f"{stack}layers with {rest[2:]} {words.GENES.get(gene, gene)}"
    text = f"{stack}{words.GENES.get(gene, gene)}"
    return f"mean {text}" if rest else text


def front_numbers(made: Comparison, place: int) -> list[Html]:
    """What the table of fronts tells of one: cells behind its title."""
    run = made.runs[place].contents
    entries = made.runs[place].front.entries
    swatch = tag("span", class_="swatch", style=f"background:{LOOKS[place][0]}")
    volume = f"{made.hypervolumes[place]:.3f}" if made.hypervolumes else "–"
    lowest = min(entry.value(QUALITY) for entry in entries)
    best = f"{words.metric(run, QUALITY)} {words.value(QUALITY, lowest)}"
    return [
        tag("td", swatch),
        tag("td", run.spec.dataset, data_label="data set"),
        tag("td", f"{len(entries):,}", class_="number", data_label="networks"),
        tag("td", volume, class_="number", data_label="hypervolume"),
        tag("td", best, class_="number", data_label="best"),
    ]


def reference_words(made: Comparison) -> str:
    """Where hypervolumes are measured up to, or why there are none."""
    if made.difference is not None:
        return f"{words.sentence(made.difference)}."
    if not made.runs:
        return ""
    first = made.runs[0].contents
    corner = ", ".join(
        f"{words.metric(first, name)} {words.quantity(name, value)}"
        for name, value in made.reference.items()
    )
    return f"Hypervolumes are shares of one box, up to the worst of all references: {corner}."

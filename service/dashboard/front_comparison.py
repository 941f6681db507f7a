"""The chart of several fronts. Imported where it is used, like `run_views`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nas.objectives import QUALITY
from nas.report.charts import Trace, axis, chart
from nas.report.front_section import TICKS, front_traces
from nas.report.markup import Html, missing, tag
from service.dashboard.run_views import drawn
from service.known_runs import MOST_IN_ALL, RunView

LONGEST_NAME = 40  # characters in a legend
# As many as fronts are compared; a symbol of its own for those who see no colours.
LOOKS = (
    ("var(--softmax)", "circle"),
    ("var(--retrained)", "square"),
    ("var(--omni)", "diamond"),
    ("var(--predicted)", "triangle-up"),
    ("var(--linear)", "cross"),
    ("var(--observed)", "x"),
)


@dataclass(frozen=True)
class Compared:
    """A front in the chart: of which job, what it is called there, and its run."""

    job: str
    title: str
    view: RunView


def comparison(fronts: Sequence[Compared]) -> Html:
    """A chart for each cost that all runs have."""
    if not fronts:
        return missing("There is no front to draw. Tick searches in the list of jobs.")
    runs = [front.view.contents for front in fronts]
    meanings = {(run.spec.dataset, run.spec.quality) for run in runs}
    costs = [cost for cost in runs[0].costs if all(cost in run.costs for run in runs)]
    if not costs:
        return missing("These searches have no cost in common, so their fronts share no chart.")
    charts = [_cost_chart(fronts, cost) for cost in costs]
    drawing = tag("div", charts, class_="charts")
    if len(meanings) == 1:
        return drawing
    warning = (
        "These searches measure quality on different data or in different ways, so heights do "
        "not compare."
    )
    return tag("div", tag("p", warning, class_="warning"), drawing)


def _cost_chart(fronts: Sequence[Compared], cost: str) -> Html:
    traces: list[Trace] = []
    first = fronts[0].view.contents
    most = MOST_IN_ALL // len(fronts) // len(first.costs)
    for number, (front, (colour, symbol)) in enumerate(zip(fronts, LOOKS, strict=False), start=1):
        run = front.view.contents
        front_drawn = drawn(run, most, cost).front
        entries = front_drawn.entries if front_drawn else ()
        # Titles may be alike: the number tells them apart.
        name = f"{number}. {front.title[:LONGEST_NAME]}"
        traces += front_traces(run, entries, cost, name, colour, symbol)
    layout: dict[str, Any] = {
        "xaxis": axis(first.label(cost), _all(traces, "x"), tickformat=TICKS[cost]),
        "yaxis": axis(first.label(QUALITY), _all(traces, "y"), tickformat="~g"),
    }
    caption = f"The fronts, {first.called(QUALITY)} against {first.called(cost)}: lower is better."
    return chart(f"compare-{cost}", traces, layout, caption, 28)


def _all(traces: Sequence[Trace], coordinate: str) -> list[float]:
    return [number for trace in traces for number in trace[coordinate]]

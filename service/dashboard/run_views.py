"""Parts of pages that show a run, made of the report's charts, tables and pictures.

Imported where it is used: it brings along what reads and plots runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nas.objectives import QUALITY
from nas.report import doubtful, words
from nas.report.baseline_section import baseline_section
from nas.report.charts import axis, chart, hover
from nas.report.checkpoint_section import checkpoint_section
from nas.report.cost_section import training_section
from nas.report.exchange_section import exchange_section
from nas.report.front_section import (
    cost_chart,
    front_table,
)
from nas.report.markup import Html, escape, join, missing, tag
from nas.report.omni_section import omni_section
from nas.report.pruning_section import pruning_section
from nas.report.ranking_section import card_section, importances_section, latency_section
from nas.results.contents import RunContents
from nas.run.stages import OF_NETWORKS, stage_label, stages_of_run
from nas.search.front import FrontEntry
from nas.search.pareto import non_dominated
from service.api.run_cache import MOST_DRAWN, RunView, most_drawn, sample
from service.jobs.states import Job, State

UNMEASURED = "The quality of no network was measured."
OMNI_HINT = "the button below the picture of a network with omni attention does so."
WIDTH, HEIGHT = 120, 28
MOST_LISTED = 100  # networks in the table
SKETCH = (
    "<style>polyline{fill:none;stroke:#0072b2;stroke-width:2}circle{fill:#0072b2}"
    "@media(prefers-color-scheme:dark){polyline{stroke:#56b4e9}circle{fill:#56b4e9}}</style>"
)


@dataclass(frozen=True, slots=True)
class StageView:
    """A line of the timeline.

    Attributes:
        label: in words.
        state: ``done``, ``now``, ``stopped`` where a job has ended in the middle of it, or
            ``open``.
        seconds: what it has taken.
        share: of the longest stage, 0 to 1.
    """

    label: str
    state: str
    seconds: float | None
    share: float


# -- the front ----------------------------------------------------------------------------------


def front_charts(view: RunView, *, ended: bool = False) -> Html:
    """A chart for each cost; a click on a point shows its network.

    Args:
        view: the run.
        ended: whether its job has, with or without its result.
    """
    warnings = doubtful.warnings(view.contents)
    if view.contents.front is None:
        return join(warnings, missing(UNMEASURED))
    run, most = view.contents, most_drawn(view.contents)
    settled = view.final or ended
    charts = [cost_chart(drawn(run, most, cost), cost, settled) for cost in run.costs]
    return join(warnings, tag("div", charts, class_="charts"), _left_out(view, most))


def picked_numbers(view: RunView, job: Job) -> Html:
    """The network that is picked from the front, in numbers; nothing before there is one."""
    run = view.contents
    entry = run.picked
    if entry is None:
        return Html("")
    tiles: list[tuple[str, str]] = [
        (
            "picked network" if view.final or job.state.ended else "picked so far",
            _link(job.id, entry.id),
        )
    ]
    for result in run.retrained:
        if result.id == entry.id:
            number = words.score(result.headline, result.test_scores[result.headline])
            tiles.append((f"test {words.SCORES[result.headline]}, retrained", number))
    for name in dict.fromkeys([QUALITY, *run.costs]):
        if name in entry.values:
            guess = "" if name in entry.measured else ", predicted"
            number = words.quantity(name, entry.value(name))
            tiles.append((f"{words.metric(run, name)}{guess}", number))
    return tag("div", [tile(*one) for one in tiles], class_="tiles")


def tile(name: str, number: str) -> Html:
    """A number to remember, and what it is."""
    return tag("div", tag("span", number, class_="figure"), name, class_="tile")


def _link(job: str, network: str, **more: object) -> Html:
    """A network's id, which leads to its page."""
    return tag("a", network, href=f"/jobs/{job}/networks/{network}", **more)


def drawn(run: RunContents, most: int, cost: str | None = None) -> RunContents:
    """A run whose front has about so many networks, spread over it.

    What the request picks, and what was retrained, is among them.

    Args:
        run: one that has a front.
        most: how many of the front.
        cost: with all networks on the line of the front in the chart of that cost.
    """
    assert run.front is not None
    entries = run.front.entries
    if len(entries) <= most:
        return run
    kept = {one.id for one in run.retrained}
    if cost is not None:
        known = [entry for entry in entries if cost in entry.values]
        points = np.array([[one.minimised(cost), one.minimised(QUALITY)] for one in known])
        edge = [one for one, on_line in zip(known, non_dominated(points), strict=True) if on_line]
        kept |= {entry.id for entry in sample(edge, MOST_DRAWN)}
    picked = run.picked
    spec = run.spec if picked is None else run.spec.model_copy(update={"pick": picked.id})
    kept |= set() if picked is None else {picked.id}
    return replace(run, spec=spec, front=replace(run.front, entries=sample(entries, most, kept)))


def _left_out(view: RunView, most: int) -> Html:
    """A sentence where the charts do not show all that is known."""
    assert view.contents.front is not None
    front, observed = len(view.contents.front.entries), len(view.contents.observed)
    cells = []
    if front > most:
        cells.append(
            f"Of the {front:,} networks of the front each chart shows those on its line and "
            f"{most:,} spread over it."
        )
    if observed < view.observed:
        cells.append(f"Of the {view.observed:,} that were observed {observed:,} are drawn.")
    return tag("p", " ".join(cells), class_="small") if cells else Html("")


def choice_table(view: RunView, job: str) -> Html:
    """The front as a table, with a box to tick for each network."""
    if view.contents.front is None:
        return Html("")

    def named(entry: FrontEntry) -> Html:
        box = tag(
            "input",
            type="checkbox",
            name="id",
            value=entry.id,
            id=f"tick-{entry.id}",
            aria_label=f"choose {entry.id}",
        )
        link = _link(job, entry.id, data_network=entry.id)
        return join(Html(box.removesuffix("</input>")), " ", link)

    run = drawn(view.contents, MOST_LISTED)
    assert run.front is not None
    cells = Html("")
    if len(run.front.entries) < len(view.contents.front.entries):
        address = f"/api/v1/jobs/{job}/front"
        cells = tag(
            "p",
            f"The table has {len(run.front.entries):,} of the {len(view.contents.front.entries):,} "
            "networks of the front, spread over it. All of them: ",
            tag("a", "CSV", href=f"{address}?format=csv"),
            ", ",
            tag("a", "JSON", href=address),
            ".",
            class_="small",
        )
    return join(front_table(run, named), cells)


def growth_chart(view: RunView, *, ended: bool = False) -> Html:
    """Hypervolume over the networks that were measured.

    Args:
        view: the run.
        ended: whether its job has, with or without its result.
    """
    if not view.curve:
        return missing(UNMEASURED)
    volumes = [volume for _, volume in view.curve]
    trace = {
        "type": "scatter",
        "mode": "lines" if len(view.curve) > 1 else "markers",
        "x": [number for number, _ in view.curve],
        "y": volumes,
        "line": {"color": "var(--front)", "width": 2.5, "shape": "hv"},
        "hovertemplate": hover("%{y:.4f} after %{x} networks"),
    }
    room = 0.1 * (max(volumes) - min(volumes)) or 0.02
    shown = [max(0.0, min(volumes) - room), min(1.0, max(volumes) + room)]
    layout = {
        "xaxis": axis("networks measured", rangemode="tozero"),
        "yaxis": axis("hypervolume", tickformat="~g", range=shown),
        "showlegend": False,
    }
    caption = (
        "How much of the box between nothing and a useless network the front covers, after each "
        "network whose quality was measured."
    )
    if not view.final and not ended:
        caption += (
            " The box may still change until the search has ended, and so may costs that are "
            "predicted so far."
        )
    return chart("growth", [trace], layout, caption, 18)


def sparkline(curve: Sequence[tuple[int, float]]) -> Html:
    """The same as a small picture of its own."""
    label = "no hypervolume yet"
    drawing: list[Html] = []
    if curve:
        label = f"hypervolume {curve[-1][1]:.3f} after {curve[-1][0]} networks"
        values = [volume for _, volume in curve]
        low, room = min(values), (max(values) - min(values)) or 1.0
        last = max(1, curve[-1][0] - curve[0][0])
        places = [
            (
                3 + (WIDTH - 7) * (number - curve[0][0]) / last,
                HEIGHT - 4 - (HEIGHT - 8) * (volume - low) / room,
            )
            for number, volume in curve
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        x, y = places[-1]
        drawing = [
            tag("polyline", points=points),
            tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3),
        ]
    return tag(
        "svg",
        Html(SKETCH),
        tag("title", label),
        drawing,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
    )


# -- the rest -----------------------------------------------------------------------------------


def stages(view: RunView, job: Job) -> list[StageView]:
    """The timeline: every stage, done, going on, still to come, or not reached by a job's end."""
    run = view.contents
    names = [stage.name for stage in stages_of_run(run.spec, run.seconds)]
    names += [name for name in run.seconds if name not in names]
    now = None if job.state in (State.queued, State.succeeded) else job.summary.stage
    if now and now.startswith(tuple(OF_NETWORKS)) and now not in names:
        names.append(now)
    longest = max([*run.seconds.values(), 0.1])
    shown = []
    for name in names:
        seconds = run.seconds.get(name)
        state = "open"
        if seconds is not None:
            state = "done"
        elif name == now:
            state = "stopped" if job.state.ended else "now"
        shown.append(StageView(stage_label(name), state, seconds, (seconds or 0.0) / longest))
    return shown


def evidence(view: RunView) -> Html:
    """The winner beside others, why predictions may be believed, and how the supernet learnt."""
    run = view.contents
    if run.spec.evaluator is not None:
        return join(card_section(run), importances_section(run), pruning_section(run))
    return join(
        baseline_section(run),
        checkpoint_section(run),
        exchange_section(run),
        card_section(run),
        importances_section(run),
        latency_section(run),
        pruning_section(run),
        training_section(run),
        omni_section(run, escape(OMNI_HINT)),
    )


# -- numbers ------------------------------------------------------------------------------------


def front_size(view: RunView) -> int:
    """How many networks are on the front."""
    return 0 if view.contents.front is None else len(view.contents.front.entries)

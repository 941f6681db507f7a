"""Parts of pages that show a run, made of the report's charts, tables and pictures.

Imported where it is used: it brings along what reads and plots runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nas.front import Front, FrontEntry
from nas.growth import hypervolume_curve, reference
from nas.live_front import LiveFront, front_so_far
from nas.report import doubtful
from nas.report.charts import axis, chart
from nas.report.contents import SINGLE, STAGES, RunContents, stage_label
from nas.report.cost_section import training_section
from nas.report.front_section import cost_chart, front_table
from nas.report.markup import Html, escape, join, missing, tag
from nas.report.omni_section import omni_section
from nas.report.pruning_section import pruning_section
from nas.report.ranking_section import card_section, importances_section, latency_section
from nas.report.reading import read_contents
from nas.run.folder import RunFolder
from service.jobs import Job, State

OMNI_HINT = "the button below the picture of a network with omni attention does so."
WIDTH, HEIGHT = 120, 28
SKETCH = (
    "<style>polyline{fill:none;stroke:#0072b2;stroke-width:2}circle{fill:#0072b2}"
    "@media(prefers-color-scheme:dark){polyline{stroke:#56b4e9}circle{fill:#56b4e9}}</style>"
)


@dataclass(frozen=True)
class RunView:
    """A run and what is known of its front.

    Attributes:
        contents: with the front so far as its front, once anything was measured.
        found: the same front and all that was measured.
        curve: hypervolume over measured networks.
        path: the run's folder.
    """

    contents: RunContents
    found: LiveFront
    curve: list[tuple[int, float]]
    path: Path

    @property
    def final(self) -> bool:
        """Whether the front is the run's result."""
        return self.found.front is not None


@dataclass(frozen=True, slots=True)
class StageView:
    """A line of the timeline.

    Attributes:
        label: in words.
        state: ``done``, ``now`` or ``open``.
        seconds: what it has taken.
        share: of the longest stage, 0 to 1.
    """

    label: str
    state: str
    seconds: float | None
    share: float


def read_run(folder: RunFolder) -> RunView:
    """Read a run, finished or not."""
    contents = read_contents(folder)
    found = front_so_far(contents)
    curve = hypervolume_curve(contents, found)
    if found.front is None and found.entries:
        corner = tuple(reference(contents, found))
        front = Front(found.objectives, corner, found.entries, curve[-1][1])
        contents = replace(contents, front=front)
    return RunView(contents, found, curve, folder.path)


# -- the front ----------------------------------------------------------------------------------


def front_charts(view: RunView) -> Html:
    """A chart for each cost; a click on a point shows its network."""
    warnings = doubtful.warnings(view.contents)
    if view.contents.front is None:
        return join(warnings, missing("The quality of no network was measured yet."))
    charts = [cost_chart(view.contents, cost, view.final) for cost in view.contents.costs]
    return join(warnings, tag("div", charts, class_="charts"))


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
        link = tag("a", entry.id, href=f"/jobs/{job}/networks?id={entry.id}", data_network=entry.id)
        return join(Html(box.removesuffix("</input>")), " ", link)

    return front_table(view.contents, named)


def growth_chart(view: RunView) -> Html:
    """Hypervolume over the networks that were measured."""
    if not view.curve:
        return missing("The quality of no network was measured yet.")
    volumes = [volume for _, volume in view.curve]
    trace = {
        "type": "scatter",
        "mode": "lines" if len(view.curve) > 1 else "markers",
        "x": [number for number, _ in view.curve],
        "y": volumes,
        "line": {"color": "var(--front)", "width": 2.5, "shape": "hv"},
        "hovertemplate": "%{y:.4f} after %{x} networks<extra></extra>",
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
    if not view.final:
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
    """The timeline: every stage, done, going on or still to come."""
    run = view.contents
    names = [name for name in STAGES if name != "latency" or run.spec.needs_latency]
    names += [name for name in run.seconds if name not in STAGES]
    now = job.summary.stage if job.state is State.running else None
    if now and now.startswith(tuple(SINGLE)) and now not in names:
        names.append(now)
    longest = max([*run.seconds.values(), 0.1])
    shown = []
    for name in names:
        seconds = run.seconds.get(name)
        state = "done" if seconds is not None else "now" if name == now else "open"
        shown.append(StageView(stage_label(name), state, seconds, (seconds or 0.0) / longest))
    return shown


def evidence(view: RunView) -> Html:
    """Why the predictions may be believed, what was cut, and how the supernet learnt."""
    run = view.contents
    return join(
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


def measured_count(view: RunView) -> int:
    """Of how many networks the quality was measured."""
    return len({entry.id for entry in (*view.contents.observed, *view.contents.verified)})

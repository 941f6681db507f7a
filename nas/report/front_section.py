"""What was found: the Pareto front in pictures and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from nas.objectives import COSTS, COUNTED, OBJECTIVES, QUALITY
from nas.report import doubtful, words
from nas.report.charts import Trace, axis, chart, escape, hover
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.results.contents import Retrained, RunContents
from nas.results.retrained_points import Interval, RetrainedPoint, retrained_points
from nas.search.front import Front, FrontEntry
from nas.search.pareto import non_dominated
from search_spaces.tasks import TASKS

PREDICTED = "predicted"
NEXT_TO_NOTHING = 1 / 10  # of the lowest quality of the others, for the checkpoint's own
SQUARES = (
    " An open square is a checkpoint that a search began with; what is less than a tenth of the "
    "lowest value is drawn there."
)
SINGLY = 10  # whole numbers up to it have a tick each


def front_section(run: RunContents) -> Html:
    """Charts of quality against each cost, and the table of the front."""
    title = "The Pareto front"
    if run.front is None:
        return section("front", title, missing("This run has not found its front yet."))
    intro = paragraph(
        "A network is on the front when no measured network is at least as good in every "
        f"objective and better in one. {words.sentence(good_corner(run, run.costs))}. Point at a "
        "network to see its layers, click a name in the legend to hide it, drag to look closer, "
        "double-click to go back."
    )
    charts = [cost_chart(run, cost) for cost in run.costs]
    parts = [tag("div", charts, class_="charts"), front_table(run), order_chart(run)]
    return section("front", title, intro, *parts)


def good_corner(run: RunContents, costs: Sequence[str]) -> str:
    """Where good networks lie in charts of quality against costs, as a part of a sentence."""
    more = [words.metric(run, name) for name in costs if OBJECTIVES[name].maximise]
    lower = "lower is better on both axes, so good networks lie at the bottom left"
    if not more:
        return lower
    if len(more) == len(costs):
        better = f"lower {words.metric(run, QUALITY)} and more {' and '.join(more)} are better"
        return f"{better}, so good networks lie at the bottom right"
    return f"{lower}; of {' and '.join(more)} more is better, so there it is the bottom right"


# -- charts -------------------------------------------------------------------------------------


def cost_chart(run: RunContents, cost: str, final: bool = True) -> Html:
    """The networks of a run that has a front: quality against one cost.

    Args:
        run: one that has a front.
        cost: name of a metric.
        final: whether the front is the result, and not what is known so far.
    """
    assert run.front is not None
    front, trained = run.front.entries, retrained_points(run)
    on_front = {entry.id for entry in front}
    beaten = [entry for entry in run.verified if entry.id not in on_front]
    traces = [
        _points(run, "observed", run.observed, cost, _dots("var(--observed)", 6, opacity=0.6)),
        _points(
            run,
            "predicted",
            run.population,
            cost,
            _dots("var(--predicted)", 7, symbol="diamond", opacity=0.55),
        ),
        _points(
            run,
            "measured, not on the front",
            beaten,
            cost,
            _dots("var(--front)", 9, symbol="circle-open", line={"width": 1.5}),
        ),
        *front_traces(run, front, cost, _front_name(run.front, final)),
        *retrained_traces(run, trained, cost, ("retrained", "baseline, trained")),
    ]
    traces += checkpoint_traces(run, cost, _all(traces, "y"))
    shown = [trace for trace in traces if trace["x"]]
    layout = {
        "xaxis": cost_axis(words.axis_label(run, cost), cost, _all(shown, "x")),
        "yaxis": axis(words.axis_label(run, QUALITY), _all(shown, "y"), tickformat="~g"),
        "shapes": _limit_line(run.spec.limits.get(cost)),
    }
    return chart(f"front-{cost}", shown, layout, _caption(run, cost, trained), height_rem=30)


def cost_axis(title: str, cost: str, values: Sequence[float]) -> dict[str, Any]:
    """The axis of a cost: counts with k, M and G, few of them one by one; all else as it is."""
    if not OBJECTIVES[cost].whole:
        return axis(title, values, tickformat="~g")
    few = {"dtick": 1, "type": "linear"} if max(values, default=SINGLY + 1) <= SINGLY else {}
    return axis(title, values, tickformat="~s") | few


def _front_name(front: Front, final: bool) -> str:
    if not final:
        return "front so far"
    return "front" if front.predicted_for else "front, measured"


def _caption(run: RunContents, cost: str, trained: Sequence[RetrainedPoint]) -> str:
    text = (
        f"{words.sentence(words.metric(run, QUALITY))} against {words.metric(run, cost)}. "
        "Observed: the networks that the searcher asked for. Predicted: the last population of "
        "the evolution. "
    )
    if run.spec.evaluator is not None:
        text += f"All were evaluated {words.observed_how(run)}."
    else:
        text += (
            f"A star is a network of the front when {run.spec.trained}; all others "
            f"were evaluated {words.observed_how(run)}."
        )
    if run.comparisons:
        text += " A cross is a network that the winner is held against, trained like it."
    text += marks_in_words(trained)
    if run.origin is not None:
        text += SQUARES
    if run.quality.name == "bleu":
        text += " A star was translated with a beam of 4, all others greedily."
    if len(run.spec.objectives) > 2:
        text += " A network of the front that looks beaten here wins in another objective."
    if cost in run.spec.limits:
        text += f" The dashed line is the limit of {words.limit(cost, run.spec.limits[cost])}."
    return text


def _dots(colour: str, size: int, **more: Any) -> dict[str, Any]:
    return {"color": colour, "size": size, **more}


def _points(
    run: RunContents,
    name: str,
    entries: Sequence[FrontEntry],
    cost: str,
    marker: Mapping[str, Any],
    intervals: Mapping[str, Interval] = MappingProxyType({}),
) -> Trace:
    known = [(_value(entry, cost), _value(entry, QUALITY), entry) for entry in entries]
    drawn = [(x, y, entry) for x, y, entry in known if x is not None and y is not None]
    made: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "x": [x for x, _, _ in drawn],
        "y": [y for _, y, _ in drawn],
        "text": [_hover(run, entry, name, intervals.get(entry.id)) for _, _, entry in drawn],
        "customdata": [entry.id for _, _, entry in drawn],
        "hovertemplate": hover("%{text}"),
        "marker": dict(marker),
    }
    if intervals:
        bars = [(y, *intervals.get(entry.id, (y, y))) for _, y, entry in drawn]
        made["error_y"] = _error_bars(bars, marker["color"])
    return made


def _error_bars(bars: Sequence[tuple[float, float, float]], colour: str) -> dict[str, Any]:
    """Bars around values; of each the value, and the lower and upper end."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in bars],
        "arrayminus": [value - low for value, low, _ in bars],
        "color": colour,
        "thickness": 1.5,
        "width": 5,
    }


def front_traces(
    run: RunContents,
    entries: Sequence[FrontEntry],
    cost: str,
    name: str,
    colour: str = "var(--front)",
    symbol: str = "circle",
) -> list[Trace]:
    """A front's points and the staircase below which nothing was measured."""
    points = _points(run, name, entries, cost, _dots(colour, 10, symbol=symbol))
    if not points["x"]:
        return []
    return [_stairs(points, cost, {"width": 2.5, "color": colour}), points]


def _stairs(points: Trace, cost: str, line: Mapping[str, Any]) -> Trace:
    """The staircase of points, below which none of them lies."""
    # Of what is to be maximised the staircase runs from the right.
    way = -1.0 if cost in OBJECTIVES and OBJECTIVES[cost].maximise else 1.0
    corners = np.array([points["x"], points["y"]], dtype=np.float64).T * [way, 1.0]
    # With three objectives the front's shadow on two of them has points that are beaten there.
    edge = corners[non_dominated(corners)]
    edge = edge[np.lexsort((-edge[:, 1], edge[:, 0]))]
    return {
        "type": "scatter",
        "mode": "lines",
        "legendgroup": points["legendgroup"],
        "x": (way * edge[:, 0]).tolist(),
        "y": edge[:, 1].tolist(),
        "line": {"shape": "hv", **line},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def retrained_traces(
    run: RunContents,
    trained: Sequence[RetrainedPoint],
    cost: str,
    names: tuple[str, str],
    colours: tuple[str, str] = ("var(--retrained)", "var(--ink)"),
) -> list[Trace]:
    """Stars for networks that were trained, with their staircase, and crosses for baselines.

    Args:
        run: one that has a front.
        trained: its networks.
        cost: name of a metric.
        names: of the stars and of the crosses.
        colours: of both.
    """
    lines = {"width": 1, "color": "var(--ink)"}
    markers = [
        _dots(colours[0], 14, symbol="star", line=lines),
        _dots(colours[1], 12, symbol="x", line=lines),
    ]
    kinds = [[one for one in trained if one.baseline == plain] for plain in (False, True)]
    stars, crosses = (
        _points(
            run,
            name,
            [one.after for one in among],
            cost,
            marker,
            {one.after.id: one.interval for one in among if one.interval is not None},
        )
        for name, among, marker in zip(names, kinds, markers, strict=True)
    )
    ties = [_tie(one, cost, colours[0], names[0]) for one in kinds[0]]
    broken = {"width": 1.5, "dash": "6px,3px", "color": colours[0]}
    stairs = [_stairs(stars, cost, broken)] if len(stars["x"]) > 1 else []
    return [*ties, *stairs, stars, crosses]


def marks_in_words(trained: Sequence[RetrainedPoint]) -> str:
    """What staircase and bars of networks that were trained mean, as far as there are any."""
    text = ""
    if sum(not one.baseline for one in trained) > 1:
        text += " The broken line is the front of the stars alone."
    if any(one.interval is not None for one in trained):
        text += (
            " A bar is the 95 % sampling error of the validation examples; training with another "
            "seed may change more."
        )
    return text


def checkpoint_traces(
    run: RunContents,
    cost: str,
    others: Sequence[float],
    name: str = "the checkpoint",
    colour: str = "var(--ink)",
) -> list[Trace]:
    """A square for the checkpoint that the search began with; none where there was none.

    Where its distance from itself is next to nothing, it would stretch a logarithmic axis over all
    the decades down to it: it then stands at a share of the lowest of the others.
    """
    if run.origin is None:
        return []
    marker = _dots(colour, 12, symbol="square-open", line={"width": 2.5})
    made = _points(run, name, [run.origin.entry], cost, marker)
    lowest = min((value for value in others if value > 0), default=0.0)
    return [{**made, "y": [max(value, NEXT_TO_NOTHING * lowest) for value in made["y"]]}]


def _tie(one: RetrainedPoint, cost: str, colour: str, group: str) -> Trace:
    """From the quality that the search saw to that of the trained network."""
    x, low, high = (
        _value(one.before, cost),
        _value(one.after, QUALITY),
        _value(one.before, QUALITY),
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "legendgroup": group,
        "x": [] if x is None else [x, x],
        "y": [high, low],
        "line": {"width": 1.5, "dash": "dot", "color": colour},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _limit_line(limit: float | None) -> list[dict[str, Any]]:
    if limit is None:
        return []
    line = {"color": "var(--ink)", "width": 1.5, "dash": "dash"}
    return [
        {"type": "line", "x0": limit, "x1": limit, "yref": "paper", "y0": 0, "y1": 1}
        | {"line": line}
    ]


def _all(traces: Sequence[Trace], coordinate: str) -> list[float]:
    return [number for trace in traces for number in trace[coordinate]]


def _value(entry: FrontEntry, name: str) -> float | None:
    """The measured value, else the predicted one."""
    return entry.measured.get(name, entry.predicted.get(name))


def _hover(run: RunContents, entry: FrontEntry, kind: str, interval: Interval | None) -> Html:
    lines = [Html(f"<b>{escape(entry.id)}</b> ({escape(kind)})"), words.outline(entry.network)]
    lines += words.layer_lines(entry.network)
    for name in dict.fromkeys((*words.METRICS, *run.spec.costs)):
        number = _value(entry, name)
        if number is not None:
            guess = "" if name in entry.measured else " (predicted)"
            if name in entry.doubtful:
                guess = f" (doubtful: {entry.doubtful[name]})"
            if name == QUALITY and interval is not None:
                guess = f" ({' to '.join(words.value(name, end) for end in interval)})"
            lines.append(f"{words.axis_label(run, name)}: {words.value(name, number)}{guess}")
    return Html("<br>".join(map(escape, lines)))


def order_chart(run: RunContents) -> Html:
    """Qualities in the search and once trained; nothing before enough networks are trained."""
    found = run.retrained_order
    if found is None:
        return Html("")
    known = {one.after.id: one.interval for one in retrained_points(run)}
    bars = [
        (now, *(known.get(one) or (now, now)))
        for one, now in zip(found.ids, found.after, strict=True)
    ]
    names = [
        f"{one}: {words.value(QUALITY, seen)}, trained {words.value(QUALITY, now)}"
        for one, seen, now in zip(found.ids, found.before, found.after, strict=True)
    ]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": list(found.before),
        "y": list(found.after),
        "text": names,
        "hovertemplate": hover("%{text}"),
        "marker": _dots("var(--retrained)", 10),
        "error_y": _error_bars(bars, "var(--retrained)"),
        "showlegend": False,
    }
    label = words.axis_label(run, QUALITY)
    layout = {
        "xaxis": axis(f"{label}, in the search", found.before, tickformat="~g"),
        "yaxis": axis(f"{label}, trained", found.after, tickformat="~g"),
    }
    return chart("retrained-order", [points], layout, found.sentence, height_rem=20)


# -- table --------------------------------------------------------------------------------------


def _anchor(entry: FrontEntry) -> Html:
    return tag("a", entry.id, href=f"#network-{entry.id}")


def front_table(run: RunContents, titled: Callable[[FrontEntry], Html] = _anchor) -> Html:
    """The networks of the front as a table.

    Args:
        run: one that has a front.
        titled: what stands in the first column.
    """
    assert run.front is not None
    picked = run.picked
    if run.spec.evaluator is not None:
        return _external_table(run, titled)
    results = {result.id: result for result in run.retrained}
    known = (*run.front.entries[0].predicted, *run.front.entries[0].measured)
    costs = [name for name in COSTS if name in known]
    timed = [name for name in costs if OBJECTIVES[name].predicted]
    exact = [name for name in COUNTED if name in costs]
    shown = _quality_heads(run)
    heads = ["network"]
    heads += [f"test {words.SCORES[run.retrained[0].headline]}, retrained"] if results else []
    heads += shown.values()
    for name in timed:
        label, unit = OBJECTIVES[name].label, OBJECTIVES[name].symbol
        heads += [f"{label}, {unit}", f"{label} predicted, {unit}"]
    heads += [*(OBJECTIVES[name].label for name in exact), "layers", "embedding size"]
    rows = []
    for entry in run.front.entries:
        name, *numbers = _row(
            entry, titled(entry), entry.id == (picked and picked.id), shown, timed, exact
        )
        trained = [_test_score(results.get(entry.id))] if results else []
        rows.append([name, *trained, *numbers])
    *first, last = [head for name, head in shown.items() if name != PREDICTED]
    caption = (
        f"The networks of the front. {words.sentence(', '.join(first))} and {last} are those of "
        f"the validation part, {words.observed_how(run)}. A click on a head sorts."
    )
    for name, device in run.front.predicted_for.items():
        caption += (
            f" No network could be timed on the device this search is for: "
            f"{words.metric(run, name)} with ± is not measured, but predicted for {device}, "
            "with its standard deviation."
        )
    for name in timed:
        guessed = any(name not in entry.measured for entry in run.front.entries)
        if guessed and name not in run.front.predicted_for:
            caption += f" {words.sentence(words.metric(run, name))} with ± is predicted."
    made = table(heads, rows, caption, sortable=True)
    return join(made, doubtful.explanation(run.front.entries))


def _external_table(run: RunContents, titled: Callable[[FrontEntry], Html]) -> Html:
    """The same of networks that an evaluator of others knows: each in a line."""
    assert run.front is not None
    picked = run.picked
    names = [QUALITY, *run.costs]
    heads = ["network", *(words.axis_label(run, name) for name in names)]
    heads += [f"{words.metric(run, QUALITY)} predicted", "genes"]
    rows = []
    for entry in run.front.entries:
        chosen, link = picked is not None and entry.id == picked.id, titled(entry)
        rows.append(
            [
                cell(join(link, " ", tag("span", "picked", class_="badge")) if chosen else link),
                *(_number(entry.values, name) for name in names),
                _number(entry.predicted, QUALITY),
                cell(words.outline(entry.network)),
            ]
        )
    caption = (
        f"The networks of the front, evaluated {words.observed_how(run)}. A click on a head sorts."
    )
    return table(heads, rows, caption, sortable=True)


def _quality_heads(run: RunContents) -> dict[str, str]:
    """What the validation part says of a network → its head; PREDICTED for the guess."""
    name = "loss" if run.by_loss else words.metric(run, QUALITY)
    heads = {QUALITY: name, PREDICTED: f"{name} predicted"}
    right = {f"valid_{one}": head for one, head in _beside(run).items()}
    return heads | ({} if run.by_loss else {"valid_loss": "loss"}) | right


def _beside(run: RunContents) -> dict[str, str]:
    """Scores that networks of a task have beside their loss → their heads."""
    task = TASKS[run.space.task]
    if run.space.task == "embedding":
        entries = () if run.front is None else run.front.entries
        known = {name for entry in entries for name in entry.measured}
        names = [name for name in task.metrics if name != "loss" and f"valid_{name}" in known]
        return {name: task.metrics[name] for name in names}
    return {"accuracy": "accuracy" if task.classifies else "tokens right"}


def _row(
    entry: FrontEntry,
    link: Html,
    picked: bool,
    shown: Iterable[str],
    timed: Iterable[str],
    exact: Iterable[str],
) -> list[Html]:
    stacks = [s for s in (entry.architecture.encoder, entry.architecture.decoder) if s is not None]
    depths, dims = [len(stack.layers) for stack in stacks], [stack.embed_dim for stack in stacks]
    cells = [
        cell(join(link, " ", tag("span", "picked", class_="badge")) if picked else link),
    ]
    for name in shown:
        guess = name == PREDICTED
        cells.append(_number(*((entry.predicted, QUALITY) if guess else (entry.measured, name))))
    for name in timed:
        cells += [_measured_or_not(entry, name), _number(entry.predicted, name)]
    cells += [_number(entry.measured, name) for name in exact]
    sizes = ((depths, sum(depths)), (dims, sum(dims)))
    return cells + [cell(" + ".join(map(str, each)), order) for each, order in sizes]


def _measured_or_not(entry: FrontEntry, name: str) -> Html:
    """Measured, marked where it is doubtful, or else predicted with its standard deviation."""
    if name in entry.measured:
        number = entry.measured[name]
        return cell(doubtful.value(words.value(name, number), name, entry), number)
    number, deviation = entry.value(name), entry.predicted[OBJECTIVES[name].std_name]
    return cell(f"{words.value(name, number)} ± {words.value(name, deviation)}", number)


def _test_score(result: Retrained | None) -> Html:
    if result is None:
        return cell("–", -1.0)
    number = result.test_scores[result.headline]
    return cell(words.score(result.headline, number), number, strong=True)


def _number(values: Mapping[str, float], name: str) -> Html:
    number = values.get(name)
    return cell(words.value(name, number), -1.0 if number is None else number)

"""What the run cost: the time of each stage, what was trained, and what could not be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nas.report import words
from nas.report.charts import Trace, axis, bars, chart, hover
from nas.report.markup import Html, cell, missing, paragraph, section, table, tag
from nas.results.contents import Epoch, RunContents
from nas.run.stages import stage_label
from search_spaces.tasks import TASKS


def time_section(run: RunContents) -> Html:
    """Seconds of each stage."""
    title = "What it cost"
    if not run.seconds:
        return section("time", title, missing("No stage has ended."))
    total = sum(run.seconds.values())
    told = run.told
    sentence = told.sentence(words.duration)
    intro = paragraph(
        f"All stages together took {words.duration(total)}"
        f"{'' if not run.unfinished else ' so far'}. Time for which the run was stopped is not "
        f"counted.{f' Duration: {sentence}.' if sentence else ''}"
    )
    names = [stage_label(stage) for stage in run.seconds]
    seconds = list(run.seconds.values())
    texts = [
        words.duration(number)
        + (f" (told {words.duration(told.told[stage])})" if stage in told.told else "")
        for stage, number in run.seconds.items()
    ]
    trace = bars(names, seconds, texts, "var(--omni)")
    layout = {
        "xaxis": axis("seconds", range=[0, 1.2 * max(*seconds, 0.1)]),
        "yaxis": axis("", type="category"),
    }
    caption = "Seconds spent in each stage."
    drawing = chart("stages", [trace], layout, caption, 4 + 1.6 * len(names))
    return section("time", title, intro, drawing)


def training_section(run: RunContents) -> Html:
    """The supernet's learning curves, or why there are none."""
    if run.spec.trains_alone:
        budget = run.spec.budget
        once = budget.own_seeds == 1
        seeds = "the seed" if once else f"{budget.own_seeds} seeds, one of them that"
        text = (
            "This run has no supernet: each network was trained alone for "
            f"{words.plural(budget.own_updates, 'update')} before it was observed, from "
            f"scratch, with the settings and {seeds} of the retraining. Its weights were not kept."
        )
        return section("training", "Training before observing", paragraph(text))
    title = "Training of the supernet"
    if not run.history:
        return section("training", title, missing("The supernet was not trained."))
    intro = paragraph(
        "One large network that contains all networks of the space was trained once; every "
        "network of the space was then judged with its part of these weights. From time to time "
        "a few fixed probe networks were measured on the validation part."
    )
    drawings = [losses_chart("training", run.history, run, "mean probe, validation")]
    if sum(epoch.tau is not None for epoch in run.history) > 1:
        drawings.append(_stability(run.history))
    return section("training", title, intro, tag("div", drawings, class_="charts"))


def losses_chart(name: str, history: Sequence[Epoch], run: RunContents, judged: str) -> Html:
    """Loss by epoch.

    Args:
        name: of the chart, unique on the page.
        history: of a training; not empty.
        run: whose task says what a loss is measured in.
        judged: what the loss on the validation split is of.
    """
    unit = TASKS[run.space.task].loss_unit
    traces = [
        _line("training loss", [(e.epoch, e.train_loss) for e in history], "var(--linear)", ""),
        _line(judged, _known(history, "probe_loss"), "var(--softmax)", "+markers"),
    ]
    shown = [trace for trace in traces if trace["x"]]
    values = [number for trace in shown for number in trace["y"]]
    layout = {
        "xaxis": _epochs(history),
        "yaxis": axis(f"loss ({unit})" if unit else "loss", values, tickformat="~g"),
    }
    caption = (
        "Loss by epoch. The training loss contains label smoothing and distillation where these "
        "are on, so the two curves need not meet."
    )
    return chart(name, shown, layout, caption)


def _stability(history: Sequence[Epoch]) -> Html:
    trace = _line("Kendall τ", _known(history, "tau"), "var(--omni)", "+markers")
    layout = {
        "xaxis": _epochs(history),
        "yaxis": axis("Kendall τ", range=[min(-0.02, *trace["y"]), 1.02]),
    }
    caption = (
        "Stability of the order: Kendall τ between the probes' order at a check and at the one "
        "before. Near 1, further training no longer changes which networks look better."
    )
    return chart("stability", [trace], layout, caption)


def _epochs(history: Sequence[Epoch]) -> dict[str, Any]:
    """The axis of the epochs, with whole numbers only."""
    return axis("epoch") | ({"dtick": 1} if len(history) <= 10 else {})


def _known(history: Sequence[Epoch], name: str) -> list[tuple[int, float]]:
    found: list[tuple[int, Any]] = [(epoch.epoch, getattr(epoch, name)) for epoch in history]
    return [(epoch, number) for epoch, number in found if number is not None]


def _line(name: str, points: Sequence[tuple[int, float]], colour: str, markers: str) -> Trace:
    return {
        "type": "scatter",
        "mode": f"lines{markers}",
        "name": name,
        "x": [epoch for epoch, _ in points],
        "y": [number for _, number in points],
        "line": {"color": colour, "width": 2},
        "hovertemplate": hover("%{y:.4f} at epoch %{x}", name),
    }


def failures_section(run: RunContents) -> Html:
    """What failed; nothing where nothing did."""
    if not run.failed:
        return Html("")
    intro = paragraph(
        f"{words.plural(len(run.failed), 'network')} could not be evaluated. They count as worth "
        "nothing, no ranker learnt from them, and they are not on the front."
    )
    rows = [
        [
            cell(tag("code", one.network.id)),
            cell(words.outline(one.network)),
            cell(one.failure.kind),
            cell(one.failure.reason),
            cell(f"{one.failure.tries}", one.failure.tries),
        ]
        for one in run.failed
    ]
    heads = ["id", "network", "what happened", "reason", "tries"]
    return section(
        "failures", "What could not be evaluated", intro, table(heads, rows, "Failed networks.")
    )

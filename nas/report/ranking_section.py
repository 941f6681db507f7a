"""Why the predictions may be believed: features, importances, report card, timing model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latency.predictor import PredictorReport, Score
from nas.objectives import LATENCY, OBJECTIVES, QUALITY, Objective
from nas.objectives.latency_limits import PREDICTED_STDS
from nas.report import doubtful, words
from nas.report.charts import Trace, axis, bars, chart, escape, hover
from nas.report.length_charts import length_charts
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.results.contents import RunContents
from nas.search.front import FrontEntry
from nas.search.ranking.report_card import Fidelity, ReportCard
from nas.search.sensitivity import Feature

MOST_FEATURES = 20
LATENCY_TITLE = "The latency predictor"
BASELINES = {
    "params": "more parameters are better",
    "flops": "more FLOPs are better",
    "depth": "number of layers alone",
}
PREDICTORS = {
    "sum_of_costs": "sum of costs",
    "linear": "linear",
    "gaussian_process": "Gaussian process",
    "trees": "boosted trees",
}


# -- importances --------------------------------------------------------------------------------


def importances_section(run: RunContents) -> Html:
    """Which properties of a network the ranker looks at."""
    title = "What decides the quality"
    used = {name: share for name, share in run.importances.items() if share > 0}
    if not used:
        return section("importances", title, missing("No ranker was fitted."))
    top = sorted(used.items(), key=lambda item: (-item[1], item[0]))[:MOST_FEATURES]
    intro = paragraph(
        "The ranker predicts quality from properties of a network. A bar shows how much of the "
        "differences between its predictions comes from one property. It says what the ranker "
        "uses, not whether more of it is better. Properties that go together (such as the size "
        "of a layer and the sum of all sizes) share their importance."
    )
    names = [words.feature(name, run.both_stacks) for name, _ in top]
    shares = [100 * share for _, share in top]
    trace = bars(names, shares, [f"{share:.1f} %" for share in shares], "var(--softmax)")
    layout = {
        "xaxis": axis("share of the differences, %", range=[0, 1.15 * max(shares)]),
        "yaxis": axis("", type="category"),
    }
    caption = f"The {len(top)} most important of {len(run.importances)} properties."
    drawing = chart("importances", [trace], layout, caption, 3.5 + 1.5 * len(top))
    return section("importances", title, intro, drawing)


# -- report card --------------------------------------------------------------------------------


def card_section(run: RunContents) -> Html:
    """How well the ranker orders networks that it has not seen."""
    title = "The ranker's report card"
    card = run.card
    if card is None:
        return section("ranker", title, missing("No ranker was fitted."))
    found = card.held_out
    interval = ""
    if found.interval:
        low, high = found.interval
        interval = f" (95 % interval {low:.2f} to {high:.2f})"
    intro = paragraph(
        f"Evolution trusts a ranker ({card.ranker}) that learnt from {card.observations} observed "
        "networks. In cross-validation, always on networks it had not seen, it put ",
        tag("strong", f"{words.percent(found.pairwise_accuracy)} of the pairs"),
        " in the right order; guessing gets 50 %. Its Kendall τ is ",
        tag("strong", f"{found.kendall_tau:.2f}"),
        f"{interval}, where 1 is the perfect order and 0 is guessing.",
        _usual_error(run, card),
    )
    notes = [paragraph(note) for note in card.notes]
    drawings = tag("div", _curve(card), _quality_check(run), class_="charts")
    return section("ranker", title, intro, drawings, _card_table(card), *notes)


def _usual_error(run: RunContents, card: ReportCard) -> str:
    """How far predictions are off, or nothing where a card of an older version does not say."""
    if card.error is None:
        return ""
    return (
        f" Its guesses of the {words.metric(run, QUALITY)} were off by "
        f"{words.value(QUALITY, card.error)} (root mean square); pruning takes nothing for better "
        "by less than that."
    )


def _curve(card: ReportCard) -> Html:
    counts = [point.observations for point in card.curve]

    def line(name: str, values: Sequence[float], colour: str, symbol: str, dash: str) -> Trace:
        return {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": counts,
            "y": list(values),
            "line": {"color": colour, "width": 2.5, "dash": dash},
            "marker": {"size": 9, "symbol": symbol},
            "hovertemplate": hover("%{y:.3f} with %{x} observations", name),
        }

    points = [point.fidelity for point in card.curve]
    pairs = [fidelity.pairwise_accuracy for fidelity in points]
    taus = [fidelity.kendall_tau for fidelity in points]
    traces = [
        line("pairs in the right order", pairs, "var(--softmax)", "circle", "solid"),
        line("Kendall τ", taus, "var(--linear)", "square", "dash"),
    ]
    layout = {
        "xaxis": axis("networks learnt from", rangemode="tozero"),
        "yaxis": axis("held-out agreement", range=[min(0.0, *taus) - 0.02, 1.02]),
    }
    caption = (
        "Learning curve: what the ranker would be worth with fewer observations. A curve that "
        "still climbs at its right end says that more observations would help."
    )
    return chart("learning-curve", traces, layout, caption)


def _card_table(card: ReportCard) -> Html:
    rows = [
        _fidelity_row(name, card.held_out if name == card.ranker else found, name == card.ranker)
        for name, found in card.candidates.items()
    ]
    for name, found in card.baselines.items():
        rows.append(_fidelity_row(f"rule of thumb: {BASELINES.get(name, name)}", found, False))
    heads = ["order by", "Kendall τ", "95 % interval", "Spearman ρ", "pairs in the right order"]
    caption = (
        "Every ranker that was tried, and rules of thumb to compare with. The one in bold was "
        "taken."
    )
    return table(heads, rows, caption)


def _fidelity_row(name: str, found: Fidelity, chosen: bool) -> list[Html]:
    interval = "–" if found.interval is None else "{:.2f} to {:.2f}".format(*found.interval)
    return [
        cell(f"{name} (taken)" if chosen else name, strong=chosen),
        cell(f"{found.kendall_tau:.3f}", found.kendall_tau, strong=chosen),
        cell(interval),
        cell(f"{found.spearman:.3f}", found.spearman),
        cell(words.percent(found.pairwise_accuracy), found.pairwise_accuracy, strong=chosen),
    ]


# -- predicted against measured -----------------------------------------------------------------


def _quality_check(run: RunContents) -> Html:
    seen = {entry.id for entry in run.observed}
    fresh = [entry for entry in run.verified if entry.id not in seen]
    if not fresh:
        return missing("No network was measured after the evolution.")
    caption = (
        f"Predicted against measured {words.metric(run, QUALITY)} of networks that the ranker "
        "had never seen. "
        "These are evolution's best, so they are alike and hard to tell apart. On the line, "
        "prediction and measurement agree."
    )
    return _agreement(run, "quality-check", fresh, QUALITY, caption)


def latency_section(run: RunContents) -> Html:
    """How the times of networks were predicted: a section for each that was needed."""
    if not run.spec.timed:
        text = "Latency was neither an objective nor a limit, so no network was timed."
        return section("latency", LATENCY_TITLE, missing(text))
    return join(*(_latency_section(run, OBJECTIVES[name]) for name in run.spec.timed))


def _latency_section(run: RunContents, clock: Objective) -> Html:
    name = clock.name
    title = LATENCY_TITLE if name == LATENCY else f"The predictor of the {clock.label}"
    first = name == run.spec.timed[0]
    place = "latency" if first else clock.stage  # where the page's own contents lead to
    report, profile = run.predictors.get(name), run.profiles.get(name)
    if report is None:
        return section(place, title, missing("No network was timed."))
    where = ""
    if profile is not None:
        header = profile.header
        load = header.workload
        what = "length" if clock.mode is None else "context"
        where = (
            f" on {header.device.label}, with batches of {load.batch} ({what} {load.source_length})"
        )
    intro = paragraph(
        f"{words.plural(report.num_observations, 'network')} were timed{where}. From these times a "
        f"predictor ({_predictor(report.chosen)}) learnt to guess the others. In cross-validation "
        "it was off by ",
        tag("strong", f"{words.percent(report.mape)} on average"),
        f", and its order had a Kendall τ of {report.kendall_tau:.2f}. ",
        _what_decides(run, name),
    )
    timed = set(profile.entries) if profile else set()
    fresh = [entry for entry in run.verified if entry.id not in timed]
    drawing = missing("No network was timed after the evolution.")
    if any(name in entry.measured for entry in fresh):
        caption = (
            f"Predicted against measured {clock.label} of networks that the predictor had never "
            "seen. On the line, they agree."
        )
        drawing = _agreement(run, f"{clock.stage}-check", fresh, name, caption)
    both = tag("div", drawing, _latency_table(report), class_="charts")
    if not first:
        return section(place, title, intro, both)
    lengths = length_charts(run.device_profile) if run.device_profile else []
    return section(place, title, doubtful.warnings(run), intro, both, *lengths)


def _what_decides(run: RunContents, name: str) -> str:
    device = run.front.predicted_for.get(name) if run.front else None
    if device is None:
        return (
            "Candidates that evolution liked were then timed for real; only measured times decide "
            "the front."
        )
    return (
        "The times are those of a device profile. The search ran elsewhere, so times are "
        f"predicted for {device}, and a limit holds for the prediction with {PREDICTED_STDS:g} "
        "standard deviations on top."
    )


def _latency_table(report: PredictorReport) -> Html:
    rows = [
        _score_row(_predictor(name), score, name == report.chosen)
        for name, score in report.candidates.items()
    ]
    rows += [
        _score_row(f"rule of thumb: {BASELINES.get(name, name)}", score, False)
        for name, score in report.baselines.items()
        if name not in report.candidates
    ]
    caption = "Every predictor that was tried, in cross-validation. The one in bold was taken."
    return table(["predictor", "average error", "Kendall τ"], rows, caption)


def _predictor(name: str) -> str:
    """A candidate of `latency.regressors` in words."""
    return PREDICTORS.get(name, name)


def _score_row(name: str, score: Score, chosen: bool) -> list[Html]:
    return [
        cell(f"{name} (taken)" if chosen else name, strong=chosen),
        cell(words.percent(score.mape), score.mape, strong=chosen),
        cell(f"{score.kendall_tau:.3f}", score.kendall_tau),
    ]


def _agreement(
    run: RunContents, name: str, entries: Sequence[FrontEntry], metric: str, caption: str
) -> Html:
    """Predicted against measured, with the line on which both agree."""
    pairs = [
        (entry.predicted[metric], entry.measured[metric], entry)
        for entry in entries
        if metric in entry.predicted and metric in entry.measured
    ]
    predicted, measured = [p for p, _, _ in pairs], [m for _, m, _ in pairs]
    low, high = min((*predicted, *measured)), max((*predicted, *measured))
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    ends = [low - room, high + room]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": ends,
        "line": {"color": "var(--muted)", "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
    }
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": predicted,
        "y": measured,
        "text": [_hover(entry, metric) for _, _, entry in pairs],
        "hovertemplate": hover("%{text}"),
        "marker": {"color": "var(--softmax)", "size": 8, "opacity": 0.85},
    }
    layout: Mapping[str, Any] = {
        "xaxis": axis(f"predicted {words.axis_label(run, metric)}", range=ends),
        "yaxis": axis(f"measured {words.axis_label(run, metric)}", range=ends),
        "showlegend": False,
    }
    return chart(name, [line, dots], layout, caption)


def _hover(entry: FrontEntry, metric: str) -> Html:
    values = (words.value(metric, part.get(metric)) for part in (entry.predicted, entry.measured))
    predicted, measured = values
    if metric in entry.doubtful:
        measured += f" (doubtful: {escape(entry.doubtful[metric])})"
    outline = escape(words.outline(entry.network))
    return Html(
        f"<b>{escape(entry.id)}</b><br>{outline}<br>predicted {predicted}, measured {measured}"
    )


def features_section(run: RunContents) -> Html:
    """One list for each objective: share and direction."""
    title = "Top features"
    if not run.features:
        return section("features", title, missing("The predictors were not fitted."))
    more = [words.metric(run, name) for name in run.features if OBJECTIVES[name].maximise]
    helps = f"a lower value, of {' and '.join(more)} a higher one" if more else "a lower value"
    intro = paragraph(
        "Which choices decide an objective, by the predictors of this run: the share of the "
        "differences between random networks that goes with a gene (its interactions with others "
        f"included), and what happens when it alone is changed. Helps always means {helps}. "
        "The bar chart below shows what the ranker computes with; this is what comes of it."
    )
    lists = []
    for name, found in run.features.items():
        called = words.metric(run, name)
        lists.append(_list(run, found.genes, f"Genes that decide {called}, all layers together."))
        lists.append(_list(run, found.slots, f"The same for {called}, layer by layer."))
    return section("features", title, intro, *lists)


def _list(run: RunContents, features: Sequence[Feature], caption: str) -> Html:
    rows = [
        [
            cell(str(place), place),
            cell(words.feature(one.name, run.both_stacks)),
            cell(words.percent(one.share), one.share),
            cell(one.direction),
        ]
        for place, one in enumerate(features, start=1)
    ]
    return table(["", "feature", "share", "direction"], rows, caption)

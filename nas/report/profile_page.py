"""A page about a device: latency by length of each kind of attention, and the predictors."""

from __future__ import annotations

from pathlib import Path

from nas.attention_crossing import Crossing, LatencyByLength, latencies_by_length
from nas.device_profile import CarriedProfile, WorkloadProfile
from nas.report import words
from nas.report.charts import Trace, axis, chart
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.report.page import document
from search_spaces.files import write_atomically

COLOURS = {"softmax": "var(--softmax)", "linear": "var(--linear)", "omni": "var(--omni)"}


def write_profile_report(profile: CarriedProfile, path: Path) -> None:
    """Write the page; one file that needs no network."""
    write_atomically(path, render_profile(profile))


def render_profile(profile: CarriedProfile) -> Html:
    """The page as text."""
    count = sum(len(one.measured) for one in profile.workloads)
    head = tag(
        "header",
        tag("h1", f"{profile.name}: latency in {profile.space_name}"),
        paragraph(
            f"{words.plural(count, 'timing')} on {profile.device.label}, "
            f"{'graphs by ' * (profile.device.runtime is not None)}torch "
            f"{profile.device.torch_version}."
        ),
    )
    body = join(head, _length_section(profile), _accuracy_section(profile))
    return document(f"{profile.name}: device profile", tag("main", body))


def _length_section(profile: CarriedProfile) -> Html:
    title = "Where linear attention overtakes softmax"
    drawn = latencies_by_length(profile)
    if not drawn:
        text = (
            "This takes workloads of two lengths or more, and a space with two kinds of attention: "
            "nas profile --workload source=128 --workload source=512 …"
        )
        return section("lengths", title, missing(text))
    charts = [_length_chart(lines, number) for number, lines in enumerate(drawn)]
    return section("lengths", title, *charts)


def _length_chart(lines: LatencyByLength, number: int) -> Html:
    traces = [_line(lines, kind) for kind in lines.latency_ms]
    values = [ms for line in lines.latency_ms.values() for ms in line]
    crossed = [one for one in lines.crossings if one.length is not None]
    layout = {
        "xaxis": axis("source length (tokens)", [float(n) for n in lines.lengths]),
        "yaxis": axis("latency (ms)", values, tickformat="~g"),
        "shapes": [_mark(one) for one in crossed],
    }
    caption = (
        f"Median latency of networks of one shape, {words.outline(lines.architecture)}, with one "
        "kind of attention throughout. "
    )
    told = " ".join(crossing_sentence(one, lines) for one in lines.crossings)
    return chart(f"lengths-{number}", traces, layout, caption + told, height_rem=28)


def crossing_sentence(one: Crossing, lines: LatencyByLength) -> str:
    """What a crossing says, in words."""
    ends = f"{lines.lengths[0]} to {lines.lengths[-1]} tokens"
    if one.length is not None:
        return (
            f"From about {one.length:.0f} tokens on, {one.kind} attention is faster than softmax."
        )
    verdict = "faster" if one.faster else "not faster"
    return f"From {ends}, {one.kind} attention is {verdict} than softmax."


def _mark(one: Crossing) -> dict[str, object]:
    line = {"color": COLOURS.get(one.kind, "var(--ink)"), "width": 1.5, "dash": "dash"}
    ends = {"x0": one.length, "x1": one.length, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", "line": line, **ends}


def _line(lines: LatencyByLength, kind: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": kind,
        "x": list(lines.lengths),
        "y": list(lines.latency_ms[kind]),
        "line": {"color": COLOURS.get(kind, "var(--ink)"), "width": 2},
        "hovertemplate": "%{y:.3g} ms at %{x} tokens<extra>" + kind + "</extra>",
    }


def _accuracy_section(profile: CarriedProfile) -> Html:
    tables = [_accuracy_table(one) for one in profile.workloads]
    return section("accuracy", "How far the predictors can be trusted", *tables)


def _accuracy_table(one: WorkloadProfile) -> Html:
    rows = [
        [cell(str(row["samples"]))]
        + [
            cell(text)
            for name in ("predictor", "linear", "depth")
            for text in (words.percent(row[name]["mape"]), f"{row[name]['kendall_tau']:.2f}")
        ]
        for row in one.report["sizes"]
    ]
    heads = ["samples", "error", "τ", "linear, error", "linear, τ", "depth, error", "depth, τ"]
    caption = (
        f"{one.workload.label}: mean relative error and Kendall τ on networks that were held out, "
        "by the number of networks fitted to. The profile's own predictors know "
        f"{words.plural(len(one.measured), 'network')}; in cross-validation they are off by "
        f"{words.percent(one.latency.report.mape)} in latency and "
        f"{words.percent(one.memory.report.mape)} in peak memory. The networks were chosen to be "
        "unlike each other, which makes these numbers larger than those of random networks."
    )
    return table(heads, rows, caption)

"""Latency by length of each kind of attention, as a profile of several lengths tells it."""

from __future__ import annotations

from nas.profiling.attention_crossing import Crossing, LatencyByLength, latencies_by_length
from nas.profiling.device_profile import DeviceProfile
from nas.report import words
from nas.report.charts import Trace, axis, chart, hover
from nas.report.markup import Html
from search_spaces.architecture import base_kind


def _colour(kind: str) -> str:
    return f"var(--{base_kind(kind)})"


def length_charts(profile: DeviceProfile) -> list[Html]:
    """A chart for each set of workloads that differ in their length alone; often none.

    Both axes are logarithmic, where straight lines are powers of the length: they meet where
    `nas.profiling.attention_crossing` says.
    """
    drawn = latencies_by_length(profile)
    return [_length_chart(lines, number) for number, lines in enumerate(drawn)]


def _length_chart(lines: LatencyByLength, number: int) -> Html:
    traces = [_line(lines, kind) for kind in lines.latency_ms]
    values = [ms for line in lines.latency_ms.values() for ms in line]
    crossed = [one for one in lines.crossings if one.length is not None]
    layout = {
        "xaxis": axis("source length (tokens)", type="log", tickvals=list(lines.lengths)),
        "yaxis": axis("latency (ms)", values, type="log", tickformat="~g"),
        "shapes": [_mark(one) for one in crossed],
    }
    caption = (
        f"Median latency of networks of one shape, {words.outline(lines.architecture)}, with one "
        "kind of attention throughout. "
    )
    sentences = " ".join(crossing_sentence(one, lines) for one in lines.crossings)
    return chart(f"lengths-{number}", traces, layout, caption + sentences, height_rem=28)


def crossing_sentence(one: Crossing, lines: LatencyByLength) -> str:
    """What a crossing says, in words."""
    ends = f"{lines.lengths[0]} to {lines.lengths[-1]} tokens"
    if one.length is not None:
        return (
            f"From about {one.length:.0f} tokens on, {one.kind} attention is faster than softmax."
        )
    if one.ever and not one.faster:
        return (
            f"From {ends}, {one.kind} attention is faster than softmax at some lengths, and is "
            f"slower at {lines.lengths[-1]} tokens."
        )
    verdict = "faster" if one.faster else "not faster"
    return f"From {ends}, {one.kind} attention is {verdict} than softmax."


def _mark(one: Crossing) -> dict[str, object]:
    line = {"color": _colour(one.kind), "width": 1.5, "dash": "dash"}
    ends = {"x0": one.length, "x1": one.length, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", "line": line, **ends}


def _line(lines: LatencyByLength, kind: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": kind,
        "x": list(lines.lengths),
        "y": list(lines.latency_ms[kind]),
        "line": {"color": _colour(kind), "width": 2},
        "hovertemplate": hover("%{y:.3g} ms at %{x} tokens", kind),
    }

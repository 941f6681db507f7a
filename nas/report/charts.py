"""Interactive charts as plain plotly JSON, drawn in the browser by ``page.js``.

Colours are names of CSS variables (``var(--front)``), so that one place decides them and a dark
page has other ones. Plotly reads every text as markup, so `chart` escapes all that is not `Html`
already.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nas.report.markup import Html, tag

Trace = dict[str, Any]

SIGNIFICANT = 6
# Where the largest value is so many times the smallest, equal ratios deserve equal room.
LOG_RATIO = 10.0
# What plotly only passes on.
UNREAD = ("customdata",)


def chart(
    name: str,
    traces: Sequence[Trace],
    layout: Mapping[str, Any],
    caption: str,
    height_rem: float = 24,
) -> Html:
    """A figure with a chart and the sentence that explains it.

    Args:
        name: unique on the page.
        traces: plotly's.
        layout: plotly's; ``page.js`` adds colours, fonts and margins.
        caption: what is to be seen.
        height_rem: of the drawing.
    """
    data = json.dumps({"data": _plotted(traces), "layout": _plotted(layout)}, sort_keys=True)
    # Inside a script element only these could end it or begin a comment.
    safe = data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    drawing = tag(
        "div",
        id=f"chart-{name}",
        class_="plot",
        style=f"height:{height_rem:g}rem",
        role="img",
        aria_label=caption,
    )
    source = tag("script", Html(safe), type="application/json", data_chart=f"chart-{name}")
    return tag("figure", drawing, source, tag("figcaption", caption))


def axis(title: str, values: Sequence[float] = (), **more: Any) -> dict[str, Any]:
    """An axis, logarithmic where the positive `values` spread over a wide range."""
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO
    scale = {"type": "log", "dtick": "D2", "minor": {"showgrid": False}} if wide else {}
    return {"title": {"text": title}, "automargin": True, **scale, **more}


def escape(text: str) -> Html:
    """Data as what plotly reads; markup stays as it is. Plotly knows no entity of quotes."""
    return text if isinstance(text, Html) else Html(html.escape(text, quote=False))


def hover(template: str, extra: str = "") -> Html:
    """What is shown at a point.

    Args:
        template: plotly's, which is markup.
        extra: data beside it.
    """
    return Html(f"{template}<extra>{escape(extra)}</extra>")


def bars(names: Sequence[str], values: Sequence[float], texts: Sequence[str], colour: str) -> Trace:
    """Horizontal bars, the first on top."""
    return {
        "type": "bar",
        "orientation": "h",
        "x": list(values)[::-1],
        "y": list(names)[::-1],
        "text": list(texts)[::-1],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "none",
        "marker": {"color": colour},
    }


def _plotted(value: Any) -> Any:
    """The same with text escaped, and floats of six digits, which no eye can tell apart."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT}g}")
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: part if key in UNREAD else _plotted(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plotted(part) for part in value]
    return value

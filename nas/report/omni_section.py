"""What omnidirectional layers look at: bars and tables by layer and head, maps of single images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nas.report import words
from nas.report.markup import Html, cell, join, paragraph, section, table, tag
from nas.results.contents import RunContents
from nas.run.omni_views import OmniViews
from search_spaces.omni import OmniLayer, OmniMap

ROW, BAR, LEFT = 24, 300, 128
PATCH, SPACE = 11, 8  # of a map: side of a patch, and what is between two maps

TITLE = "What omnidirectional layers look at"
HINT = join(
    tag("code", "nas show RUN --attention ID"),
    " does so for one with an omni layer above layers of another kind.",
)


def omni_section(run: RunContents, hint: Html = HINT) -> Html:
    """All networks of the run that were looked into.

    Args:
        run: what to show.
        hint: how that is done, where there are none.
    """
    if not run.views:
        text = join("No network was looked into: ", hint)
        # A finished run lacks nothing without: it is there on request.
        look = "missing" if run.front is None else "small"
        return section("omni", TITLE, tag("p", text, class_=look))
    views = [omni_view(view, run.spec.trained) for view in run.views]
    return section("omni", TITLE, explanation(), views)


def explanation() -> Html:
    """What the bars mean."""
    return paragraph(
        "An omnidirectional layer attends over the states of several layers at once, and then "
        "keeps for each position and feature the largest value among them. The bars show the share "
        "of the attention that each of those layers gets, and the share of the features that the "
        "pooling keeps from it (OmniNet, section 4.6)."
    )


def omni_view(view: OmniViews, trained: str) -> Html:
    """One network: for each omni layer bars, a table, and maps where there are any.

    Args:
        view: what was measured.
        trained: how networks of the search are trained, in words.
    """
    how = words.sentence(words.INHERITED if view.weights == "inherited" else trained)
    intro = f"{how}; means over {view.examples} validation examples."
    parts = [tag("h3", "Network ", tag("code", view.id)), tag("p", intro, class_="small")]
    for layer in view.layers:
        parts += [bars(layer), _table(layer)]
        maps = [m for m in view.maps if layer.stack == "encoder" and m.layer == layer.layer]
        if maps:
            parts.append(_maps(layer, maps))
    return tag("div", parts, class_="omni", id=f"omni-{view.id}")


def bars(layer: OmniLayer) -> Html:
    """A bar for all heads together, for each head, and for the pooling."""
    lines = [("attention, all heads", layer.attended)]
    if len(layer.by_head) > 1:
        lines += [(f"head {n}", shares) for n, shares in enumerate(layer.by_head, start=1)]
    lines.append(("kept by pooling", layer.pooling))
    rows = [_bar(place, name, shares) for place, (name, shares) in enumerate(lines)]
    spoken = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{source_name(s)} {words.percent(x)}"
            for s, x in zip(layer.sources, shares, strict=True)
        )
        for name, shares in lines
    )
    drawing = tag(
        "svg",
        rows,
        viewBox=f"0 0 {LEFT + BAR} {ROW * len(lines)}",
        role="img",
        aria_label=f"{words.sentence(layer.name)}. {spoken}",
        class_="shares",
    )
    caption = f"{words.sentence(layer.name)}: shares of the layers that it looks at."
    return tag("figure", _key(layer.sources), drawing, tag("figcaption", caption))


def source_name(source: int) -> str:
    """What people call an output that is looked at."""
    return f"layer {source}" if source else "embeddings"


def _bar(place: int, name: str, shares: Sequence[float]) -> Html:
    top, x = place * ROW, float(LEFT)
    parts = [tag("text", name, x=LEFT - 8, y=top + ROW / 2, class_="bar-name")]
    for number, share in enumerate(shares):
        width = BAR * share
        parts.append(
            tag(
                "rect",
                x=f"{x:.1f}",
                y=top + 3,
                width=f"{max(width - 1, 0):.1f}",
                height=ROW - 6,
                class_=f"source-{_shade(number, len(shares))}",
            )
        )
        if width >= 34:
            middle = f"{x + width / 2:.1f}"
            shade = f"on-source-{_shade(number, len(shares))}"
            text = words.percent(share)
            parts.append(tag("text", text, x=middle, y=top + ROW / 2, class_=shade))
        x += width
    return join(parts)


def _shade(number: int, count: int) -> int:
    """0 for the earliest of the layers looked at to 3 for the latest."""
    return round(3 * number / max(count - 1, 1))


def _key(sources: Sequence[int]) -> Html:
    items = [
        tag(
            "li",
            tag("span", class_=f"swatch source-{_shade(number, len(sources))}"),
            source_name(source),
        )
        for number, source in enumerate(sources)
    ]
    return tag("ul", items, class_="key")


def _table(layer: OmniLayer) -> Html:
    """Attention between the layers, and what the pooling keeps."""
    between = [
        [
            sum(head[query][key] for head in layer.attention) / len(layer.attention)
            for key in range(len(layer.sources))
        ]
        for query in range(len(layer.sources))
    ]
    rows = [
        [cell(f"from {source_name(source)}"), *(cell(words.percent(x), x) for x in shares)]
        for source, shares in zip(layer.sources, between, strict=True)
    ]
    rows.append([cell("kept by pooling"), *(cell(words.percent(x), x) for x in layer.pooling)])
    heads = ["", *(f"to {source_name(source)}" for source in layer.sources)]
    caption = "Attention from the states of one layer to those of another, mean over heads."
    return tag("details", tag("summary", "In numbers"), table(heads, rows, caption))


def _maps(layer: OmniLayer, maps: Sequence[OmniMap]) -> Html:
    """A pair of pictures for each image and source: attention, and what the pooling keeps."""
    side = math.isqrt(len(maps[0].attention[0]))
    rows = []
    for one in maps:
        brightest = max(share for patches in one.attention for share in patches) or 1.0
        cells = [
            _map(patches, side, brightest, f"{words.percent(sum(patches))} of the attention")
            for patches in one.attention
        ]
        cells += [
            _map(patches, side, 1.0, f"{words.percent(sum(patches) / len(patches))} kept")
            for patches in one.pooling
        ]
        name = tag("th", f"image {one.example + 1}", scope="row")
        rows.append(tag("tr", name, [tag("td", part) for part in cells]))
    heads = [f"attention to {source_name(source)}" for source in layer.sources]
    heads += [f"kept from {source_name(source)}" for source in layer.sources]
    head = tag("tr", tag("th", ""), [tag("th", text, scope="col") for text in heads])
    caption = (
        "Validation images patch by patch: the stronger the colour, the more attention a patch of "
        "that layer gets, or the more of its features the pooling keeps from there."
    )
    inner = tag("table", tag("thead", head), tag("tbody", rows), class_="maps", aria_label=caption)
    return tag("div", tag("p", caption, class_="small"), tag("div", inner, class_="scroll"))


def _map(patches: Sequence[float], side: int, brightest: float, label: str) -> Html:
    squares = [
        tag(
            "rect",
            x=PATCH * (number % side),
            y=PATCH * (number // side),
            width=PATCH,
            height=PATCH,
            fill_opacity=f"{min(1.0, share / brightest):.2f}",
        )
        for number, share in enumerate(patches)
    ]
    size = PATCH * side
    return tag(
        "svg",
        tag("title", label),
        squares,
        viewBox=f"0 0 {size} {size}",
        width=min(size, 84),
        role="img",
        aria_label=label,
        class_="map",
    )

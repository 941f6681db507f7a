"""The networks of the front, layer by layer, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from nas.objectives import OBJECTIVES
from nas.report import doubtful, words
from nas.report.markup import Html, join, missing, paragraph, section, tag
from nas.results.contents import RunContents
from nas.search.front import FrontEntry
from nas.search.uniform_networks import kinds
from search_spaces.architecture import (
    SKIP,
    Architecture,
    AttentionKind,
    DecoderLayer,
    EncoderLayer,
    base_kind,
)
from search_spaces.space import SearchSpace

MOST_SHOWN = 30

ROW, GAP = 26, 6
# Width of an attention's box: at least, around its words, and of one of their letters.
BOX, MARGIN, LETTER = 116, 16, 6
BAR_ROOM, LEFT = 108, 20
NUMBER_ROOM = 42


def networks_section(run: RunContents) -> Html:
    """A picture for each network of the front."""
    title = "What the networks look like"
    if run.front is None or not run.front.entries:
        return section("networks", title, missing("There is no front yet, so nothing is chosen."))
    shown = _spread(run.front.entries, run.picked)
    if run.spec.evaluator is not None:
        cards = [card(run, entry, 0) for entry in shown]
        return section("networks", title, tag("div", cards, class_="networks"))
    text = (
        "Each row is a layer, the first on top. The coloured box is its attention: the kind and "
        "the number of heads. The bar is as long as its feed-forward network (FFN) is wide; the "
        "longest bar stands for the widest that the space offers."
    )
    if len(shown) < len(run.front.entries):
        text += f" {len(shown)} of the {len(run.front.entries)} networks are drawn."
    widest = widest_ffn(run)
    cards = [card(run, entry, widest) for entry in shown]
    return section(
        "networks", title, paragraph(text), key(run.space), tag("div", cards, class_="networks")
    )


def _spread(entries: Sequence[FrontEntry], picked: FrontEntry | None) -> list[FrontEntry]:
    """At most `MOST_SHOWN` networks from end to end, the picked one among them."""
    if len(entries) <= MOST_SHOWN:
        return list(entries)
    step = (len(entries) - 1) / (MOST_SHOWN - 2)
    places = {round(number * step) for number in range(MOST_SHOWN - 1)}
    places |= {index for index, entry in enumerate(entries) if picked and entry.id == picked.id}
    return [entries[place] for place in sorted(places)]


def widest_ffn(run: RunContents) -> int:
    """FFN size of the longest bar: the widest that the space offers; 0 where none is drawn."""
    if run.spec.evaluator is not None:
        return 0
    slots = [slot for slot in run.space.slots if slot.gene == "ffn_dim"]
    return max(int(choice) for slot in slots for choice in slot.choices)


def key(space: SearchSpace) -> Html:
    """What the colours mean, of the kinds of attention that a space offers."""
    offered = {base_kind(kind) for kind in kinds(space)}
    items = [
        tag("li", tag("span", class_=f"swatch fill-{kind}"), meaning)
        for kind, meaning in words.KINDS.items()
        if kind in offered
    ]
    return tag("ul", items, class_="key")


def card(run: RunContents, entry: FrontEntry, widest: int, *more: Html) -> Html:
    """A network with its numbers and its picture, and whatever else is to stand below."""
    picked, external = run.picked, run.spec.evaluator is not None
    chosen = picked is not None and entry.id == picked.id
    badge = tag("span", "picked", class_="badge") if chosen else ""
    numbers = [
        join(
            f"{words.metric(run, name)} ",
            doubtful.value(words.quantity(name, entry.measured[name]), name, entry),
        )
        for name in dict.fromkeys((*words.METRICS, *run.costs))
        if (name in OBJECTIVES or name in run.costs) and name in entry.measured
    ]
    parts = [part for number in numbers for part in (" · ", number)][1:]
    return tag(
        "div",
        tag("h3", tag("code", entry.id), " ", badge),
        tag("p", words.outline(entry.network), class_="outline"),
        tag("p", parts, class_="small"),
        *([] if external else [picture(entry.architecture, widest)]),
        *more,
        class_="network chosen" if chosen else "network",
        id=f"network-{entry.id}",
    )


def picture(architecture: Architecture, widest: int) -> Html:
    """A network as SVG.

    Args:
        architecture: what to draw.
        widest: FFN size of the longest bar.
    """
    rows: list[Html] = []
    lines: list[tuple[str, int, EncoderLayer | DecoderLayer]] = []
    if architecture.encoder:
        lines += [("encoder", n, one) for n, one in enumerate(architecture.encoder.layers, 1)]
    if architecture.decoder:
        lines += [("decoder", n, one) for n, one in enumerate(architecture.decoder.layers, 1)]
    boxes = max(len(_attentions(layer)) for _, _, layer in lines)
    both = architecture.encoder is not None and architecture.decoder is not None
    said = [_said(*one) for _, _, layer in lines for one in _attentions(layer)]
    box = max(BOX, MARGIN + LETTER * max(map(len, said)))
    top = 0
    for name, number, layer in lines:
        if both and number == 1:
            rows.append(_text(0, top + ROW / 2, name, "stack-name"))
            if len(_attentions(layer)) > 1:
                x = LEFT + box + GAP + box / 2
                rows.append(_text(x, top + ROW / 2, "to the encoder", "stack-name middle"))
            top += ROW
        rows.append(_layer_row(number, layer, top, (boxes, box), widest))
        top += ROW
    width = LEFT + boxes * (box + GAP) + BAR_ROOM + NUMBER_ROOM
    label = "; ".join(words.layer_lines(architecture))
    return tag(
        "svg",
        rows,
        viewBox=f"0 0 {width} {top}",
        role="img",
        aria_label=label,
        style=f"max-width:{width}px",
    )


def _layer_row(
    number: int, layer: EncoderLayer | DecoderLayer, top: int, boxes: tuple[int, int], widest: int
) -> Html:
    count, box = boxes
    parts = [_text(0, top + ROW / 2, str(number), "layer-number")]
    for place, (kind, heads, note) in enumerate(_attentions(layer)):
        x = LEFT + place * (box + GAP)
        base = base_kind(kind)
        shape = tag("rect", x=x, y=top + 2, width=box, height=ROW - 4, rx=4, class_=f"fill-{base}")
        said = _said(kind, heads, note)
        parts += [shape, _text(x + box / 2, top + ROW / 2, said, f"on-{base}")]
    x = LEFT + count * (box + GAP)
    length = max(2, round(BAR_ROOM * min(1, layer.ffn_dim / widest)))
    bar = tag("rect", x=x, y=top + 7, width=length, height=ROW - 14, rx=2, class_="fill-ffn")
    size = _text(x + length + 5, top + ROW / 2, str(layer.ffn_dim), "ffn-size")
    return join(parts, bar, size)


def _said(kind: AttentionKind, heads: int, note: str) -> str:
    """The words in an attention's box."""
    if kind == SKIP:
        return words.kind(kind)
    return f"{words.kind(kind)} · {words.plural(heads, 'head')}{note}"


def _attentions(layer: EncoderLayer | DecoderLayer) -> list[tuple[AttentionKind, int, str]]:
    """Kind, heads and a remark of each attention of a layer."""
    if isinstance(layer, EncoderLayer):
        return [(layer.attention, layer.num_heads, "")]
    found: list[tuple[AttentionKind, int, str]] = [(layer.self_attention, layer.self_num_heads, "")]
    if layer.cross_attention is not None and layer.cross_num_heads is not None:
        note = "" if layer.ende_connect == 1 else f", sees {layer.ende_connect}"
        found.append((layer.cross_attention, layer.cross_num_heads, note))
    return found


def _text(x: float, y: float, text: str, class_: str) -> Html:
    return tag("text", text, x=f"{x:g}", y=f"{y:g}", class_=class_)

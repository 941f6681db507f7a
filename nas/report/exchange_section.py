"""What happens to the picked network when one layer's kind of attention is exchanged: a table."""

from __future__ import annotations

from nas.objectives import QUALITY
from nas.report import words
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.results.contents import RunContents
from nas.run.stages import kinds_to_exchange
from nas.search.front import FrontEntry

TITLE = "Another kind in one layer"


def exchange_section(run: RunContents) -> Html:
    """The exchange table, or why there is none."""
    if not kinds_to_exchange(run.space):
        return section("exchange", TITLE, paragraph("This space offers one kind of attention."))
    of = run.exchanges[0].of if run.exchanges else ""
    entry = run.network(of)
    if entry is None:
        return section("exchange", TITLE, missing("No layer's kind was exchanged in this run yet."))
    intro = paragraph(
        "The picked network ",
        tag("code", of),
        " with the kind of attention of a single layer exchanged, evaluated "
        f"{words.observed_how(run)}. A cell tells what happens to the "
        f"{run.quality.objective.label} and to the costs; the kind that the network has there is "
        "marked.",
    )
    places = list(dict.fromkeys(one.slot for one in run.exchanges))
    offered = [str(c) for slot in run.space.slots if slot.name in places for c in slot.choices]
    kinds = list(dict.fromkeys(offered))
    rows = [
        [
            cell(words.feature(place, run.both_stacks)),
            *(_told(run, entry, place, kind) for kind in kinds),
        ]
        for place in places
    ]
    heads = ["place", *map(words.kind, kinds)]
    return section("exchange", TITLE, intro, table(heads, rows, f"Exchanges in {of}."))


def _told(run: RunContents, entry: FrontEntry, place: str, kind: str) -> Html:
    """What another kind in that place of a network does to it."""
    stack, layer, gene = place.split(".")
    if getattr(getattr(entry.architecture, stack).layers[int(layer)], gene) == kind:
        return cell("as it is", strong=True)
    one = next((o for o in run.exchanges if (o.slot, o.kind) == (place, kind)), None)
    if one is None:
        return cell("")
    if QUALITY not in one.values:
        return cell("could not be evaluated")
    before = {**entry.predicted, **entry.measured}
    lines = [
        tag("div", _change(run, name, before[name], one.values[name]))
        for name in run.spec.objectives
        if name in one.values and name in before
    ]
    return cell(join(*lines))


def _change(run: RunContents, name: str, before: float, after: float) -> str:
    """``loss +0.031`` for the quality, or ``latency −12 %`` for a cost."""
    if name == QUALITY:
        text = f"{run.quality.objective.label} {after - before:+.3g}"
    else:
        share = (after / before - 1) * 100 if before else 0.0
        text = f"{words.metric(run, name)} {share:+.0f} %"
    return text.replace("-", "\u2212")

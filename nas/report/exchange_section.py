"""What happens to the picked network when one layer's kind of attention is exchanged: a table."""

from __future__ import annotations

from collections.abc import Sequence

from nas.objectives import OBJECTIVES, QUALITY
from nas.objectives.quality import NOISE
from nas.report import words
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.results.contents import RunContents
from nas.run.stages import kinds_to_exchange
from nas.search.front import FrontEntry
from search_spaces.architecture import AttentionKind

TITLE = "Another kind in one layer"
UNKNOWN = "could not be evaluated"
IDLE = 0.01
"""What an attention moves quality by at least, as a share of the distance to guessing.

Or by `NOISE` of the quality itself, where that is less: a loss of 3 may rise by .08 within a
hundredth of its distance to guessing a word of 50,000. Of a quality next to nothing it is a share
of `IDLE` within that of the distance.
"""


def exchange_section(run: RunContents) -> Html:
    """The exchange table, or why there is none."""
    if not kinds_to_exchange(run.space):
        return section("exchange", TITLE, paragraph("This space offers one kind of attention."))
    of = next((one.of for one in (*run.exchanges, *run.silenced)), "")
    entry = run.network(of)
    if entry is None:
        return section("exchange", TITLE, missing("No layer's kind was exchanged in this run."))
    intro = paragraph(
        "The network ",
        tag("code", of),
        ", which was picked before any was trained, with the kind of attention of a single layer "
        "exchanged, evaluated "
        f"{words.observed_how(run)}. A cell tells what happens to the "
        f"{run.quality.objective.label} and to the costs; the kind that the network has there is "
        "marked.",
    )
    places = list(dict.fromkeys(one.slot for one in (*run.exchanges, *run.silenced)))
    offered = [str(c) for slot in run.space.slots if slot.name in places for c in slot.choices]
    kinds = list(dict.fromkeys(offered))
    rows = [
        [
            cell(words.feature(place, run.both_stacks)),
            *(_cell(run, entry, place, kind) for kind in kinds),
            *([cell(_without(run, entry, place))] if run.silenced else []),
        ]
        for place in places
    ]
    heads = ["place", *map(words.kind, kinds), *(["no attention"] if run.silenced else [])]
    made = table(heads, rows, f"Exchanges in {of}{_left_out(run, places)}.")
    return section("exchange", TITLE, intro, made, _idle(run, entry))


def _left_out(run: RunContents, places: Sequence[str]) -> str:
    """Words for layers of which no exchange was evaluated, since the budget allows no more."""
    there = {one.slot for one in run.exchanges}
    missed = [words.feature(place, run.both_stacks) for place in places if place not in there]
    if not missed:
        return ""
    return f"; none was evaluated in {', '.join(missed)}, since the budget observes no more"


def _without(run: RunContents, entry: FrontEntry, place: str) -> str:
    """What becomes of the quality without a layer's attention; empty where that is not known."""
    one = next((one for one in run.silenced if one.slot == place), None)
    before = entry.values.get(QUALITY)
    if one is None or before is None:
        return ""
    if QUALITY not in one.values:
        return UNKNOWN
    return _change(run, QUALITY, before, one.values[QUALITY])


def idle_places(run: RunContents, entry: FrontEntry) -> dict[str, float]:
    """Places whose attention does nothing → what it moves quality by, as a share.

    A share of the distance from the network's quality to that of a network that guesses; what is
    nothing, see `IDLE`.
    """
    assert run.front is not None
    guessing = dict(zip((o.name for o in run.front.objectives), run.front.reference, strict=True))
    before = entry.values[QUALITY]
    distance = guessing[QUALITY] - before
    if distance <= 0:
        return {}
    known = {one.slot: one.values[QUALITY] for one in run.silenced if QUALITY in one.values}
    shares = {place: abs(quality - before) / distance for place, quality in known.items()}
    most = idle_share(before, distance)
    return {place: share for place, share in shares.items() if share < most}


def idle_share(quality: float, distance: float) -> float:
    """The share of the distance to guessing below which an attention does nothing, see `IDLE`."""
    return min(IDLE, max(NOISE * abs(quality) / distance, IDLE * IDLE))


def _idle(run: RunContents, entry: FrontEntry) -> Html:
    """Which layers' attention does nothing."""
    if not run.silenced or run.front is None or QUALITY not in entry.values:
        return Html("")
    found = idle_places(run, entry)
    label = run.quality.objective.label
    sentence = (
        f"In the last column the attention of that layer adds nothing. A layer does nothing when "
        f"the {label} moves by less than {words.percent(IDLE)} of its distance to guessing, and "
        f"by less than {words.percent(NOISE)} of itself: "
    )
    if not found:
        return paragraph(sentence, "every one of these does something.")
    named = [
        f"{words.feature(place, run.both_stacks)}: {words.kind(_kind_at(entry, place))} "
        f"({words.percent(share)})"
        for place, share in found.items()
    ]
    return paragraph(sentence, tag("strong", "; ".join(named)), ".")


def _kind_at(entry: FrontEntry, place: str) -> AttentionKind:
    """The kind of attention that a network has at a place."""
    stack, layer, gene = place.split(".")
    kind: AttentionKind = getattr(getattr(entry.architecture, stack).layers[int(layer)], gene)
    return kind


def _cell(run: RunContents, entry: FrontEntry, place: str, kind: str) -> Html:
    """What another kind in that place of a network does to it."""
    if _kind_at(entry, place) == kind:
        return cell("as it is", strong=True)
    one = next((o for o in run.exchanges if (o.slot, o.kind) == (place, kind)), None)
    if one is None:
        return cell("")
    if QUALITY not in one.values:
        return cell(UNKNOWN)
    # Costs of an exchange are predicted, and compared with what was predicted.
    before = {**entry.measured, **entry.predicted, QUALITY: entry.values[QUALITY]}
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
    elif OBJECTIVES[name].few or before == 0:
        text = f"{words.metric(run, name)} {after - before:+.3g}"
    else:
        text = f"{words.metric(run, name)} {(after / before - 1) * 100:+.0f} %"
    return text.replace("-", "\u2212")

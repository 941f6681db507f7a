"""The checkpoint that a search began with, and what became of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from latency.workload import BEHIND_CONTEXT
from nas.objectives import OBJECTIVES, QUALITY, SCORES
from nas.objectives.base import base_workload
from nas.objectives.cache import OBJECTIVE as CACHE_OBJECTIVE
from nas.objectives.cache import cache_mb, contexts_of
from nas.report import words
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.results.beside_checkpoint import costs_beside, ratio
from nas.results.contents import DISTANCES, ByDistance, Origin, RunContents, Stretch
from nas.results.retrained_order import FEWEST_TRAINED
from search_spaces.architecture import Architecture

TITLE = "The checkpoint"
CHECKPOINT, FINE_TUNED, FROM_SCRATCH = "the checkpoint", "fine-tuned", "trained from scratch"
"""Whose weights a network has."""
CACHE = CACHE_OBJECTIVE.name
DISTANCE_CAPTIONS = {
    "repeats": (
        "Loss in nats of the validation split's tokens, by how many tokens ago the pair of a token "
        "and the one before it last stood in the text that a network reads at once. What stands "
        "beyond a window is told by recall alone."
    ),
    "positions": (
        "The same by a token's place in that text: what networks make of how much they have read."
    ),
}


@dataclass(frozen=True)
class Row:
    """A network beside the checkpoint.

    Attributes:
        id: of the network.
        what: with which weights.
        values: quality and costs, by name.
        guessed: names of those that are predicted.
    """

    id: str
    what: str
    values: Mapping[str, float]
    guessed: frozenset[str] = frozenset()


def checkpoint_section(run: RunContents) -> Html:
    """Quality and costs beside the checkpoint's, and each layer; nothing where there is none."""
    if run.spec.start is None:
        return Html("")
    if run.origin is None:
        return section("checkpoint", TITLE, missing("The checkpoint was not taken over."))
    first, *others = rows_of(run, run.origin)
    intro = paragraph(
        "This search began with the checkpoint ",
        tag("strong", run.origin.name),
        ": networks inherit its weights, other kinds of attention were taught by its layers, and "
        "networks that are trained further are taught by it. In the space it is the network ",
        tag("code", first.id),
        ", a square in the charts. ",
        *(f"{compared(run, first, row)} " for row in others[:1]),
    )
    parts = [
        comparison(run, first, others),
        _layers(run, run.origin),
        _losses(run, run.origin),
        _states(run, run.origin),
        _times(run, run.origin),
        _flips(run),
    ]
    return section("checkpoint", TITLE, intro, *parts)


def rows_of(run: RunContents, origin: Origin) -> list[Row]:
    """The checkpoint, the picked network as it was found, and all that were trained."""

    def known(identity: str) -> tuple[dict[str, float], frozenset[str]]:
        entry = run.network(identity)
        if entry is None:
            return {}, frozenset()
        return entry.values, frozenset(entry.predicted.keys() - entry.measured.keys())

    entry = origin.entry
    guessed = frozenset(entry.predicted.keys() - entry.measured.keys())
    found = [Row(entry.id, CHECKPOINT, entry.values, guessed)]
    if run.picked is not None:
        found.append(Row(run.picked.id, "picked, as inherited", *known(run.picked.id)))
    trained = [(FINE_TUNED, one) for one in run.retrained]
    trained += [(FROM_SCRATCH, one) for one in run.from_scratch]
    for what, one in trained:
        values, guessed = known(one.id)
        scores = {f"valid_{name}": score for name, score in one.valid_scores.items()}
        # What was inherited is nothing that the trained network has.
        values = {name: v for name, v in values.items() if name != QUALITY and name not in SCORES}
        values |= scores
        if run.quality.name in one.valid_scores:
            values[QUALITY] = run.quality.of(one.valid_scores)
        found.append(Row(one.id, what, values, guessed - {QUALITY}))
    return found


def compared(run: RunContents, before: Row, after: Row) -> str:
    """A network beside the checkpoint in a sentence."""
    parts = costs_beside(run.costs, before.values, after.values)
    parts.append(f"{run.quality.objective.label} {_difference(before, after)}")
    return f"The network {after.id} ({after.what}): {', '.join(parts)}."


def comparison(run: RunContents, before: Row, others: list[Row]) -> Html:
    """The table of the checkpoint and the networks beside it."""
    label = run.quality.objective.label
    costs = [name for name in run.costs if name in before.values]
    scores = [name for name in words.LABELS if name in before.values]
    heads = ["network", "weights", label, "beside the checkpoint"]
    heads += [words.axis_label(run, name) for name in scores]
    for name in costs:
        heads += [words.axis_label(run, name), "beside it"]
    rows = []
    for row in (before, *others):
        own = row is before
        quality = row.values.get(QUALITY)
        cells = [
            cell(tag("code", row.id), strong=own),
            cell(row.what),
            cell(words.value(QUALITY, quality), quality),
            cell("" if own else _difference(before, row)),
        ]
        for name in scores:
            score = row.values.get(name)
            cells.append(cell(words.value(name, score), score))
        for name in costs:
            value = row.values.get(name)
            guess = " (predicted)" if name in row.guessed else ""
            cells.append(cell(f"{words.value(name, value)}{guess}", value))
            beside = "" if own or value is None else ratio(name, before.values[name], value)
            cells.append(cell(beside))
        rows.append(cells)
    caption = (
        f"The checkpoint and what became of it; {label} is that of the validation split, and less "
        "is better."
    )
    return table(heads, rows, caption)


def _difference(before: Row, after: Row) -> str:
    if QUALITY not in after.values:
        return "–"
    return f"{after.values[QUALITY] - before.values[QUALITY]:+.3g}".replace("-", "\u2212")


def _layers(run: RunContents, origin: Origin) -> Html:
    """What each layer of the checkpoint is in the picked network, and how well kinds copy it."""
    if run.picked is None:
        return Html("")
    was = _plain_lines(origin)
    lines = [line.partition(": ")[2] for line in words.layer_lines(run.picked.architecture)]
    kept = dict(zip(sorted(origin.layer_order[: len(lines)]), lines, strict=True))
    kinds = list(dict.fromkeys(name.partition(".")[2] for name in origin.errors))
    rows = []
    for number, before in enumerate(was):
        now = kept.get(number)
        errors = [origin.errors.get(f"{number}.{kind}") for kind in kinds]
        rows.append(
            [
                cell(str(number + 1), number),
                cell(before),
                cell("dropped" if now is None else now if now != before else "as it was"),
                *(cell("" if one is None else f"{one:.3f}", one) for one in errors),
            ]
        )
    heads = ["layer", "in the checkpoint", f"in {run.picked.id}", *map(words.kind, kinds)]
    caption = "What each layer became."
    if kinds:
        caption += (
            " On the right: how far each kind was from what the checkpoint's layer says, after it "
            "was taught by it alone (mean squared error; 1 is saying nothing)."
        )
    return table(heads, rows, caption)


def _losses(run: RunContents, origin: Origin) -> Html:
    """The loss of the checkpoint and of fine-tuned networks by distance, of language models."""
    losses = [(origin.entry.id, CHECKPOINT, origin.by_distance)]
    for what, trained in ((FINE_TUNED, run.retrained), (FROM_SCRATCH, run.from_scratch)):
        losses += [(one.id, what, one.by_distance) for one in trained if one.by_distance]
    return join(*(_loss_table(losses, origin, name) for name in DISTANCES if origin.by_distance))


def _loss_table(losses: list[tuple[str, str, ByDistance]], origin: Origin, name: str) -> Html:
    stretches = origin.by_distance[name]
    tokens = (cell(words.whole(one.tokens), one.tokens) for one in stretches)
    rows = [[cell("tokens"), cell(""), *tokens]]
    for identity, weights, by_name in losses:
        known = {one.first: one.nats for one in by_name.get(name, ())}
        rows.append(
            [
                cell(tag("code", identity), strong=weights == CHECKPOINT),
                cell(weights),
                *(cell(_nats(known.get(one.first)), known.get(one.first)) for one in stretches),
            ]
        )
    return table(["network", "weights", *map(_stretch, stretches)], rows, DISTANCE_CAPTIONS[name])


def _nats(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"


def _stretch(one: Stretch) -> str:
    if one.last == 0:
        return "never"
    return f"over {one.first - 1:,}" if one.last is None else f"{one.first:,}–{one.last:,}"


def state_mb(run: RunContents, network: Architecture, context: int) -> float:
    """Megabytes that a network keeps of so many positions, as the workload's allocator does."""
    space = replace(run.space, workload={**run.space.workload, "context": context})
    return float(cache_mb(space, space.encode([network]))[0])


def _states(run: RunContents, origin: Origin) -> Html:
    """What the checkpoint, the picked network and those fine-tuned keep of texts, by length."""
    if OBJECTIVES[CACHE].problem(run.space) is not None:
        return Html("")
    networks = {origin.entry.id: origin.entry.architecture}
    networks |= {} if run.picked is None else {run.picked.id: run.picked.architecture}
    networks |= {one.id: one.architecture for one in run.retrained}
    lengths = contexts_of(run.space)
    before = [state_mb(run, origin.entry.architecture, length) for length in lengths]
    rows = []
    for identity, network in networks.items():
        cells = [cell(tag("code", identity), strong=identity == origin.entry.id)]
        for length, most in zip(lengths, before, strict=True):
            size = state_mb(run, network, length)
            share = "" if identity == origin.entry.id else f" ({ratio(CACHE, most, size)})"
            cells.append(cell(f"{size:.4g}{share}", size))
        rows.append(cells)
    heads = ["network", *(f"after {length:,} positions, MB" for length in lengths)]
    workload = base_workload(run.space)
    caption = (
        "State that each network keeps while it writes, by formula: "
        f"{words.plural(workload.batch, 'sequence')}, {workload.dtype}, "
        f"{workload.allocator or 'live'} allocation."
    )
    return table(heads, rows, caption)


def _times(run: RunContents, origin: Origin) -> Html:
    """What the checkpoint and the picked network take behind texts, by length."""
    tables = []
    for mode in BEHIND_CONTEXT:
        timed = [one for one in run.context_times if one.mode == mode]
        if not timed:
            continue
        objective = OBJECTIVES[f"{mode}_ms"]
        rows = []
        for identity in timed[0].ms:
            cells = [cell(tag("code", identity), strong=identity == origin.entry.id)]
            for one in timed:
                own, ms = one.ms[origin.entry.id], one.ms[identity]
                share = (
                    "" if identity == origin.entry.id else f" ({ratio(objective.name, own, ms)})"
                )
                cells.append(cell(f"{ms:.4g}{share}", ms))
            rows.append(cells)
        heads = ["network", *(f"{one.context:,} positions, ms" for one in timed)]
        caption = (
            f"{words.sentence(objective.label)} by the positions that are read: both were timed in "
            "turn where the search ran."
        )
        tables.append(table(heads, rows, caption))
    return join(*tables)


def _plain_lines(origin: Origin) -> Iterator[str]:
    for line in words.layer_lines(origin.entry.architecture):
        yield line.partition(": ")[2]


def _flips(run: RunContents) -> Html:
    """Whether the networks that were fine-tuned kept their order."""
    found = run.retrained_order
    if found is None:
        return paragraph(
            f"Where {FEWEST_TRAINED} or more networks of the front are fine-tuned for as long and "
            "differ, this page tells whether that changes their order: ",
            tag("code", f"nas retrain {shlex.quote(run.name)} --pick ID"),
            ".",
        )
    return paragraph(
        f"{found.sentence} (Kendall's τ: 1, the order stayed; 0, the one says nothing of the "
        "other; −1, it was turned round.)"
    )

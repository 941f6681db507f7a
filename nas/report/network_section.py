"""One network on a page of its own: its layers in words, its costs by part, and its training."""

from __future__ import annotations

from collections.abc import Sequence

from nas.objectives.size import counted_lengths
from nas.report import words
from nas.report.cost_section import losses_chart
from nas.report.markup import Html, cell, missing, section, table, tag
from nas.results.contents import Epoch, RunContents
from search_spaces.architecture import Architecture
from search_spaces.costs import cost


def layers_section(architecture: Architecture) -> Html:
    """Each layer in words."""
    lines = [line.partition(": ") for line in words.layer_lines(architecture)]
    rows = [[cell(name), cell(text)] for name, _, text in lines]
    return section("layers", "Layers", table(["layer", "what it is"], rows, "First to last."))


def parts_section(run: RunContents, architecture: Architecture) -> Html:
    """Parameters and operations of every part of a network, and its share of them."""
    space = run.space
    source, target = counted_lengths(space)
    found = cost(space.model, space.task, architecture, source_length=source, target_length=target)
    rows = [
        [
            cell(part.name),
            cell(f"{part.params:,}", part.params),
            cell(words.percent(part.params / max(1, found.params)), part.params),
            cell(f"{part.flops:,}", part.flops),
            cell(words.percent(part.flops / max(1, found.flops)), part.flops),
        ]
        for part in found.parts
    ]
    rows.append(
        [cell(tag("strong", "all"))]
        + [
            part
            for number in (found.params, found.flops)
            for part in (cell(f"{number:,}", number, strong=True), cell("", number))
        ]
    )
    lengths = f"one input of {found.source_length} tokens"
    if found.target_length is not None:
        lengths += f" and {found.target_length} target tokens"
    caption = f"Counted for {lengths}. A multiplication and an addition are two operations."
    heads = ["part", "parameters", "share", "FLOPs", "share"]
    return section("parts", "What each part costs", table(heads, rows, caption))


def curve_section(run: RunContents, epochs: Sequence[Epoch]) -> Html:
    """The losses of a network's own training."""
    title = "Its own training"
    if not epochs:
        return section("curve", title, missing(f"It was not {run.spec.trained} yet."))
    return section("curve", title, losses_chart("curve", epochs, run, "validation loss"))

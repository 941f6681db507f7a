"""The genes that decide quality and each cost, most important first."""

from __future__ import annotations

from collections.abc import Sequence

from nas.report import words
from nas.report.markup import Html, cell, missing, paragraph, section, table
from nas.results.contents import RunContents
from nas.search.sensitivity import Feature


def features_section(run: RunContents) -> Html:
    """One list for each objective: share and direction."""
    title = "Top features"
    if not run.features:
        return section("features", title, missing("The predictors are not fitted yet."))
    intro = paragraph(
        "Which choices decide an objective, by the predictors of this run: the share of the "
        "differences between random networks that goes with a gene (its interactions with others "
        "included), and what happens when it alone is changed. Helps always means a lower value. "
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

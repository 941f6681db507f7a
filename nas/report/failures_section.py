"""Networks that could not be evaluated, and why."""

from __future__ import annotations

from nas.report import words
from nas.report.markup import Html, cell, paragraph, section, table, tag
from nas.results.contents import RunContents


def failures_section(run: RunContents) -> Html:
    """What failed; nothing where nothing did."""
    if not run.failed:
        return Html("")
    intro = paragraph(
        f"{words.plural(len(run.failed), 'network')} could not be evaluated. They count as worth "
        "nothing, no ranker learnt from them, and they are not on the front."
    )
    rows = [
        [
            cell(tag("code", one.network.id)),
            cell(words.outline(one.network)),
            cell(one.failure.kind),
            cell(one.failure.reason),
            cell(f"{one.failure.tries}", one.failure.tries),
        ]
        for one in run.failed
    ]
    heads = ["id", "network", "what happened", "reason", "tries"]
    return section(
        "failures", "What could not be evaluated", intro, table(heads, rows, "Failed networks.")
    )

"""Warnings of a page about numbers that should not be believed, see `nas.search.doubtful`."""

from __future__ import annotations

from collections.abc import Sequence

from nas.objectives import OBJECTIVES
from nas.report.markup import Html, join, tag
from nas.results.contents import RunContents
from nas.search import doubtful
from nas.search.front import FrontEntry


def value(text: str, name: str, entry: FrontEntry) -> str:
    """A value; a doubtful one with a mark, and the reason for who points at it."""
    why = entry.doubtful.get(name)
    if why is None:
        return text
    return tag("span", doubtful.marked(text, name, entry.doubtful), title=f"doubtful: {why}")


def explanation(entries: Sequence[FrontEntry]) -> Html:
    """What the marks beside some values of these networks mean; nothing where there are none."""
    sentence = doubtful.key(entries)
    return Html("") if sentence is None else tag("p", sentence, class_="warning")


def warnings(run: RunContents) -> Html:
    """What makes the predicted times of a run useless, if anything does."""
    what_to_do = doubtful.WHAT_TO_DO if run.device_profile is None else doubtful.WHAT_TO_DO_THERE
    found = [
        doubtful.predictor_off(report.mape, what_to_do, OBJECTIVES[name].label)
        for name, report in run.predictors.items()
    ]
    if run.spec.needs_latency:  # an evaluator of others may call a cost of its own like a time
        found.append(doubtful.predictions_off(run.verified))
    return join(
        *(tag("p", one[0].upper() + one[1:] + ".", class_="warning") for one in found if one)
    )

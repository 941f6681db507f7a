"""Warnings of a page about numbers that should not be believed, see `nas.search.doubts`."""

from __future__ import annotations

from collections.abc import Sequence

from nas.objectives import OBJECTIVES
from nas.report.markup import Html, join, tag
from nas.results.contents import RunContents
from nas.search import doubts
from nas.search.front import FrontEntry


def value(text: str, name: str, entry: FrontEntry) -> str:
    """A value; a doubtful one with a mark, and the reason for who points at it."""
    why = entry.doubtful.get(name)
    if why is None:
        return text
    return tag("span", doubts.marked(text, name, entry.doubtful), title=f"doubtful: {why}")


def explanation(entries: Sequence[FrontEntry]) -> Html:
    """What the marks beside some values of these networks mean; nothing where there are none."""
    told = doubts.key(entries)
    return Html("") if told is None else tag("p", told, class_="warning")


def warnings(run: RunContents) -> Html:
    """What makes the predicted times of a run useless, if anything does."""
    what_to_do = doubts.WHAT_TO_DO if run.carried is None else doubts.WHAT_TO_DO_THERE
    found = [
        doubts.predictor_off(report.mape, what_to_do, OBJECTIVES[name].label)
        for name, report in run.predictors.items()
    ]
    found.append(doubts.predictions_off(run.verified))
    return join(
        *(tag("p", one[0].upper() + one[1:] + ".", class_="warning") for one in found if one)
    )

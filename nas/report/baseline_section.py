"""The winner beside what one would have trained without a search."""

from __future__ import annotations

from nas.report import doubtful, words
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.results.baselines import MainScore
from nas.results.baselines import sentences as compared_sentences
from nas.results.contents import RunContents
from nas.search.front import FrontEntry

TITLE = "Better than what?"


def sentences(run: RunContents) -> list[str]:
    """See `nas.results.baselines.sentences`; nothing before there is a front."""
    if not _known(run) or run.front is None:
        return []
    return compared_sentences(run.spec, run.front, run.comparisons, run.trained_winner)


def baseline_section(run: RunContents) -> Html:
    """The sentences, and a table of winner and baselines."""
    if not _known(run) or run.front is None:
        return section("baselines", TITLE, missing("There is nothing to compare."))
    said = tag("ul", [tag("li", sentence) for sentence in sentences(run)])
    if not run.comparisons or run.picked is None:
        return section("baselines", TITLE, said)
    plain = "A plain network has softmax attention and the same sizes in every layer. "
    intro = paragraph(
        *([plain] if run.spec.start is None else []),
        "All were trained with the same steps and seed as the winner, unless the sentences above "
        "say otherwise.",
    )
    picked = run.picked
    score = run.main_scores.get(picked.id)
    named = run.front.objectives[1:]
    costs = [one.name for one in named if one.name != "params"] + ["params"]
    rows = [_row(run, picked, "winner", score, costs)]
    rows += [_row(run, one.baseline.entry, one.label, one.score, costs) for one in run.comparisons]
    name = words.SCORES[score.name] if score is not None else "score"
    heads = ["network", "is", f"test {name}", *(words.axis_label(run, one) for one in costs)]
    caption = "The winner and what it is held against, both trained after the search."
    return section("baselines", TITLE, said, intro, table(heads, rows, caption))


def _known(run: RunContents) -> bool:
    """Whether the front is the result, and not what is known so far."""
    return run.front is not None and "front" in run.seconds


def _row(
    run: RunContents, entry: FrontEntry, what: str, score: MainScore | None, costs: list[str]
) -> list[Html]:
    shown = "not yet" if score is None else words.score(score.name, score.value)
    numbers = [
        cell(doubtful.value(words.value(name, entry.values.get(name)), name, entry))
        for name in costs
    ]
    named = join(tag("code", entry.id), " ", words.outline(entry.network))
    return [cell(named), cell(what), cell(shown, None if score is None else score.value), *numbers]

"""Networks trained after a search at the quality that they have then, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scipy import stats

from nas.objectives import QUALITY
from nas.results.contents import Retrained, RunContents
from nas.search.front import FrontEntry

LEVEL = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RetrainedPoint:
    """A network that was trained.

    Attributes:
        before: as the search saw it; of a baseline without a quality.
        after: with quality and scores of the trained network, on the same validation examples.
        interval: 95 % interval of its quality, validation examples being what is drawn at random;
            None where the run does not know it.
        baseline: whether it is what the winner is held against.
    """

    before: FrontEntry
    after: FrontEntry
    interval: Interval | None
    baseline: bool = False


def retrained_points(run: RunContents) -> list[RetrainedPoint]:
    """The trained networks of a run that has a front, and behind them its trained baselines."""
    return [*_of_the_search(run), *_baselines(run)]


def _of_the_search(run: RunContents) -> Iterator[RetrainedPoint]:
    assert run.front is not None
    known = {entry.id: entry for entry in (*run.observed, *run.verified, *run.front.entries)}
    beside = {one.entry.id for one in run.front.baselines}
    beside -= {entry.id for entry in run.front.entries}
    for result in _judged(run):
        before = known.get(result.id)
        if before is not None and result.id not in beside:
            yield RetrainedPoint(before, _after(run, before, result), _interval(run, result))


def _baselines(run: RunContents) -> Iterator[RetrainedPoint]:
    results = {one.id: one for one in _judged(run)}
    for entry in (one.baseline.entry for one in run.comparisons):
        if (result := results.get(entry.id)) is not None:
            after, interval = _after(run, entry, result), _interval(run, result)
            yield RetrainedPoint(entry, after, interval, baseline=True)


def _judged(run: RunContents) -> list[Retrained]:
    """Those that are known to be worth what the search looked for."""
    return [one for one in run.retrained if run.quality.name in one.valid_scores]


def _after(run: RunContents, before: FrontEntry, result: Retrained) -> FrontEntry:
    scores = {f"valid_{name}": value for name, value in result.valid_scores.items()}
    if run.by_loss:
        del scores["valid_loss"]
    quality = {QUALITY: run.quality.of(result.valid_scores)}
    return replace(before, measured={**before.measured, **scores, **quality})


def _interval(run: RunContents, result: Retrained) -> Interval | None:
    """Wilson's of a share of examples, and of a mean loss the normal one, not below 0."""
    quality = run.quality
    if quality.name == "accuracy" and run.space.task == "classification":
        most = run.sizes["valid"]
        count = min(run.spec.budget.valid_examples or most, most)
        right = round(count * result.valid_scores["accuracy"])
        share = stats.binomtest(right, count).proportion_ci(LEVEL, method="wilson")
        return 1.0 - float(share.high), 1.0 - float(share.low)
    if quality.name == "loss" and result.loss_error is not None:
        reach = float(stats.norm.ppf((1 + LEVEL) / 2)) * result.loss_error
        loss = result.valid_scores["loss"]
        return max(0.0, loss - reach), loss + reach
    return None

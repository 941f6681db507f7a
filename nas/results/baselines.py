"""The winner beside what one would have trained without a search, said plainly.

Both were trained with the same steps and seed, and scored on the test split once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from nas.objectives import OBJECTIVES
from nas.objectives.quality import NOISE, Quality
from nas.request.spec import PLAIN, SearchSpec
from nas.results.beside_checkpoint import beside_checkpoint
from nas.search.front import SAME_COST, Baseline, Front, FrontEntry, Role
from search_spaces.plain import plain_rows
from search_spaces.tasks import LOWER_IS_BETTER

SHARES = ("accuracy", "recall_at_10")  # differences of them are told in points of a hundred
LABELS: Mapping[tuple[Role, ...], str] = {
    ("largest",): "largest plain",
    ("nearest",): "nearest plain",
    ("largest", "nearest"): "largest and nearest plain",
    ("own",): "given",
    ("checkpoint",): "the checkpoint, fine-tuned",
}
_BEST_PLAIN = (
    "The winner is a plain network: of what was trained it is the cheapest that is as good as the "
    "best."
)


@dataclass(frozen=True, slots=True)
class MainScore:
    """The score on the test split that a task is known by.

    Attributes:
        name: ``accuracy``, ``bleu``, ``perplexity`` or ``similarity``.
        value: of a network trained after the search.
        asked_epochs: that it trained for in place of the run's; None for those.
    """

    name: str
    value: float
    asked_epochs: int | None = None

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Self | None:
        """The one of ``retrained/ID/result.json``, where it stands first; None where none does."""
        for name, value in result.items():
            if name.startswith("test_") and isinstance(value, int | float):
                asked = result.get("asked_epochs")
                return cls(name.removeprefix("test_"), float(value), asked)
        return None

    @property
    def text(self) -> str:
        """The number as it is read."""
        return f"{100 * self.value:.1f} %" if self.name in SHARES else f"{self.value:.4g}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A baseline and the winner.

    Attributes:
        baseline: the network.
        label: what it is, in two or three words.
        sentence: which of the two is better, and at what cost.
        score: of the baseline; None before it is trained.
    """

    baseline: Baseline
    label: str
    sentence: str
    score: MainScore | None


def comparisons(
    front: Front, winner: FrontEntry, scores: Mapping[str, MainScore], limited: bool
) -> list[Comparison]:
    """The winner beside each baseline.

    Args:
        front: with the baselines.
        winner: the network that the search chose.
        scores: of the networks that are trained, by id.
        limited: whether the search had limits.
    """
    return [
        Comparison(
            one,
            LABELS[one.roles],
            _sentence(one, _words(one, limited), winner, scores, front),
            scores.get(one.entry.id),
        )
        for one in front.baselines
    ]


def trained_winner(
    winner: FrontEntry | None, scores: Mapping[str, Mapping[str, float]], quality: Quality
) -> FrontEntry | None:
    """The winner, its quality that of its training; None where that is not known.

    Args:
        winner: the network that the search chose; None before there is one.
        scores: of the networks that are trained, by id, on the validation split.
        quality: by which the search judged.
    """
    own = {} if winner is None else scores.get(winner.id, {})
    if winner is None or quality.name not in own:
        return None
    return winner.trained(quality.of(own))


def trained_by_search(front: Front | None, left: str | None, picked: str | None) -> list[str]:
    """The ids of the networks that a search trains whole, as far as they are known.

    Args:
        front: its front; None before there is one.
        left: what successive halving left, which is trained also where another network wins.
        picked: the winner.
    """
    first = left or picked
    beside = () if front is None else front.baselines
    return [] if first is None else list(dict.fromkeys([first, *(one.entry.id for one in beside)]))


def sentences(
    spec: SearchSpec, front: Front, compared: Sequence[Comparison], own: FrontEntry | None = None
) -> list[str]:
    """What became of a checkpoint and the winner beside each baseline, or why there is nothing.

    Args:
        spec: of the search.
        front: its result.
        compared: see `comparisons`.
        own: the winner, its quality that of its training; None before that.
    """
    begun = [] if spec.start is None else [_checkpoint_sentence(front, own)]
    return [*begun, *(one.sentence for one in compared)] or [_why_none(spec, front)]


def _why_none(spec: SearchSpec, front: Front) -> str:
    if spec.evaluator is not None:
        return "There is no baseline: the networks are known to the evaluator alone."
    if front.baselines:
        return "There is no winner yet to hold against the baselines."
    if spec.baseline == PLAIN:
        return "There is no baseline: no plain network of the space keeps the limits."
    if not len(plain_rows(spec.space)):
        return (
            "There is no baseline: the space has no network with softmax attention in every place, "
            "and the search was given none."
        )
    return "There is no baseline: the search was asked for none."


def _checkpoint_sentence(front: Front, own: FrontEntry | None) -> str:
    begun, before = "The search began with a checkpoint", front.checkpoint
    if before is None or own is None:
        return f"{begun}."
    quality, costs = front.objectives[0], [one.name for one in front.objectives[1:]]
    told = beside_checkpoint(quality.label, costs, before.values, own.values)
    unsure = {*own.doubtful, *before.doubtful}.intersection(costs)
    doubt = "; what was timed is doubtful" if unsure else ""
    return f"{begun} ({before.id}): {told}{doubt}."


def _words(baseline: Baseline, limited: bool) -> str:
    within = " within the limits" if limited else ""
    return {
        ("largest",): f"the largest plain network{within}",
        ("nearest",): "the plain network nearest to the winner's cost",
        ("largest", "nearest"): f"the largest plain network{within}, "
        "which is also the nearest to the winner's cost",
        ("own",): "the network that was given to compare with",
        ("checkpoint",): "the checkpoint, trained on as long",
    }[baseline.roles]


def _sentence(
    baseline: Baseline,
    words: str,
    winner: FrontEntry,
    scores: Mapping[str, MainScore],
    front: Front,
) -> str:
    entry, cost = baseline.entry, front.objectives[1].name
    if entry.id == winner.id:
        return f"The winner is itself {words}." if winner in front.entries else _BEST_PLAIN
    own, other = scores.get(winner.id), scores.get(entry.id)
    if own is None or other is None:
        return f"Against {words} ({entry.id}): not trained yet."
    at_cost = _at_cost(cost, winner, entry)
    return f"Against {words} ({entry.id}): {difference(own, other)} {at_cost}{_unlike(own, other)}."


def _unlike(own: MainScore, other: MainScore) -> str:
    """That one trained longer than the other, where it did; told behind a comparison."""
    if own.asked_epochs == other.asked_epochs:
        return ""
    mine, its = (
        "as long as the request says" if one is None else f"for {one:,} epochs"
        for one in (own.asked_epochs, other.asked_epochs)
    )
    return f", trained {mine} where that one trained {its}"


def difference(own: MainScore, other: MainScore) -> str:
    """What one test score is beside another: ``accuracy 1.2 points better (97.4 and 96.2 %)``."""
    both = f"({own.text} against {other.text})"
    name = own.name.replace("_", " ")
    gain = own.value - other.value
    if abs(gain) <= NOISE * max(abs(own.value), abs(other.value)):
        return f"equal {name} {both}"
    better = (gain < 0) == (own.name in LOWER_IS_BETTER)
    if own.name in SHARES:
        amount = f"{100 * abs(gain):.1f} points"
    elif own.name in LOWER_IS_BETTER:
        amount = f"{100 * abs(gain) / other.value:.1f} %"
    else:
        amount = f"{abs(gain):.3g}"
    return f"{name} {amount} {'better' if better else 'worse'} {both}"


def _at_cost(name: str, winner: FrontEntry, other: FrontEntry) -> str:
    known = [name in entry.values for entry in (winner, other)]
    if not all(known):
        return f"at an unknown {OBJECTIVES[name].label}"
    value, theirs = winner.value(name), other.value(name)
    label = OBJECTIVES[name].label
    if name in {*winner.doubtful, *other.doubtful}:
        label += ", which is doubtful"
    if abs(value - theirs) <= SAME_COST * theirs:
        return f"at equal {label}"
    if theirs == 0:
        return f"at {value:.3g} {OBJECTIVES[name].symbol or label} for none"
    ratio = value / theirs
    return f"at {ratio:.2f} of the {label}" if ratio < 1 else f"at {ratio:.2f} times the {label}"

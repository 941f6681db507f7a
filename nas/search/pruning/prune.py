"""Cutting choices that good networks do without, with the evidence for every cut.

Cutting what looks bad would remove all cheap choices, because nearly everything cheap loses
quality. What counts is whether a choice helps at *any* price. The rule:

1. Refuse everything when the ranker's held-out report card is below a threshold.
2. Sample the space and score the networks on all objectives. The *elite* are the twentieth with the
   lowest non-dominated rank: the best at every cost, from the cheapest to the largest.
3. The *lift* of a choice is its share among the elite over its share among all. A choice is a
   candidate when the upper end of the lift's 95 % interval is below one half in every quarter of
   the elite, from the best networks to the cheapest.
4. A short evolution adds networks near the predicted front. Candidates are cut one by one, genes
   (all layers) before single slots, lowest lift first. The networks that remain, of all that were
   scored, must cover as much of the objective space as all of them (hypervolume; logarithms of
   what is positive). If they do not, the choice stays. A search of what remains can only find
   more.
5. Never cut: what the caller wants kept, a slot's last choice, and what an observed network within
   the limits has that no other such one dominates, unless a network without the choice is predicted
   to be as good by more than the ranker's usual error: that of the report card, on networks it was
   fitted without. So a ranker that is blind to what makes the best observed network good cannot cut
   it, and a useless choice does not stay because a random sample held nothing better.

Source: Hu et al., RankNAS, 2021, section 4. There importance for quality alone decides, and the
ranker's features are cut; here cost counts too, and choices are cut from the space itself.

Shapes: N networks, S slots, M objectives, of which the first is the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas.request.protected_choices import (
    ProtectedChoices,
    checked_protected,
    deepest_layers,
    places,
)
from nas.search.evolution import Evaluate, EvolutionSettings, Scores, evolve
from nas.search.pruning.cuts import ChoiceCutter, Cut, best_observed
from nas.search.pruning.evidence import (
    Candidate,
    Evidence,
    Lift,
    ScoredSample,
    candidates,
    draw,
    elite,
    evidence,
    lift,
)
from nas.search.ranking.report_card import ReportCard
from search_spaces.errors import UsageError
from search_spaces.genes import Value
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.space import Choice, SearchSpace

Floats = NDArray[np.float64]

# Limits that few networks meet: the sample grows to at most this many times its size.
MAX_GROWTH = 16
UNKNOWN_ERROR = (
    "The ranker's report card does not say how far it is off on networks it has not seen, because "
    "an older version wrote it; the space stays whole."
)


@dataclass(frozen=True)
class PruningSettings:
    """How careful to be.

    Attributes:
        min_kendall_tau: least held-out tau-b of the ranker.
        min_pairwise_accuracy: least held-out pairwise accuracy of the ranker.
        sample: networks drawn; up to 16 times as many where few meet the limits.
        elite_share: best share in (0, 1) of the feasible networks.
        min_elite: fewest elite networks with the slot to judge a choice by.
        max_lift: a choice is a candidate when its lift is surely below this in each quarter of the
            elite.
        tolerance: share of the predicted front's hypervolume that all cuts together may lose.
        population: of the evolution that looks for the predicted front.
        generations: of it.
    """

    min_kendall_tau: float = 0.5
    min_pairwise_accuracy: float = 0.7
    sample: int = 8192
    elite_share: float = 0.05
    min_elite: int = 100
    max_lift: float = 0.5
    tolerance: float = 0.003
    population: int = 128
    generations: int = 30

    def __post_init__(self) -> None:
        if not 0 < self.elite_share < 1 or self.sample < 1 or self.min_elite < 1:
            raise UsageError(
                "pruning needs an elite share between 0 and 1, a sample and an elite of at least "
                f"1; given {self.elite_share}, {self.sample} and {self.min_elite}"
            )


@dataclass(frozen=True)
class Kept:
    """A choice that the lift spoke against and that stays all the same; `reason` says why."""

    name: str
    choice: Value
    evidence: Evidence
    reason: str


@dataclass(frozen=True)
class PrunedSpace:
    """What is left of a space, and the audit of the cuts.

    Attributes:
        space: the root itself when nothing was cut.
        cuts: in the order they were made.
        kept: candidates that stay.
        refused: the sentence why nothing was even tried, or None.
        protected: gene or slot → choices that were asked to be kept.
    """

    space: GenotypeSpace
    cuts: tuple[Cut, ...] = ()
    kept: tuple[Kept, ...] = ()
    refused: str | None = None
    protected: ProtectedChoices = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The audit as plain JSON; the space itself is saved as TOML."""
        return {
            "space": self.space.name,
            "digest": self.space.digest,
            "parent_digest": self.space.parent_digest,
            "size": self.space.size,
            "refused": self.refused,
            "vetoes": {name: list(choices) for name, choices in self.protected.items()},
            "cuts": [asdict(cut) for cut in self.cuts],
            "kept": [asdict(choice) for choice in self.kept],
        }


def prune(
    space: GenotypeSpace,
    evaluate: Evaluate,
    card: ReportCard,
    observed: Genotypes,
    observed_objectives: Floats,
    seed: int,
    settings: PruningSettings | None = None,
    keep: Mapping[str, Sequence[Choice]] | None = None,
) -> PrunedSpace:
    """Cut the choices that the best networks do without, at every cost.

    Args:
        space: the root space.
        evaluate: predicted objectives (the loss first) and violations of root rows.
        card: of the ranker behind `evaluate`.
        observed: ``(N, S)`` root rows that were measured.
        observed_objectives: ``(N, M)`` of them, the loss first.
        seed: decides the samples.
        settings: thresholds; the defaults if not given.
        keep: gene or slot → choices that must stay.

    Returns:
        The smaller space with the evidence, or the root with the sentence why it stays whole.

    Raises:
        UnknownNameError: when `keep` names a gene or choice that the space has not.
        UsageError: when there are not as many observed objectives as networks.
    """
    settings = settings or PruningSettings()
    if len(observed) != len(observed_objectives):
        raise UsageError(
            f"each observed network needs its objectives; given {len(observed)} networks and "
            f"{len(observed_objectives)} rows of objectives"
        )
    protected: ProtectedChoices = {}
    protected_cells: set[tuple[int, int]] = set()
    deepest: dict[str, int] = {}
    if keep:
        assert isinstance(space, SearchSpace)  # others offer no such choice
        protected = checked_protected(space, keep)
        protected_cells, deepest = places(space, protected), deepest_layers(space, protected)
    refused = _distrust(card, settings)
    if refused or card.error is None:
        return PrunedSpace(space, refused=refused or UNKNOWN_ERROR, protected=protected)
    drawn = _feasible_sample(space, evaluate, settings, seed)
    if drawn is None:
        return PrunedSpace(
            space,
            refused=f"Fewer than {_needed(settings)} of {MAX_GROWTH * settings.sample} sampled "
            "networks meet the limits, too few to judge choices by; the space stays whole.",
            protected=protected,
        )
    points = np.asarray(observed_objectives, dtype=np.float64)
    missed = evaluate(observed).violations if len(observed) else np.zeros(0)
    cutter = ChoiceCutter(
        _near_front(space, evaluate, settings, seed, drawn),
        space,
        settings.tolerance,
        deepest,
        best_observed(observed, points, missed, card.error),
    )
    kept = []
    for candidate, found in _against(space, drawn, settings):
        if cutter.is_cut(candidate):
            continue
        facts = evidence(space, candidate, found, evaluate, (observed, points[:, 0]), seed)
        asked = set(candidate.places) & protected_cells
        reason = "It was asked to be kept." if asked else cutter.cut(candidate, facts)
        if reason:
            kept.append(Kept(candidate.name, candidate.choice, facts, reason))
    return PrunedSpace(cutter.space, tuple(cutter.cuts), tuple(kept), protected=protected)


def _distrust(card: ReportCard, settings: PruningSettings) -> str | None:
    """The sentence why this ranker justifies no cut, or None."""
    known = card.held_out
    for what, value, least in (
        ("Kendall tau", known.kendall_tau, settings.min_kendall_tau),
        ("pairwise accuracy", known.pairwise_accuracy, settings.min_pairwise_accuracy),
    ):
        if value < least:
            return (
                f"The ranker's held-out {what} is {value:.3f} with {card.observations} "
                f"observations, below the {least:g} that would justify a cut; the space stays "
                "whole. Observe more networks, or train longer before they are observed."
            )
    return None


def _needed(settings: PruningSettings) -> int:
    """Feasible networks for an elite that is large enough."""
    return int(np.ceil(settings.min_elite / settings.elite_share))


def _feasible_sample(
    space: GenotypeSpace, evaluate: Evaluate, settings: PruningSettings, seed: int
) -> ScoredSample | None:
    """A sample with enough feasible networks, doubled as often as it takes; None if too rare."""
    count = settings.sample
    while count <= MAX_GROWTH * settings.sample:
        drawn = draw(space, space, evaluate, count, seed)
        if int((drawn.scores.violations == 0).sum()) >= _needed(settings):
            return drawn
        count *= 2
    return None


def _against(
    space: GenotypeSpace, drawn: ScoredSample, settings: PruningSettings
) -> list[tuple[Candidate, Lift]]:
    """The choices that the lift speaks against, genes first, then by lift."""
    feasible = int((drawn.scores.violations == 0).sum())
    best = elite(drawn, int(feasible * settings.elite_share))
    found = []
    for candidate in candidates(space):
        shares = lift(space, candidate, drawn.genotypes, best)
        if shares and shares.elite >= settings.min_elite and shares.high < settings.max_lift:
            found.append((candidate, shares))
    # Python's sort is stable: equal lifts stay in the order of the slots.
    return sorted(found, key=lambda pair: (len(pair[0].places) == 1, pair[1].ratio))


def _near_front(
    space: GenotypeSpace,
    evaluate: Evaluate,
    settings: PruningSettings,
    seed: int,
    drawn: ScoredSample,
) -> ScoredSample:
    """The sample and what a short evolution finds, as far as the limits are met."""
    search = EvolutionSettings(settings.population, settings.generations)
    found = list(evolve(space, evaluate, search, seed))
    rows = np.concatenate([drawn.genotypes, *(g.genotypes for g in found)])
    points = np.concatenate([drawn.scores.objectives, *(g.objectives for g in found)])
    missed = np.concatenate([drawn.scores.violations, *(g.violations for g in found)])
    good = missed == 0
    return ScoredSample(rows[good], Scores(points[good], missed[good]))

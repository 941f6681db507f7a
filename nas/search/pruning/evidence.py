"""What speaks for and against a choice of a gene: the numbers behind `nas.search.pruning.prune`.

Shapes: N networks, S slots, P places of a candidate, M objectives, of which the first is the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nas.search.evolution import Evaluate, Scores
from nas.search.pareto import constrained_ranks, crowding_distance
from search_spaces.genes import Value
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.variation import sample

Floats = NDArray[np.float64]

EFFECT_ROWS = 256
ELITE_PARTS = 4
Z_95 = 1.96


@dataclass(frozen=True)
class Lift:
    """How much more often the best networks have a choice than any network.

    Attributes:
        sampled_share: share of the sampled networks (that have the slot) with the choice.
        elite_share: the same among the elite.
        ratio: elite share over sampled share; 1 means that the choice neither helps nor harms.
        high: the same ratio in the quarter of the elite (by loss) that likes the choice best,
            upper end of its 95 % interval (Wilson).
        elite: number of elite places behind it.
    """

    sampled_share: float
    elite_share: float
    ratio: float
    high: float
    elite: int


@dataclass(frozen=True)
class Evidence:
    """What speaks about one choice.

    Attributes:
        lift: among the elite.
        predicted_effects: per objective, mean when the choice is forced minus the mean over its
            alternatives, in otherwise equal networks.
        observed_effect: mean observed loss with the choice minus without it, or None with fewer
            than two networks on either side. Not at equal cost.
        observed_t: Welch's t of it, or None (also when nothing varies).
    """

    lift: Lift
    predicted_effects: tuple[float, ...]
    observed_effect: float | None
    observed_t: float | None


@dataclass(frozen=True)
class Candidate:
    """A choice in one slot, or in all layers of a gene.

    Attributes:
        name: slot name or gene name.
        choice: the value.
        places: genotype columns and the choice's index in each.
    """

    name: str
    choice: Value
    places: tuple[tuple[int, int], ...]

    @property
    def columns(self) -> list[int]:
        """The genotype columns of its places."""
        return [column for column, _ in self.places]

    def present(self, space: GenotypeSpace, genotypes: Genotypes) -> NDArray[np.bool_]:
        """Where a layer is there and has the choice, ``(N, P)``."""
        indices = np.array([index for _, index in self.places])
        active = space.active(genotypes)[:, self.columns]
        mask: NDArray[np.bool_] = (genotypes[:, self.columns] == indices) & active
        return mask


@dataclass(frozen=True, eq=False)
class ScoredSample:
    """Networks drawn from a space, in root coordinates, with their scores."""

    genotypes: Genotypes
    scores: Scores


def candidates(space: GenotypeSpace) -> list[Candidate]:
    """All choices that can be cut: of genes over all layers first, then of single slots."""
    found: dict[tuple[str, Value], list[tuple[int, int]]] = {}
    by_slot = []
    for column, slot in enumerate(space.slots):
        for index, choice in enumerate(slot.choices):
            place = (column, index)
            by_slot.append(Candidate(slot.name, choice, (place,)))
            found.setdefault((slot.gene_name, choice), []).append(place)
    if space.whole_genes:
        fixed = {space.slots[column].gene_name for column in space.deciding_columns}
        return [
            Candidate(name, choice, tuple(places))
            for (name, choice), places in found.items()
            if name not in fixed
        ]
    by_gene = [
        Candidate(name, choice, tuple(places))
        for (name, choice), places in found.items()
        if len(places) > 1
    ]
    return by_gene + by_slot


def draw(
    root: GenotypeSpace, space: GenotypeSpace, evaluate: Evaluate, count: int, seed: int
) -> ScoredSample:
    """Draw `count` networks of `space` and score them as rows of `root`."""
    rows = sample(space, np.random.default_rng(seed), count)
    genotypes = rows if space is root else space.translate(rows, root)
    return ScoredSample(genotypes, evaluate(genotypes))


def elite(drawn: ScoredSample, count: int) -> Genotypes:
    """The `count` rows of lowest rank, ordered by loss, ``(count, S)``.

    Ranks are peeled over the whole front, so the elite spans all costs that were drawn; within
    the last rank the largest crowding distances go first.
    """
    ranks = constrained_ranks(drawn.scores.objectives, drawn.scores.violations)
    room = crowding_distance(drawn.scores.objectives, ranks)
    best = np.lexsort((-room, ranks))[:count]
    by_loss = best[np.argsort(drawn.scores.objectives[best, 0], kind="stable")]
    rows: Genotypes = drawn.genotypes[by_loss]
    return rows


def lift(
    space: GenotypeSpace, candidate: Candidate, everyone: Genotypes, best: Genotypes
) -> Lift | None:
    """Compare the choice's share among the elite with that among all; None if nobody has it.

    The elite with the slot is also looked at in quarters by loss, because a choice that only the
    best or only the cheapest networks need would hardly show in the whole.
    """
    with_slot = best[space.active(best)[:, candidate.columns].any(axis=1)]
    all_hits, all_places = _count(space, candidate, everyone)
    hits, places = _count(space, candidate, with_slot)
    if places == 0 or all_hits == 0:
        return None
    sampled, share = all_hits / all_places, hits / places
    quarters = np.array_split(with_slot, ELITE_PARTS)
    high = max(_wilson_high(*_count(space, candidate, part)) for part in quarters)
    return Lift(sampled, share, share / sampled, high / sampled, places)


def _count(space: GenotypeSpace, candidate: Candidate, rows: Genotypes) -> tuple[int, int]:
    """How many layers have the choice, and how many could."""
    hits = int(candidate.present(space, rows).sum())
    return hits, int(space.active(rows)[:, candidate.columns].sum())


def evidence(
    space: GenotypeSpace,
    candidate: Candidate,
    found: Lift,
    evaluate: Evaluate,
    observed: tuple[Genotypes, Floats],
    seed: int,
) -> Evidence:
    """Gather what is predicted and observed about a choice.

    Args:
        space: the root space.
        candidate: the choice.
        found: its lift.
        evaluate: predicted objectives of root rows.
        observed: ``(N, S)`` measured rows and their losses ``(N,)``.
        seed: decides the networks in which the choice is forced.
    """
    genotypes, losses = observed
    effect, t_value = _observed_effect(space, candidate, genotypes, losses)
    return Evidence(found, _predicted_effects(space, candidate, evaluate, seed), effect, t_value)


def _predicted_effects(
    space: GenotypeSpace, candidate: Candidate, evaluate: Evaluate, seed: int
) -> tuple[float, ...]:
    """Mean change of each objective against the alternatives, ``(M,)``."""
    # Rows before they are made canonical: layers that a forced depth adds have random genes.
    rng = np.random.default_rng(seed)
    rows = (rng.random((EFFECT_ROWS, len(space.slots))) * space.num_choices).astype(np.int16)
    there = space.active(rows)[:, candidate.columns].any(axis=1)
    if not there.any():
        return ()
    means = {}
    for value in _alternatives(space, candidate):
        forced = rows[there]
        for column in candidate.columns:
            if value in space.slots[column].choices:
                forced[:, column] = space.slots[column].choices.index(value)
        means[value] = evaluate(space.canonical(forced)).objectives.mean(axis=0)
    others = [mean for value, mean in means.items() if value != candidate.choice]
    if not others:
        return ()
    change = means[candidate.choice] - np.mean(others, axis=0)
    return tuple(change.tolist())


def _alternatives(space: GenotypeSpace, candidate: Candidate) -> list[Value]:
    choices = [choice for column in candidate.columns for choice in space.slots[column].choices]
    return list(dict.fromkeys(choices))


def _observed_effect(
    space: GenotypeSpace, candidate: Candidate, genotypes: Genotypes, losses: Floats
) -> tuple[float | None, float | None]:
    there = space.active(genotypes)[:, candidate.columns].any(axis=1)
    has = candidate.present(space, genotypes).any(axis=1)
    with_it, without = losses[has], losses[there & ~has]
    if min(len(with_it), len(without)) < 2:
        return None, None
    effect = float(with_it.mean() - without.mean())
    one, other = (
        (float(group.mean()), _deviation(group), len(group)) for group in (with_it, without)
    )
    if not (one[1] or other[1]):
        return effect, None
    return effect, float(stats.ttest_ind_from_stats(*one, *other, equal_var=False).statistic)


def _deviation(losses: Floats) -> float:
    """Standard deviation of a group; 0 of equal values, whose mean is theirs up to rounding."""
    return float(losses.std(ddof=1)) if np.ptp(losses) else 0.0


def _wilson_high(hits: int, count: int) -> float:
    """Upper end of Wilson's 95 % interval of a share; 1 when nothing was counted."""
    if count == 0:
        return 1.0
    share, z2 = hits / count, Z_95**2
    middle = share + z2 / (2 * count)
    reach = Z_95 * np.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return float((middle + reach) / (1 + z2 / count))

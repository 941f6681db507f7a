"""Ways to choose which layers get another kind of attention, on a table of all placements.

A table holds the quality of every placement, so that the best one with any number of converted
layers is known, and what each way of choosing is short of it (its *regret*) can be told. What the
network itself is worth is known to every way of choosing, and costs none an evaluation.

Shapes: P placements, L layers, K kinds; kind 0 is the network's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nas.search.evolution import EvolutionSettings, Scores
from nas.search.ranking.ensemble import Ensemble
from nas.search.searchers.base import Problem, search
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.architecture import Architecture
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import distinct, largest, neighbours, sample_distinct, smallest

Floats = NDArray[np.float64]
Kinds = NDArray[np.int64]
Placement = tuple[int, ...]
Choice = Mapping[int, Sequence[Placement]]
"""Number of converted layers → the placements that a way of choosing names for it; several where it
leaves open which."""

BEAM = 4
SEARCH_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class PlacementTable:
    """The quality of every placement.

    Attributes:
        placements: ``(P, L)``, each once.
        qualities: ``(P,)``, less is better.
        errors: ``(L, K)``: how far a kind is from its layer after local distillation; 0 of kind 0.
        asked: placements whose quality was asked for: what a way of choosing had to evaluate.
    """

    placements: Kinds
    qualities: Floats
    errors: Floats
    asked: set[Placement] = field(default_factory=set)

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.placements.shape[1])

    @property
    def num_kinds(self) -> int:
        """K."""
        return int(self.errors.shape[1])

    @cached_property
    def known(self) -> dict[Placement, float]:
        """Placement → quality."""
        rows = map(tuple, self.placements.tolist())
        return dict(zip(rows, self.qualities.tolist(), strict=True))

    @cached_property
    def converted(self) -> Kinds:
        """Layers of each placement that are not of kind 0, ``(P,)``."""
        counts: Kinds = (self.placements != 0).sum(axis=1)
        return counts

    @property
    def counts(self) -> range:
        """Numbers of converted layers among which there is something to choose."""
        return range(1, self.num_layers + (self.num_kinds > 2))

    def quality(self, placement: Placement) -> float:
        """The quality of a placement, which counts as evaluated; the network's own is known."""
        if any(placement):
            self.asked.add(placement)
        return self.known[placement]

    def regret(self, placement: Placement) -> float:
        """What a placement is short of the best with as many converted layers, 0 to 1.

        As a share of the distance between the best and the worst of them.
        """
        count = sum(kind != 0 for kind in placement)
        among = self.qualities[self.converted == count]
        span = float(among.max() - among.min())
        return (self.known[placement] - float(among.min())) / span if span else 0.0


def uniform(table: PlacementTable) -> Choice:
    """Evenly spaced layers, in every phase, all of one kind."""
    layers = table.num_layers
    found = {}
    for count in table.counts:
        phases = {
            tuple(
                sorted({int((n + phase / layers) * layers / count) % layers for n in range(count)})
            )
            for phase in range(layers)
        }
        chosen = [one for one in sorted(phases) if len(one) == count]
        found[count] = [p for one in chosen for p in _of_each_kind(table, one)]
    return found


def first(table: PlacementTable) -> Choice:
    """The first layers, all of one kind."""
    return {count: _of_each_kind(table, range(count)) for count in table.counts}


def last(table: PlacementTable) -> Choice:
    """The last layers, all of one kind."""
    layers = table.num_layers
    return {count: _of_each_kind(table, range(layers - count, layers)) for count in table.counts}


def at_random(table: PlacementTable) -> Choice:
    """Any placement: the mean over all of them is what chance gives."""
    rows = list(map(tuple, table.placements.tolist()))
    return {
        count: [row for row, n in zip(rows, table.converted, strict=True) if n == count]
        for count in table.counts
    }


def replace_one(table: PlacementTable) -> Choice:
    """Layers whose single replacement costs least, each with the kind that costs least there."""
    own = (0,) * table.num_layers
    return _by_scores(table, _scored(table, own, table.quality))


def restore_one(table: PlacementTable) -> Choice:
    """From all layers converted: those whose restoration brings least stay converted."""
    kind = min(range(1, table.num_kinds), key=lambda k: table.quality((k,) * table.num_layers))
    every = (kind,) * table.num_layers
    scores = np.full((table.num_layers, table.num_kinds), np.inf)
    scores[:, kind] = [-table.quality(_with(every, n, 0)) for n in range(table.num_layers)]
    return _by_scores(table, scores)


def local_error(table: PlacementTable) -> Choice:
    """Layers and kinds with the least error of the attention's output."""
    return _by_scores(table, table.errors)


def additive(table: PlacementTable, seed: int = 0) -> Choice:
    """The best under a sum of scores that are fitted to a share of the table.

    With a limit on the number of converted layers the optimum of that integer programme is the
    layers with the least scores.
    """
    rng = np.random.default_rng([seed, 3])
    others = np.flatnonzero(table.converted)
    size = min(len(others), max(_width(table), _budget(table)))
    picked = np.append(
        np.flatnonzero(table.converted == 0), rng.choice(others, size, replace=False)
    )
    for placement in table.placements[picked].tolist():
        table.quality(tuple(placement))
    weights = _fitted(table, picked)
    scores = np.zeros((table.num_layers, table.num_kinds))
    scores[:, 1:] = weights[1:].reshape(table.num_layers, -1)
    return _by_scores(table, scores)


def greedy(table: PlacementTable) -> Choice:
    """One more layer at a time, whichever costs least then."""
    return beam(table, 1)


def beam(table: PlacementTable, width: int = BEAM) -> Choice:
    """The same, going on from the best few."""
    kept: list[Placement] = [(0,) * table.num_layers]
    found = {}
    for count in range(1, table.num_layers + 1):
        grown = {
            _with(one, layer, kind)
            for one in kept
            for layer in range(table.num_layers)
            if one[layer] == 0
            for kind in range(1, table.num_kinds)
        }
        kept = sorted(grown, key=lambda one: (table.quality(one), one))[:width]
        found[count] = [kept[0]]
    return {count: found[count] for count in table.counts}


def ranked(table: PlacementTable, space: SearchSpace, seed: int) -> Choice:
    """This project's searcher with a share of the evaluations.

    It begins, as around a checkpoint, with single replacements (`nas.stages.base.Run.first_rows`);
    its answer is the best that it observed or its last ranker predicts.

    Args:
        table: of all networks of the space.
        space: whose only genes with several choices are the kinds of attention, in the table's
            order of layers and kinds.
        seed: of the searcher.
    """

    def placed(rows: Genotypes) -> list[Placement]:
        return [tuple(row) for row in kinds_of(space, rows).tolist()]

    def costs(rows: Genotypes) -> Scores:
        kept = (kinds_of(space, rows) == 0).sum(axis=1).astype(np.float64)
        return Scores(kept[:, None], np.zeros(len(rows)))

    worst = float(table.qualities.max())
    problem = Problem(space, costs, np.array([worst * 1.01, table.num_layers + 1.0]))
    every = _rows_of(space, table.placements)
    own = every[table.converted == 0]
    budget = _budget(table)
    begun = np.concatenate([own, smallest(space), neighbours(space, own, "attention")])
    drawn = sample_distinct(space, np.random.default_rng([seed, 77]), max(8, budget // 3))
    start = distinct(np.concatenate([begun, drawn]))[: max(len(begun), len(drawn))]
    settings = RankEvolveSettings(
        budget=len(own) + budget,
        batch=min(8, max(1, budget // 8)),
        patience=0,
        evolution=EvolutionSettings(population=64, generations=10),
    )
    searcher = RankEvolve(problem, start, settings, seed)
    for _ in search(searcher, lambda asked: np.array([table.quality(p) for p in placed(asked)])):
        pass
    ranker = Ensemble().fit(problem.features(searcher.rows), searcher.qualities)
    expected = ranker.predict(problem.features(every))
    for placement, quality in zip(placed(searcher.rows), searcher.qualities, strict=True):
        expected[(table.placements == placement).all(axis=1)] = quality
    found = {}
    for count in table.counts:
        among = np.flatnonzero(table.converted == count)
        found[count] = [tuple(table.placements[among[expected[among].argmin()]].tolist())]
    return found


SELECTORS: Mapping[str, Callable[[PlacementTable], Choice]] = {
    "uniform": uniform,
    "first": first,
    "last": last,
    "random": at_random,
    "replace one": replace_one,
    "restore one": restore_one,
    "local error": local_error,
    "greedy": greedy,
    "beam": beam,
}


def mean_regrets(table: PlacementTable, choice: Choice) -> dict[int, float]:
    """Number of converted layers → mean regret of what was chosen; 1 where nothing was."""
    return {
        count: float(np.mean([table.regret(one) for one in chosen])) if chosen else 1.0
        for count, chosen in choice.items()
    }


def additive_fit(table: PlacementTable) -> float:
    """R² of the best sum of one score for each layer and kind."""
    everything = np.arange(len(table.qualities))
    rest = table.qualities - _design(table, everything) @ _fitted(table, everything)
    return 1.0 - float(rest.var() / table.qualities.var())


def additive_fits(table: PlacementTable) -> dict[int, float]:
    """The same among placements with equally many converted layers."""
    found = {}
    for count in table.counts:
        picked = np.flatnonzero(table.converted == count)
        if len(picked) <= _width(table):
            continue
        values = table.qualities[picked]
        rest = values - _design(table, picked) @ _fitted(table, picked)
        found[count] = 1.0 - float(rest.var() / values.var())
    return found


def all_placements(num_layers: int, num_kinds: int) -> Iterator[Placement]:
    """Every placement, fewest conversions first."""
    every = itertools.product(range(num_kinds), repeat=num_layers)
    return iter(sorted(every, key=lambda one: (sum(kind != 0 for kind in one), one)))


def num_layers(space: SearchSpace) -> int:
    """Layers of a space, each with a kind of attention."""
    return sum(slot.gene.endswith("attention") for slot in space.slots)


def placed(space: SearchSpace, kinds: list[str], placement: Placement) -> Architecture:
    """The largest network of a space with these kinds of attention."""
    row, left = largest(space), iter(placement)
    for column, slot in enumerate(space.slots):
        if slot.gene.endswith("attention"):
            row[0, column] = slot.choices.index(kinds[next(left)])
    return space.decode(row)[0]


def kinds_of(space: SearchSpace, rows: Genotypes) -> Kinds:
    """The kinds of rows of a space, ``(N, L)``, by their number among the choices."""
    columns = [n for n, slot in enumerate(space.slots) if slot.gene.endswith("attention")]
    picked: Kinds = rows[:, columns].astype(np.int64)
    return picked


def _rows_of(space: SearchSpace, placements: Kinds) -> Genotypes:
    """The rows of placements, the other way round than `kinds_of`."""
    rows = np.repeat(largest(space), len(placements), axis=0)
    rows[:, [n for n, slot in enumerate(space.slots) if slot.gene.endswith("attention")]] = (
        placements
    )
    return rows


def _budget(table: PlacementTable) -> int:
    return max(8, round(SEARCH_SHARE * len(table.qualities)))


def _width(table: PlacementTable) -> int:
    return 1 + table.num_layers * (table.num_kinds - 1)


def _design(table: PlacementTable, picked: Kinds) -> Floats:
    rows = table.placements[picked]
    hot = [rows == kind for kind in range(1, table.num_kinds)]
    features = np.stack(hot, axis=2).reshape(len(rows), -1).astype(np.float64)
    return np.column_stack([np.ones(len(rows)), features])


def _fitted(table: PlacementTable, picked: Kinds) -> Floats:
    found = np.linalg.lstsq(_design(table, picked), table.qualities[picked], rcond=None)[0]
    return np.asarray(found, dtype=np.float64)


def _with(placement: Placement, layer: int, kind: int) -> Placement:
    return (*placement[:layer], kind, *placement[layer + 1 :])


def _scored(table: PlacementTable, base: Placement, score: Callable[[Placement], float]) -> Floats:
    scores = np.zeros((table.num_layers, table.num_kinds))
    for layer in range(table.num_layers):
        for kind in range(1, table.num_kinds):
            scores[layer, kind] = score(_with(base, layer, kind))
    return scores


def _by_scores(table: PlacementTable, scores: Floats) -> Choice:
    """The layers with the least scores, each with its best kind; ties to the earlier layer."""
    kinds = 1 + scores[:, 1:].argmin(axis=1)
    order = np.argsort(scores[np.arange(len(kinds)), kinds], kind="stable")
    found = {}
    for count in table.counts:
        placement = np.zeros(table.num_layers, dtype=np.int64)
        placement[order[:count]] = kinds[order[:count]]
        found[count] = [tuple(placement.tolist())]
    return found


def _of_each_kind(table: PlacementTable, layers: Sequence[int]) -> list[Placement]:
    chosen = set(layers)
    return [
        tuple(kind if layer in chosen else 0 for layer in range(table.num_layers))
        for kind in range(1, table.num_kinds)
    ]

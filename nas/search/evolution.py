"""Multi-objective evolution of genotypes under limits (NSGA-II).

`evolve` yields one `Generation` after the other: the networks scored in it, each once in the whole
run. Everything else (population, networks met, front) follows from the generations so far, so
their journal is all that resuming needs: the random numbers of a generation come from the seed
and its number alone.

Shapes: N networks, S slots, M objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nas.search.pareto import constrained_ranks, crowding_distance, non_dominated
from search_spaces.errors import DamagedRunError, NasError, UsageError
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.variation import crossover, distinct, mutate, sample, sample_distinct

Floats = NDArray[np.float64]

# How often a generation draws more children when most were met before.
MAX_ROUNDS = 12


@dataclass(frozen=True, eq=False)
class Scores:
    """What is known about N networks.

    Attributes:
        objectives: ``(N, M)``, to be minimised, finite.
        violations: ``(N,)``, by how much the limits are missed in total; 0 is feasible.
    """

    objectives: Floats
    violations: Floats


Evaluate = Callable[[Genotypes], Scores]


@dataclass(frozen=True)
class EvolutionSettings:
    """How to evolve.

    Attributes:
        population: networks that survive a generation, and most that are scored in one.
        generations: generations after the first, which is drawn at random.
        mutation_rate: probability in [0, 1] of each gene to change.
        crossover_share: share of children in [0, 1] with two parents; all are then mutated.
        random_share: share of children in [0, 1] that are drawn anew, against early convergence.
    """

    population: int = 128
    generations: int = 40
    mutation_rate: float = 0.15
    crossover_share: float = 0.5
    random_share: float = 0.05

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 0:
            raise UsageError(
                "evolution needs a population of at least 2 and no negative number of "
                f"generations; given {self.population} and {self.generations}"
            )
        for name in ("mutation_rate", "crossover_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} must lie in [0, 1]; given {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Generation:
    """The networks that one generation scored, all of them new.

    Attributes:
        number: 0 for the random start.
        genotypes: ``(N, S)`` canonical rows, N at most the population.
        objectives: ``(N, M)``, to be minimised.
        violations: ``(N,)``, 0 is feasible.
    """

    number: int
    genotypes: Genotypes
    objectives: Floats
    violations: Floats

    def to_json(self) -> dict[str, Any]:
        """A line of the journal."""
        return {
            "number": self.number,
            "genotypes": self.genotypes.tolist(),
            "objectives": self.objectives.tolist(),
            "violations": self.violations.tolist(),
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read a line of the journal.

        Raises:
            DamagedRunError: when a part is missing, not numbers, or of another length.
        """
        try:
            number = int(data["number"])
            genotypes = np.array(data["genotypes"], dtype=np.int16)
            objectives = np.array(data["objectives"], dtype=np.float64)
            violations = np.array(data["violations"], dtype=np.float64)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedRunError(f"a generation of the evolution is damaged: {error}") from error
        shapes = (genotypes.ndim, objectives.ndim, violations.ndim)
        lengths = {len(genotypes), len(objectives), len(violations)} if min(shapes) else {0, 1}
        if shapes != (2, 2, 1) or len(lengths) != 1:
            raise DamagedRunError(
                f"generation {number} of the evolution is damaged: "
                "its networks and their scores do not belong together"
            )
        return cls(number, genotypes, objectives, violations)


@dataclass(frozen=True, eq=False)
class Archive:
    """The best of everything that was scored: feasible and non-dominated.

    Attributes:
        genotypes: ``(N, S)``, by the first objective, then the others.
        objectives: ``(N, M)``.
    """

    genotypes: Genotypes
    objectives: Floats


def evolve(
    space: GenotypeSpace,
    evaluate: Evaluate,
    settings: EvolutionSettings,
    seed: int,
    done: Sequence[Generation] = (),
    start: Genotypes | None = None,
) -> Iterator[Generation]:
    """Search a space for networks that nothing dominates.

    Parents are chosen by binary tournaments on rank and room, children are crossed and mutated,
    and the best of parents and children survive. Children met before are not scored again; where
    too few new ones turn up, random networks take their place. Ends early once every network of
    the space was scored.

    Args:
        space: where to search; rows have its coordinates.
        evaluate: scores distinct rows ``(N, S)``; asked once for each network of the run.
        settings: sizes and rates.
        seed: decides everything that is random.
        done: generations of an earlier call with the same arguments, from number 0 on; the
            search goes on behind them and ends with the same bytes.
        start: rows that the first generation contains besides random ones.

    Yields:
        The generations after `done`.

    Raises:
        NasError: when `evaluate` returns a score that is not finite or of the wrong shape.
        DamagedRunError: when `done` is not a gapless sequence from 0.

    Source: Deb et al., NSGA-II, 2002. Unlike there, individuals are distinct and a share of the
    children is random.
    """
    population: Generation | None = None
    seen: set[bytes] = set()
    for number, generation in enumerate(done):
        if generation.number != number:
            raise DamagedRunError(
                f"generation {number} of the evolution is missing: found {generation.number}"
            )
        seen.update(_keys(generation.genotypes))
        population = _survivors(population, generation, settings.population)
    for number in range(len(done), settings.generations + 1):
        rng = np.random.default_rng([seed, number])
        if population is None:
            new = _first(space, settings, rng, start)
        else:
            new = _children(space, population, settings, seen, rng)
        if len(new) == 0:
            return
        generation = _scored(number, new, evaluate)
        seen.update(_keys(new))
        population = _survivors(population, generation, settings.population)
        yield generation


def archive(generations: Iterable[Generation]) -> Archive:
    """All feasible non-dominated networks that the generations scored.

    Raises:
        UsageError: when there is no generation at all.
    """
    parts = list(generations)
    if not parts:
        raise UsageError("no generation was evolved, so there is no front to take")
    rows = np.concatenate([part.genotypes for part in parts])
    points = np.concatenate([part.objectives for part in parts])
    feasible = np.concatenate([part.violations for part in parts]) == 0
    rows, points = rows[feasible], points[feasible]
    kept = np.flatnonzero(non_dominated(points))
    order = kept[np.lexsort((*rows[kept].T[::-1], *points[kept].T[::-1]))]
    return Archive(rows[order], points[order])


def _first(
    space: GenotypeSpace,
    settings: EvolutionSettings,
    rng: np.random.Generator,
    start: Genotypes | None,
) -> Genotypes:
    rows = sample_distinct(space, rng, settings.population)
    if start is not None:
        rows = distinct(np.concatenate([space.canonical(start), rows]))
    return rows[: settings.population]


def _children(
    space: GenotypeSpace,
    population: Generation,
    settings: EvolutionSettings,
    seen: set[bytes],
    rng: np.random.Generator,
) -> Genotypes:
    """Up to a population of rows that were never met, ``(N, S)``; none if the space is used up."""
    wanted = min(settings.population, space.size - len(seen))
    found: dict[bytes, Genotypes] = {}
    fitness = _fitness(population)
    for round_number in range(2 * MAX_ROUNDS):
        if len(found) >= wanted:
            break
        # The first rounds breed; should they keep meeting known networks, the rest draw anew.
        breed = round_number < MAX_ROUNDS
        rows = (
            _offspring(space, population.genotypes, fitness, settings, rng)
            if breed
            else sample(space, rng, settings.population)
        )
        for key, row in zip(_keys(rows), rows, strict=True):
            if key not in seen:
                found.setdefault(key, row)
    if len(found) < wanted and space.size <= 2 * MAX_ROUNDS * settings.population:
        for row in sample_distinct(space, rng, space.size):
            if row.tobytes() not in seen:
                found.setdefault(row.tobytes(), row)
    kept = list(found.values())[:wanted]
    return np.array(kept, dtype=np.int16).reshape(len(kept), len(space.slots))


def _offspring(
    space: GenotypeSpace,
    parents: Genotypes,
    fitness: NDArray[np.int64],
    settings: EvolutionSettings,
    rng: np.random.Generator,
) -> Genotypes:
    """A population of children, known ones among them, ``(population, S)``."""
    count = settings.population
    rivals = rng.integers(len(parents), size=(2, count, 2))
    best = fitness[rivals].argmin(axis=-1)[..., None]
    winner = np.take_along_axis(rivals, best, axis=-1)[..., 0]
    first, second = parents[winner[0]], parents[winner[1]]
    crossed = rng.random((count, 1)) < settings.crossover_share
    child = np.where(crossed, crossover(space, first, second, rng), first)
    child = mutate(space, child, settings.mutation_rate, rng)
    anew = rng.random((count, 1)) < settings.random_share
    return np.where(anew, sample(space, rng, count), child)


def _fitness(population: Generation) -> NDArray[np.int64]:
    """Place of each individual, 0 the best: by rank, then by room, then by age."""
    ranks = constrained_ranks(population.objectives, population.violations)
    room = crowding_distance(population.objectives, ranks)
    place = np.empty(len(ranks), dtype=np.int64)
    place[np.lexsort((-room, ranks))] = np.arange(len(ranks))
    return place


def _survivors(population: Generation | None, new: Generation, size: int) -> Generation:
    """The best `size` of the population and its children."""
    if population is not None:
        new = Generation(
            new.number,
            np.concatenate([population.genotypes, new.genotypes]),
            np.concatenate([population.objectives, new.objectives]),
            np.concatenate([population.violations, new.violations]),
        )
    order = np.argsort(_fitness(new))[:size]
    return Generation(
        new.number, new.genotypes[order], new.objectives[order], new.violations[order]
    )


def _scored(number: int, rows: Genotypes, evaluate: Evaluate) -> Generation:
    scores = evaluate(rows)
    objectives = np.asarray(scores.objectives, dtype=np.float64)
    violations = np.asarray(scores.violations, dtype=np.float64)
    if objectives.ndim != 2 or len(objectives) != len(rows) or violations.shape != (len(rows),):
        raise NasError(
            f"{len(rows)} networks were to be scored; came back objectives of shape "
            f"{objectives.shape} and violations of shape {violations.shape}"
        )
    if not (np.isfinite(objectives).all() and np.isfinite(violations).all()):
        bad = ~(np.isfinite(objectives).all(axis=1) & np.isfinite(violations))
        row = int(np.flatnonzero(bad)[0])
        raise NasError(
            f"generation {number} got a score that is not a finite number: objectives "
            f"{objectives[row].tolist()}, violation {violations[row]} for the genotype "
            f"{rows[row].tolist()}"
        )
    return Generation(number, rows, objectives, violations)


def _keys(rows: Genotypes) -> list[bytes]:
    """One key per row; equal networks have equal keys because rows are canonical."""
    return [row.tobytes() for row in np.ascontiguousarray(rows)]

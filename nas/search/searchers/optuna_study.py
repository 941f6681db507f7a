"""Optuna: its samplers as searchers, and every run as a study that its tools can open.

A network is a trial with one parameter for each slot of the space. Sizes are integer positions in
the slot's choices, which have an order; attention kinds are categories. Parameters of layers that a
network has not are drawn all the same and ignored, because Optuna's genetic samplers only cross
what all trials have in common.

Shapes: N networks, S slots, M objectives.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, create_trial

from nas.objectives import OBJECTIVES
from nas.search.searchers.base import Flags, Floats, Problem, Searcher
from search_spaces.genotypes import Genotypes, GenotypeSpace, Network
from search_spaces.variation import sample

SamplerName = Literal["random", "nsga2", "tpe", "gp"]
# So many known networks in a row, and a new one is drawn at random: TPE can ask for the same few
# networks for ever, and each of its questions takes longer than the one before.
MOST_REPEATS = 20
# So many random ones that are known, and a space is taken to be used up.
MOST_DRAWS = 2000
# By how much a network that could not be evaluated misses the limits, in their own size.
HOPELESS = 1e6


class OptunaSearcher(Searcher):
    """One of Optuna's samplers, asked for one network at a time.

    A network that was observed before is answered with its known quality and costs nothing.

    Args:
        problem: what is searched.
        sampler: ``random``, ``nsga2``, ``tpe`` or ``gp``.
        budget: networks that are observed.
        seed: decides everything random.
        population: of ``nsga2``.
        start: ``(N, S)`` networks that are asked for first.
    """

    def __init__(
        self,
        problem: Problem,
        sampler: SamplerName,
        budget: int,
        seed: int,
        population: int = 50,
        start: Genotypes | None = None,
    ) -> None:
        super().__init__(problem)
        self.name = sampler
        self._budget = budget
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            directions=["minimize"] * len(problem.reference),
            sampler=_sampler(sampler, seed, population),
        )
        self._slots = distributions(problem.space)
        for row in [] if start is None else start:
            self._study.enqueue_trial(_params(problem.space, row))
        self._rng = np.random.default_rng(seed)
        self._known: dict[bytes, float | None] = {}  # None: could not be evaluated
        self._trial: optuna.Trial | None = None

    def ask(self) -> Genotypes:
        """See `Searcher.ask`; one network."""
        if self.done >= self._budget:
            return self.rows[:0]
        for _ in range(MOST_REPEATS):
            self._trial, row = self._next()
            if row.tobytes() not in self._known:
                return row
            self._answer(self._trial, row, self._known[row.tobytes()])
        return self._unknown()

    def _next(self) -> tuple[optuna.Trial, Genotypes]:
        trial = self._study.ask(self._slots)
        return trial, self.problem.space.canonical(_row(self.problem.space, trial.params))

    def _unknown(self) -> Genotypes:
        """A random network that was not observed, which becomes the study's next trial."""
        space = self.problem.space
        for _ in range(MOST_DRAWS):
            row = sample(space, self._rng, 1)
            if row.tobytes() not in self._known:
                self._study.enqueue_trial(_params(space, row[0]))
                self._trial, asked = self._next()
                assert (asked == row).all()
                return row
        return self.rows[:0]

    def tell(self, rows: Genotypes, qualities: Floats, failed: Flags | None = None) -> None:
        """See `Searcher.tell`."""
        super().tell(rows, qualities, failed)
        assert self._trial is not None and len(rows) == 1
        quality = None if self.failed[-1] else float(qualities[0])
        self._known[rows.tobytes()] = quality
        self._answer(self._trial, rows, quality)

    def _answer(self, trial: optuna.Trial, row: Genotypes, quality: float | None) -> None:
        """Tell the study. What failed gets the reference quality, far beyond every limit.

        As a failed trial it would be forgotten, and TPE would ask for it again and again.
        """
        shown = self.problem.reference[0] if quality is None else quality
        found = self.problem.points(row, np.array([shown]))
        missed = HOPELESS if quality is None else float(found.violations[0])
        if self.problem.limited or self.name != "gp":  # which would model what no network misses
            trial.set_constraint("limits", missed)
        self._study.tell(trial, found.objectives[0].tolist())


def _sampler(name: SamplerName, seed: int, population: int) -> optuna.samplers.BaseSampler:
    match name:
        case "random":
            return optuna.samplers.RandomSampler(seed=seed)
        case "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=population)
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed)
        case "gp":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)


def distributions(space: GenotypeSpace) -> dict[str, BaseDistribution]:
    """Slot name → what may stand there."""
    return {
        slot.name: IntDistribution(0, len(slot.choices) - 1)
        if slot.ordered
        else CategoricalDistribution(slot.choices)
        for slot in space.slots
    }


def _row(space: GenotypeSpace, params: Mapping[str, Any]) -> Genotypes:
    values = [
        params[slot.name] if slot.ordered else slot.choices.index(params[slot.name])
        for slot in space.slots
    ]
    return np.array([values], dtype=np.int16)


def _params(space: GenotypeSpace, row: Genotypes) -> dict[str, Any]:
    """What `_row` takes."""
    return {
        slot.name: int(index) if slot.ordered else slot.choices[index]
        for slot, index in zip(space.slots, row.tolist(), strict=True)
    }


def write_study(
    path: Path,
    name: str,
    space: GenotypeSpace,
    objectives: Sequence[str],
    networks: Iterable[tuple[Network, Mapping[str, float]]],
) -> None:
    """Write measured networks as an Optuna study, for ``optuna-dashboard PATH``.

    Sizes stand there as themselves; what a network has not is left out.

    Args:
        path: the journal file; replaced if it is there.
        name: of the study.
        space: of the networks.
        objectives: names of the values.
        networks: with what was measured of each, every objective among it.
    """
    path.unlink(missing_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=name,
        storage=JournalStorage(JournalFileBackend(str(path))),
        directions=["maximize" if OBJECTIVES[name].maximise else "minimize" for name in objectives],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # so that charts name their axes
        study.set_metric_names(list(objectives))
    study.add_trials([_trial(space, objectives, *network) for network in networks])


def _trial(
    space: GenotypeSpace,
    objectives: Sequence[str],
    network: Network,
    measured: Mapping[str, float],
) -> FrozenTrial:
    row = space.encode([network])
    active = space.active(row)[0]
    slots = [slot for slot, there in zip(space.slots, active, strict=True) if there]
    chosen = row[0, active]
    return create_trial(
        params={s.name: s.choices[i] for s, i in zip(slots, chosen, strict=True)},
        distributions={slot.name: CategoricalDistribution(slot.choices) for slot in slots},
        values=[measured[name] for name in objectives],
        user_attrs={"architecture": network.id, **measured},
    )

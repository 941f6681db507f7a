"""Costs of networks that an evaluator of others knows: those that it gave, or predicted from them.

N: networks; S: positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from latency.predictor import MIN_OBSERVATIONS, LatencyPredictor
from nas.objectives import QUALITY, uncertainty_name
from nas.run.folder import RunFolder
from nas.run.layout import OBSERVATIONS_FILE
from nas.search.scoring import CostScorer
from search_spaces.encoding import cost_terms, encode_features
from search_spaces.genes import GeneSpace
from search_spaces.genotypes import Genotypes

Floats = NDArray[np.float64]

# Predictors round to six decimals of their unit, which leave nothing of costs far below 1.
SMALL = 0.01


def _none(rows: Genotypes) -> dict[str, Floats]:
    return {}


@dataclass(frozen=True, eq=False)
class ExternalCosts(CostScorer):
    """See `CostScorer`; a cost is exact where it is offered or came with an evaluation.

    Attributes:
        offered: of rows ``(N, S)``: name → values ``(N,)`` of the costs that need no evaluation.
        evaluated: row → the costs that came with its evaluation.
    """

    root: GeneSpace
    offered: Callable[[Genotypes], Mapping[str, Floats]] = _none
    evaluated: Mapping[bytes, Mapping[str, float]] = field(default_factory=dict)

    def learnt(self, rows: Genotypes, values: Sequence[Mapping[str, float]]) -> ExternalCosts:
        """See `CostScorer.learnt`."""
        names = self._names
        new = {
            row.tobytes(): {name: line[name] for name in names}
            for row, line in zip(rows, values, strict=True)
            if all(name in line for name in names)
        }
        return replace(self, evaluated={**self.evaluated, **new})

    @property
    def exact(self) -> Collection[str]:
        """See `CostScorer.exact`."""
        return tuple(self.offered(np.zeros((0, len(self.root.slots)), dtype=np.int16)))

    @property
    def _names(self) -> tuple[str, ...]:
        names = dict.fromkeys((*self.objectives, *self.limits))
        return tuple(name for name in names if name != QUALITY)

    @cached_property
    def _fitted(self) -> dict[str, tuple[float, LatencyPredictor]]:
        """What predicts each cost that is not offered, and in which unit.

        Nothing from too few networks.
        """
        if len(self.evaluated) < MIN_OBSERVATIONS:
            return {}
        width = len(self.root.slots)
        rows = np.array([np.frombuffer(key, dtype=np.int16) for key in self.evaluated]).reshape(
            -1, width
        )
        features, terms = encode_features(self.root, rows), cost_terms(self.root)
        observed = {
            name: np.array([known[name] for known in self.evaluated.values()], dtype=np.float64)
            for name in self._names
            if name not in self.exact
        }
        units = {name: _unit(values) for name, values in observed.items()}
        return {
            name: (units[name], LatencyPredictor.fit(features, values / units[name], terms=terms))
            for name, values in observed.items()
        }

    def _values(
        self,
        genotypes: Genotypes,
        deviations: Container[str],
        features: Floats | None = None,
    ) -> dict[str, Floats]:
        values = dict(self.offered(genotypes))
        known = [self.evaluated.get(row.tobytes()) for row in genotypes]
        new = np.array([line is None for line in known], dtype=np.bool_)
        for name in self._names:
            if name in values:
                continue
            known_N = np.array([0.0 if line is None else line[name] for line in known])
            spread = np.zeros(len(known_N))
            if new.any() and name in self._fitted:
                if features is None:
                    features = encode_features(self.root, genotypes)
                unit, predictor = self._fitted[name]
                mean_N, std_N = predictor.predict(features[new])
                known_N[new], spread[new] = unit * mean_N, unit * std_N
            elif new.any():  # nothing is known yet: as expensive as the most expensive
                known_N[new] = max((line[name] for line in self.evaluated.values()), default=1.0)
            values[name] = known_N
            if name in deviations:
                values[uncertainty_name(name)] = spread
        return values

    def predict(self, genotypes: Genotypes) -> dict[str, Floats]:
        """See `CostScorer.predict`."""
        return self._values(genotypes, deviations=self._names)


def _unit(values: Floats) -> float:
    """A power of two, for that changes no digits: 1, or of small costs just below the smallest."""
    least = float(values.min())
    return 2.0 ** math.floor(math.log2(least)) if 0 < least < SMALL else 1.0


def observed_costs(folder: RunFolder) -> ExternalCosts:
    """What a run's observations tell of costs, without asking its evaluator."""
    spec = folder.spec
    space = spec.domain
    assert isinstance(space, GeneSpace)
    lines = [line for line in folder.read_journal(OBSERVATIONS_FILE) if QUALITY in line]
    rows = space.encode([line["architecture"] for line in lines])
    return ExternalCosts(space, {}, spec.objectives, spec.limits).learnt(rows, lines)

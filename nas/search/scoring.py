"""Predicted objectives of genotypes."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latency.predictor import LatencyPredictor
from nas.objectives import COUNTED, OBJECTIVES, QUALITY, counted, rates, uncertainty_name
from nas.objectives.latency_limits import MEASURED_STDS
from nas.run.folder import RunFolder
from nas.run.layout import RANKER_FILE, predictor_file
from nas.search.evolution import Scores
from nas.search.ranking import Ranker, ranker_from_json
from search_spaces.encoding import encode_features
from search_spaces.genotypes import Genotypes, GenotypeSpace

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostScorer:
    """What networks cost, without observing them: counted, or predicted from timed ones.

    Attributes:
        root: the whole space, in whose coordinates the predictor was fitted.
        predictors: objective → what predicts it, for those needed that take a measurement.
        objectives: names, in order; quality is passed over.
        limits: name → largest allowed value, or smallest where more is better. A predicted value
            counts with its uncertainty on top, so that a network near the limit has to be clearly
            within it.
        stds: standard deviations that make its uncertainty, see `nas.objectives.latency_limits`.
    """

    root: GenotypeSpace
    predictors: Mapping[str, LatencyPredictor]
    objectives: Sequence[str]
    limits: Mapping[str, float]
    stds: float = MEASURED_STDS

    @property
    def exact(self) -> Collection[str]:
        """Names of the costs that need no measurement."""
        return COUNTED

    def learnt(self, rows: Genotypes, values: Sequence[Mapping[str, float]]) -> CostScorer:
        """What it is with networks ``(N, S)`` whose costs are known meanwhile."""
        return self

    def predict(self, genotypes: Genotypes) -> dict[str, Floats]:
        """All costs of root genotypes ``(N, S)``: name → ``(N,)``, as people read them.

        A predicted one comes with its standard deviation, ``latency_ms`` with ``latency_std_ms``.
        """
        return self._values(genotypes, deviations=self.predictors)

    def _values(
        self,
        genotypes: Genotypes,
        deviations: Container[str],
        features: Floats | None = None,
    ) -> dict[str, Floats]:
        values = {}
        for name, predictor in self.predictors.items():
            if features is None:
                features = encode_features(self.root, genotypes)
            if name in deviations:
                values[name], values[OBJECTIVES[name].std_name] = predictor.predict(features)
            else:
                values[name] = predictor.mean(features)
        names = {*self.objectives, *self.limits}
        values |= rates(values, names, self.root)
        return values | counted(self.root, genotypes, names)

    def score(self, genotypes: Genotypes, features: Floats | None = None) -> Scores:
        """The objectives besides quality, minimised ``(N, M - 1)``, and how far limits are missed.

        Args:
            genotypes: ``(N, S)`` rows of the root space.
            features: the same, encoded, if that was done.
        """
        limited = {OBJECTIVES[name].rate_of or name for name in self.limits}
        values = self._values(genotypes, limited, features)
        costs = [
            OBJECTIVES[name].minimised(values[name]) for name in self.objectives if name != QUALITY
        ]
        violations = np.zeros(len(genotypes))
        for name, most in self.limits.items():
            one, uncertainty = OBJECTIVES[name], uncertainty_name(name)
            upper = one.minimised(values[name])
            if uncertainty in values:
                upper = one.largest(values[name], values[uncertainty], self.stds)
            bound = one.minimised(most)
            violations += np.maximum(0.0, upper / bound - 1.0 if bound else upper)
        return Scores(np.stack(costs, axis=1), violations)


@dataclass(frozen=True, eq=False)
class Scorer:
    """Predicts all objectives of genotypes.

    Attributes:
        ranker: predicts quality, which is the first objective.
        costs: counts or predicts the others.
    """

    ranker: Ranker
    costs: CostScorer

    def predict(self, genotypes: Genotypes) -> dict[str, Floats]:
        """All predicted values of root genotypes ``(N, S)``, as people read them."""
        features = encode_features(self.costs.root, genotypes)
        return {QUALITY: self.ranker.predict(features)} | self.costs.predict(genotypes)

    def score(self, genotypes: Genotypes) -> Scores:
        """Objectives and how far the limits are missed, for root genotypes ``(N, S)``."""
        features = encode_features(self.costs.root, genotypes)
        quality, costs = self.ranker.predict(features), self.costs.score(genotypes, features)
        return Scores(np.column_stack([quality, costs.objectives]), costs.violations)


def read_costs(folder: RunFolder, stds: float = MEASURED_STDS) -> CostScorer:
    """What the networks of a run cost.

    Args:
        folder: the run.
        stds: see `CostScorer`.

    Raises:
        DamagedRunError: when a fitted predictor is missing or cannot be read.
    """
    spec = folder.spec
    predictors = {
        one.name: LatencyPredictor.from_json(folder.read_json(predictor_file(one.stage)))
        for one in OBJECTIVES.values()
        if one.stage and spec.needs(one.name)
    }
    return CostScorer(spec.space, predictors, spec.objectives, spec.limits, stds)


def read_scorer(folder: RunFolder, costs: CostScorer) -> Scorer:
    """The fitted ranker of a run, beside what is known of costs.

    Raises:
        DamagedRunError: when the ranker is missing or cannot be read.
    """
    return Scorer(ranker_from_json(folder.read_json(RANKER_FILE)), costs)

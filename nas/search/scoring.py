"""What evolution asks a hundred thousand times: how good and how dear is a network, predicted."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latency.predictor import LatencyPredictor
from nas.objectives import COSTS, LATENCY, MEMORY, QUALITY, STD_NAMES
from nas.objectives.latency_limits import MEASURED_STDS
from nas.run.folder import RunFolder
from nas.run.layout import MEMORY_PREDICTOR_FILE, PREDICTOR_FILE, RANKER_FILE
from nas.search.evolution import Scores
from nas.search.ranking import Ranker, ranker_from_json
from search_spaces.encoding import encode_features
from search_spaces.genotype_costs import genotype_totals
from search_spaces.settings import ImageInput
from search_spaces.space import Genotypes, SearchSpace

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostScorer:
    """What networks cost, without observing them: counted, or predicted from timed ones.

    Attributes:
        root: the whole space, in whose coordinates the predictor was fitted.
        latency: predicts milliseconds; None when nobody asked for latency.
        objectives: names, in order; quality is passed over.
        limits: name → largest allowed value. A latency counts with its uncertainty on top, so
            that a network near the limit has to be clearly within it.
        stds: standard deviations that make its uncertainty, see `nas.objectives.latency_limits`.
        memory: predicts megabytes, whose limit is kept alike; None when nobody asked for them.
    """

    root: SearchSpace
    latency: LatencyPredictor | None
    objectives: Sequence[str]
    limits: Mapping[str, float]
    stds: float = MEASURED_STDS
    memory: LatencyPredictor | None = None

    def predict(self, genotypes: Genotypes) -> dict[str, Floats]:
        """All costs of root genotypes ``(N, S)``: name → ``(N,)``.

        ``latency_std_ms`` comes with ``latency_ms``, ``peak_memory_std_mb`` with peak memory.
        """
        return self._values(genotypes, deviations=(LATENCY, MEMORY))

    def _values(
        self,
        genotypes: Genotypes,
        deviations: Container[str],
        features: Floats | None = None,
    ) -> dict[str, Floats]:
        values = {}
        for name, predictor in ((LATENCY, self.latency), (MEMORY, self.memory)):
            if predictor is None:
                continue
            if features is None:
                features = encode_features(self.root, genotypes)
            if name in deviations:
                values[name], values[STD_NAMES[name]] = predictor.predict(features)
            else:
                values[name] = predictor.mean(features)
        if any(name in COSTS for name in (*self.objectives, *self.limits)):
            params, flops = network_costs(self.root, genotypes).T
            values |= {"params": params, "flops": flops}
        return values

    def score(self, genotypes: Genotypes, features: Floats | None = None) -> Scores:
        """The objectives besides quality, ``(N, M - 1)``, and how far limits are missed.

        Args:
            genotypes: ``(N, S)`` rows of the root space.
            features: the same, encoded, if that was done.
        """
        values = self._values(genotypes, self.limits, features)
        costs = [values[name] for name in self.objectives if name != QUALITY]
        violations = np.zeros(len(genotypes))
        for name, most in self.limits.items():
            upper = values[name]
            if name in STD_NAMES:
                upper = upper + self.stds * values[STD_NAMES[name]]
            violations += np.maximum(0.0, upper / most - 1.0)
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
        """All predicted values of root genotypes ``(N, S)``: name → ``(N,)``."""
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
    latency = _predictor(folder, PREDICTOR_FILE) if spec.needs_latency else None
    memory = _predictor(folder, MEMORY_PREDICTOR_FILE) if spec.needs_memory else None
    return CostScorer(spec.space, latency, spec.objectives, spec.limits, stds, memory)


def _predictor(folder: RunFolder, file: str) -> LatencyPredictor:
    return LatencyPredictor.from_json(folder.read_json(file))


def read_scorer(folder: RunFolder, stds: float = MEASURED_STDS) -> Scorer:
    """The fitted predictors of a run.

    Arguments and errors as for `read_costs`.
    """
    ranker = ranker_from_json(folder.read_json(RANKER_FILE))
    return Scorer(ranker, read_costs(folder, stds))


def network_costs(space: SearchSpace, genotypes: Genotypes) -> Floats:
    """Parameters and FLOPs (convention ``true``) of genotypes ``(N, S)``: ``(N, 2)``."""
    image = isinstance(space.model.input, ImageInput)
    source = None if image else space.workload.get("source")
    totals = genotype_totals(space, genotypes, source_length=source)
    return np.stack(totals, axis=1).astype(np.float64)

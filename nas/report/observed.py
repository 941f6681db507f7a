"""Networks whose quality was measured, with what else is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from latency.predictor import LatencyPredictor
from nas.objectives import OBJECTIVES
from nas.objectives.size import network_costs
from nas.search.front import FrontEntry
from search_spaces.architecture import Architecture
from search_spaces.encoding import encode_features
from search_spaces.space import Genotypes, SearchSpace


@dataclass(frozen=True, eq=False)
class KnownCost:
    """A cost that takes a measurement.

    Attributes:
        name: of the metric.
        measured: network id → value.
        predictor: of the other networks; None before there is one.
        doubtful: network id → why its measured value should not be believed.
    """

    name: str
    measured: Mapping[str, float]
    predictor: LatencyPredictor | None
    doubtful: Mapping[str, str] = field(default_factory=dict)

    def predicted(self, space: SearchSpace, rows: Genotypes) -> list[dict[str, float]]:
        """Value and standard deviation by name, for each row ``(N, S)``; empty without predictor.

        Raises:
            DataError: when the predictor was fitted to another space.
        """
        if self.predictor is None:
            return [{} for _ in rows]
        means, deviations = self.predictor.predict(encode_features(space, rows))
        names = (self.name, OBJECTIVES[self.name].std_name)
        return [
            dict(zip(names, pair, strict=True))
            for pair in zip(means.tolist(), deviations.tolist(), strict=True)
        ]


def with_costs(
    space: SearchSpace,
    networks: Sequence[tuple[Architecture, Mapping[str, float]]],
    costs: Sequence[KnownCost],
) -> tuple[FrontEntry, ...]:
    """Networks and what was measured of their quality, with what they cost as far as is known.

    A cost that was not measured is predicted; parameters and FLOPs are counted.

    Raises:
        UsageError: when a network is not of the space.
        DataError: when a predictor was fitted to another space.
    """
    rows = space.encode([network for network, _ in networks])
    counts = network_costs(space, rows).tolist()
    entries = [
        FrontEntry(network.id, network, {**quality, "params": params, "flops": flops}, {})
        for (network, quality), (params, flops) in zip(networks, counts, strict=True)
    ]
    for cost in costs:
        guesses = cost.predicted(space, rows)
        entries = [_with(entry, cost, guess) for entry, guess in zip(entries, guesses, strict=True)]
    return tuple(entries)


def _with(entry: FrontEntry, cost: KnownCost, guess: Mapping[str, float]) -> FrontEntry:
    known = cost.measured.get(entry.id)
    if known is None:
        return replace(entry, predicted={**entry.predicted, **guess})
    why = cost.doubtful.get(entry.id)
    doubtful = entry.doubtful if why is None else {**entry.doubtful, cost.name: why}
    return replace(entry, measured={**entry.measured, cost.name: known}, doubtful=doubtful)

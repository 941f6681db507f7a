"""Requests that nobody can meet are refused before any work is done."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latency.workload import Workload
from nas.objectives import COSTS, LATENCY
from nas.scoring import network_costs
from nas.spec import SearchSpec
from search_spaces.architecture import Architecture
from search_spaces.errors import UnreachableLimitError, UsageError
from search_spaces.operators import smallest
from search_spaces.space import Genotypes, SearchSpace


def check_request(spec: SearchSpec) -> None:
    """Refuse what cannot be searched, timed or reached; times a few networks if need be.

    Raises:
        UsageError: for BLEU of a task without translations, or a workload that cannot be timed.
        UnreachableLimitError: see `check_limits`.
    """
    if spec.quality == "bleu" and spec.space.task != "translation":
        raise UsageError(
            f"--quality bleu is for translation, but the space {spec.space.name} is for "
            f"{spec.space.task.replace('_', ' ')}: leave it out, and quality is the validation loss"
        )
    if spec.needs_latency:
        from nas.timed_work import check_workload

        check_workload(spec.space, Workload.from_mapping(spec.space.workload))
    check_limits(spec)


def check_limits(spec: SearchSpec) -> None:
    """Refuse limits that no network of the space can meet; times a few networks if need be.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    check_costs(spec.space, spec.limits)
    if LATENCY in spec.limits:
        from nas.evaluator import LatencyMeter

        meter = LatencyMeter(spec)
        fastest = min(m.value for m in meter.measure(cheapest(spec.space)))
        _check(LATENCY, spec.limits[LATENCY], fastest, f"{fastest:.3g}")


def check_costs(space: SearchSpace, limits: Mapping[str, float]) -> None:
    """Refuse unreachable limits on parameters and FLOPs, by arithmetic alone.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    least = network_costs(space, _cheapest_rows(space)).min(axis=0)
    for name, value in zip(("params", "flops"), least.tolist(), strict=True):
        if name in limits and name in COSTS:
            _check(name, limits[name], value, f"{value:,.0f}")


def cheapest(space: SearchSpace) -> list[Architecture]:
    """The smallest network of each attention kind; the cheapest network of all is among them."""
    return space.decode(_cheapest_rows(space))


def _cheapest_rows(space: SearchSpace) -> Genotypes:
    """The smallest sizes with every attention kind in turn.

    Costs are sums over layers, and an omni layer among omni layers looks at one output only, so
    no mixture of kinds is cheaper than the best single one.
    """
    kinds = {c for s in space.slots if s.gene.endswith("attention") for c in s.choices}
    rows = []
    for kind in sorted(map(str, kinds)):
        row = smallest(space).copy()
        for column, slot in enumerate(space.slots):
            if slot.gene.endswith("attention") and kind in slot.choices:
                row[0, column] = slot.choices.index(kind)
        rows.append(space.canonical(row))
    return np.unique(np.concatenate(rows), axis=0)


def _check(name: str, most: float, least: float, text: str) -> None:
    if most < least:
        raise UnreachableLimitError(
            f"no network of the space meets {name}={most:g}: the smallest it can reach is {text}; "
            f"raise the limit to at least that"
        )

"""Requests that nobody can meet are refused before any work is done."""

from __future__ import annotations

import math
from collections.abc import Mapping

from latency.workload import Workload
from nas.executors.base import Executor
from nas.objectives import COSTS, LATENCY, MEMORY
from nas.profiling.device_profile import CarriedProfile, MeasuredNetwork
from nas.profiling.workloads import check_workload
from nas.run.spec import SearchSpec
from nas.objectives.size import network_costs
from nas.search.uniform_networks import cheapest_rows
from search_spaces.architecture import Architecture
from search_spaces.errors import UnreachableLimitError, UsageError
from search_spaces.space import SearchSpace


def check_request(
    spec: SearchSpec, executor: Executor, carried: CarriedProfile | None = None
) -> None:
    """Refuse what cannot be searched, timed or reached; times a few networks if need be.

    Args:
        spec: the request.
        executor: times them.
        carried: the device profile that latency comes from, if any.

    Raises:
        UsageError: for BLEU of a task without translations, or a workload that cannot be timed.
        UnreachableLimitError: see `check_limits`.
    """
    check_quality(spec)
    if spec.needs_latency or spec.needs_memory:
        check_workload(spec.space, Workload.from_mapping(spec.space.workload))
    check_limits(spec, executor, carried)


def check_quality(spec: SearchSpec) -> None:
    """Refuse BLEU of a task without translations.

    Raises:
        UsageError: saying what to do instead.
    """
    if spec.quality == "bleu" and spec.space.task != "translation":
        raise UsageError(
            f"--quality bleu is for translation, but the space {spec.space.name} is for "
            f"{spec.space.task.replace('_', ' ')}: leave it out, and quality is the validation loss"
        )


def check_limits(
    spec: SearchSpec, executor: Executor, carried: CarriedProfile | None = None
) -> None:
    """Refuse limits that no network of the space can meet; times a few networks if need be.

    Args:
        spec: the request.
        executor: times them.
        carried: a device profile holds the smallest networks, so nothing is timed.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    check_costs(spec.space, spec.limits)
    if LATENCY in spec.limits and (times := _times(spec, executor, carried)):
        fastest = min(times)
        _check(LATENCY, spec.limits[LATENCY], fastest, rounded_up(fastest))
    if MEMORY in spec.limits:
        least = min(_memory(spec, executor, carried))
        _check(MEMORY, spec.limits[MEMORY], least, rounded_up(least))


def _memory(spec: SearchSpec, executor: Executor, carried: CarriedProfile | None) -> list[float]:
    """Megabytes of the networks among which the smallest is."""
    if carried is not None:
        return [one.peak_memory_mb for one in _carried(spec, carried)]
    return [executor.memory_mb(spec, one) for one in cheapest(spec.space)]


def _carried(spec: SearchSpec, carried: CarriedProfile) -> list[MeasuredNetwork]:
    """Of what the profile's device measured the networks that every search observes."""
    every, ids = carried.workloads[0].measured, {one.id for one in cheapest(spec.space)}
    return [one for one in every if one.architecture.id in ids] or list(every)


def _times(spec: SearchSpec, executor: Executor, carried: CarriedProfile | None) -> list[float]:
    """Milliseconds of the networks among which the fastest is; none where that cannot be told."""
    if carried is not None:
        return [one.latency.value for one in _carried(spec, carried)]
    timed = executor.meter(spec, None).measure(cheapest(spec.space))
    # A doubtful value refuses nothing: other work made it, more likely than not.
    return [] if any(one.doubtful for one in timed.values) else [t.value for t in timed.values]


def check_costs(space: SearchSpace, limits: Mapping[str, float]) -> None:
    """Refuse unreachable limits on parameters and FLOPs, by arithmetic alone.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    least = network_costs(space, cheapest_rows(space)).min(axis=0)
    for name, value in zip(("params", "flops"), least.tolist(), strict=True):
        if name in limits and name in COSTS:
            _check(name, limits[name], value, f"{value:,.0f}")


def cheapest(space: SearchSpace) -> list[Architecture]:
    """The smallest network of each attention kind; the cheapest network of all is among them."""
    return space.decode(cheapest_rows(space))


def rounded_up(value: float) -> str:
    """Three digits that are no less than a positive value: 0.4691 → ``0.47``."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.3g}"


def _check(name: str, most: float, least: float, text: str) -> None:
    if most < least:
        raise UnreachableLimitError(
            f"no network of the space meets {name}={most:g}: the smallest it can reach is {text}; "
            f"raise the limit to at least that"
        )

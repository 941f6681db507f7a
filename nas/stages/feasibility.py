"""Requests that nobody can meet are refused before any work is done."""

from __future__ import annotations

import math
from collections.abc import Mapping

from latency.workload import Workload
from nas.executors.base import Executor
from nas.objectives import LATENCY, OBJECTIVES, QUALITIES, counted
from nas.profiling.device_profile import CarriedProfile, MeasuredNetwork
from nas.profiling.workloads import check_workload
from nas.request.spec import SearchSpec
from nas.search.uniform_networks import cheapest_rows
from search_spaces.architecture import Architecture
from search_spaces.errors import UnreachableLimitError, UsageError
from search_spaces.recall import recall_window
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
        UsageError: for a quality that the task does not have, or a workload that cannot be timed.
        UnreachableLimitError: see `check_limits`.
    """
    check_quality(spec)
    if any(one.predicted and spec.asks_for(one.name) for one in OBJECTIVES.values()):
        check_workload(spec.space, Workload.from_mapping(spec.space.workload))
    check_limits(spec, executor, carried)


def check_quality(spec: SearchSpec) -> None:
    """Refuse a quality that networks of the task do not have.

    Raises:
        UsageError: saying what to do instead.
    """
    quality, task = QUALITIES[spec.quality], spec.space.task
    if task not in quality.tasks:
        tasks = " and ".join(name.replace("_", " ") for name in quality.tasks)
        raise UsageError(
            f"--quality {quality.name} is for {tasks}, but the space {spec.space.name} is for "
            f"{task.replace('_', ' ')}: leave it out, and quality is the validation loss"
        )
    if quality.name == "recall_nats" and recall_window(spec.space) is None:
        raise UsageError(
            f"--quality recall_nats needs the window beyond which tokens count as recalled, and "
            f"the space {spec.space.name} has none: set recall_window in its [data] table, or "
            "offer layers with a window"
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
    for name in [name for name in spec.limits if OBJECTIVES[name].measure is not None]:
        if carried is not None:
            least = min(one.cost(name) for one in _carried(spec, carried))
        else:
            least = min(executor.measure(spec, name, one) for one in cheapest(spec.space))
        _check(name, spec.limits[name], least, rounded_up(least))


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
    """Refuse unreachable limits on what is counted, by arithmetic alone.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    for name, values in counted(space, cheapest_rows(space), limits).items():
        least = float(values.min())
        text = f"{least:,.0f}" if OBJECTIVES[name].whole else rounded_up(least)
        _check(name, limits[name], least, text)


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

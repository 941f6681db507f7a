"""Requests that nobody can meet are refused before any work is done."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nas.executors.base import Executor
from nas.objectives import (
    CACHE,
    OBJECTIVES,
    QUALITIES,
    Objective,
    base_workload,
    counted,
    rates,
    timed_workload,
)
from nas.profiling.device_profile import DeviceProfile, MeasuredNetwork
from nas.request.spec import SearchSpec
from nas.request.workloads import check_runtime, check_workload
from nas.search.uniform_networks import cheapest_rows
from search_spaces.architecture import Architecture
from search_spaces.errors import UnreachableLimitError, UsageError
from search_spaces.recall import recall_window
from search_spaces.space import SearchSpace
from search_spaces.wording import mark


def check_request(
    spec: SearchSpec, executor: Executor, device_profile: DeviceProfile | None = None
) -> None:
    """Refuse what cannot be searched, timed or reached; times a few networks if need be.

    Args:
        spec: the request.
        executor: times them.
        device_profile: the device profile that times come from, if any.

    Raises:
        UsageError: for a quality that the task does not have, or a workload that its networks
            cannot do or that cannot be timed.
        UnreachableLimitError: see `check_limits`.
    """
    check_quality(spec)
    if spec.space.workload or spec.asks_for(CACHE):  # costs are counted at it, timed or not
        check_workload(spec.space, base_workload(spec.space))
    for one in OBJECTIVES.values():
        if one.stage and spec.needs(one.name):
            workload = timed_workload(spec.space, one.mode)
            check_workload(spec.space, workload)
            if device_profile is None:
                check_runtime(workload, spec.device)
    check_limits(spec, executor, device_profile)


def check_quality(spec: SearchSpec) -> None:
    """Refuse a quality that networks of the task do not have.

    Raises:
        UsageError: saying what to do instead.
    """
    quality, task = QUALITIES[spec.quality], spec.space.task
    if task not in quality.tasks:
        *first, last = (name.replace("_", " ") for name in quality.tasks)
        tasks = f"{', '.join(first)} and {last}" if first else last
        raise UsageError(
            f"{mark('quality')} {quality.name} is for {tasks}, but the space {spec.space.name} is "
            f"for {task.replace('_', ' ')}: leave it out, and quality is the validation loss"
        )
    if quality.name == "kl" and spec.start is None:
        raise UsageError(
            f"{mark('quality')} kl is how far a network is from the checkpoint that the search "
            "begins with: "
            f"name one with {mark('start')}, or leave it out, and quality is the validation loss"
        )
    if quality.name == "recall_nats" and recall_window(spec.space) is None:
        raise UsageError(
            f"{mark('quality')} recall_nats needs the window beyond which tokens count as "
            "recalled, and "
            f"the space {spec.space.name} has none: set recall_window in its [data] table, or "
            "offer layers with a window"
        )


def check_limits(
    spec: SearchSpec, executor: Executor, device_profile: DeviceProfile | None = None
) -> None:
    """Refuse limits that no network of the space can meet; times a few networks if need be.

    A limit on a rate is one on the time that it follows from.

    Args:
        spec: the request.
        executor: times them.
        device_profile: a device profile holds the smallest networks, so nothing is timed.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    check_costs(spec.space, spec.limits)
    for clock in [OBJECTIVES[name] for name in spec.timed]:
        limited = [n for n in spec.limits if clock.name in (n, OBJECTIVES[n].rate_of)]
        if limited and (times := _times(spec, clock, executor, device_profile)):
            fastest = {clock.name: min(times)}
            fastest |= rates(fastest, limited, spec.space)
            for name in limited:
                _check(name, spec.limits[name], fastest[name])
    for name in [name for name in spec.limits if OBJECTIVES[name].measure is not None]:
        if device_profile is not None:
            least = min(one.cost(name) for one in _profiled(spec, OBJECTIVES[name], device_profile))
        else:
            least = min(executor.measure(spec, name, one) for one in cheapest(spec.space))
        _check(name, spec.limits[name], least)


def _profiled(
    spec: SearchSpec, cost: Objective, device_profile: DeviceProfile
) -> list[MeasuredNetwork]:
    """Of what the profile's device measured the networks that every search observes."""
    every = device_profile.of(timed_workload(spec.space, cost.mode)).measured
    ids = {one.id for one in cheapest(spec.space)}
    return [one for one in every if one.architecture.id in ids] or list(every)


def _times(
    spec: SearchSpec, clock: Objective, executor: Executor, device_profile: DeviceProfile | None
) -> list[float]:
    """Milliseconds of the networks among which the fastest is; none where that cannot be told."""
    if device_profile is not None:
        return [one.latency.value for one in _profiled(spec, clock, device_profile)]
    timed = executor.meter(spec, None, clock.mode).measure(cheapest(spec.space))
    # A doubtful value refuses nothing: other work made it, more likely than not.
    return [] if any(one.doubtful for one in timed.values) else [t.value for t in timed.values]


def check_costs(space: SearchSpace, limits: Mapping[str, float]) -> None:
    """Refuse unreachable limits on what is counted, by arithmetic alone.

    Raises:
        UnreachableLimitError: with the smallest value the space can reach.
    """
    for name in [name for name in limits if OBJECTIVES[name].count is not None]:
        ends, rows = OBJECTIVES[name].ends, cheapest_rows(space)
        if ends is not None:
            rows = np.concatenate([rows, ends(space)])
        _check(name, limits[name], float(counted(space, rows, [name])[name].min()))


def cheapest(space: SearchSpace) -> list[Architecture]:
    """The smallest network of each attention kind, which are timed and measured for limits."""
    return space.decode(cheapest_rows(space))


def rounded_up(value: float) -> str:
    """Three digits that are no less than a positive value: 0.4691 → ``0.47``."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.3g}"


def rounded_down(value: float) -> str:
    """Three digits that are no more than a positive value: 0.4691 → ``0.469``, 2667 → ``2660``."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit * (1 + 1e-12)) * unit:.10g}"


def _check(name: str, limit: float, best: float) -> None:
    """Refuse a limit that the best value which a space can reach does not keep."""
    one = OBJECTIVES[name]
    if one.minimised(best) <= one.minimised(limit):
        return
    end, way, bound = "smallest", "raise", "least"
    text = f"{best:,.0f}" if one.whole else rounded_up(best)
    if one.maximise:
        end, way, bound, text = "largest", "lower", "most", rounded_down(best)
    raise UnreachableLimitError(
        f"no network of the space meets {name}={limit:g}: the {end} it can reach is {text}; "
        f"{way} the limit to at {bound} that"
    )

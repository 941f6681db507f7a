"""Device profiles of the tiny space with made-up times: nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest

from latency.device import DeviceFingerprint
from latency.regressors import CANDIDATES
from latency.workload import Workload
from nas.objectives.size import network_costs
from nas.profiling.device_profile import (
    DeviceProfile,
    MeasuredNetwork,
    Session,
    WorkloadProfile,
    genes_digest,
    settings_digest,
)
from nas.profiling.sessions import TimedSession, measurement, profile_workload
from nas.search.uniform_networks import middle
from search_spaces.loading import parse_space
from search_spaces.space import Genotypes, SearchSpace
from tests.support.pipeline_cases import TINY

SPACE = parse_space(TINY, "space")
WORKLOAD = Workload(batch=4, source_length=4)
DEVICE = DeviceFingerprint("cpu", "Some Board", 2, 1, "2.13.0", "Linux-aarch64")


def planted_ms(space: SearchSpace, rows: Genotypes) -> list[float]:
    """What each network costs: a start, its layers and its operations."""
    flops = network_costs(space, rows)[:, 1]
    return (0.2 + 0.3 * space.depths(rows, space.stacks[-1]) + flops * 2e-5).tolist()


def fake_timer(
    space: SearchSpace = SPACE, speed: Callable[[int], float] = lambda number: 1.0
) -> Callable[[Genotypes, int], TimedSession]:
    """A device that takes the planted time, times what `speed` says of each session."""

    def timer(rows: Genotypes, number: int) -> TimedSession:
        slow = speed(number)
        networks = [
            MeasuredNetwork(net, measurement(ms * slow, 0.01 * ms, 15, "board"), 1 + ms, number)
            for net, ms in zip(space.decode(rows), planted_ms(space, rows), strict=True)
        ]
        reference = planted_ms(space, middle(space))[0] * slow
        return TimedSession(Session(reference, None), tuple(networks))

    return timer


@contextmanager
def few_regressors() -> Iterator[None]:
    """Latency predictors are chosen among two: for tests that do not ask how good they are."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(CANDIDATES) - {"linear", "gaussian_process"}:
            patch.delitem(CANDIDATES, name)
        yield


@cache
def made_workload(samples: int = 40) -> WorkloadProfile:
    """A workload's profile with made-up times; fitting it takes seconds, so each is made once."""
    with few_regressors():
        *_, made = profile_workload(SPACE, WORKLOAD, samples, 0, (), fake_timer())
    assert isinstance(made, WorkloadProfile)
    return made


def made_profile(*workloads: Workload, device: DeviceFingerprint = DEVICE) -> DeviceProfile:
    """A profile of the tiny space with made-up times."""
    return DeviceProfile(
        name="board",
        device=device,
        space_name=SPACE.name,
        settings=settings_digest(SPACE),
        genes=genes_digest(SPACE),
        seed=0,
        workloads=tuple(replace(made_workload(), workload=w) for w in workloads or (WORKLOAD,)),
    )

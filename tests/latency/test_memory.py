"""Peak memory: tensors alive at once, counted on the CPU, asked of the allocator on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from latency.memory import LiveTensors, peak_memory_mb
from latency.workload import DTYPES, Workload
from nas.profiling.timed_work import network_cost
from search_spaces.loading import load_space
from search_spaces.variation import largest, smallest

MEGABYTE = 250_000  # single-precision numbers


def chain(device: str = "cpu") -> Callable[[], object]:
    """Weights and inputs of 1 MB each; at most two more at a time."""
    weight = torch.zeros(MEGABYTE, device=device)
    inputs = torch.ones(MEGABYTE, device=device)

    def call() -> torch.Tensor:
        first = inputs + weight
        second = first * 2
        del first
        return second.view(-1) + 1

    return call


def test_what_is_alive_at_once_is_counted() -> None:
    assert peak_memory_mb(chain, "cpu") == 4.0


def test_what_was_only_used_for_building_is_not() -> None:
    def make() -> Callable[[], object]:
        torch.zeros(20 * MEGABYTE)
        return chain()

    assert peak_memory_mb(make, "cpu") == 4.0


def test_views_and_results_in_lists_count_once() -> None:
    with LiveTensors() as live:
        parts = torch.zeros(MEGABYTE).split(10)
        assert live.live_bytes == 1_000_000
        more = torch.ones(3, MEGABYTE).unbind()
        assert live.live_bytes == 4_000_000
    del parts, more
    assert live.live_bytes == 0


@pytest.mark.gpu
def test_cuda_asks_the_allocator() -> None:
    assert 3.9 < peak_memory_mb(lambda: chain("cuda"), "cuda") < 4.2


def test_a_larger_network_needs_more_and_the_same_again() -> None:
    space = load_space("digits")
    workload = Workload.from_mapping(space.workload)
    small, large = (space.decode(row)[0] for row in (smallest(space), largest(space)))
    first = network_cost("peak_memory_mb", space, large, workload, "cpu")
    assert first == network_cost("peak_memory_mb", space, large, workload, "cpu")
    assert first > 3 * network_cost("peak_memory_mb", space, small, workload, "cpu")


def test_memory_is_that_of_the_workloads_precision() -> None:
    space = load_space("digits")
    (large,) = space.decode(largest(space))
    workload = replace(Workload.from_mapping(space.workload), batch=256)
    usual, low = (
        network_cost("peak_memory_mb", space, large, replace(workload, dtype=dtype), "cpu")
        for dtype in DTYPES
    )
    assert 0.5 * usual < low < 0.95 * usual

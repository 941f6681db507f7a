"""The heap of the C library gives nothing back as long as it is held."""

from __future__ import annotations

import resource

import pytest
import torch

from search_spaces import heap

PAGES = 256
CALLS = 50


def faults_of_calls() -> int:
    """Pages fetched by calls that need a megabyte for a moment, after as many uncounted ones."""
    for call in range(2 * CALLS):
        if call == CALLS:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(PAGES * resource.getpagesize() // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(heap._glibc() is None, reason="this C library is not glibc")
def test_memory_of_a_moment_is_fetched_once() -> None:
    with heap.steady_heap():
        assert faults_of_calls() < PAGES
        again = torch.ones(4)  # the context may be opened within itself and anew
        with heap.steady_heap():
            assert float(again.sum()) == 4
    with heap.steady_heap():
        assert faults_of_calls() < PAGES


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    with heap.steady_heap():
        assert float(torch.ones(4).sum()) == 4

"""What a workload may say of the networks of a space, and in which words it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nas.request.workloads import own_workload, read_workload
from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from search_spaces.tasks import TaskName
from tests.support.task_cases import SPACES


@pytest.mark.parametrize("task", ["classification", "embedding"])
@pytest.mark.parametrize("given", ["beam=4", "target=3", "context=8", "allocator=paged"])
def test_networks_without_a_decoder_have_nothing_of_one(task: TaskName, given: str) -> None:
    key = given.partition("=")[0]
    with pytest.raises(UsageError, match=f"; leave out {key}$"):
        read_workload(replace(SPACES["classification"], task=task), f"batch=2,source=4,{given}")


def test_decoders_have() -> None:
    found = read_workload(load_space("lm-small"), "context=8,allocator=paged")
    assert (found.context, found.allocator) == (8, "paged")
    assert read_workload(load_space("multi30k"), "beam=4").mode == "generate"


def test_an_empty_workload_is_none() -> None:
    space = load_space("digits")
    with pytest.raises(UsageError, match="the workload is empty: write KEY=VALUE"):
        read_workload(space, " ")
    assert own_workload(space) == read_workload(space, "dtype=float32")

"""Parameters and FLOPs, and the lengths at which they are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nas.objectives.size import counted_lengths, network_costs
from search_spaces import load_space
from search_spaces.costs import totals
from search_spaces.variation import sample


@pytest.mark.parametrize(
    ("name", "workload", "lengths"),
    [
        ("multi30k", {"source": 14, "target": 9}, (14, 9)),
        ("multi30k", {"source": 14}, (14, None)),
        ("multi30k", {}, (None, None)),
        ("python-source", {"source": 60, "target": 9, "mode": "generate"}, (60, None)),
        ("digits", {"source": 16}, (None, None)),
    ],
)
def test_networks_are_counted_at_the_lengths_of_the_workload(
    name: str, workload: dict[str, Any], lengths: tuple[int | None, int | None]
) -> None:
    space = replace(load_space(name), workload=workload)
    assert counted_lengths(space) == lengths
    rows = sample(space, np.random.default_rng(3), 5)
    for found, network in zip(network_costs(space, rows), space.decode(rows), strict=True):
        assert (*found,) == totals(space.model, space.task, network, "true", *lengths)

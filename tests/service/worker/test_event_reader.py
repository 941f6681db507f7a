"""What a list of jobs tells of a search is what its page tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.api.run_cache import read_run
from service.jobs.states import Summary
from service.worker.event_reader import summarise
from tests.support.pipeline_cases import few_rankers, finished, logged


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"objectives": ("quality", "latency_ms"), "limits": {"peak_memory_mb": 1e6}},
        {"searcher": "random", "objectives": ("quality", "params")},
    ],
    ids=lambda values: str(values.get("objectives")),
)
def test_list_and_page_count_the_same_networks(tmp_path: Path, values: dict[str, Any]) -> None:
    """The list also counted networks that had only been timed, and those trained afterwards."""
    with few_rankers():
        folder = finished(tmp_path / "run", **values)
    events = logged(folder)
    told = [event for event in events if event["event"] == "ArchitectureMeasured"]
    listed = summarise(Summary(), events).measured
    assert listed == read_run(folder).measured
    assert 0 < listed < len(told)  # the winner's training is told of as well


@pytest.mark.parametrize(
    ("stage", "metrics", "counted"),
    [
        ("observe", {"quality": 0.5, "valid_loss": 0.5}, 1),
        ("verify", {"quality": 0.5, "latency_ms": 2.0}, 1),
        ("verify", {"latency_ms": 2.0}, 0),
        ("latency", {"latency_ms": 2.0}, 0),
        ("memory", {"peak_memory_mb": 2.0}, 0),
        ("inherit", {"quality": 0.5}, 0),
        ("retrain-0123456789ab", {"test_accuracy": 0.9}, 0),
    ],
)
def test_a_network_is_counted_for_its_quality(
    stage: str, metrics: dict[str, float], counted: int
) -> None:
    event = {"event": "ArchitectureMeasured", "stage": stage, "metrics": metrics}
    assert summarise(Summary(), [event]).measured == counted

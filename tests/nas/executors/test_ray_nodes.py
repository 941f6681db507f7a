"""What a run is told of the nodes of its cluster."""

from __future__ import annotations

import pytest

from nas.executors.ray_nodes import EMPTY_S, FULL_S, START_TIMEOUT_S
from search_spaces.errors import ExecutorError
from tests.support.node_cases import Cluster

UNEXPECTED, ON_PURPOSE = 2, 1  # numbers of Ray


def test_a_node_that_is_lost_is_told_once_with_what_to_type() -> None:
    cluster = Cluster(host_0=0, host_1=1, host_2=1)
    nodes = cluster.watch()
    assert nodes.told(waits=False) == []
    cluster.reasons["host_1"] = UNEXPECTED
    assert nodes.told(waits=False) == []  # it asked a moment ago
    cluster.now += 2.0
    (said,) = nodes.told(waits=False)
    assert said.startswith("host-1 has left") and "ray start --address=head:6379" in said
    cluster.now += 2.0
    assert nodes.told(waits=False) == []
    assert nodes.gone("id of host_1") and not nodes.gone("id of host_2")


def test_a_node_that_was_stopped_on_purpose_or_had_left_before_is_not_told() -> None:
    cluster = Cluster(host_1=1, host_2=1, host_3=1)
    cluster.reasons["host_3"] = UNEXPECTED
    nodes = cluster.watch()
    nodes.told(waits=False)
    cluster.reasons["host_1"] = ON_PURPOSE
    cluster.now += 2.0
    assert nodes.told(waits=False) == []


def test_it_is_told_soon_that_nobody_can_have_a_worker_and_given_up_late() -> None:
    cluster = Cluster(host_0=0, host_1=2)
    nodes = cluster.watch(cpus=2)
    nodes.told(waits=True)
    cluster.reasons["host_1"] = UNEXPECTED
    cluster.now = EMPTY_S + 1.0
    left, nobody = nodes.told(waits=True)
    assert left.startswith("host-1 has left")
    assert "no node of the Ray cluster can have a worker with 2 CPUs" in nobody
    assert "15 minutes" in nobody and "ray start --address=head:6379" in nobody
    cluster.now += 60.0
    assert nodes.told(waits=True) == []
    cluster.now = START_TIMEOUT_S + 2.0
    with pytest.raises(ExecutorError, match=r"no room .* 15 minutes.* ray start .*nas resume"):
        nodes.told(waits=True)


def test_a_full_cluster_is_waited_for_longer_and_anew_after_each_start() -> None:
    cluster = Cluster(host_1=1)
    nodes = cluster.watch()
    nodes.told(waits=True)
    cluster.now = EMPTY_S + 1.0
    assert nodes.told(waits=True) == []
    cluster.now = FULL_S + 1.0
    (said,) = nodes.told(waits=True)
    assert "no room for a worker with 1 CPU at present" in said
    nodes.told(waits=False)
    cluster.now = START_TIMEOUT_S + 2.0
    assert nodes.told(waits=True) == []
    cluster.now += FULL_S + 1.0
    assert len(nodes.told(waits=True)) == 1


def test_what_was_waited_for_before_does_not_count() -> None:
    cluster = Cluster(host_1=1)
    nodes = cluster.watch()
    nodes.told(waits=True)  # as whatever was worked on ended
    cluster.now = 2 * START_TIMEOUT_S
    nodes.begin()
    assert nodes.told(waits=True) == []


def test_a_graphics_card_counts_as_room() -> None:
    cluster = Cluster(host_1=8)
    nodes = cluster.watch(gpus=1)
    nodes.told(waits=True)
    cluster.now = EMPTY_S + 1.0
    (said,) = nodes.told(waits=True)
    assert "1 CPU and 1 GPU" in said


def test_the_cluster_is_asked_once_a_second() -> None:
    cluster = Cluster(host_1=1)
    nodes = cluster.watch()
    for tenth in range(100):
        cluster.now = tenth / 10
        nodes.told(waits=False)
    assert cluster.asked == 10

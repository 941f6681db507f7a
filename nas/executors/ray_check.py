"""Asks every node of a Ray cluster what it is like; `nas.executors.cluster_faults` judges."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nas.executors import ray_probe
from nas.executors.attempts import sentence
from nas.executors.base import LATENCY_PREFIX, ExecutorSettings
from nas.executors.cluster_faults import (
    Answer,
    ClusterFacts,
    DataSight,
    Here,
    HostFacts,
    Versions,
)
from nas.executors.ray_cluster import QUIET, RayCluster
from search_spaces.errors import UsageError
from supernet.data.manifest import FILE_NAME

# Importing torch from a network disk takes long where nobody has done so yet.
ANSWER_TIMEOUT_S = 60.0
CLOCK_TIMEOUT_S = 10.0
# The quickest answer tells the time best.
CLOCK_READINGS = 5
MARKER = ".nas-check-"


def look_at_cluster(
    address: str,
    run: Path | None,
    data: Path | None,
    asking: Callable[[int], None],
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> ClusterFacts:
    """Ask every node that is alive, all at once.

    Args:
        address: of the cluster; see `ExecutorSettings`.
        run: the run folder, which is there on this machine; a small file is written into it, and
            removed again.
        data: a folder or file of data, which is there on this machine.
        asking: is told how many nodes are asked.
        timeout_s: a node that has not answered after so many seconds is given up.

    Raises:
        ExecutorError: when there is no such cluster.
        UsageError: when the run folder cannot be written here.
    """
    cluster = RayCluster(ExecutorSettings("ray", address), alternative=False)
    with _marked(run) as mark, closing(cluster):
        cluster.connect()
        order = mark | {"data": data and str(data), "manifest": FILE_NAME}
        nodes = [node for node in ray.nodes() if node["Alive"]]
        asking(len(nodes))
        here, answers = _ask([node["NodeID"] for node in nodes], order, timeout_s)
    hosts = [_host(node, answers[node["NodeID"]]) for node in nodes]
    hosts.sort(key=lambda host: (host.name, host.address, host.node))
    return ClusterFacts(here, order["run"], order["data"], hosts)


@contextmanager
def _marked(run: Path | None) -> Iterator[dict[str, Any]]:
    """A file in the run folder that no other folder has, as a part of what probes are told."""
    marker, content = f"{MARKER}{secrets.token_hex(8)}", secrets.token_hex(16)
    mark = {"run": run and str(run), "marker": marker, "content": content}
    if run is None:
        yield mark
        return
    try:
        (run / marker).write_text(content, "utf-8")
    except OSError as error:
        raise UsageError(
            f"--run {run} cannot be written on this machine ({error.strerror}): make it writable "
            "for you, or give another folder"
        ) from error
    try:
        yield mark
    finally:
        for file in run.glob(f"{marker}*"):  # also of nodes that were lost meanwhile
            file.unlink(missing_ok=True)


def _ask(
    nodes: Sequence[str], order: Mapping[str, Any], timeout_s: float
) -> tuple[Here, dict[str, Answer | str]]:
    """This machine, and of each node what it answers, or why it does not."""
    probes = _probes(nodes, order)
    try:
        asked = {probe.facts.remote(): node for node, probe in probes.items()}
        here = _here(ray_probe.Probe(order).facts())
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
        answers: dict[str, Answer | str] = dict.fromkeys(nodes, f"nothing for {timeout_s:g} s")
        for question in ready:
            node = asked[question]
            answers[node] = _answer(question, probes[node])
        return here, answers
    finally:
        for probe in probes.values():
            ray.kill(probe)


def _probes(nodes: Sequence[str], order: Mapping[str, Any]) -> dict[str, Any]:
    """A process on each of these nodes, which takes nothing of what Ray shares out."""
    actor: Any = ray.remote(ray_probe.Probe)
    cloudpickle.register_pickle_by_value(ray_probe)
    try:
        return {
            node: actor.options(
                num_cpus=0,
                max_restarts=0,
                # Else Ray might hide graphics cards from a process that asks for none.
                runtime_env={"env_vars": QUIET},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(order)
            for node in nodes
        }
    finally:
        cloudpickle.unregister_pickle_by_value(ray_probe)


def _answer(question: Any, probe: Any) -> Answer | str:
    try:
        facts = ray.get(question, timeout=CLOCK_TIMEOUT_S)
        ahead_s, error_s = _clock(probe)
    except GetTimeoutError:
        return f"nothing for {CLOCK_TIMEOUT_S:g} s, after it had answered once"
    except RayError as error:
        return _why(error)
    return Answer(
        versions=Versions(**facts["versions"]),
        token=facts["token"],
        shared_memory=facts["shared_memory"],
        cuda_devices=facts["cuda_devices"],
        clock_ahead_s=ahead_s,
        clock_error_s=error_s,
        run=facts["run"],
        data=facts["data"] and DataSight(**facts["data"]),
    )


def _why(error: RayError) -> str:
    """What Ray says of it, without names and numbers of the process, which nobody knows."""
    if isinstance(error, RayTaskError):
        return sentence(error.cause or error)
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    return (lines[1] if len(lines) > 1 else sentence(error))[:300].rstrip(".")


def _clock(probe: Any) -> tuple[float, float]:
    """By how many seconds a node's clock is ahead of this one, and how wrong that may be.

    It told the time at some moment between question and answer; half of that is the error.
    """
    readings = []
    for _ in range(CLOCK_READINGS):
        began, before = time.time(), time.perf_counter()
        there: float = ray.get(probe.clock.remote(), timeout=CLOCK_TIMEOUT_S)
        half_s = (time.perf_counter() - before) / 2
        readings.append((half_s, there - (began + half_s)))
    error_s, ahead_s = min(readings)
    return ahead_s, error_s


def _here(facts: Mapping[str, Any]) -> Here:
    data = facts["data"] and DataSight(**facts["data"])
    return Here(platform.node(), Versions(**facts["versions"]), facts["token"], data)


def _host(node: Mapping[str, Any], answer: Answer | str) -> HostFacts:
    offers: Mapping[str, float] = node["Resources"]
    return HostFacts(
        node=node["NodeID"],
        name=node["NodeManagerHostname"],
        address=node["NodeManagerAddress"],
        cpus=offers.get("CPU", 0.0),
        gpus=offers.get("GPU", 0.0),
        object_store=int(offers.get("object_store_memory", 0)),
        latency_resources={
            name: count for name, count in offers.items() if name.startswith(LATENCY_PREFIX)
        },
        answer=None if isinstance(answer, str) else answer,
        silence=answer if isinstance(answer, str) else None,
    )

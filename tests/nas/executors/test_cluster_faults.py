"""Each fault of a cluster, planted in facts of a cluster that has none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nas.executors.base import latency_resource
from nas.executors.cluster_faults import (
    CLOCK_TOLERANCE_S,
    Answer,
    ClusterFacts,
    DataSight,
    Finding,
    Here,
    HostFacts,
    Versions,
    judged,
)

GIB = 2**30
CPU, CUDA = latency_resource("cpu"), latency_resource("cuda")
VERSIONS = Versions(
    "3.12.3", "/opt/nas/bin/python", "0.2.0", "0a1b2c3d", "2.60.0", "2.13.0+cu129", "12.9"
)
PREPARED = DataSight("f" * 64, None, 7, 4_000)
PLAIN = DataSight(None, None, 3, 1_000)
ANSWER = Answer(
    versions=VERSIONS,
    token=True,
    shared_memory=64 * GIB,
    cuda_devices=2,
    clock_ahead_s=0.01,
    clock_error_s=0.001,
    run="same",
    data=PREPARED,
)
HEAD = HostFacts("a" * 56, "head", "10.0.0.1", 8.0, 2.0, 20 * GIB, {CUDA: 1.0}, ANSWER)
NODE = replace(HEAD, node="b" * 56, name="node", address="10.0.0.2", latency_resources={})
HERE = Here("head", replace(VERSIONS, torch="2.13.0+cpu", torch_cuda=None), False, PREPARED)
SOUND = ClusterFacts(HERE, "/shared/runs", "/shared/data", [HEAD, NODE])
NAME = "node (10.0.0.2)"


def with_node(cluster: ClusterFacts = SOUND, **changes: Any) -> ClusterFacts:
    """A cluster whose second host is another one."""
    own = {name: changes.pop(name) for name in list(changes) if name in HostFacts.__annotations__}
    answer = replace(ANSWER, **changes) if own.get("answer", ANSWER) else None
    return replace(cluster, hosts=[HEAD, replace(NODE, **{"answer": answer, **own})])


def with_versions(**changes: Any) -> ClusterFacts:
    return with_node(versions=replace(VERSIONS, **changes))


def only(cluster: ClusterFacts) -> Finding:
    """The one thing that is found."""
    found = judged(cluster)
    assert len(found) == 1, found
    return found[0]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert judged(SOUND) == []
    unasked = replace(SOUND, run=None, data=None, here=replace(HERE, data=None))
    hosts = [replace(one, answer=replace(ANSWER, run=None, data=None)) for one in (HEAD, NODE)]
    assert judged(replace(unasked, hosts=hosts)) == []


@pytest.mark.parametrize(
    ("about", "planted", "words"),
    [
        ("answer", with_node(answer=None, silence="nothing for 60 s"), ["nothing for 60 s"]),
        ("versions", with_versions(python="3.11.9"), ["Python 3.11.9", "Python 3.12.3"]),
        ("versions", with_versions(ray="2.59.0"), ["has Ray 2.59.0", "Ray 2.60.0"]),
        ("versions", with_versions(torch="2.12.1+cu129"), ["torch 2.12.1,", "torch 2.13.0"]),
        ("versions", with_versions(package="0.1.0"), ["nas 0.1.0", "nas 0.2.0"]),
        ("versions", with_versions(code="99999999"), ["other code", "99999999", "0a1b2c3d"]),
        (
            "versions",
            with_versions(package=None, code=None),
            ["lacks this package", "0.2.0", "/opt/nas/bin/python -m pip install"],
        ),
        (
            "versions",
            with_versions(torch=None, torch_problem="ModuleNotFoundError: No module named 'torch'"),
            ["cannot import torch (ModuleNotFoundError", "/opt/nas/bin/python"],
        ),
        ("run", with_node(run="missing"), ["does not see the run folder /shared/runs", "NFS"]),
        ("run", with_node(run="another"), ["has another folder at /shared/runs"]),
        ("run", with_node(run="unreadable"), ["may not read", "/shared/runs"]),
        ("run", with_node(run="not writable"), ["cannot write into the run folder"]),
        ("data", with_node(data=None), ["does not see the data /shared/data"]),
        ("data", with_node(data=replace(PREPARED, manifest="e" * 64)), ["another manifest"]),
        ("data", with_node(data=replace(PREPARED, manifest=None)), ["no manifest"]),
        (
            "data",
            with_node(data=replace(PREPARED, damaged="train.source.npy")),
            ["incomplete", "train.source.npy"],
        ),
        ("clock", with_node(clock_ahead_s=7.5), ["7.5 s ahead of", "(head)", "timedatectl"]),
        ("clock", with_node(clock_ahead_s=-3600.0), ["3,600.0 s behind"]),
        (
            "shared_memory",
            with_node(shared_memory=2 * GIB),
            ["2 GiB", "20 GiB", "--shm-size=22gb", "--object-store-memory=1932735283"],
        ),
        ("gpus", with_node(cuda_devices=1), ["offers 2 GPUs", "torch can use 1", "nvidia-smi"]),
        (
            "latency_resources",
            with_node(latency_resources={"nas_latency_gpu": 1.0}),
            ["nas_latency_gpu", CUDA],
        ),
        (
            "latency_resources",
            with_node(latency_resources={CUDA: 1.0}, gpus=0.0, cuda_devices=0),
            [CUDA, "no CUDA device"],
        ),
    ],
)
def test_a_fault_of_one_host(about: str, planted: ClusterFacts, words: list[str]) -> None:
    found = only(planted)
    assert (found.severity, found.about, found.node) == ("fault", about, NODE.node)
    assert found.sentence.startswith(NAME)
    assert [word for word in words if word not in found.sentence] == []
    assert "\n" not in found.sentence and not found.sentence.endswith(".")


def test_all_versions_that_differ_are_one_sentence() -> None:
    found = only(with_versions(ray="2.59.0", torch="2.12.1+cu129", code="99999999"))
    assert "has Ray 2.59.0, torch 2.12.1, and this command Ray 2.60.0, torch 2.13.0" in (
        found.sentence.replace("+cu129", "")
    )


def test_another_build_of_torch_is_none_of_another_version() -> None:
    assert judged(with_versions(torch="2.13.0+cpu")) == []


def test_a_torch_without_cuda_is_said_to_be_one() -> None:
    versions = replace(VERSIONS, torch="2.13.0+cpu", torch_cuda=None)
    assert (
        "is a build for processors" in only(with_node(versions=versions, cuda_devices=0)).sentence
    )


def test_a_clock_within_the_tolerance_or_the_error_of_reading_it_is_right() -> None:
    assert judged(with_node(clock_ahead_s=CLOCK_TOLERANCE_S)) == []
    assert judged(with_node(clock_ahead_s=-5.0, clock_error_s=3.5)) == []
    assert only(with_node(clock_ahead_s=-5.0, clock_error_s=2.5)).about == "clock"


def test_shared_memory_too_small_for_any_store_can_only_grow() -> None:
    assert "--object-store-memory" not in only(with_node(shared_memory=64 * 2**20)).sentence
    assert judged(with_node(shared_memory=20 * GIB)) == []
    assert judged(with_node(shared_memory=None)) == []


def test_plain_data_are_compared_by_what_is_in_the_folder() -> None:
    here = replace(SOUND, here=replace(HERE, data=PLAIN))
    sound = replace(
        here, hosts=[replace(one, answer=replace(ANSWER, data=PLAIN)) for one in (HEAD, NODE)]
    )
    assert judged(sound) == []
    head = sound.hosts[0]
    other = replace(NODE, answer=replace(ANSWER, data=replace(PLAIN, entries=1, size=900)))
    found = only(replace(sound, hosts=[head, other]))
    assert "1 entry with 900 bytes, and this machine 3 entries with 1,000 bytes" in found.sentence


def test_what_lies_beside_prepared_data_does_not_matter() -> None:
    assert judged(with_node(data=replace(PREPARED, entries=8, size=4_100))) == []


def test_a_host_without_torch_is_not_blamed_for_its_graphics_cards() -> None:
    missing = replace(VERSIONS, torch=None, torch_problem="ImportError")
    planted = with_node(versions=missing, cuda_devices=0, latency_resources={CUDA: 1.0})
    assert only(planted).about == "versions"


def test_cards_that_ray_does_not_know_are_worth_a_note() -> None:
    found = only(with_node(gpus=0.0))
    assert (found.severity, found.about) == ("note", "gpus") and "--num-gpus=2" in found.sentence


def test_a_device_for_timing_that_ray_cannot_give_out() -> None:
    faults = judged(with_node(gpus=0.0, latency_resources={CUDA: 1.0}))
    found = [one for one in faults if one.severity == "fault"]
    assert [one.about for one in found] == ["latency_resources"]
    assert "--num-gpus" in found[0].sentence


def test_no_host_that_offers_its_device_for_timing() -> None:
    bare = [replace(one, latency_resources={}) for one in (HEAD, NODE)]
    found = only(replace(SOUND, hosts=bare))
    assert (found.severity, found.about, found.node) == ("fault", "latency_resources", None)
    assert "--resources='{\"nas_latency_cuda\": 1}'" in found.sentence
    small = replace(ANSWER, cuda_devices=0)
    found = only(replace(SOUND, hosts=[replace(one, gpus=0.0, answer=small) for one in bare]))
    assert "--resources='{\"nas_latency_cpu\": 1}'" in found.sentence


def test_cards_of_which_none_is_offered_for_timing_are_worth_a_note() -> None:
    hosts = [replace(HEAD, latency_resources={CPU: 1.0}), NODE]
    found = only(replace(SOUND, hosts=hosts))
    assert (found.severity, found.about) == ("note", "latency_resources") and CUDA in found.sentence


def test_a_cluster_without_a_token_is_a_note_and_a_mixed_one_a_fault() -> None:
    open_hosts = [replace(one, answer=replace(ANSWER, token=False)) for one in (HEAD, NODE)]
    found = only(replace(SOUND, hosts=open_hosts))
    assert (found.severity, found.about, found.node) == ("note", "token", None)
    assert "no token" in found.sentence and "ray get-auth-token --generate" in found.sentence
    found = only(with_node(token=False))
    assert (found.severity, found.about, found.node) == ("fault", "token", None)
    assert "on head (10.0.0.1) and does not on node (10.0.0.2)" in found.sentence


def test_a_silent_host_may_be_one_whose_use_of_tokens_differs() -> None:
    silent = with_node(answer=None, silence="gone")
    assert "where Ray asks for a token that this command does not use" in only(silent).sentence
    here = replace(HERE, token=True)
    assert "RAY_AUTH_MODE=disabled" in only(replace(silent, here=here)).sentence


def test_a_silent_host_says_nothing_of_the_token() -> None:
    assert only(with_node(answer=None, silence="gone")).about == "answer"


def test_nodes_on_one_host_are_told_apart() -> None:
    twin = replace(NODE, name="head", address="10.0.0.1", answer=None, silence="gone")
    found = only(replace(SOUND, hosts=[HEAD, twin]))
    assert found.sentence.startswith("head (10.0.0.1, node bbbbbbbb) does not answer (gone)")


def test_each_host_has_its_own_sentences() -> None:
    late = replace(ANSWER, clock_ahead_s=-9.0, run="missing")
    found = judged(replace(SOUND, hosts=[replace(one, answer=late) for one in (HEAD, NODE)]))
    assert [(one.node, one.about) for one in found] == [
        (host.node, about) for host in (HEAD, NODE) for about in ("run", "clock")
    ]


def test_facts_and_findings_are_json() -> None:
    facts = json.loads(json.dumps(SOUND.to_json()))
    assert facts["hosts"][1]["answer"]["versions"]["torch"] == "2.13.0+cu129"
    assert facts["here"]["host"] == "head" and facts["run"] == "/shared/runs"
    found = json.loads(json.dumps(only(with_node(run="another")).to_json()))
    assert found["about"] == "run" and found["node"] == NODE.node

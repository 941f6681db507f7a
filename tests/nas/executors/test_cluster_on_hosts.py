"""`nas cluster check` on three hosts, well and with each fault planted that can be planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.hosts import Hosts, hosts
from experiments.ray_hosts import ADDRESS, HEAD, OWN_PACKAGES, RAY, RayHosts
from nas.executors.base import latency_resource

pytestmark = [pytest.mark.ray, pytest.mark.hosts, pytest.mark.slow]

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
# Namespaces share one clock; this is another for all that Python asks.
OTHER_CLOCK = "import time\nreal = time.time\ntime.time = lambda: real() + 41.3\n"
OTHER_VERSION = "Metadata-Version: 2.1\nName: nas-service\nVersion: 0.1.0\n"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("hosts"), 3) as made:
        (made.shared / "runs").mkdir()
        data = made.shared / "disk" / "data"
        data.mkdir(parents=True)
        (data / "train.txt").write_text("a text\n")
        yield made


@pytest.fixture(scope="module")
def cluster(three: Hosts) -> Iterator[RayHosts]:
    yield RayHosts(three, resources={"host-2": {latency_resource("cpu"): 1}})


def check(cluster: RayHosts) -> dict[str, Any]:
    shared = cluster.hosts.shared
    return cluster.check("--run", f"{shared}/runs", "--data", f"{shared}/disk/data")


def plant(made: Hosts, host: str, name: str, text: str) -> None:
    """Have Python on a host find a file before all others."""
    file = Path(OWN_PACKAGES, name)
    made.run(host, ["sh", "-c", f"mkdir -p {file.parent} && printf '%s' '{text}' > {file}"])


def test_three_hosts_are_well_until_faults_are_planted(cluster: RayHosts) -> None:
    made, shared = cluster.hosts, cluster.hosts.shared
    well = check(cluster)
    assert [one["name"] for one in well["hosts"]] == list(made.addresses)
    assert well["faults"] == [] and [one["about"] for one in well["notes"]] == ["token"]

    cluster.stop("host-2")
    cluster.start("host-2")  # and so without the resource for timing
    plant(made, "host-1", "nas_service-0.1.0.dist-info/METADATA", OTHER_VERSION)
    plant(made, "host-2", "sitecustomize.py", OTHER_CLOCK)
    made.run("host-1", ["mount", "-t", "tmpfs", "tmpfs", f"{shared}/runs"])
    made.run("host-1", ["mount", "-o", "remount,size=80m", "/dev/shm"])
    made.run("host-2", ["mount", "-t", "tmpfs", "tmpfs", f"{shared}/disk"])

    found = check(cluster)
    names = {one["node"]: one["name"] for one in found["hosts"]}
    faults = [(one["about"], names.get(one["node"], "all")) for one in found["faults"]]
    assert faults == [
        ("versions", "host-1"),
        ("run", "host-1"),
        ("shared_memory", "host-1"),
        ("data", "host-2"),
        ("clock", "host-2"),
        ("latency_resources", "all"),
    ]
    sentences = [one["sentence"] for one in found["faults"]]
    wanted = [
        "host-1 (10.83.0.2) has nas 0.1.0, and this command nas 0.2.0: install the same",
        "host-1 (10.83.0.2) has another folder at",
        "host-1 (10.83.0.2) has 80 MiB of shared memory (/dev/shm) for an object store of 100 MiB",
        "host-2 (10.83.0.3) does not see the data",
        "host-2 (10.83.0.3) has a clock that is 41.3 s ahead of that of this machine (host-0)",
        "no host offers its device for timing",
    ]
    assert [words for words, said in zip(wanted, sentences, strict=True) if words not in said] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "do not share a token: it has none; copy ~/.ray/auth_token of the cluster's head to"),
        (TOKEN | {"RAY_AUTH_TOKEN": "b" * 64}, "the one in the variable RAY_AUTH_TOKEN is another"),
    ],
)
def test_a_host_without_the_token_is_told(
    guarded: RayHosts, given: dict[str, str], said: str
) -> None:
    none = dict.fromkeys(TOKEN, "")
    words = ("cluster", "check", "--ray-address", ADDRESS)
    code, _, told = guarded.nas("host-1", *words, **none | given)
    assert code != 0 and said in " ".join(told.split())
    words = (*RAY, "start", f"--address={ADDRESS}", "--num-cpus=1")
    refused = guarded.hosts.run("host-1", words, guarded.environment | none | given, check=False)
    assert refused.returncode != 0


def test_a_host_with_the_token_belongs_to_the_cluster(guarded: RayHosts) -> None:
    guarded.start("host-2")
    found = guarded.check()
    assert [one["name"] for one in found["hosts"]] == [HEAD, "host-2"]
    assert found["notes"] == [] and all(one["answer"]["token"] for one in found["hosts"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """A cluster with a token, of which only the head is up."""
    with hosts(tmp_path_factory.mktemp("guarded"), 3) as made:
        yield RayHosts(made, only=[HEAD], **TOKEN)

"""`nas cluster check`: what it refuses, prints and exits with; and a Ray that it looks at."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors.cluster_faults import ClusterFacts
from supernet.data.manifest import FILE_NAME
from tests.nas.executors.test_cluster_faults import HEAD, NODE, SOUND, with_node

ROOT = Path(__file__).resolve().parents[4]
Asked = list[tuple[str, Path | None, Path | None]]


def check(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["cluster", "check", *map(str, arguments)])


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[ClusterFacts], Asked]:
    """Puts facts in place of the cluster; what it is asked is kept."""
    asked: Asked = []

    def answer(facts: ClusterFacts) -> Asked:
        def look(
            address: str, run: Path | None, data: Path | None, asking: Callable[[int], None]
        ) -> ClusterFacts:
            asked.append((address, run, data))
            print("what Ray notices")
            asking(len(facts.hosts))
            return facts

        fake = SimpleNamespace(look_at_cluster=look, ANSWER_TIMEOUT_S=60.0)
        monkeypatch.setitem(sys.modules, "nas.executors.ray_check", fake)
        return asked

    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setattr("nas.console.commands.cluster.check_installed", lambda option: None)
    return answer


def test_a_table_and_no_sentence_where_nothing_is_wrong(
    answering: Callable[[ClusterFacts], Asked], tmp_path: Path
) -> None:
    asked = answering(SOUND)
    done = check("--run", tmp_path, "--ray-address", "10.0.0.1:6379")
    assert done.exit_code == 0
    assert done.stderr == "what Ray notices\nasking 2 hosts, for 60 s at most\n"
    assert asked == [("10.0.0.1:6379", tmp_path.resolve(), None)]
    for shown in ("10.0.0.2", "2.13.0+cu129", "+0.01 s", "64.0 GiB", "cuda", "same", "well"):
        assert shown in done.stdout, shown
    assert done.stdout.splitlines()[-1] == "2 hosts, no fault"
    assert "fault " not in done.stdout and "note" not in done.stdout


def test_a_sentence_for_each_fault_and_exit_code_1(
    answering: Callable[[ClusterFacts], Asked],
) -> None:
    answering(with_node(run="another", clock_ahead_s=9.0, gpus=1.0))
    done = check()
    lines = done.stdout.splitlines()
    assert done.exit_code == 1 and lines[-1] == "2 hosts, 2 faults"
    told = [line[:30] for line in lines[-4:-1]]
    assert told == [
        "fault   node (10.0.0.2) has an",
        "fault   node (10.0.0.2) has a ",
        "note    node (10.0.0.2) has 2 ",
    ]
    assert "2 faults" in next(line for line in lines if "10.0.0.2" in line)


def test_notes_alone_are_no_failure(answering: Callable[[ClusterFacts], Asked]) -> None:
    answering(with_node(gpus=1.0))
    done = check()
    assert done.exit_code == 0 and "note    node" in done.stdout


def test_a_host_that_does_not_answer(answering: Callable[[ClusterFacts], Asked]) -> None:
    answering(with_node(answer=None, silence="nothing for 60 s"))
    done = check()
    assert done.exit_code == 1 and "no answer" in done.stdout
    assert "node (10.0.0.2) does not answer (nothing for 60 s)" in done.stdout


def test_nodes_on_one_host_are_told_apart(answering: Callable[[ClusterFacts], Asked]) -> None:
    answering(replace(SOUND, hosts=[HEAD, replace(NODE, name="head")]))
    shown = check().stdout
    assert "bbbbbbbb" in shown and "aaaaaaaa" in shown
    answering(SOUND)
    assert "bbbbbbbb" not in check().stdout


def test_json_has_facts_faults_and_notes(answering: Callable[[ClusterFacts], Asked]) -> None:
    answering(with_node(run="missing", gpus=1.0))
    done = check("--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, done.stderr) == (1, "what Ray notices\n")
    assert [one["about"] for one in said["faults"]] == ["run"]
    assert [one["about"] for one in said["notes"]] == ["gpus"]
    assert said["faults"][0]["node"] == said["hosts"][1]["node"] == NODE.node
    assert said["hosts"][0]["answer"]["shared_memory"] == 64 * 2**30


def test_names_of_hosts_steer_no_terminal(answering: Callable[[ClusterFacts], Asked]) -> None:
    strange = replace(HEAD, name="\x1b[31mhead[bold]", answer=None, silence="[red]gone")
    answering(replace(SOUND, hosts=[strange]))
    shown = check().stdout
    assert "\x1b" not in shown and "head[bold]" in shown and "[red]gone" in shown


@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_no_name_is_cut_in_a_narrow_terminal(
    answering: Callable[[ClusterFacts], Asked], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    answering(SOUND)
    shown = check().stdout
    assert "head" in shown and "node" in shown and "…" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run", "gone"), "--run gone is no folder on this machine: make it first"),
        (("--run", "file"), "--run file is no folder on this machine"),
        (("--data", "gone"), "--data gone is not there on this machine"),
        (("--data", "damaged"), "is damaged"),
        (("--ray-address", "ray://head:10001"), "HOST:PORT"),
    ],
)
def test_wrong_use_exits_with_2_before_anything_is_asked(
    answering: Callable[[ClusterFacts], Asked],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("damaged").mkdir()
    Path("damaged", FILE_NAME).write_text("{")
    asked = answering(SOUND)
    done = check(*arguments)
    assert done.exit_code == 2 and message in done.stderr and not asked


def test_without_ray_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = check()
    assert done.exit_code == 2 and "pip install 'nas-service[ray]'" in done.stderr
    assert done.stderr.startswith("error: nas cluster check needs the package ray")


# -- with a Ray -----------------------------------------------------------------------------------


@pytest.fixture
def small_ray(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Ray of all tests, which stays connected."""
    if not os.path.isdir("/dev/shm") or shutil.disk_usage("/dev/shm").total < 100 * 2**20:
        pytest.skip("this machine has less shared memory than the tests' Ray has objects")
    monkeypatch.setenv("COLUMNS", "240")
    yield


@pytest.mark.ray
def test_a_ray_that_is_well(small_ray: None, tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    run.mkdir()
    data.mkdir()
    (data / "train.txt").write_text("a line\n")
    done = check("--run", run, "--data", data, "--json")
    assert done.exit_code == 0, done.output
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["faults"] == []
    (host,) = said["hosts"]
    answer = host["answer"]
    assert answer["run"] == "same" and answer["data"] == said["here"]["data"]
    assert answer["versions"] == said["here"]["versions"] and answer["token"]
    assert abs(answer["clock_ahead_s"]) <= answer["clock_error_s"] + 0.1
    assert list(run.iterdir()) == [] and host["latency_resources"] == {"nas_latency_cpu": 1.0}


@pytest.mark.ray
@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        (
            ["search", "--space", "digits", "--preset", "smoke", "--executor", "ray"],
            {},
            "do not share a token: it has none; copy ~/.ray/auth_token of the cluster's head",
        ),
        (
            ["cluster", "check"],
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64},
            "the one in the variable RAY_AUTH_TOKEN is another",
        ),
    ],
    ids=["search", "check"],
)
def test_without_the_token_of_the_cluster_one_try_and_one_sentence(
    small_ray: None, tmp_path: Path, command: list[str], given: dict[str, str], message: str
) -> None:
    done = stranger(tmp_path, given, *command, "--ray-address", head())
    assert done.returncode == 1 and message in done.stderr.splitlines()[-1], done.stderr
    # Ray's own line for each try; it would try 20 times, once a second.
    assert done.stderr.count("Failed to get cluster ID") <= 1 and "Traceback" not in done.stderr


@pytest.mark.ray
def test_with_the_token_of_the_cluster(small_ray: None, tmp_path: Path) -> None:
    from nas.executors.ray_cluster import _token

    token = os.environ.get("RAY_AUTH_TOKEN") or _token()
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    done = stranger(tmp_path, given, "cluster", "check", "--ray-address", head(), "--run", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 host, no fault" in done.stdout and "note" not in done.stdout


def head() -> str:
    """The address of the Ray of all tests."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def stranger(home: Path, given: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """A call of the command by somebody in whose home there is nothing."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-m", "nas.console.app", *command],
        cwd=home,
        env=known | {"HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "240"} | given,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.ray
def test_a_ray_with_faults(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder that the hosts are asked for is not the one that the command writes into."""
    from nas.executors import ray_check

    orders = ray_check._probes
    elsewhere = {"run": str(tmp_path / "gone")}
    monkeypatch.setattr(ray_check, "_probes", lambda nodes, order: orders(nodes, order | elsewhere))
    done = check("--run", tmp_path)
    assert done.exit_code == 1, done.output
    assert f"does not see the run folder {tmp_path.resolve()}: mount the disk" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
def test_a_host_that_never_answers_is_a_fault_and_no_wait(
    small_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from nas.executors import ray_check, ray_probe

    class Frozen(ray_probe.Probe):
        def facts(self) -> dict[str, Any]:
            while True:
                signal.pause()

    def frozen(nodes: Sequence[str], order: Mapping[str, Any]) -> dict[str, Any]:
        actor: Any = ray.remote(Frozen)
        return {node: actor.options(num_cpus=0).remote(order) for node in nodes}

    monkeypatch.setattr(ray_check, "_probes", frozen)
    facts = ray_check.look_at_cluster("auto", tmp_path, None, lambda count: None, timeout_s=0.5)
    assert facts.hosts[0].answer is None and facts.hosts[0].silence == "nothing for 0.5 s"
    assert list(tmp_path.iterdir()) == []

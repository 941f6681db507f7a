"""The studies of the Ray executor: what they plan, count and print."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import ray_chaos, scaling
from experiments.ray_chaos import Kill, Outcome, evaluations, plan, row
from experiments.scaling import STUDY, met, physical_cores
from nas.executors.board import WorkerState

KILL = Kill("driver", 12, 0.01, "local")
GOOD = {
    "cores": 2,
    "throughputs": [{"workers": n, "ratio": 0.95} for n in (1, 2)],
    "evaluations": 100,
    "local_ms": 5.0,
    "ray_ms": 7.0,
    "worker_ms": 5.1,
    "equal": 100,
    "load": 0.1,
}


def test_a_plan_is_seeded_and_even() -> None:
    one, same, other = (plan(np.random.default_rng(seed), 30, 100) for seed in (0, 0, 1))
    assert one == same != other
    assert Counter(kill.target for kill in one) == {"worker": 10, "driver": 10, "node": 10}
    assert all(1 <= kill.event < 100 for kill in one)


def test_what_was_done_twice_is_counted(tmp_path: Path) -> None:
    logs = tmp_path / "workers"
    logs.mkdir()
    (logs / "worker-0.log").write_text(
        "T started on here, process 1, in 0.1 s\n"
        "T aaaaaaaaaaaa evaluated in 0.1 s\n"
        "T lost: bbbbbbbbbbbb: its process ended\n"
        "T lost: its machine cannot be reached: ActorUnavailableError\n"
    )
    (logs / "worker-1.log").write_text("T bbbbbbbbbbbb evaluated in 0.1 s\n" * 2)
    assert evaluations(tmp_path) == (2, 2)


def test_a_line_of_the_table_says_what_was_killed_and_whether_it_mattered() -> None:
    done = Outcome(KILL, "observe", True, 40, 2, True, 12.3)
    assert row(0, done).split()[:4] == ["1", "driver", "event", "12"]
    assert "resumed by local" in row(0, done) and "equal" in row(0, done)
    bad = row(0, replace(done, killed=False, equal=False))
    assert "nothing left to kill" in bad and "DIFFERENT" in bad


def test_a_worker_that_has_just_ended_by_itself_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []

    def kill(pid: int, signal: int) -> None:
        if pid == 7:
            raise ProcessLookupError
        killed.append(pid)

    monkeypatch.setattr(os, "kill", kill)
    workers = [WorkerState("worker-0", "evaluating", pid=7), WorkerState("worker-1", "idle", pid=8)]
    for count, there in ((0, workers), (1, workers[1:])):
        monkeypatch.setattr(ray_chaos, "read_workers", lambda run, there=there: there)
        nobody: Any = None
        assert ray_chaos._kill(nobody, nobody, tmp_path, "worker") is bool(count)
        assert killed == [8] * count


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"equal": 99}, False),
        ({"ray_ms": 15.1}, False),
        ({"throughputs": [{"workers": 2, "ratio": 0.89}]}, False),
        ({"throughputs": [{"workers": 4, "ratio": 0.5}]}, True),  # more than cores
    ],
)
def test_what_counts_as_success(change: dict[str, object], good: bool) -> None:
    assert met(GOOD | change) is good


def test_what_the_worker_measured_is_read_from_its_log(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    lines = ["T aa evaluated in 9.000 s", "T started on x", *["T bb evaluated in 0.250 s"] * 2]
    (tmp_path / "workers" / "worker-0.log").write_text("\n".join(lines))
    assert scaling.evaluating_s(tmp_path, 2) == 0.5


def test_threads_of_one_core_are_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("".join(f"physical id\t: 0\ncore id\t\t: {n // 2}\n\n" for n in range(8)))
    assert physical_cores(file) == 4
    assert physical_cores(tmp_path / "none") >= 1


@pytest.mark.ray
@pytest.mark.slow
def test_kills_leave_the_same_front() -> None:
    assert ray_chaos.STUDY.main(["--times", "3", "--seed", "1"]) == 0


@pytest.mark.ray
@pytest.mark.slow
def test_evaluations_through_ray_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--evaluations", "60", "--per-worker", "4", "--repeats", "1"]
    STUDY.main(["--workers", "1,2", *few, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] == 60 and [one["workers"] for one in found["throughputs"]] == [1, 2]

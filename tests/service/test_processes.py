"""The service as processes: the command starts it, kills do not lose or double a job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
SMOKE = {"space": "digits", "preset": "smoke", "seed": 1}
PATIENCE_S = 120.0
WORKER, JOB = "service.worker.worker", "tests.support.fake_job"


class Service:
    """`nas serve` as a user starts it."""

    def __init__(self, home: Path, *options: str, **environment: str) -> None:
        self.home = home
        self._options = options
        self._environment = {"NAS_HOME": str(home), "PYTHONPATH": str(ROOT), **environment}
        self._secret = ""
        self.start()

    def start(self) -> None:
        code = "from service.commands import serve; import typer; typer.run(serve)"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--port", "0", *self._options],
            env={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        self.url = re.sub(r"^Serving ", "", first.strip())
        assert self.url.startswith("http"), first + self.process.stderr.read()
        if not self._secret:
            assert self.process.stdout is not None
            self._secret = self.process.stdout.readline().split()[-1]
        # What it logs is read: a full pipe would keep it from answering.
        self._reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        self._reader.start()
        self.headers = {"Authorization": f"Bearer {self._secret}"}
        self.client = httpx.Client(base_url=self.url + "/api/v1", headers=self.headers, timeout=30)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.client.close()

    def submit(self, **request: Any) -> str:
        answer = self.client.post("/jobs", json=request or SMOKE)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def until(self, job: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The job once it is as wanted: it is looked at after each of its events."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with self.client.stream("GET", f"/jobs/{job}/events", timeout=PATIENCE_S) as answer:
                for line in answer.iter_lines():
                    now = self.client.get(f"/jobs/{job}").json() if "data" in line else {}
                    if now and wanted(now):
                        return dict(now)
        raise AssertionError(self.client.get(f"/jobs/{job}").json())

    def children(self, module: str) -> list[int]:
        """Processes of ours that run a module."""
        command = ["pgrep", "-f", "--", f"-m {module}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return [int(number) for number in found.stdout.split() if self._is_ours(int(number))]

    def _is_ours(self, number: int) -> bool:
        with suppress(OSError):
            environment = Path(f"/proc/{number}/environ").read_bytes()
            return f"NAS_HOME={self.home}".encode() in environment.split(b"\0")
        return False

    def gone(self, module: str) -> bool:
        """Whether all of them end, within some time."""
        deadline = time.monotonic() + 20
        while self.children(module) and time.monotonic() < deadline:
            os.sched_yield()
        return not self.children(module)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    started = Service(tmp_path, NAS_RUNNER=JOB, FAKE_JOB_S="3", NAS_STALE_S="4")
    yield started
    if started.process.poll() is None:
        started.kill(signal.SIGTERM)


def succeeded(job: dict[str, Any]) -> bool:
    return bool(job["state"] == "succeeded")


def begun(job: dict[str, Any]) -> bool:
    return int(job["progress"]["done"]) >= 2


def seqs(service: Service, job: str) -> list[int]:
    text = service.client.get(f"/jobs/{job}/events").text
    return [int(number) for number in re.findall(r"^id: (\d+)$", text, flags=re.MULTILINE)]


@pytest.mark.slow
def test_a_real_search_from_the_request_to_the_front(tmp_path: Path) -> None:
    service = Service(tmp_path)
    job = service.submit()
    ended = service.until(job, lambda now: now["state"] in ("succeeded", "failed"))
    front = service.client.get(f"/jobs/{job}/front").json()
    assert (ended["state"], front["final"]) == ("succeeded", True)
    assert service.client.get(f"/jobs/{job}/report").status_code == 200
    again = service.client.post(f"/jobs/{job}/retrain", json={"pick": front["front"][-1]["id"]})
    assert service.until(again.json()["id"], succeeded)["kind"] == "retrain"
    service.kill(signal.SIGTERM)


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(service: Service) -> None:
    job = service.submit()
    service.until(job, begun)
    for worker in service.children(WORKER):
        os.kill(worker, signal.SIGKILL)
    assert service.gone(JOB)
    ended = service.until(job, succeeded)
    assert ended["attempt"] == 2
    assert seqs(service, job) == list(range(1, ended["last_event"] + 1))


@pytest.mark.slow
def test_a_killed_service_leaves_no_process_and_goes_on(service: Service) -> None:
    job = service.submit()
    service.until(job, begun)
    service.kill()
    assert service.gone(WORKER)
    assert service.gone(JOB)
    service.start()
    assert service.until(job, succeeded)["attempt"] == 2


@pytest.mark.slow
def test_a_stopped_service_gives_its_jobs_back(service: Service) -> None:
    job = service.submit()
    service.until(job, begun)
    service.kill(signal.SIGTERM)
    assert service.gone(WORKER)
    service.start()
    text = service.client.get(f"/jobs/{job}/events?after=3", timeout=PATIENCE_S).text
    assert '"action": "release"' in text
    assert service.client.get(f"/jobs/{job}").json()["state"] == "succeeded"


@pytest.mark.slow
def test_a_cancelled_job_stops_and_is_resumed(service: Service) -> None:
    job = service.submit()
    service.until(job, begun)
    service.client.post(f"/jobs/{job}/cancel")
    ended = service.until(job, lambda now: now["state"] != "running")
    assert ended["state"] == "cancelled"
    assert service.gone(JOB)
    service.client.post(f"/jobs/{job}/retry")
    assert service.until(job, succeeded)["attempt"] == 2


@pytest.mark.slow
def test_a_process_that_dies_fails_its_job(service: Service) -> None:
    job = service.submit()
    service.until(job, begun)
    for child in service.children(JOB):
        os.kill(child, signal.SIGKILL)
    ended = service.until(job, lambda now: now["state"] != "running")
    assert ended["state"] == "failed"
    assert "SIGKILL" in ended["error"]

"""The studies of the service: the job that only counts, what they check, and a little fuzzing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.instant_job import BUSY, STEPS, work
from experiments.service_load import all_jobs, ask_for, check_job, requests_for, rows_of
from service.auth import Role
from service.jobs.listing import Filter
from service.worker import job_process
from tests.support.service_cases import Server


def test_a_counting_job_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    (tmp_path / "ran.jsonl").write_text('{"begin": 1}\n{"step": 1, "pid": 1}\n{"step": 2, "pi')
    assert work(tmp_path, 0.0) == 0
    lines = [json.loads(line) for line in (tmp_path / "ran.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == list(range(1, STEPS + 1))


def test_a_counting_job_that_is_held_is_busy(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert work(tmp_path, 0.0) == BUSY == job_process.BUSY
    assert work(tmp_path, 0.0) == 0


def test_a_counting_job_says_that_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(tmp_path, 0.0)
    assert capsys.readouterr().out.splitlines()[-1] == job_process.DONE


class Told:
    """A service that tells what it is given."""

    def __init__(self, home: Path, lines: list[dict[str, Any]], events: list[dict[str, Any]]):
        self.home = home
        folder = home / "runs" / "1"
        folder.mkdir(parents=True)
        (folder / "ran.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        told = [*events, {"state": "succeeded"}]
        self.text = "".join(f"data: {json.dumps(event)}\n\n" for event in told).encode()

    def api(self) -> Any:
        return SimpleNamespace(ask=lambda *_: (200, self.text))


def checked(home: Path, lines: list[dict[str, Any]], numbers: list[int], done: list[int]) -> int:
    events = [{"seq": n, "event": "Note"} for n in numbers[: -len(done) or None]]
    events += [
        {"seq": n, "event": "Progress", "done": d}
        for n, d in zip(numbers[len(events) :], done, strict=True)
    ]
    job = {"id": "1", "run": "1", "state": "succeeded", "last_event": 6}
    return len(check_job(Told(home, lines, events), job))  # type: ignore[arg-type]


GOOD = [{"begin": 7}, *({"step": n, "pid": 7} for n in range(1, STEPS + 1)), {"end": 7}]
ALL, SIX = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]


def test_a_good_job_is_found_good(tmp_path: Path) -> None:
    assert checked(tmp_path, GOOD, SIX, ALL) == 0


@pytest.mark.parametrize(
    ("lines", "numbers", "done"),
    [
        (GOOD[:3] + GOOD[2:], SIX, ALL),  # a step twice
        ([*GOOD[:3], {"begin": 8}, *GOOD[3:]], SIX, ALL),  # two at once
        (GOOD, [1, 2, 3, 5, 6], [1, 2, 3, 4]),  # an event missing
        (GOOD, SIX, [1, 2, 3, 3, 4]),  # told twice
    ],
)
def test_what_is_wrong_with_a_job_is_found(
    tmp_path: Path, lines: list[dict[str, Any]], numbers: list[int], done: list[int]
) -> None:
    assert checked(tmp_path, lines, numbers, done) > 0


def test_clients_of_the_load_ask_and_note_what_they_got(tmp_path: Path) -> None:
    with Server(tmp_path, requests_per_minute=1_000_000) as server:
        port = int(server.url.rpartition(":")[2])
        job = (
            server.client().post("/jobs", json={"space": "digits", "preset": "smoke"}).json()["id"]
        )
        found = ask_for(port, server.token(), [job], 3, 0.5, 0.01)
        refused = ask_for(port, "nas_guess", [job], 3, 0.2, 0.01)
        count = len(server.store.jobs.list(Filter(), 200))
    assert {one.request for one in found} <= {name for name, _ in requests_for(job)}
    assert {one.status for one in found} <= {200, 201}
    assert count == 1 + sum(one.request == "submit" for one in found)
    assert {one.status for one in refused} <= {401, 429}
    rows = rows_of(found)
    assert sum(row["count"] for row in rows) == len(found)
    assert all(0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] for row in rows)


def test_all_jobs_are_listed_page_after_page() -> None:
    ids = [f"job{number:03d}" for number in range(450)]

    class Lister:
        def surely(self, method: str, path: str) -> dict[str, Any]:
            query = dict(pair.split("=") for pair in path.partition("?")[2].split("&"))
            count, begin = int(query["limit"]), 0
            if "before" in query:
                begin = ids.index(query["before"]) + 1
            assert (method, path.partition("?")[0]) == ("GET", "/jobs") and count <= 200
            page = ids[begin : begin + count]
            more = begin + count < len(ids)
            return {"jobs": [{"id": one} for one in page], "next": page[-1] if more else None}

    assert all_jobs(Lister()) == ids  # type: ignore[arg-type]


# Refusing a request that looks right, and taking one that looks wrong, is up to what it says.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance"
)


@pytest.mark.slow
def test_generated_requests_are_answered_as_described(tmp_path: Path) -> None:
    with Server(tmp_path, requests_per_minute=1_000_000) as server:
        server.finished(server.client("root", Role.admin))
        secret = server.token("root", Role.admin)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/api/v1/openapi.json"),
            *("--header", f"Authorization: Bearer {secret}", "--checks", CHECKS),
            *("--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "/events$"),
            *("--max-examples", "3", "--seed", "1", "--continue-on-failure", "--no-color"),
            *("--warnings", "off", "--generation-database", "none", "--request-timeout", "600"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    generated = re.search(r"(\d[\d,]*) generated", done.stdout)
    assert generated is not None and int(generated[1].replace(",", "")) > 200, done.stdout

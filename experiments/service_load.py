"""What the service bears: many jobs, many clients, many workers, and being killed.

    python -m experiments.service_load reads --jobs 10000 --clients 50
    python -m experiments.service_load claims --jobs 500 --workers 8
    python -m experiments.service_load kills --kills 200

Each starts a service of its own in a temporary folder and asks it over HTTP; nothing of the service
is imported. `reads` times requests of clients that each wait for their answer before they ask
again. `claims` lets workers do jobs that take no time and counts how often each ran. `kills` ends
workers and the API with SIGKILL at random while jobs run, starts them again, and checks that no job
was lost, that none was worked on by two at once, that no step was done twice, and that every event
was told once. With ``NAS_DATABASE_URL`` the same is asked of PostgreSQL.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from experiments.harness import Options, Study, positive, processes, table_of
from experiments.instant_job import STEPS
from experiments.service_process import REQUEST, Api, Service, end
from search_spaces.files import read_lines

RUNNER = {"NAS_RUNNER": "experiments.instant_job"}
# One owner submits all there is: the limits of one are not what is asked about.
NO_QUOTAS = {"NAS_QUEUED_PER_OWNER": "1000000", "NAS_DATABASE_MIB_PER_OWNER": "1000000"}


# -- reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what was asked, the seconds until the whole answer was there, its status."""

    request: str
    seconds: float
    status: int


def reads(home: Path, options: Options) -> dict[str, Any]:
    """Fill the table, then time every kind of request under load."""
    service = Service(home, **NO_QUOTAS)
    server = service.serve(workers=0)
    try:
        service.wait_until_ready()
        jobs = options.jobs or 10_000
        began = time.perf_counter()
        ids = fill(service, jobs)
        filled_s = time.perf_counter() - began
        # One process asks: the service is to have the other cores.
        with processes(1) as pool:
            wanted = (options.clients, options.seconds, options.think)
            timed = pool.submit(ask_for, service.port, service.token, ids, *wanted).result()
    finally:
        end(server)
    return {
        "jobs": jobs,
        "clients": options.clients,
        "think_s": options.think,
        "submitted_per_s": round(jobs / filled_s, 1),
        "requests_per_s": round(len(timed) / options.seconds, 1),
        "rows": rows_of(timed),
        "problems": sorted({f"{one.request}: {one.status}" for one in timed if one.status > 299}),
    }


def fill(service: Service, jobs: int) -> list[str]:
    """Submit jobs, eight at once; their ids."""
    clients = threading.local()

    def submit(_: int) -> str:
        clients.api = getattr(clients, "api", None) or service.api()
        return str(clients.api.surely("POST", "/jobs", REQUEST)["id"])

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(submit, range(jobs)))


def ask_for(
    port: int, token: str, ids: Sequence[str], clients: int, seconds: float, think_s: float
) -> list[Asked]:
    """Let clients ask for a while, each for something else after each answer.

    Args:
        port: of the service on this machine.
        token: that all of them use.
        ids: of jobs to ask for.
        clients: how many at once.
        seconds: that they ask for.
        think_s: mean seconds of a client between an answer and its next request.
    """
    deadline = time.perf_counter() + seconds

    def client(seed: int) -> list[Asked]:
        api, draw, found = Api(port, token), random.Random(seed), list[Asked]()
        while time.perf_counter() < deadline:
            request, (method, path, body) = draw.choice(requests_for(draw.choice(ids)))
            began = time.perf_counter()
            status, _ = api.ask(method, path, body)
            found.append(Asked(request, time.perf_counter() - began, status))
            time.sleep(draw.uniform(0, 2 * think_s))
        api.close()
        return found

    with ThreadPoolExecutor(clients) as pool:
        return [one for part in pool.map(client, range(clients)) for one in part]


def requests_for(job: str) -> list[tuple[str, tuple[str, str, Any]]]:
    """What a client may ask: a name to count it under, method, path and JSON."""
    return [
        ("list", ("GET", "/jobs", None)),
        ("list, a later page", ("GET", f"/jobs?before={job}", None)),
        ("list, by state and space", ("GET", "/jobs?state=queued&space=digits", None)),
        ("list, by text", ("GET", f"/jobs?text={job[-6:]}", None)),
        ("job", ("GET", f"/jobs/{job}", None)),
        ("space", ("GET", "/spaces/digits", None)),
        ("submit", ("POST", "/jobs", REQUEST)),
    ]


def rows_of(timed: Sequence[Asked]) -> list[dict[str, Any]]:
    """For each request how often it was asked, and quantiles of its milliseconds."""
    rows = []
    for name in sorted({one.request for one in timed}):
        ms = [1000 * one.seconds for one in timed if one.request == name]
        p50, p95, p99 = np.percentile(ms, (50, 95, 99)).round(1).tolist()
        rows.append(
            {"request": name, "count": len(ms), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
        )
    return rows


# -- claims ---------------------------------------------------------------------------------------


def claims(home: Path, options: Options) -> dict[str, Any]:
    """Let workers do jobs that take no time; count how often each was begun and ended."""
    service = Service(home, **RUNNER, **NO_QUOTAS)
    server = service.serve(workers=0)
    service.wait_until_ready()
    jobs, workers = options.jobs or 500, options.workers
    ids = fill(service, jobs)
    crew = [service.start("worker") for _ in range(workers)]
    began = time.perf_counter()
    try:
        ended = _ended(service.api(), ids, 600.0)
        seconds = time.perf_counter() - began
        problems = [p for one in ids for p in check_job(service, ended[one])]
        attempts = [ended[one]["attempt"] for one in ids]
    finally:
        for process in (*crew, server):
            end(process)
    busy = {ended[one]["id"] for one in ids if ended[one]["attempt"] != 1}
    return {
        "jobs": jobs,
        "workers": workers,
        "seconds": round(seconds, 1),
        "run_once": attempts.count(1),
        "problems": problems + [f"{one} was taken more than once" for one in sorted(busy)],
    }


def _ended(api: Api, ids: Iterable[str], patience_s: float) -> dict[str, dict[str, Any]]:
    """The jobs by id once all have ended."""
    wanted = set(ids)
    found: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + patience_s
    while wanted - found.keys():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(wanted - found.keys())} jobs have not ended")
        for one in list(itertools.islice(wanted - found.keys(), 100)):
            job = api.surely("GET", f"/jobs/{one}")
            if job["state"] in ("queued", "running"):
                time.sleep(0.2)
                break
            found[one] = job
    return found


def check_job(service: Service, job: dict[str, Any]) -> list[str]:
    """What is wrong with a job that has ended: with its steps, or with what was told of it."""
    folder = service.home / "runs" / job["run"]
    lines = [json.loads(line) for line in read_lines(folder / "ran.jsonl")]
    steps = [line["step"] for line in lines if "step" in line]
    found = []
    if job["state"] != "succeeded":
        found.append(f"{job['id']} has {job['state']}: {job['error']}")
    if steps != list(range(1, STEPS + 1)):
        found.append(f"{job['id']} did the steps {steps}")
    found += [f"{job['id']}: {wrong}" for wrong in interleaved(lines)]
    _, text = service.api().ask("GET", f"/jobs/{job['id']}/events")
    data = [json.loads(m) for m in re.findall(r"^data: (.*)$", text.decode(), re.MULTILINE)][:-1]
    if [event["seq"] for event in data] != list(range(1, job["last_event"] + 1)):
        found.append(f"{job['id']} has events {[event['seq'] for event in data]}")
    counted = [event["done"] for event in data if event["event"] == "Progress"]
    if not set(counted) <= set(steps) or counted != sorted(set(counted)):
        found.append(f"{job['id']} told of the steps {counted}")
    return found


def interleaved(lines: list[dict[str, Any]]) -> list[str]:
    """Whether a process wrote after another one had begun."""
    holder = None
    for line in lines:
        holder = line.get("begin", holder)
        if "step" in line and line["pid"] != holder:
            return [f"process {line['pid']} went on after {holder} had begun"]
    return []


# -- kills ----------------------------------------------------------------------------------------


def kills(home: Path, options: Options) -> dict[str, Any]:
    """Kill workers and the API at random while jobs are submitted and run.

    Jobs are submitted one after the other, over about the time that the kills take. Nobody is
    killed before the API answers, nor before the age of ``--settle`` seconds: one that is killed
    before it has loaded its libraries proves nothing, and on a slow machine no other would ever
    come up.
    """
    jobs, kills, wait_s = options.jobs or 60, options.kills, options.wait
    timing = {"INSTANT_STEP_S": str(wait_s / 2), "NAS_STALE_S": "3", "NAS_HEARTBEAT_S": "0.5"}
    service = Service(home, **RUNNER, **NO_QUOTAS, **timing)
    draw = random.Random(options.seed)
    starts: list[Callable[[], subprocess.Popen[bytes]]] = [
        lambda: service.serve(workers=0),
        *[lambda: service.start("worker")] * options.workers,
    ]
    crew = [start() for start in starts]
    killed = {"api": 0, "worker": 0}
    births = [time.monotonic()] * len(crew)
    fallen: dict[int, int] = {}
    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(1) as pool:
            submitting = pool.submit(_submit_slowly, service.api(), jobs, kills * wait_s / jobs)
            while sum(killed.values()) < kills:
                time.sleep(draw.uniform(0.5, 1.5) * wait_s)
                fallen |= {p.pid: p.returncode for p in crew if p.poll() is not None}
                grown = [
                    n for n, born in enumerate(births) if time.monotonic() - born > options.settle
                ]
                if not grown or not service.answers():
                    continue
                victim = draw.choice(grown)
                crew[victim].send_signal(signal.SIGKILL)
                crew[victim].wait()
                crew[victim], births[victim] = starts[victim](), time.monotonic()
                killed["worker" if victim else "api"] += 1
            ids = submitting.result()
        ended = _ended(service.api(), ids, 600.0)
        listed = all_jobs(service.api())
        problems = [p for one in ids for p in check_job(service, ended[one])]
    finally:
        tail = service.log_file.read_text()[-8000:] if fallen else ""
        sys.stderr.write(tail)
        for process in crew:
            with suppress(ProcessLookupError):
                end(process)
    attempts = [job["attempt"] for job in ended.values()]
    problems += [f"process {pid} ended by itself with {code}" for pid, code in fallen.items()]
    if sorted(listed) != sorted(ids) or len(ids) != jobs:
        problems.append(f"{len(listed)} jobs are there, {jobs} were submitted")
    return {
        "jobs": jobs,
        "killed": killed,
        "seconds": round(time.perf_counter() - began, 1),
        "attempts": {"sum": sum(attempts), "most": max(attempts)},
        "taken_over": sum(attempt > 1 for attempt in attempts),
        "problems": problems,
    }


def all_jobs(api: Api) -> list[str]:
    """The ids of all jobs, page after page."""
    page = api.surely("GET", "/jobs?limit=200")
    found = [job["id"] for job in page["jobs"]]
    while page["next"] is not None:
        page = api.surely("GET", f"/jobs?limit=200&before={page['next']}")
        found += [job["id"] for job in page["jobs"]]
    return found


def _submit_slowly(api: Api, jobs: int, wait_s: float) -> list[str]:
    """Submit each job with a key of its own, again and again while nobody answers."""
    ids = []
    for number in range(jobs):
        key = {"Idempotency-Key": f"load-{number}"}
        ids.append(str(api.surely("POST", "/jobs", REQUEST, key)["id"]))
        time.sleep(wait_s)
    return ids


# -- the study ------------------------------------------------------------------------------------


def measure(options: Options) -> dict[str, Any]:
    """The numbers of one of the three."""
    with tempfile.TemporaryDirectory() as scratch:
        return {"reads": reads, "claims": claims, "kills": kills}[options.study](
            Path(scratch) / "home", options
        )


def show(found: dict[str, Any]) -> Iterator[Table | str]:
    """The numbers, and a row for each request."""
    yield from (f"{name:<16} {value}" for name, value in found.items() if name != "rows")
    if rows := found.get("rows"):
        yield table_of("", list(rows[0]), [list(row.values()) for row in rows])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("study", choices=("reads", "claims", "kills"))
    parser.add_argument("--jobs", type=int, help="10,000 for reads, 500 for claims, 60 for kills")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0, help="that clients ask for")
    parser.add_argument("--think", type=float, default=0.0, help="mean seconds between requests")
    parser.add_argument("--workers", type=positive, default=8)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--wait", type=float, default=1.0, help="mean seconds between kills")
    parser.add_argument("--settle", type=float, default=3.0, help="age of whoever is killed")
    parser.add_argument("--seed", type=int, default=0)


STUDY = Study(
    "service_load",
    "What does the service bear: many jobs, many clients, many workers, and being killed?",
    add_options,
    measure,
    show,
    lambda found: not found["problems"],
    example="reads --jobs 10000 --clients 50 --think 0.25",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

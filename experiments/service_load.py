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
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.instant_job import STEPS
from experiments.load_clients import Asked, Request, ask_for
from experiments.service_process import REQUEST, Api, Service, end
from search_spaces.files import read_lines

RUNNER = {"NAS_RUNNER": "experiments.instant_job"}
# One owner submits all there is: the limits of one are not what is asked about.
NO_QUOTAS = {"NAS_QUEUED_PER_OWNER": "1000000", "NAS_DATABASE_MIB_PER_OWNER": "1000000"}


# -- reads ----------------------------------------------------------------------------------------


def reads(
    home: Path, *, jobs: int, clients: int, seconds: float, think_s: float, processes: int
) -> dict[str, Any]:
    """Fill the table, then time every kind of request under load.

    Args:
        home: folder of the service.
        jobs: in the table before anything is timed.
        clients: that ask at once.
        seconds: that they ask for.
        think_s: mean seconds that a client waits between an answer and its next request.
        processes: of the API.
    """
    service = Service(home, **NO_QUOTAS, NAS_API_PROCESSES=str(processes))
    server = service.serve(workers=0)
    try:
        service.wait_until_ready()
        began = time.perf_counter()
        ids = _fill(service, jobs)
        filled_s = time.perf_counter() - began
        wanted: dict[str, Any] = {"clients": clients, "seconds": seconds, "think_s": think_s}
        # One process asks: the service is to have the other cores.
        with ProcessPoolExecutor(1) as pool:
            asking = pool.submit(
                ask_for, service.port, service.token, partial(_some_request, ids), seed=0, **wanted
            )
            timed = asking.result()
    finally:
        end(server)
    return {
        "jobs": jobs,
        "clients": clients,
        "api_processes": processes,
        "think_s": think_s,
        "submitted_per_s": round(jobs / filled_s, 1),
        "requests_per_s": round(len(timed) / seconds, 1),
        "rows": _rows(timed),
        "problems": sorted({f"{one.kind}: {one.status}" for one in timed if one.status > 299}),
    }


def _fill(service: Service, jobs: int) -> list[str]:
    def fill(count: int) -> list[str]:
        api = service.api()
        return [str(api.surely("POST", "/jobs", REQUEST)["id"]) for _ in range(count)]

    parts = [len(part) for part in np.array_split(np.arange(jobs), 8)]
    with ThreadPoolExecutor(8) as pool:
        return [one for part in pool.map(fill, parts) for one in part]


def _some_request(ids: list[str], draw: random.Random) -> Request:
    job = draw.choice(ids)
    requests = [
        Request("list", "GET", "/jobs"),
        Request("list, a later page", "GET", f"/jobs?before={job}"),
        Request("list, by state and space", "GET", "/jobs?state=queued&space=digits"),
        Request("list, by text", "GET", f"/jobs?text={job[-6:]}"),
        Request("job", "GET", f"/jobs/{job}"),
        Request("space", "GET", "/spaces/digits"),
        Request("submit", "POST", "/jobs", REQUEST),
    ]
    return draw.choice(requests)


def _rows(timed: list[Asked]) -> list[dict[str, Any]]:
    return [
        _row(kind, [one.seconds for one in timed if one.kind == kind])
        for kind in sorted({one.kind for one in timed})
    ]


def _row(name: str, seconds: list[float]) -> dict[str, Any]:
    ms = 1000 * np.array(seconds)
    p50, p95, p99 = (round(float(np.percentile(ms, q)), 1) for q in (50, 95, 99))
    return {"request": name, "count": len(ms), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}


# -- claims ---------------------------------------------------------------------------------------


def claims(home: Path, *, jobs: int, workers: int) -> dict[str, Any]:
    """Let workers do jobs that take no time; count how often each was begun and ended."""
    service = Service(home, **RUNNER, **NO_QUOTAS)
    server = service.serve(workers=0)
    service.wait_until_ready()
    ids = _fill(service, jobs)
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
    told = [event["done"] for event in data if event["event"] == "Progress"]
    if not set(told) <= set(steps) or told != sorted(set(told)):
        found.append(f"{job['id']} told of the steps {told}")
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


def kills(
    home: Path, *, jobs: int, workers: int, kills: int, seed: int, wait_s: float, settle_s: float
) -> dict[str, Any]:
    """Kill workers and the API at random while jobs are submitted and run.

    Args:
        home: folder of the service.
        jobs: submitted one after the other, over about the time that the kills take.
        workers: at any moment.
        kills: altogether.
        seed: of who is killed when.
        wait_s: mean seconds between two kills.
        settle_s: age in seconds that a process must have reached, and nobody is killed before the
            API answers; one that is killed before it has loaded its libraries proves nothing, and
            on a slow machine no other would ever come up.
    """
    step_s = str(wait_s / 2)
    timing = {"INSTANT_STEP_S": step_s, "NAS_STALE_S": "3", "NAS_HEARTBEAT_S": "0.5"}
    service = Service(home, **RUNNER, **NO_QUOTAS, **timing)
    draw = random.Random(seed)
    starts: list[Callable[[], subprocess.Popen[bytes]]] = [
        lambda: service.serve(workers=0),
        *[lambda: service.start("worker")] * workers,
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
                grown = [n for n, born in enumerate(births) if time.monotonic() - born > settle_s]
                if not grown or not service.answers():
                    continue
                victim = draw.choice(grown)
                crew[victim].send_signal(signal.SIGKILL)
                crew[victim].wait()
                crew[victim], births[victim] = starts[victim](), time.monotonic()
                killed["worker" if victim else "api"] += 1
            ids = submitting.result()
        ended = _ended(service.api(), ids, 600.0)
        listed = service.api().surely("GET", "/jobs?limit=200")["jobs"]
        problems = [p for one in ids for p in check_job(service, ended[one])]
    finally:
        tail = service.log_file.read_text()[-8000:] if fallen else ""
        sys.stderr.write(tail)
        for process in crew:
            with suppress(ProcessLookupError):
                end(process)
    attempts = [job["attempt"] for job in ended.values()]
    problems += [f"process {pid} ended by itself with {code}" for pid, code in fallen.items()]
    if {job["id"] for job in listed} != set(ids) or len(ids) != jobs:
        problems.append(f"{len(listed)} jobs are there, {jobs} were submitted")
    return {
        "jobs": jobs,
        "killed": killed,
        "seconds": round(time.perf_counter() - began, 1),
        "attempts": {"sum": sum(attempts), "most": max(attempts)},
        "taken_over": sum(attempt > 1 for attempt in attempts),
        "problems": problems,
    }


def _submit_slowly(api: Api, jobs: int, wait_s: float) -> list[str]:
    """Submit each job with a key of its own, again and again while nobody answers."""
    ids = []
    for number in range(jobs):
        key = {"Idempotency-Key": f"load-{number}"}
        ids.append(str(api.surely("POST", "/jobs", REQUEST, key)["id"]))
        time.sleep(wait_s)
    return ids


# -- the command ----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run one of the studies and print what it found."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        match options.study:
            case "reads":
                numbers = {"jobs": options.jobs or 10_000, "clients": options.clients}
                numbers |= {"processes": options.api_processes}
                found = reads(home, **numbers, seconds=options.seconds, think_s=options.think)
            case "claims":
                found = claims(home, jobs=options.jobs or 500, workers=options.workers)
            case _:
                numbers = {"jobs": options.jobs or 60, "workers": options.workers}
                numbers |= {"kills": options.kills, "seed": options.seed}
                found = kills(home, **numbers, wait_s=options.wait, settle_s=options.settle)
    _print(found, as_json=options.json)
    return 1 if found.get("problems") else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", choices=("reads", "claims", "kills"))
    parser.add_argument("--jobs", type=int, help="10,000 for reads, 500 for claims, 60 for kills")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--api-processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="that clients ask for")
    parser.add_argument("--think", type=float, default=0.0, help="mean seconds between requests")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--wait", type=float, default=1.0, help="mean seconds between kills")
    parser.add_argument("--settle", type=float, default=3.0, help="age of whoever is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if name != "rows":
            print(f"{name:<16} {value}")
    for row in found.get("rows", ()):
        print(
            f"{row['request']:<26}" + "".join(f"{v:>10}" for k, v in row.items() if k != "request")
        )


if __name__ == "__main__":
    sys.exit(main())

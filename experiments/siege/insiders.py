"""Attacks by those who are let in: on workers, locks, what belongs to all, run folders."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.service_load import check_job, interleaved
from experiments.siege.ground import (
    ADMIN,
    GLUTTON,
    MALLORY,
    ORDINARY,
    Attack,
    Finding,
    Ground,
    Target,
    counted,
    survived,
)
from experiments.siege.job import BULKY, BULKY_ENDLESS, FRONT, LARGE, LONG, QUICK, STEP_S
from nas.run.layout import FRONT_FILE
from search_spaces.files import read_lines

# -- workers and their run folders: killed, frozen at work, tidying at once -----------------------

TIGHT = "tight"
ORPHANS = 3_000
LONG_AGO_S = 7_200.0
TAKEN_OVER_S = 45.0  # a worker counts as gone, the job waits for another one, and is done


def killed_worker(ground: Ground) -> Finding:
    """Kill a worker at work; another one ends its job, and no step is done twice."""
    job = ground.submitted(MALLORY, LONG)
    worker = ground.worker_of(job)
    worker.kill()
    worker.wait()
    ground.workers.remove(worker)
    ground.new_worker()
    return _done_once(ground, job)


def frozen_at_work(ground: Ground) -> Finding:
    """Freeze a worker at work, whose child goes on; another worker ends its job."""
    job = ground.submitted(MALLORY, LONG)
    worker = ground.worker_of(job)
    worker.send_signal(signal.SIGSTOP)
    try:
        return _done_once(ground, job)
    finally:
        worker.send_signal(signal.SIGCONT)


def _done_once(ground: Ground, job: str) -> Finding:
    """Wait for a job that is to be taken over to end well, with no step done twice."""
    if not ground.reaches(job, "succeeded", within_s=TAKEN_OVER_S):
        return Finding("", (f"the job is {ground.job(job).get('state')}",))
    found = ground.job(job)
    wrong = check_job(ground.service, found)
    return Finding(f"survived; attempt {found['attempt']} succeeded", tuple(wrong))


def two_writers(ground: Ground) -> Finding:
    """Freeze a worker whose child goes on, and have its job begin anew.

    The job is cancelled, the disk quota makes an idle worker delete its folder, and it is tried
    again: the child of the frozen worker and the new one must never write one folder.
    """
    while len(ground.workers) > 1:  # the one that is left is given the job
        spare = ground.workers.pop()
        spare.terminate()
        spare.wait(30)
    job = ground.submitted(MALLORY, BULKY_ENDLESS)
    first, folder = ground.worker_of(job), ground.home / "runs" / job
    ground.until(lambda: (folder / "ran.jsonl").exists())
    _change(ground, job, "cancel", "cancelled")  # so that its size is known
    _change(ground, job, "retry", "running")
    ground.worker_of(job)
    time.sleep(1.0)
    first.send_signal(signal.SIGSTOP)
    try:
        _change(ground, job, "cancel", "cancelled")
        ground.new_worker()  # it is idle, and tidies first
        deleted = ground.until(lambda: not folder.exists(), 8.0)
        _change(ground, job, "retry", "running", "failed")
        ground.until(lambda: bool(_interleaved(folder)), 2.5 * STEP_S[BULKY_ENDLESS])
    finally:
        first.send_signal(signal.SIGCONT)
    wrong = _interleaved(folder)
    _change(ground, job, "cancel", "cancelled", "succeeded")
    ground.ask(MALLORY, "DELETE", f"/api/v1/jobs/{job}")
    was = "deleted" if deleted else "left alone"
    return Finding(f"survived; the held folder was {was}" if not wrong else "", tuple(wrong))


def _change(ground: Ground, job: str, action: str, *states: str) -> None:
    """Ask for a change of a job again and again until it has come about.

    Raises:
        RuntimeError: when it does not.
    """

    def changed() -> bool:
        if ground.job(job).get("state") in states:
            return True
        ground.ask(MALLORY, "POST", f"/api/v1/jobs/{job}/{action}")
        return False

    if not ground.until(changed, 30.0):
        raise RuntimeError(f"the job is {ground.job(job).get('state')} after {action}")


def _interleaved(folder: Path) -> list[str]:
    return interleaved([json.loads(line) for line in read_lines(folder / "ran.jsonl")])


def tidying(ground: Ground) -> Finding:
    """Two workers that start at once, with thousands of folders left behind to be deleted."""
    runs = ground.home / "runs"
    long_ago = time.time() - LONG_AGO_S
    for number in range(ORPHANS):
        folder = runs / f"{number:020x}"
        folder.mkdir()
        (folder / "left.bin").write_bytes(b"x")
        os.utime(folder, (long_ago, long_ago))
    begun = [ground.new_worker() for _ in range(2)]
    last = runs / f"{ORPHANS - 1:020x}"
    gone = ground.until(lambda: not any(map(_is_orphan, runs.iterdir())), 2 * ground.patience_s)
    problems = [] if gone else [f"there is still {last.name}"]
    for worker in begun:
        if worker.poll() is not None:
            problems.append(f"a worker has ended with {worker.returncode}")
        else:
            worker.terminate()
            worker.wait(30)
        ground.workers.remove(worker)
    return Finding(f"survived; {ORPHANS} folders deleted" if gone else "", tuple(problems))


def _is_orphan(folder: Path) -> bool:
    return folder.name < f"{ORPHANS:020x}"


# -- locks that are not let go: frozen workers, sessions in the database --------------------------

POLLING = "polling"
FREEZES = 8
CANCELS = 6
HOLD_S = 6.0
REFUSED = "a job was refused with 503 beside a frozen worker"
CANCEL_PATHS = 2  # every cancel is sent that often at once


def frozen_worker(ground: Ground) -> Finding:
    """Freeze one of two idle workers at any moment; the other goes on with new jobs.

    SQLite cannot undo what a stopped process has begun: a job may be refused with 503 there until
    a worker goes on that was frozen inside a transaction, and has to be done then.
    """
    draw = random.Random(1)
    refusals = 0
    for number in range(FREEZES):
        worker = ground.workers[number % 2]
        time.sleep(draw.uniform(0.0, 0.3))
        worker.send_signal(signal.SIGSTOP)
        try:
            wrong = _worked_on(ground)
        finally:
            worker.send_signal(signal.SIGCONT)
        if wrong == REFUSED and ground.database.url is None:
            refusals += 1
            wrong = _worked_on(ground)
        if wrong is not None:
            return Finding(f"stood still at freeze {number + 1}", (wrong,))
    answered = f"; a job was refused with 503 in {refusals} of them" if refusals else ""
    return Finding(f"survived {FREEZES} freezes{answered}")


def _worked_on(ground: Ground) -> str | None:
    """Submit a job; None when it is done in time, otherwise what was wrong."""
    answer = ground.submit(MALLORY, QUICK)
    if answer.status != "201":
        return REFUSED if answer.status == "503" else f"a job got {answer.status}"
    if not ground.reaches(str(json.loads(answer.body)["id"]), "succeeded"):
        return f"a job waited for {ground.patience_s:g} s beside a frozen worker"
    return None


def held_writes(ground: Ground) -> Finding:
    """Keep everybody from writing while jobs are cancelled."""
    return _hold(ground, "EXCLUSIVE")


def held_table(ground: Ground) -> Finding:
    """Keep everybody from the jobs altogether, as a change of the table does."""
    return _hold(ground, "ACCESS EXCLUSIVE")


def _hold(ground: Ground, mode: str) -> Finding:
    jobs = [ground.submitted(MALLORY, LONG) for _ in range(CANCELS)]
    paths = [f"/api/v1/jobs/{job}/cancel" for job in jobs] * CANCEL_PATHS
    with ThreadPoolExecutor(len(paths)) as pool:
        with ground.database.locked(mode):
            sent = [pool.submit(ground.ask, MALLORY, "POST", path) for path in paths]
            time.sleep(HOLD_S)
        answers = [one.result() for one in sent]
    left = [job for job in jobs if not _cancelled(ground, job)]
    problems = [f"{len(left)} jobs cannot be cancelled afterwards"] if left else []
    return survived([answer.status for answer in answers], problems)


def _cancelled(ground: Ground, job: str) -> bool:
    ground.ask(MALLORY, "POST", f"/api/v1/jobs/{job}/cancel")
    return ground.reaches(job, "cancelled")


# -- one owner and what belongs to all: the queue, the database, the quota ------------------------

FLOOD = 300
QUEUE_FULL = ("413", "422", "429", "503", "507")
SLOWEST_LIST_S = 1.0


def flood(ground: Ground) -> Finding:
    """Jobs as fast as they are taken; another owner's job is done all the same."""
    began, answers, made = time.monotonic(), [], []
    for _ in range(FLOOD):
        answer = ground.submit(GLUTTON, LONG)
        answers.append(answer.status)
        if answer.status == "201":
            made.append(str(json.loads(answer.body)["id"]))
        if answer.status in QUEUE_FULL or time.monotonic() - began > ground.patience_s:
            break
    problems = [] if answers[-1] in QUEUE_FULL else [f"{len(answers)} jobs in a row are queued"]
    other = ground.submitted(ORDINARY, QUICK)
    if not ground.reaches(other, "succeeded", within_s=2 * ground.patience_s):
        problems.append("the job of another owner waits behind them")
    answered = ground.ask(ADMIN, "GET", "/api/v1/jobs?limit=200")
    if answered.status != "200" or answered.seconds > SLOWEST_LIST_S:
        problems.append(
            f"an administrator's list took {answered.seconds:.1f} s ({answered.status})"
        )
    for job in reversed(made):
        ground.ask(GLUTTON, "POST", f"/api/v1/jobs/{job}/cancel")
    if made and not ground.reaches(made[0], "cancelled", "succeeded"):
        problems.append("they cannot be cancelled")
    return Finding(f"answered {counted(answers)}", tuple(problems))


def sent_again(ground: Ground) -> Finding:
    """A job with a key, sent again when the quota is full: it is there, and a new one is not."""
    key = {"Idempotency-Key": "siege-again"}
    value = {
        "space": "digits",
        "preset": "smoke",
        "seed": BULKY,
        "objectives": ["quality", "flops"],
    }
    first = ground.post(MALLORY, "/jobs", value, key)
    if first.status != "201":
        return Finding(f"answered {first.status}", ("the first one was refused",))
    job = str(json.loads(first.body)["id"])
    ground.reaches(job, "succeeded")
    again, new = ground.post(MALLORY, "/jobs", value, key), ground.submit(MALLORY, QUICK)
    problems = [] if again.status == "200" else [f"sent again it gets {again.status}"]
    if new.status not in ("413", "429", "507"):
        problems.append(f"a new job above the quota gets {new.status}")
    gone = ground.ask(MALLORY, "DELETE", f"/api/v1/jobs/{job}")
    if gone.status != "204":
        problems.append(f"it cannot be deleted: {gone.status}")
    return survived([first.status, again.status], problems)


# -- what lies in a run's folder, and a disk that is full -----------------------------------------

FULL = "full disk"
DOWNLOADS = 10
GROWS_S = 0.02
MOST_PAGE_MB, SLOWEST_FIRST_S, SLOWEST_AGAIN_S = 3.0, 5.0, 1.0
PLACES = ("/api/v1/jobs/{job}/front", "/jobs/{job}", "/jobs/{job}/curve.svg", "/compare?job={job}")


def nested_front(target: Target) -> Finding:
    """A `pareto.json` that is nested deeper than any parser follows, and one that is none."""
    job = _finished(target, FRONT)
    file = target.home / "runs" / job / FRONT_FILE
    answers = []
    for text in ("[" * 200_000, '{"front":' * 100_000 + "1" + "}" * 100_000, '{"front": 3}'):
        file.write_text(text, encoding="utf-8")
        answers += [target.ask(MALLORY, "GET", place.format(job=job)).status for place in PLACES]
    return survived(answers)


def growing_file(target: Target) -> Finding:
    """A file that grows while it is downloaded."""
    job = _finished(target, FRONT)
    file = target.home / "runs" / job / "grows.txt"
    file.write_bytes(b"x" * 500_000)
    ending = threading.Event()

    def grow() -> None:
        with file.open("ab", buffering=0) as stream:
            while not ending.wait(GROWS_S / 10):
                stream.write(b"y" * 10_000)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        path = f"/api/v1/jobs/{job}/artifacts/grows.txt"
        answers = [target.ask(MALLORY, "GET", path) for _ in range(DOWNLOADS)]
    finally:
        ending.set()
        writer.join()
        file.unlink()
    short = [a for a in answers if a.status != "200" or len(a.body) < 500_000]
    problems = [f"{len(short)} of {DOWNLOADS} downloads broke off"] if short else []
    return survived([answer.status for answer in answers], problems)


def large_run(target: Target) -> Finding:
    """A run of 20,000 observations: its page and its curve, twice."""
    job = _finished(target, LARGE)
    problems, answered = [], []
    for place in ("/jobs/{job}", "/jobs/{job}/curve.svg"):
        first, again = (target.ask(MALLORY, "GET", place.format(job=job)) for _ in range(2))
        size = len(first.body) / 1e6
        name = place.rpartition("/")[2].format(job="page")
        answered.append(f"{name} {first.seconds:.1f} s, then {again.seconds:.1f} s, {size:.1f} MB")
        if first.status != "200" or first.seconds > SLOWEST_FIRST_S:
            problems.append(f"{name} took {first.seconds:.1f} s ({first.status})")
        if again.status != "200" or again.seconds > SLOWEST_AGAIN_S:
            problems.append(f"{name} took {again.seconds:.1f} s again ({again.status})")
        if size > MOST_PAGE_MB:
            problems.append(f"{name} has {size:.1f} MB")
    return Finding("; ".join(answered), tuple(problems))


def full_disk(ground: Ground) -> Finding:
    """A disk without a byte left: not ready, but alive, and a run of some size can be deleted."""
    job = _finished(ground, BULKY)
    ballast = ground.home.parent / "ballast"  # on the same disk
    _fill(ballast)
    problems = []
    ready = ground.ask(None, "GET", "/readyz")
    if ready.status != "503":
        problems.append(f"/readyz says {ready.status}")
    health, shown = (ground.ask(MALLORY, "GET", path) for path in ("/healthz", "/api/v1/jobs"))
    submitted = ground.submit(MALLORY, QUICK)
    deleted = ground.ask(MALLORY, "DELETE", f"/api/v1/jobs/{job}")
    if deleted.status != "204":
        problems.append(f"a job cannot be deleted: {deleted.status}")
    ballast.unlink()
    if not ground.until(lambda: ground.ask(None, "GET", "/readyz").status == "200"):
        problems.append("/readyz does not say 200 again")
    _finished(ground, QUICK)
    statuses = [health.status, shown.status, deleted.status]
    if submitted.status not in ("201", "503", "507"):
        problems.append(f"a job that finds no room gets {submitted.status}")
    return survived(statuses, problems)


def _fill(file: Path) -> None:
    """Write until the disk takes no more."""
    for size in (1_000_000, 4_096, 1):
        with file.open("ab", buffering=0) as stream:
            deadline = time.monotonic() + 10.0
            try:
                while time.monotonic() < deadline:
                    stream.write(b"\0" * size)
            except OSError:
                continue


def _finished(target: Target, seed: int) -> str:
    """The id of a new job that has succeeded.

    Raises:
        RuntimeError: when it does not.
    """
    job = target.submitted(MALLORY, seed)
    if not target.reaches(job, "succeeded", within_s=2 * target.patience_s):
        raise RuntimeError(f"the job is {target.job(job).get('state')}")
    return job


ATTACKS = (
    Attack("killed-worker", "SIGKILL of a worker at work", killed_worker),
    Attack("frozen-at-work", "SIGSTOP of a worker at work", frozen_at_work),
    Attack("two-writers", "a frozen worker's child, cancel, quota, retry", two_writers, TIGHT),
    Attack("tidying", "two workers that tidy thousands of folders at once", tidying, TIGHT),
    Attack("frozen-worker", "SIGSTOP of an idle worker, again and again", frozen_worker, POLLING),
    Attack("held-writes", "a session that lets nobody write, and cancels", held_writes),
    Attack(
        "held-table",
        "a session that lets nobody read or write jobs, and cancels",
        held_table,
        reads_wait=True,
        postgres=True,
    ),
    Attack("flood", f"{FLOOD} jobs of one owner as fast as they are taken", flood),
    Attack("sent-again", "a job sent again while the quota is full", sent_again, TIGHT),
    Attack("nested-front", "a front that is nested without end", nested_front),
    Attack("growing-file", "a file that grows while it is downloaded", growing_file),
    Attack("large-run", "the page of a run with 20,000 observations", large_run),
    Attack("full-disk", "not a byte left on the disk of the home", full_disk, FULL),
)

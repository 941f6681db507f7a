"""Attacks on workers and their run folders: killed, frozen at work, tidying at once."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from experiments.service_load import check_job, interleaved
from experiments.siege.attack import Attack, Finding
from experiments.siege.ground import MALLORY, Ground
from experiments.siege.job import BULKY_ENDLESS, LONG, STEP_S
from search_spaces.files import read_lines

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


ATTACKS = (
    Attack("killed-worker", "SIGKILL of a worker at work", killed_worker),
    Attack("frozen-at-work", "SIGSTOP of a worker at work", frozen_at_work),
    Attack("two-writers", "a frozen worker's child, cancel, quota, retry", two_writers, TIGHT),
    Attack("tidying", "two workers that tidy thousands of folders at once", tidying, TIGHT),
)

"""Attacks by who holds a lock and does not let go: frozen workers, sessions in the database."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from experiments.siege.attack import Attack, Finding, survived
from experiments.siege.ground import MALLORY, Ground
from experiments.siege.job import LONG, QUICK

POLLING = "polling"
FREEZES = 8
CANCELS = 6
HOLD_S = 6.0
CANCEL_PATHS = 2  # every cancel is sent that often at once


def frozen_worker(ground: Ground) -> Finding:
    """Freeze one of two idle workers at any moment; the other goes on with new jobs."""
    draw = random.Random(1)
    for number in range(FREEZES):
        worker = ground.workers[number % 2]
        time.sleep(draw.uniform(0.0, 0.3))
        worker.send_signal(signal.SIGSTOP)
        try:
            job = ground.submit(MALLORY, QUICK)
            if job.status != "201":
                return Finding("", (f"freeze {number + 1}: a job got {job.status}",))
            identity = job.body.decode().partition('"id":"')[2][:20]
            if not ground.reaches(identity, "succeeded"):
                waited = f"a job waited for {ground.patience_s:g} s beside a frozen worker"
                return Finding(f"stood still at freeze {number + 1}", (waited,))
        finally:
            worker.send_signal(signal.SIGCONT)
    return Finding(f"survived {FREEZES} freezes")


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


ATTACKS = (
    Attack("frozen-worker", "SIGSTOP of an idle worker, again and again", frozen_worker, POLLING),
    Attack("held-writes", "a session that lets nobody write, and cancels", held_writes),
    Attack(
        "held-table",
        "a session that lets nobody read or write jobs, and cancels",
        held_table,
        reads_wait=True,
        postgres=True,
    ),
)

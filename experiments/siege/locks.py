"""Attacks by who holds a lock and does not let go: frozen workers, sessions in the database."""

from __future__ import annotations

import json
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
    told = f"; a job was refused with 503 in {refusals} of them" if refusals else ""
    return Finding(f"survived {FREEZES} freezes{told}")


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

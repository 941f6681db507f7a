"""Attacks by one owner on what belongs to all: the queue, the database, the disk's quota."""

from __future__ import annotations

import json
import time

from experiments.siege.attack import Attack, Finding, counted, survived
from experiments.siege.ground import ADMIN, GLUTTON, MALLORY, ORDINARY, Ground
from experiments.siege.job import BULKY, LONG, QUICK
from experiments.siege.workers import TIGHT

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
    told = ground.ask(ADMIN, "GET", "/api/v1/jobs?limit=200")
    if told.status != "200" or told.seconds > SLOWEST_LIST_S:
        problems.append(f"an administrator's list took {told.seconds:.1f} s ({told.status})")
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


ATTACKS = (
    Attack("flood", f"{FLOOD} jobs of one owner as fast as they are taken", flood),
    Attack("sent-again", "a job sent again while the quota is full", sent_again, TIGHT),
)

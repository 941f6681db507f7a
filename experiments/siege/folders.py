"""Attacks by what lies in a run's folder, and by a disk that is full."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from experiments.siege.attack import Attack, Finding, survived
from experiments.siege.ground import MALLORY, Ground, Target
from experiments.siege.job import BULKY, FRONT, LARGE, QUICK
from nas.run.layout import FRONT_FILE

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
    problems, told = [], []
    for place in ("/jobs/{job}", "/jobs/{job}/curve.svg"):
        first, again = (target.ask(MALLORY, "GET", place.format(job=job)) for _ in range(2))
        size = len(first.body) / 1e6
        name = place.rpartition("/")[2].format(job="page")
        told.append(f"{name} {first.seconds:.1f} s, then {again.seconds:.1f} s, {size:.1f} MB")
        if first.status != "200" or first.seconds > SLOWEST_FIRST_S:
            problems.append(f"{name} took {first.seconds:.1f} s ({first.status})")
        if again.status != "200" or again.seconds > SLOWEST_AGAIN_S:
            problems.append(f"{name} took {again.seconds:.1f} s again ({again.status})")
        if size > MOST_PAGE_MB:
            problems.append(f"{name} has {size:.1f} MB")
    return Finding("; ".join(told), tuple(problems))


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
    Attack("nested-front", "a front that is nested without end", nested_front),
    Attack("growing-file", "a file that grows while it is downloaded", growing_file),
    Attack("large-run", "the page of a run with 20,000 observations", large_run),
    Attack("full-disk", "not a byte left on the disk of the home", full_disk, FULL),
)

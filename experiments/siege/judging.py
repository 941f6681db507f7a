"""Makes attacks on one service after the other, and holds each to the marks."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.service_load import check_job
from experiments.siege.attack import Attack, Finding
from experiments.siege.clients import HEALTH, SUBMIT, Seen
from experiments.siege.ground import Ground

SLOWEST_S = 1.0
MOST_MB = 1_000.0
MOST_TOLD = 400  # characters of what an attack broke off with


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attack went.

    Attributes:
        attack: its name.
        database: that the service had.
        told: what it was answered with.
        slowest_s: longest time of an ordinary client for one read.
        slowest: what it read.
        memory_mb: most that the service's processes took together.
        seconds: that the attack took.
        problems: marks that were missed; empty for a good end.
        skipped: why it was not made.
    """

    attack: str
    database: str
    told: str = ""
    slowest_s: float = 0.0
    slowest: str = ""
    memory_mb: float = 0.0
    seconds: float = 0.0
    problems: tuple[str, ...] = ()
    skipped: str | None = None


def besiege(ground: Ground, attacks: Iterable[Attack]) -> Iterator[Verdict]:
    """Make attacks on one service; at the end of each it is made fit for the next."""
    for attack in attacks:
        yield _judge(ground, attack)


def _judge(ground: Ground, attack: Attack) -> Verdict:
    ground.memory.begin()
    began = time.monotonic()
    try:
        found = attack.run(ground)
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
        found = Finding("broke off", (f"{type(error).__name__}: {error}"[:MOST_TOLD],))
    except subprocess.SubprocessError as error:
        found = Finding("broke off", (f"{error}"[:MOST_TOLD],))
    ended = time.monotonic()
    problems = list(found.problems)
    if not ground.wait_for_clients(ended):
        problems.append("ordinary clients get no answers after it")
    # Until each client has asked once more: what an attack leaves behind counts as well.
    peak, seen = ground.memory.peak_mb, ground.seen(began, time.monotonic())
    reads = [one for one in seen if one.client != SUBMIT]
    timed = [one for one in reads if one.client == HEALTH] if attack.reads_wait else reads
    slowest = max(timed, key=lambda one: one.seconds)
    if slowest.seconds > SLOWEST_S:
        problems.append(f"{slowest.client} took an ordinary client {slowest.seconds:.1f} s")
    if peak > MOST_MB:
        problems.append(f"{peak:.0f} MB of memory")
    problems += [*unanswered(seen), *lost(ground, seen), *ground.recover(), *_torn(ground)]
    return Verdict(
        attack.name,
        ground.database.name,
        found.told or "succeeded",
        round(slowest.seconds, 3),
        slowest.client,
        round(peak, 1),
        round(ended - began, 1),
        tuple(problems),
    )


def unanswered(seen: Iterable[Seen]) -> list[str]:
    """What ordinary clients should not have been told."""
    bad = Counter(
        (one.client, one.status)
        for one in seen
        if not 200 <= one.status < 300 and one.status != 503
    )
    return [
        f"{client}: {f'status {status}' if status else 'no answer'} ×{count}"
        for (client, status), count in sorted(bad.items())
    ]


def lost(ground: Ground, seen: Iterable[Seen]) -> list[str]:
    """Jobs of ordinary clients that did not end well, or of which a step was done twice."""
    wrong = []
    for one in seen:
        if one.job is None:
            continue
        if one.state != "succeeded":
            wrong.append(f"the job {one.job} is {one.state or 'not seen to end'}")
        else:
            wrong += check_job(ground.service, ground.job(one.job))
    return wrong


def _torn(ground: Ground) -> list[str]:
    try:
        return ground.database.wrong()
    except Exception as error:  # of either database's driver; whatever it is, it is told
        return [f"the database cannot be looked at: {error}"]


@contextmanager
def disk(folder: Path, megabytes: int | None) -> Iterator[Path]:
    """A folder for a home, on a disk of its own where its size is given.

    Raises:
        PermissionError: when this user may not mount one.
    """
    where = folder / "disk"
    where.mkdir(parents=True)
    if megabytes is None:
        yield where
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        raise PermissionError("mounting a small disk needs the rights of an administrator")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)

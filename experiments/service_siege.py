"""What the service bears from those who mean it harm, beside ordinary clients.

    python -m experiments.service_siege
    python -m experiments.service_siege --postgres postgresql://postgres@127.0.0.1:5432/postgres
    python -m experiments.service_siege --only dotted-keys frozen-worker --json

Services of its own are started on this machine, with workers whose jobs only count. While ordinary
clients read, submit jobs and follow them to their end, one attack after the other is made, each
with a bounded number of requests and for a bounded time. Told is for each what it was answered
with, the longest time of an ordinary client for one read, and the memory of all processes of the
service. The marks: no read over 1 s, no more than 1 GB, every job of the ordinary clients done once
and none lost, no answer of the kind 5xx but 503. A process of the service may have no more than
2.5 GB of addresses, so that an attack on memory ends the service and not the machine.

Clocks that jump are not tried here, since one machine's clock is everybody's: tests of the store
set it. On the service's own machine PostgreSQL's memory is not counted. Linux only; the small disk
that is filled needs an administrator's rights, and is left out without them.
"""

from __future__ import annotations

import argparse
import http.client
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness import Options, Study, note
from experiments.service_load import check_job
from experiments.siege import insiders, requests
from experiments.siege.clients import HEALTH, SUBMIT, Seen
from experiments.siege.ground import USUAL, Attack, Camp, Finding, Ground
from experiments.siege.insiders import FULL, POLLING, TIGHT
from experiments.siege.probes import Database, fresh_postgres
from experiments.siege.requests import PROXY

_USUAL = {
    "NAS_TRUSTED_PROXIES": PROXY,
    "NAS_QUEUED_PER_OWNER": "20",
    "NAS_DATABASE_MIB_PER_OWNER": "5",
    "NAS_STALE_S": "5",
    "NAS_HEARTBEAT_S": "0.5",
}

CAMPS: dict[str, Camp] = {
    USUAL: Camp(_USUAL, workers=3),
    # Idle workers ask for work all the time, so that one is mostly frozen while it asks.
    POLLING: Camp({"NAS_POLL_S": "0.02"}),
    # The ordinary clients' files fit into the quota, those of one attacker's job do not.
    TIGHT: Camp({**_USUAL, "NAS_QUOTA_GIB": "0.003"}, submits=False),
    FULL: Camp({"NAS_STALE_S": "5"}, workers=1, submits=False, disk_mb=48),
}

ATTACKS: dict[str, Attack] = {
    attack.name: attack for attack in (*requests.ATTACKS, *insiders.ATTACKS)
}


# -- one attack after the other, each held to the marks -----------------------------------------

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


# -- the study ----------------------------------------------------------------------------------


def siege(attacks: Sequence[Attack], server: str | None, patience_s: float) -> Iterator[Verdict]:
    """Make attacks, those on one kind of service after each other.

    Args:
        attacks: which.
        server: of PostgreSQL, on which databases are made and dropped; None for SQLite.
        patience_s: how long an attack waits for something.
    """
    database = "SQLite" if server is None else "PostgreSQL"
    for camp in CAMPS:
        chosen = [a for a in attacks if a.camp == camp and not (a.postgres and server is None)]
        if not chosen:
            continue
        try:
            yield from _encamp(camp, chosen, server, patience_s)
        except PermissionError as error:
            yield from (Verdict(one.name, database, skipped=str(error)) for one in chosen)


def _encamp(
    camp: str, attacks: Sequence[Attack], server: str | None, patience_s: float
) -> Iterator[Verdict]:
    with (
        tempfile.TemporaryDirectory(prefix="nas-siege-") as scratch,
        disk(Path(scratch), CAMPS[camp].disk_mb) as folder,
        nullcontext() if server is None else fresh_postgres(server) as url,
        closing(Ground(folder, CAMPS[camp], partial(Database, url=url), patience_s)) as ground,
    ):
        ground.begin()
        yield from besiege(ground, attacks)


def measure(options: Options) -> list[dict[str, Any]]:
    """Besiege one kind of database after the other; the verdicts."""
    attacks = [ATTACKS[name] for name in options.only or ATTACKS]
    servers = [] if options.without_sqlite else [None]
    servers += [options.postgres] if options.postgres else []
    verdicts = []
    for server in servers:
        for verdict in siege(attacks, server, options.seconds):
            verdicts.append(asdict(verdict))
            note(line_of(verdict))
    return verdicts


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--postgres", metavar="URL", help="server on which databases are made")
    parser.add_argument("--only", nargs="+", choices=tuple(ATTACKS), metavar="NAME", default=[])
    parser.add_argument("--without-sqlite", action="store_true", help="PostgreSQL alone")
    parser.add_argument("--seconds", type=float, default=15.0, help="patience of an attack")


def show(found: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each verdict, and how many met all marks."""
    verdicts = [Verdict(**one) for one in found]
    yield from map(line_of, verdicts)
    yield summary(verdicts)


def line_of(verdict: Verdict) -> str:
    """A verdict as it is printed: a line, and one for each mark that was missed."""
    head = f"{verdict.attack:<18} {verdict.database:<10} "
    if verdict.skipped is not None:
        return f"{head} left out: {verdict.skipped}"
    read = f"{verdict.slowest_s:6.2f} s ({verdict.slowest})"
    lines = [
        f"{head} {'FAILED' if verdict.problems else 'ok':<6} {read:<24}"
        f"{verdict.memory_mb:7.0f} MB {verdict.seconds:6.1f} s  {verdict.told}"
    ]
    return "\n".join([*lines, *(f"    ! {problem}" for problem in verdict.problems)])


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many attacks met all marks, and the worst of each."""
    made = [verdict for verdict in verdicts if verdict.skipped is None]
    if not made:
        return "nothing was tried"
    good = sum(not verdict.problems for verdict in made)
    slowest = max(made, key=lambda verdict: verdict.slowest_s)
    largest = max(made, key=lambda verdict: verdict.memory_mb)
    return (
        f"{good} of {len(made)} attacks met all marks; slowest read {slowest.slowest_s:.2f} s "
        f"({slowest.attack}), most memory {largest.memory_mb:.0f} MB ({largest.attack})"
    )


def met(found: list[dict[str, Any]]) -> bool:
    """Whether attacks were made, and all of them met all marks."""
    made = [verdict for verdict in found if verdict["skipped"] is None]
    return bool(made) and not any(verdict["problems"] for verdict in made)


STUDY = Study(
    "service_siege",
    "What does the service bear from those who mean it harm, beside ordinary clients?",
    add_options,
    measure,
    show,
    met,
    example="--only dotted-keys frozen-worker",
    width=200,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

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
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.siege.attack import Attack
from experiments.siege.catalogue import ATTACKS, CAMPS
from experiments.siege.databases import Database, fresh_postgres
from experiments.siege.ground import Ground
from experiments.siege.judging import Verdict, besiege, disk


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


def main(arguments: list[str] | None = None) -> int:
    """Besiege and print the verdicts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--postgres", metavar="URL", help="server on which databases are made")
    parser.add_argument("--only", nargs="+", choices=tuple(ATTACKS), metavar="NAME", default=[])
    parser.add_argument("--without-sqlite", action="store_true", help="PostgreSQL alone")
    parser.add_argument("--seconds", type=float, default=15.0, help="patience of an attack")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    attacks = [ATTACKS[name] for name in options.only or ATTACKS]
    servers = [] if options.without_sqlite else [None]
    servers += [options.postgres] if options.postgres else []
    verdicts = []
    for server in servers:
        for verdict in siege(attacks, server, options.seconds):
            verdicts.append(verdict)
            if not options.json:
                print(line_of(verdict), flush=True)
    if options.json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        print(summary(verdicts))
    return 1 if any(verdict.problems for verdict in verdicts) else 0


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


if __name__ == "__main__":
    sys.exit(main())

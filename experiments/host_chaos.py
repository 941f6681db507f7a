"""Cut hosts off and kill what runs on them, and compare the fronts.

``python -m experiments.host_chaos --times 20 --seed 0`` makes three hosts on this machine
(``docker/hosts``, so it needs root) with a Ray cluster on them, whose head offers no processor, and
runs a small search undisturbed, in one process and without Ray. Then it runs the same search
through Ray again and again, and each time something happens at a random moment: the network of a
host that works is cut for 5 to 120 s or slow as long (200 ms, one frame of a hundred lost), its
raylet is killed, a process of its is, or that of the search, after which ``nas resume`` goes on by
either executor. Where the run says that a host has left the cluster, Ray is started there again, as
its user would. With ``--database URL``, a PostgreSQL server that this machine reaches, two runs of
seven are jobs of a service with a worker on each of two hosts instead, of which the one that works
loses its network and so the database, or has a slow one.

Marks: each run ends by itself within ``--limit`` seconds in the same bytes of ``pareto.json`` and
the same retrained networks; no network stands twice in a journal; a job succeeds once; and no
process that the run has given up writes to a file that another one has taken over
(`experiments.file_writers`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import RenderableType

from experiments.file_writers import Watch, Write, late_writes
from experiments.harness import Options, Study, note, table_of
from experiments.hosts import SWITCH, SWITCH_ADDRESS, Hosts, hosts, leaf, missing
from experiments.kill_stages import events_of, result_of, run_to_end
from experiments.ray_chaos import REQUEST, evaluations
from experiments.ray_hosts import ADDRESS, HEAD, NAS, RayHosts, environment
from experiments.service_process import Service, end
from nas.executors.board import read_workers
from nas.run.layout import EVENTS_FILE
from search_spaces.errors import ExecutorError, UsageError

SEARCHES = ("cut", "raylet", "worker", "search", "slow")
JOBS = ("database", "slow database")
LINKS = ("cut", "slow", *JOBS)  # what happens to a link, for a while
SLOW = ("200ms", "1%")
DATABASE_TOOLS = ("psql", "socat")
OTHERS = ("host-1", "host-2")
AFTER = "after the end"  # where there is a stage else
TRIES = 3  # of a run in which nothing was left to hit
CUT_S = (5.0, 120.0)
LOOK_EVERY_S = 0.1
LOST = re.compile(r"lost:|was lost|no longer|has left")
LEFT = re.compile(r"^(\S+) has left the Ray cluster")


@dataclass(frozen=True)
class Blow:
    """What happens, and when.

    Attributes:
        target: one of `SEARCHES` or of `JOBS`.
        event: after so many events of the run.
        pause_s: and so many seconds more.
        cut_s: for which a network is away, or slow.
        host: on which host, where nothing works at that moment.
        resumed_by: executor of ``nas resume``, if that is needed.
    """

    target: str
    event: int
    pause_s: float
    cut_s: float
    host: str
    resumed_by: str


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        number: of the run in the plan, from 1 on.
        blow: what was asked for.
        host: the host it fell on.
        stage: in which stage, or ``after the end``.
        noticed_s: from the blow until the run or the service told of a loss; None if it did not.
        left: the hosts that no longer belonged to the cluster, in between or in the end.
        redone: evaluations that workers did more than once, or that were lost with one.
        repeated: networks that stand twice in a journal, and successes of a job but the first.
        late: files that were written by a process that had been given up.
        equal: whether the results are those of the undisturbed run.
        seconds: until the run had ended.
        error: why it did not end well, if so.
    """

    number: int
    blow: Blow
    host: str
    stage: str
    noticed_s: float | None
    left: list[str]
    redone: int
    repeated: int
    late: list[str]
    equal: bool
    seconds: float
    error: str | None = None

    @property
    def hit(self) -> bool:
        """Whether anything was left to hit."""
        return self.stage != AFTER

    @property
    def good(self) -> bool:
        """Whether all marks are met."""
        return self.hit and self.equal and not (self.repeated or self.late or self.error)


def plan(rng: np.random.Generator, times: int, stages: Sequence[str], jobs: bool) -> list[Blow]:
    """Blows in random stages, at random moments of these, each target as often as the others.

    Args:
        rng: draws.
        times: how many.
        stages: of each event of a run that nothing hit.
        jobs: whether there are jobs of a service among them.
    """
    targets = (*SEARCHES, *JOBS) if jobs else SEARCHES
    events = {stage: np.flatnonzero(np.array(stages) == stage) + 1 for stage in sorted(set(stages))}
    return [
        Blow(
            targets[number % len(targets)],
            int(rng.choice(events[str(rng.choice(list(events)))])),
            round(float(rng.uniform(0, 0.5)), 2),
            round(float(rng.uniform(*CUT_S)), 1),
            str(rng.choice(OTHERS)),
            str(rng.choice(["ray", "local"])),
        )
        for number in range(times)
    ]


# -- one run --------------------------------------------------------------------------------------


class Attempt:
    """A run that is hit once, and seen to its end.

    Args:
        blow: what happens.
        run: its folder.
        limit_s: after so many seconds it counts as hung.

    Attributes:
        host: the host that is hit.
        stage: the stage it is hit in.
        at: when it is hit, in seconds since 1970; None before, and if there was nothing to hit.
        noticed_s: see `Outcome`.
        successes: of a job; 1 for a search that ended well.
        back: hosts on which Ray was started again because the run said so.
    """

    def __init__(self, blow: Blow, run: Path, limit_s: float) -> None:
        self.blow, self.run = blow, run
        self._deadline = time.monotonic() + limit_s
        self.host, self.stage = blow.host, AFTER
        self.at: float | None = None
        self.noticed_s: float | None = None
        self.successes = 1
        self.back: list[str] = []

    def tend(self) -> None:
        """Do what the run asks for while it is waited for."""

    def hit(self, host: str) -> None:
        """Note that it falls now."""
        seen = events_of(self.run)
        self.host, self.at = host, time.time()
        self.stage = str(seen[-1].get("stage") or "start") if seen else "start"

    def wait(self, over: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something is over, or for so many seconds; whether it is over.

        Raises:
            ExecutorError: when the run has had its time.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while not over():
            if time.monotonic() > self._deadline:
                raise ExecutorError(
                    f"it hangs; its last event: {json.dumps(events_of(self.run)[-1:])}"
                )
            if until is not None and time.monotonic() > until:
                return False
            self.tend()
            time.sleep(LOOK_EVERY_S)
        return True

    def wait_for_the_moment(self, over: Callable[[], bool]) -> None:
        """Wait until it is to be hit, or is over."""
        self.wait(lambda: over() or len(events_of(self.run)) >= self.blow.event)
        self.wait(over, self.blow.pause_s)


class Search(Attempt):
    """A search through Ray."""

    _away: str | None = None

    def tend(self) -> None:
        """Start Ray again on a host that can be reached and of which the run says that it left."""
        told = [LEFT.match(str(one.get("message"))) for one in events_of(self.run)]
        hosts = [found[1] for found in told if found]
        for host in OTHERS:
            if host != self._away and hosts.count(host) > self.back.count(host):
                self._cluster.stop(host, "--force")
                self._cluster.start(host)
                self.back.append(host)

    def go(self, cluster: RayHosts, seed: int) -> None:
        """Run it.

        Raises:
            ExecutorError: when it fails or hangs.
        """
        self._cluster, self._hosts = cluster, cluster.hosts
        self._log = self.run.with_name(f"{self.run.name}.log")
        words = ["search", *REQUEST, "--seed", str(seed), "--out", str(self.run)]
        process = self._start(words, "ray")
        try:
            self.wait_for_the_moment(lambda: process.poll() is not None)
            while self.at is None and process.poll() is None:  # perhaps nothing has started yet
                self._strike(process)
                self.wait(lambda: process.poll() is not None, LOOK_EVERY_S)
            if self.blow.target in LINKS and self.at is not None:
                self.wait(lambda: process.poll() is not None, self.blow.cut_s)
                mend(self._hosts, self.host)
                self._away = None
            self.wait(lambda: process.poll() is not None)
            if self.blow.target == "search" and self.at is not None:
                process = self._start(["resume", str(self.run)], self.blow.resumed_by)
                self.wait(lambda: process.poll() is not None)
        finally:
            mend(self._hosts, self.host)
            if process.poll() is None:
                os.kill(leaf(process.pid), signal.SIGKILL)
                process.wait()
        if self.at is not None:
            self.noticed_s = noticed_s(self.run, self.at)
        if process.returncode:
            said = self._log.read_text("utf-8").strip()[-600:]
            raise ExecutorError(f"it ended with {process.returncode}: {said}")

    def _start(self, words: Sequence[str], executor: str) -> subprocess.Popen[bytes]:
        ray = ["--executor", "ray", "--ray-address", ADDRESS, "--workers", "2"]
        # With more than one process that trains, weights differ in their last bits from those
        # without Ray.
        options = [*ray, "--train-workers", "1"] if executor == "ray" else []
        with self._log.open("ab") as log:
            command = [*NAS, *words, "--quiet", *options]
            return self._hosts.start(HEAD, command, self._cluster.environment, log)

    def _strike(self, process: subprocess.Popen[bytes]) -> None:
        if self.blow.target == "search":
            self.hit(HEAD)
            os.kill(leaf(process.pid), signal.SIGKILL)
            return
        there = [one for one in read_workers(self.run) if one.pid and one.doing != "ended"]
        working = [one for one in there if one.doing != "idle"] or there
        host = working[0].host if working else self.blow.host
        if self.blow.target == "cut":
            self.hit(host)
            self._hosts.cut(host)
            self._away = host
        elif self.blow.target == "slow":
            self.hit(host)
            self._hosts.slow(host, *SLOW)
        elif self.blow.target == "raylet":
            self.hit(host)
            self._hosts.run(host, ["sh", "-c", "kill -KILL $(pgrep -x raylet)"])
        elif working:
            self.hit(host)
            killed = self._hosts.run(host, ["kill", "-KILL", str(working[0].pid)], check=False)
            self.at = None if killed.returncode else self.at  # it had just ended by itself


def mend(hosts: Hosts, host: str) -> None:
    """Give a host its network as it was."""
    hosts.slow(host, "0ms")
    hosts.join(host)


def noticed_s(run: Path, since: float) -> float | None:
    """Seconds from a moment until a run told of a loss; None if it did not."""
    told = [one["time"] for one in events_of(run) if LOST.search(str(one.get("message")))]
    for log in run.glob("workers/*.log"):
        for line in log.read_text("utf-8").splitlines():
            stamp, _, words = line.partition(" ")
            if LOST.search(words):
                told.append(datetime.fromisoformat(stamp).timestamp())
    after = [one - since for one in told if one >= since]
    return round(min(after), 1) if after else None


class ServiceJob(Attempt):
    """The same search as a job of a service, whose worker loses the database."""

    def go(self, crew: Crew, body: dict[str, Any], host_of: Callable[[Path], str | None]) -> None:
        """Run it.

        Args:
            crew: the service.
            body: the request.
            host_of: the host that wrote a file last.

        Raises:
            ExecutorError: when it fails or hangs.
        """
        api = crew.service.api()
        job = api.surely("POST", "/jobs", body)
        self.run = crew.service.home / "runs" / job["run"]

        def now() -> dict[str, Any]:
            found: dict[str, Any] = api.surely("GET", f"/jobs/{job['id']}")
            return found

        def ended() -> bool:
            return now()["state"] not in ("queued", "running")

        self.wait_for_the_moment(ended)
        host = host_of(self.run / EVENTS_FILE)
        if host is None:
            raise ExecutorError("nobody knows which host works on the job")
        if not ended():
            attempt = now()["attempt"]
            self.hit(host)
            if self.blow.target == "database":
                crew.hosts.cut(host)
            else:
                crew.hosts.slow(host, *SLOW)
            try:
                began = time.monotonic()
                moved = self.wait(
                    lambda: ended() or now()["attempt"] != attempt or now()["state"] == "queued",
                    self.blow.cut_s,
                )
                if moved and not ended():
                    self.noticed_s = round(time.monotonic() - began, 1)
                self.wait(lambda: False, max(0.0, self.blow.cut_s - (time.monotonic() - began)))
            finally:
                mend(crew.hosts, host)
        self.wait(ended)
        if now()["state"] != "succeeded":
            raise ExecutorError(f"the job has {now()['state']}: {now()['error']}")
        _, text = api.ask("GET", f"/jobs/{job['id']}/events")
        # The last line only says that there are no more.
        told = [json.loads(line) for line in re.findall(rb"(?m)^data: (.*)$", text)][:-1]
        self.successes = sum(one.get("state") == "succeeded" for one in told)


class Crew:
    """A service on this machine with a worker on each of two hosts, and PostgreSQL behind it.

    Args:
        hosts: they reach the database through the switch.
        database: URL of a server that this machine reaches; a database is made on it.

    Attributes:
        hosts: the same.
        service: what clients ask.
    """

    def __init__(self, hosts: Hosts, database: str) -> None:
        self.hosts, self._server = hosts, database
        self._name = f"nas_hosts_{uuid.uuid4().hex[:12]}"
        self._ends = ExitStack()
        try:
            self._begin(hosts.shared / "postgres")
        except BaseException:
            self.close()
            raise

    def _begin(self, socket: Path) -> None:
        hosts, server = self.hosts, urlsplit(self._server)
        self._sql(f"CREATE DATABASE {self._name}")
        self._ends.callback(self._sql, f"DROP DATABASE {self._name} WITH (FORCE)")
        there = f"TCP:{server.hostname}:{server.port or 5432}"
        here = f"TCP-LISTEN:5432,bind={SWITCH_ADDRESS},reuseaddr,fork"
        for process in (
            subprocess.Popen(["socat", f"UNIX-LISTEN:{socket},fork", there]),
            hosts.start(SWITCH, ["socat", here, f"UNIX-CONNECT:{socket}"]),
        ):
            self._ends.callback(process.wait)
            self._ends.callback(process.kill)
        user = server.netloc.rpartition("@")[0]
        scheme = "postgresql+psycopg"
        url = f"{scheme}://{server.netloc}/{self._name}"
        through = f"{scheme}://{user}@{SWITCH_ADDRESS}:5432/{self._name}"
        home = hosts.shared / "service" / "home"
        home.parent.mkdir()
        self.service = Service(home, NAS_DATABASE_URL=url)
        self._ends.callback(end, self.service.serve(workers=0))
        self.service.wait_until_ready()
        settings = {"NAS_HOME": str(home), "NAS_DATABASE_URL": through}
        for host in OTHERS:
            hosts.start(host, [*NAS, "worker"], environment(**settings))

    def close(self) -> None:
        """End it, and drop the database."""
        self._ends.close()

    def _sql(self, command: str) -> None:
        words = ["psql", "--quiet", self._server, "--command", command]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def as_body(request: Sequence[str], seed: int) -> dict[str, Any]:
    """A request of the command line as the service takes it."""
    body: dict[str, Any] = {"seed": seed, "settings": {}}
    for option, value in zip(request[::2], request[1::2], strict=True):
        name = option.removeprefix("--")
        if name == "set":
            key, _, number = value.partition("=")
            body["settings"][key] = number
        else:
            body[name] = value.split(",") if name == "objectives" else value
    return body


# -- all of them ----------------------------------------------------------------------------------


class Ground:
    """Hosts, their cluster, a service if there is a database, and who writes to the shared folder.

    Args:
        folder: for all of it.
        options: of the study.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self._options = options
        self._ends = ExitStack()
        try:
            self.hosts = self._ends.enter_context(hosts(folder, 3))
            self._watch = self._ends.enter_context(Watch(self.hosts.shared))
            self._nets = {self._net(name): name for name in self.hosts.addresses}
            self.cluster = RayHosts(self.hosts, head_cpus=0)
            self._crew: Crew | None = None
            if options.database:
                self._crew = Crew(self.hosts, options.database)
                self._ends.callback(self._crew.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End everything."""
        self._ends.close()

    def _net(self, host: str) -> int:
        words = ["stat", "--dereference", "--format=%i", "/proc/self/ns/net"]
        return int(self.hosts.run(host, words).stdout)

    def _wrote_last(self, file: Path) -> str | None:
        name = str(file.relative_to(self.hosts.shared))
        for one in reversed(self._watch.writes):
            if one.file == name and one.net in self._nets:
                return self._nets[one.net]
        return None

    def outcome(self, number: int, blow: Blow, wanted: Any) -> Outcome:
        """Have a run, and see what came of it."""
        seed, limit_s = self._options.seed, self._options.limit
        attempt = (ServiceJob if blow.target in JOBS else Search)(
            blow, self.hosts.shared / f"run-{number}", limit_s
        )
        began, error = time.perf_counter(), None
        try:
            if isinstance(attempt, ServiceJob):
                assert self._crew is not None
                attempt.go(self._crew, as_body(REQUEST, seed), self._wrote_last)
            elif isinstance(attempt, Search):
                attempt.go(self.cluster, seed)
        except (ExecutorError, RuntimeError) as failure:
            error = str(failure)
        seconds = round(time.perf_counter() - began, 1)
        return Outcome(
            number,
            blow,
            attempt.host,
            attempt.stage,
            attempt.noticed_s,
            sorted({*attempt.back, *self._mended()}),
            evaluations(attempt.run)[1],
            repeated(attempt.run) + attempt.successes - 1,
            self._late(attempt),
            error is None and result_of(attempt.run) == wanted,
            seconds,
            error,
        )

    def _late(self, attempt: Attempt) -> list[str]:
        """Files that something wrote which the run had given up; see `late_writes`."""
        at, target = attempt.at, attempt.blow.target
        if at is None:
            return []
        run = f"{attempt.run.relative_to(self.hosts.shared)}/"
        writes = [one for one in self._watch.writes if one.file.startswith(run)]

        def given_up(one: Write) -> bool:
            if target == "search":
                return one.born is not None and one.born < at
            lost = attempt.noticed_s is not None and target not in ("worker", "slow")
            return lost and one.net is not None and self._nets.get(one.net) == attempt.host

        return late_writes(writes, at, given_up)

    def _mended(self) -> list[str]:
        """The hosts that no longer belonged to the cluster, and do so again."""
        look = ["pgrep", "-x", "raylet"]
        left = [one for one in OTHERS if self.hosts.run(one, look, check=False).returncode]
        for host in left:
            self.cluster.stop(host, "--force")
            self.cluster.start(host)
        return left


def repeated(run: Path) -> int:
    """Networks that stand in the journal of a stage more than once."""
    measured = [
        (event["stage"], event["architecture_id"])
        for event in events_of(run)
        if event["event"] == "ArchitectureMeasured"
    ]
    return len(measured) - len(set(measured))


@contextmanager
def ground(options: Options) -> Iterator[Callable[[bool], Ground]]:
    """Gives the ground; a new one for True, since a run that hung may have left anything."""
    with tempfile.TemporaryDirectory(prefix="nas-hosts-") as folder:
        made: list[Ground] = []

        def current(anew: bool) -> Ground:
            if anew and made:
                made.pop().close()
            if not made:
                made.append(Ground(Path(tempfile.mkdtemp(dir=folder)), options))
            return made[0]

        try:
            yield current
        finally:
            for one in made:
                one.close()


def measure(options: Options) -> list[dict[str, Any]]:
    """Run all and compare."""
    if (reason := missing()) is not None:
        raise UsageError(f"this study needs hosts: {reason}")
    lacking = [tool for tool in DATABASE_TOOLS if shutil.which(tool) is None]
    if options.database and lacking:
        raise UsageError(f"jobs of a service need {' and '.join(lacking)}: install them first")
    found: list[Outcome] = []
    with ground(options) as current, tempfile.TemporaryDirectory() as folder:
        calm = Path(folder) / "calm"
        search = [*NAS, "search", *REQUEST, "--seed", str(options.seed), "--out", str(calm)]
        run_to_end([*search, "--quiet"], {**os.environ, **environment()})
        wanted, stages = result_of(calm), [str(one["stage"]) for one in events_of(calm)]
        rng = np.random.default_rng(options.seed)
        blows = plan(rng, options.times, stages, bool(options.database))
        hung = False
        for number, blow in enumerate(blows[options.first :], options.first + 1):
            for _ in range(TRIES):
                one = current(hung).outcome(number, blow, wanted)
                hung = one.error is not None
                note(" | ".join(row(one)))
                if one.error:
                    note(one.error)
                if one.hit or one.error:
                    break
                blow = replace(blow, event=(blow.event + 1) // 2)  # half as late
            found.append(one)
    return [asdict(one) for one in found]


HEADS = ("run", "what", "stage", "for s", "noticed after s", "left", "redone", "results", "s")


def row(one: Outcome) -> tuple[str, ...]:
    """A line of the table."""
    blow = one.blow
    what = f"{blow.target} {one.host}" if one.hit else "nothing left to hit"
    if one.hit and blow.target == "search":
        what = f"search, resumed by {blow.resumed_by}"
    result = "equal" if one.equal else "DIFFERENT"
    wrong = [*(["ended badly"] if one.error else []), *(["late writes"] if one.late else [])]
    wrong += ["repeated"] if one.repeated else []
    return (
        str(one.number),
        what,
        one.stage,
        f"{blow.cut_s:g}" if blow.target in LINKS else "-",
        "-" if one.noticed_s is None else f"{one.noticed_s:g}",
        ", ".join(one.left) or "-",
        str(one.redone),
        ", ".join([result, *wrong]),
        f"{one.seconds:.0f}",
    )


def outcome_of(numbers: dict[str, Any]) -> Outcome:
    """An outcome as it was kept."""
    return Outcome(**(numbers | {"blow": Blow(**numbers["blow"])}))


def show(found: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """A line for each run, and how many met all marks."""
    outcomes = [outcome_of(one) for one in found]
    yield table_of("Runs on three hosts", HEADS, map(row, outcomes))
    yield f"{len(outcomes)} runs; all marks met: {sum(one.good for one in outcomes)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="begin with this one of the plan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=420.0, metavar="SECONDS")
    parser.add_argument("--database", metavar="URL", help="a PostgreSQL server, for jobs as well")
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON")


STUDY = Study(
    "host_chaos",
    "Does a search on several hosts end in the same front, whoever is cut off or killed?",
    add_options,
    measure,
    show,
    lambda found: all(outcome_of(one).good for one in found),
    lambda options: options.out,
    example="--times 20 --seed 0 --database postgresql://postgres@127.0.0.1:5432/postgres",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

"""A service under siege: its processes, its ordinary clients, and what attackers know of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.service_process import Service, end
from experiments.siege.clients import HEALTH, PATIENCE_S, READS, SUBMIT, Seen
from experiments.siege.job import FRONT
from experiments.siege.probes import Database, Watch, command_of, descendants, megabytes, parents
from experiments.siege.wire import ATTACKER, Answer, ask
from search_spaces.files import whole_lines

ORDINARY, MALLORY, GLUTTON = "ordinary", "mallory", "glutton"
PEEPER, ADMIN = "peeper", "load"
ROLES = {ORDINARY: "submitter", MALLORY: "submitter", GLUTTON: "submitter", PEEPER: "reader"}
REQUEST = {"space": "digits", "preset": "smoke", "objectives": ["quality", "flops"]}
# So that an attack that eats memory ends the service, and not the machine.
MEMORY_BYTES = 2_500_000_000
FILES = 400
PAUSE_S = 0.4  # of an ordinary client between two requests
LIVES_AGAIN_S = 15.0
MOST_KEPT_MB = 600.0  # by the API, when an attack is over


@dataclass(frozen=True)
class Camp:
    """A kind of service that is attacked.

    Attributes:
        environment: its settings, beside those that it has by itself.
        workers: processes of `nas worker` beside the API.
        submits: whether an ordinary client submits jobs.
        disk_mb: size of the disk that its home is on; that of the temporary folder for None.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    workers: int = 2
    submits: bool = True
    disk_mb: int | None = None


class Target:
    """What attackers know: where the service is, and their tokens.

    Args:
        port: of the service on this machine.
        home: its folder, which only some attacks look into.
        tokens: owner → secret.
        patience_s: how long an attack waits for something.
    """

    def __init__(self, port: int, home: Path, tokens: Mapping[str, str], patience_s: float) -> None:
        self.port = port
        self.home = home
        self.tokens = dict(tokens)
        self.patience_s = patience_s

    def ask(
        self,
        owner: str | None,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        source: str = ATTACKER,
    ) -> Answer:
        """One request with the token of an owner; pages get it as their cookie too."""
        sent = {} if body is None else {"Content-Type": "application/json"}
        if owner is not None:
            sent["Authorization"] = f"Bearer {self.tokens[owner]}"
            sent |= {"Cookie": f"nas_session={self.tokens[owner]}"} if method == "GET" else {}
        sent |= dict(headers or {})
        wanted: dict[str, Any] = {"patience_s": self.patience_s, "source": source}
        return ask(self.port, method, path, body=body, headers=sent, **wanted)

    def post(
        self, owner: str, path: str, value: Any, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request to the API with JSON."""
        return self.ask(owner, "POST", f"/api/v1{path}", json.dumps(value).encode(), headers)

    def submit(self, owner: str, seed: int, **more: Any) -> Answer:
        """Submit a job that does what its seed says."""
        return self.post(owner, "/jobs", {**REQUEST, "seed": seed, **more})

    def submitted(self, owner: str, seed: int, **more: Any) -> str:
        """The id of a new job.

        Raises:
            RuntimeError: when it was refused.
        """
        answer = self.submit(owner, seed, **more)
        if answer.status != "201":
            raise RuntimeError(f"a job was refused: {answer.status} {answer.body[:200]!r}")
        return str(json.loads(answer.body)["id"])

    def job(self, identity: str) -> dict[str, Any]:
        """A job as an administrator sees it; empty when the service does not tell."""
        answer = self.ask(ADMIN, "GET", f"/api/v1/jobs/{identity}")
        found: dict[str, Any] = json.loads(answer.body) if answer.status == "200" else {}
        return found

    def until(self, holds: Callable[[], bool], within_s: float | None = None) -> bool:
        """Wait for something; whether it came about in time."""
        deadline = time.monotonic() + (within_s or self.patience_s)
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def reaches(self, identity: str, *states: str, within_s: float | None = None) -> bool:
        """Wait for a job to be in one of some states; whether it came there in time."""
        return self.until(lambda: self.job(identity).get("state") in states, within_s)


class Ground(Target):
    """A service that runs, with its ordinary clients.

    Args:
        folder: on whose disk its home is made; what the clients got is noted beside it.
        camp: what kind of service.
        database: makes its database, given its home.
        patience_s: how long an attack waits for something.
    """

    def __init__(
        self, folder: Path, camp: Camp, database: Callable[[Path], Database], patience_s: float
    ) -> None:
        self.camp = camp
        home = folder / "home"
        self.database = database(home)
        settings = {"NAS_REQUESTS_PER_MINUTE": "1200", "NAS_JOBS_PER_OWNER": "2"}
        settings |= {"NAS_MAX_LOSSES": "10", "NAS_RUNNER": "experiments.siege.job"}
        settings |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        settings |= {**self.database.environment, **camp.environment}
        limits = f'ulimit -v {MEMORY_BYTES // 1024} && ulimit -n {FILES} && exec "$@"'
        self.service = Service(home, ["sh", "-c", limits, "sh"], **settings)
        super().__init__(self.service.port, home, {ADMIN: self.service.token}, patience_s)
        with ThreadPoolExecutor(len(ROLES)) as pool:
            made = pool.map(lambda name: self.service.new_token(name, ROLES[name]), ROLES)
            self.tokens |= dict(zip(ROLES, made, strict=True))
        self.api = self.service.serve(workers=0)
        self.workers = [self.service.start("worker") for _ in range(camp.workers)]
        self.memory = Watch(lambda: [self.api.pid, *(worker.pid for worker in self.workers)])
        self._journal = folder.parent / "journal.jsonl"
        self._journal.touch()
        self._read = 0
        self._seen: list[Seen] = []
        self._clients: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Make the job that readers look at, and let the ordinary clients ask."""
        self.service.wait_until_ready()
        job = self.submitted(ORDINARY, FRONT)
        if not self.reaches(job, "succeeded", within_s=60.0):
            raise RuntimeError(f"the first job did not succeed: {self.job(job)}")
        for path in READS.values():  # what is imported at the first request is not timed
            self.ask(ORDINARY, "GET", path.format(job=job))
        given = {"port": self.port, "token": self.tokens[ORDINARY], "job": job}
        given |= {"submits": self.camp.submits, "pause_s": PAUSE_S, "journal": str(self._journal)}
        command = [sys.executable, "-m", "experiments.siege.clients"]
        self._clients = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert self._clients.stdin is not None
        self._clients.stdin.write(json.dumps(given) + "\n")
        self._clients.stdin.flush()
        began = time.monotonic()
        self.wait_for_clients(began)

    # -- ordinary clients -------------------------------------------------------------------------

    @property
    def clients(self) -> set[str]:
        """Names of the ordinary clients."""
        return {*READS, *([SUBMIT] if self.camp.submits else [])}

    def wait_for_clients(self, since: float) -> bool:
        """Wait until each client has an answer, or none, to what it asked after that moment."""

        def all_asked() -> bool:
            self._read_journal()
            return {one.client for one in self._seen if one.began >= since} >= self.clients

        return self.until(all_asked, 8 * PATIENCE_S)

    def seen(self, since: float, until: float) -> list[Seen]:
        """What ordinary clients got that asked, or still waited, between two moments."""
        self._read_journal()
        return [one for one in self._seen if one.began < until and one.began + one.seconds > since]

    def _read_journal(self) -> None:
        with self._journal.open("rb") as stream:
            stream.seek(self._read)
            data = stream.read()
        whole = whole_lines(data)
        self._read += len(whole)
        self._seen += [Seen(**json.loads(line)) for line in whole.splitlines()]

    # -- processes --------------------------------------------------------------------------------

    def worker_of(self, job: str) -> subprocess.Popen[bytes]:
        """The worker whose child works on a job.

        Raises:
            RuntimeError: when none does within time.
        """
        found: list[subprocess.Popen[bytes]] = []

        def look() -> bool:
            for child, parent in parents().items():
                found.extend(
                    w for w in self.workers if w.pid == parent and job in command_of(child)
                )
            return bool(found)

        if not self.until(look):
            raise RuntimeError(f"no worker has begun the job {job}")
        return found[0]

    def new_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        self.workers.append(self.service.start("worker"))
        return self.workers[-1]

    def healthy(self) -> bool:
        """Whether the API lives and says so within a second."""
        if self.api.poll() is not None:
            return False
        answer = ask(self.port, "GET", READS[HEALTH], patience_s=1.0, source="127.0.0.1")
        return answer.status == "200"

    def recover(self) -> list[str]:
        """Make the service fit for the next attack; what was wrong with it."""
        wrong = []
        code = self.api.poll()
        if code is not None:
            wrong.append(f"the API has ended by itself with {code}")
        elif not self.until(self.healthy, LIVES_AGAIN_S):
            wrong.append(f"the API did not answer again within {LIVES_AGAIN_S:g} s")
            self.api.kill()
        elif (kept := megabytes(descendants([self.api.pid]))) > MOST_KEPT_MB:
            wrong.append(f"the API keeps {kept:.0f} MB")
            self.api.kill()
        fallen = [w for w in self.workers if w.poll() is not None]
        wrong += [f"a worker has ended by itself with {worker.returncode}" for worker in fallen]
        self.workers = [w for w in self.workers if w not in fallen]
        for _ in range(self.camp.workers - len(self.workers)):
            self.new_worker()
        if wrong and not self.healthy():
            self.api.wait()
            self.api = self.service.serve(workers=0)
            self.service.wait_until_ready()
            self.wait_for_clients(time.monotonic())
        return wrong

    def close(self) -> None:
        """End everything."""
        self.memory.close()
        if self._clients is not None and self._clients.stdin is not None:
            self._clients.stdin.close()
            self._clients.wait(30)
        for process in (*self.workers, self.api):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            try:
                end(process)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# -- what an attack is, and what it comes to ----------------------------------------------------

USUAL = "usual"
# Ways to say no to a request that asks for too much, or that never ends.
REFUSALS = ("400", "408", "413", "422", "429", "431", "503", "closed")


@dataclass(frozen=True, slots=True)
class Finding:
    """What an attack came to.

    Attributes:
        told: what it was answered with, in a few words.
        problems: what is not as it should be.
    """

    told: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack; it ends by itself, after a bounded number of requests and a bounded time.

    Attributes:
        name: to ask for it by.
        what: what is done, in a sentence.
        run: does it.
        camp: name of the service that it is made on, one of `experiments.siege.camps.CAMPS`.
        reads_wait: whether it takes away what reads need, so that only the health is held to time
            and reads may be refused with 503.
        postgres: whether it is for PostgreSQL alone.
    """

    name: str
    what: str
    run: Callable[[Ground], Finding]
    camp: str = USUAL
    reads_wait: bool = False
    postgres: bool = False


def counted(answers: Iterable[str]) -> str:
    """How often there was which answer: ``422 ×6, closed ×1``."""
    return ", ".join(f"{answer} ×{n}" for answer, n in sorted(Counter(answers).items()))


def refused(answers: Iterable[str], allowed: Iterable[str] = REFUSALS) -> Finding:
    """An attack of which every request has to be refused in one of the ways allowed."""
    given = list(answers)
    bad = [answer for answer in given if answer not in set(allowed)]
    problems = (f"not refused: {counted(bad)}",) if bad else ()
    return Finding(f"{'answered' if bad else 'refused'} {counted(given)}", problems)


def survived(answers: Iterable[str], problems: Iterable[str] = ()) -> Finding:
    """An attack whose requests may be answered with anything but a fault of the service."""
    given = list(answers)
    faults = [a for a in given if a == "no answer" or (a.startswith("5") and a != "503")]
    wrong = [*problems, *([f"faults: {counted(faults)}"] if faults else [])]
    return Finding(f"survived {counted(given)}" if given else "survived", tuple(wrong))

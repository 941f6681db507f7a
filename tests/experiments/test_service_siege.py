"""The study of attacks: what it takes for harm, and a few harmless attacks against a service."""

from __future__ import annotations

import http.server
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import service_siege
from experiments.service_siege import (
    ATTACKS,
    CAMPS,
    STUDY,
    Verdict,
    besiege,
    line_of,
    summary,
    unanswered,
)
from experiments.siege.clients import READS, SUBMIT, Line, Seen, clients, submit
from experiments.siege.ground import (
    ADMIN,
    MALLORY,
    REFUSALS,
    ROLES,
    Attack,
    Finding,
    Target,
    refused,
    survived,
)
from experiments.siege.probes import Database, Watch, command_of, descendants, megabytes
from experiments.siege.wire import CLOSED, TAKEN, portions, pour
from service.auth import Role
from tests.support.service_cases import Server

HARMLESS = ("nested-json", "nul", "endless-body")
PATIENCE_S = 10.0


def target(server: Server) -> Target:
    """A service in this process as attackers know it."""
    roles = {**ROLES, ADMIN: "admin"}
    tokens = {name: server.token(name, Role(role)) for name, role in roles.items()}
    port = int(server.url.rpartition(":")[2])
    return Target(port, server.settings.home, tokens, PATIENCE_S)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_service_stands_harmless_attacks(name: str, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        found = ATTACKS[name].run(target(server))  # type: ignore[arg-type]
    assert found.problems == ()
    assert found.told


class Gullible(http.server.BaseHTTPRequestHandler):
    """Takes everything for good."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def gullible() -> Iterator[Target]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gullible) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            tokens = dict.fromkeys([*ROLES, ADMIN], "nas_x")
            yield Target(server.server_address[1], Path(), tokens, PATIENCE_S)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "name", ["nested-json", "separators", "huge-space", "origins", "false-names"]
)
def test_what_takes_everything_for_good_is_found_out(name: str) -> None:
    with gullible() as victim:
        assert ATTACKS[name].run(victim).problems  # type: ignore[arg-type]


def test_answers_are_refusals_or_faults() -> None:
    assert refused(["422", CLOSED, "431"]) == Finding("refused 422 ×1, 431 ×1, closed ×1")
    assert refused(["422", "200"]).problems == ("not refused: 200 ×1",)
    assert refused([TAKEN]).problems == ("not refused: all was taken ×1",)
    assert refused(["431"], ("422",)).problems
    assert survived(["200", "404", "503", "422"]).problems == ()
    assert survived(["200", "500", "no answer"]).problems == ("faults: 500 ×1, no answer ×1",)
    assert survived(["200"], ["too large"]).problems == ("too large",)
    assert "200" not in REFUSALS


def test_every_attack_has_a_name_a_sentence_and_a_service() -> None:
    assert len(ATTACKS) > 25
    for name, attack in ATTACKS.items():
        assert name == attack.name
        assert attack.what
        assert attack.camp in CAMPS


# -- the marks ------------------------------------------------------------------------------------

GOOD = [Seen(name, 1.0, 0.1, 200) for name in READS]


class Quiet:
    """A service as the judge sees it."""

    def __init__(self, seen: list[Seen], peak_mb: float = 300.0, **values: Any) -> None:
        self.memory = SimpleNamespace(begin=lambda: None, peak_mb=peak_mb)
        self.database = SimpleNamespace(name="SQLite", wrong=lambda: values.get("torn", []))
        self._values = values
        self._seen = seen

    def wait_for_clients(self, since: float) -> bool:
        return bool(self._values.get("answers", True))

    def seen(self, since: float, until: float) -> list[Seen]:
        return self._seen

    def recover(self) -> list[str]:
        return list(self._values.get("fallen", []))


def judged(ground: Quiet, run: Any = None, **values: Any) -> Verdict:
    attack = Attack("one", "an attack", run or (lambda _: Finding("survived")), **values)
    (verdict,) = besiege(ground, [attack])  # type: ignore[arg-type]
    return verdict


def test_an_attack_that_harms_nobody_meets_all_marks() -> None:
    found = judged(Quiet(GOOD))
    assert found.problems == ()
    assert (found.told, found.slowest_s, found.memory_mb) == ("survived", 0.1, 300.0)


@pytest.mark.parametrize(
    "ground",
    [
        Quiet([*GOOD, Seen("list", 1.0, 1.2, 200)]),
        Quiet([*GOOD, Seen("list", 1.0, 0.1, 500)]),
        Quiet([*GOOD, Seen("list", 1.0, 0.1, 0)]),
        Quiet([*GOOD, Seen(SUBMIT, 1.0, 0.1, 201, "1", "failed")]),
        Quiet([*GOOD, Seen(SUBMIT, 1.0, 0.1, 201, "1", None)]),
        Quiet(GOOD, peak_mb=1_001.0),
        Quiet(GOOD, answers=False),
        Quiet(GOOD, torn=["a job has lost an event"]),
        Quiet(GOOD, fallen=["a worker has ended by itself"]),
    ],
)
def test_each_mark_can_be_missed(ground: Quiet) -> None:
    assert len(judged(ground).problems) == 1


def test_an_attack_that_breaks_off_is_a_problem() -> None:
    def broken(_: Any) -> Finding:
        raise RuntimeError("the job is failed")

    assert judged(Quiet(GOOD), broken).problems == ("RuntimeError: the job is failed",)


def test_reads_may_wait_where_the_attack_takes_away_what_they_need() -> None:
    slow = [Seen("list", 1.0, 5.0, 503)]
    assert judged(Quiet(GOOD + slow), reads_wait=True).problems == ()
    assert judged(Quiet([*GOOD, Seen("health", 1.0, 5.0, 200)]), reads_wait=True).problems


def test_an_ordinary_client_may_be_told_503_and_nothing_else() -> None:
    assert unanswered([Seen("list", 0.0, 0.1, status) for status in (200, 204, 503)]) == []
    assert unanswered([Seen("list", 0.0, 0.1, 0)]) == ["list: no answer ×1"]
    assert unanswered([Seen("list", 0.0, 0.1, 429)] * 2) == ["list: status 429 ×2"]


def test_verdicts_are_told_in_lines() -> None:
    good = Verdict("one", "SQLite", "survived", 0.2, "list", 300.0, 1.0)
    bad = Verdict("two", "SQLite", "answered", 1.5, "job", 900.0, 1.0, ("job took 1.5 s",))
    left = Verdict("three", "SQLite", skipped="no rights")
    assert " ok " in line_of(good)
    assert line_of(bad).splitlines()[1].strip() == "! job took 1.5 s"
    assert line_of(left).endswith("left out: no rights")
    assert summary([good, bad, left]).startswith("1 of 2 attacks met all marks; slowest read 1.50")
    assert summary([left]) == "nothing was tried"


def test_attacks_that_were_not_made_are_no_success() -> None:
    good, bad = Verdict("one", "SQLite"), Verdict("two", "SQLite", problems=("job took 1.5 s",))
    left = Verdict("three", "SQLite", skipped="no rights")
    told = [[good, left], [good, bad], [left], []]
    found = [STUDY.met([asdict(verdict) for verdict in verdicts]) for verdicts in told]
    assert found == [True, False, False, False]


# -- what it looks with ---------------------------------------------------------------------------


def test_ordinary_clients_read_submit_and_note_what_they_got(tmp_path: Path) -> None:
    with Server(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        known = target(server)
        job = server.finished(server.client("ordinary"))
        asked: dict[str, Any] = {"port": known.port, "token": known.tokens["ordinary"]}
        *readers, submitter = clients(**asked, job=job, submits=True)
        seen = [reader.ask() for reader in readers]
        following = pool.submit(submitter.ask)
        while not following.done():
            server.work()
        stranger = Line(known.port, "nas_guess")
        turned_away = submit("key", stranger)
        for line in (stranger, submitter.line, *(reader.line for reader in readers)):
            line.close()
    assert [one.client for one in seen] == list(READS)
    assert {one.status for one in seen} == {200}
    ended = following.result()
    assert (ended.client, ended.status, ended.state) == (SUBMIT, 201, "succeeded")
    assert (turned_away.status, turned_away.job) == (401, None)


def test_a_client_notes_that_nobody_answers() -> None:
    with gullible() as victim:
        port = victim.port
    assert Line(port, "nas_x").ask("GET", "/") == (0, b"")
    assert victim.ask(MALLORY, "GET", "/").status == CLOSED


def test_bytes_that_are_never_answered_are_told_apart_from_a_refusal() -> None:
    with gullible() as victim:
        whole = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"]
        assert pour(victim.port, whole, PATIENCE_S) == "200"
        assert pour(victim.port, [b"GET / HTTP/1.1\r\nX: "], 0.2) == TAKEN
    assert pour(victim.port, whole, PATIENCE_S) == CLOSED
    assert sum(map(len, portions(b"x" * 1024, 1_000_000))) == pytest.approx(1_000_000, rel=0.1)


def test_a_database_that_lost_an_event_is_found_out(tmp_path: Path) -> None:
    database = Database(tmp_path)
    with Server(tmp_path) as server:
        job = server.finished(server.client())
        assert database.wrong() == []
        with database.session() as run:
            run(f"DELETE FROM events WHERE job = '{job}' AND seq = 2")
        assert database.wrong() == [f"the events of job {job} have gaps"]
    assert database.megabytes() > 0


def test_a_session_keeps_others_from_writing_and_lets_go(tmp_path: Path) -> None:
    database = Database(tmp_path)
    with Server(tmp_path):
        other = sqlite3.connect(tmp_path / "service.db", timeout=0, isolation_level=None)
        with database.locked(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")
        other.close()


def test_memory_is_that_of_all_processes_together() -> None:
    mine = os.getpid()
    assert mine in descendants([mine])
    assert os.getpid() in descendants([os.getppid()])
    assert 1.0 < megabytes([mine]) < 100_000.0
    assert megabytes([]) == 0.0
    assert "py" in command_of(mine)
    watch = Watch(lambda: [mine])
    watch.begin()
    assert watch.peak_mb >= 1.0
    watch.close()


@pytest.mark.slow
def test_the_command_besieges_a_service_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert service_siege.STUDY.main(["--only", "nested-json", "nul", "--seconds", "20"]) == 0
    assert "2 of 2 attacks met all marks" in capsys.readouterr().out

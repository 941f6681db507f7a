"""Spaces that requests bring along are checked by processes that may be lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from nas.request.spec import SpaceSource
from search_spaces import load_space
from search_spaces.loading import dump_space, parse_space
from service import children, helper
from service.api import space_reader
from service.api.catalog import Catalog
from service.api.problems import ProblemError
from service.api.schemas import JobRequest
from service.api.space_reader import SpaceReader, answer
from service.api.specs import read_search
from service.api.thread_pools import ThreadPool, ThreadPools
from service.auth import ANYBODY
from service.process_limits import mapped_bytes
from service.settings import Settings
from tests.support import service_api_cases
from tests.support.embedding_cases import SPACE as ENCODERS
from tests.support.service_cases import SMOKE, Server, problem

server, alice = service_api_cases.server, service_api_cases.alice

DIGITS = dump_space(load_space("digits"))
BOMB = '"="' + ".a" * 49_000 + " = 1\n"


PLACES = ("here", "at a helper")
_OF_HELPER: set[subprocess.Popen[bytes]] = set()


@pytest.fixture(scope="module", params=PLACES)
def helped(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether a helper begins the processes; it is one without a socket in the file system."""

    lifeline, held = os.pipe()

    def connected(home: Path) -> socket.socket:
        ours, theirs = socket.socketpair()
        given = theirs, _OF_HELPER, lifeline
        threading.Thread(target=helper._attend, args=given, daemon=True).start()
        return ours

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "connected", connected)
        patch.setattr(helper, "MODULES", (*children.MODULES, "attacked"))
        yield request.param == "at a helper"
    os.close(held)
    os.close(lifeline)


@pytest.fixture(scope="module")
def reader(helped: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpaceReader]:
    made = SpaceReader(Settings(home=tmp_path_factory.mktemp("home"), helper=helped))
    yield made
    made.close()


@pytest.fixture
def settings(helped: bool, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, helper=helped)


# -- as a client sees it --------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/spaces/check", "/jobs"])
def test_a_small_bomb_is_refused_at_once(
    server: Server, alice: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_reader, "_Process", None)  # none is needed for this
    assert "nested" in problem(alice.post(path, json={"space_toml": BOMB}), 422, "/space_toml")


def test_a_space_of_ones_own_is_checked_and_searched(alice: httpx.Client) -> None:
    shown = alice.post("/spaces/check", json={"space_toml": DIGITS}).json()
    assert shown == alice.get("/spaces/digits").json()
    smaller = {"space_toml": DIGITS, "restrict": {"encoder.num_layers": [1]}}
    assert int(alice.post("/spaces/check", json=smaller).json()["size"]) < int(shown["size"])
    job = alice.post("/jobs", json={"space_toml": DIGITS, "preset": "smoke"})
    assert (job.status_code, job.json()["space"], job.json()["dataset"]) == (201, *["digits"] * 2)


def test_its_mistakes_are_named_as_ever(alice: httpx.Client) -> None:
    for path in ("/spaces/check", "/jobs"):
        wrong = {"space_toml": DIGITS.replace("num_layers", "num_layer")}
        assert "num_layer" in problem(alice.post(path, json=wrong), 422, "/space_toml")
        less = {"space_toml": DIGITS, "restrict": {"encoder.num_layers": [99]}}
        problem(alice.post(path, json=less), 422, "/restrict")
    large = {"space_toml": DIGITS, "limits": {"params": 1}}
    assert "smallest it can reach" in problem(alice.post("/jobs", json=large), 422, "/limits")
    huge = {"space_toml": DIGITS.replace("num_layers = [", "num_layers = [900, ")}
    assert "more than 10^300" in problem(alice.post("/spaces/check", json=huge), 422)


def test_a_workload_that_no_network_takes_is_refused_with_the_request(alice: httpx.Client) -> None:
    asked = {"space_toml": DIGITS.replace("source = 16", 'source = "x"'), "preset": "smoke"}
    assert asked["space_toml"] != DIGITS
    said = problem(alice.post("/jobs", json=asked), 422, "/space_toml")
    assert "source must be an integer" in said
    for brought in (asked, {"space": "digits", "preset": "smoke"}):
        long = alice.post("/jobs", json={**brought, "workload": "source=9999"})
        assert "every image of the space digits has 16 patches" in problem(long, 422, "/workload")
        right = alice.post("/jobs", json={**brought, "workload": "source=16"})
        assert right.status_code == 201


def test_a_class_token_is_not_for_embeddings(alice: httpx.Client) -> None:
    """Runs of earlier versions may have one, so that spaces with it are still read."""
    toml = dump_space(ENCODERS).replace("class_token = false", "class_token = true")
    assert parse_space(toml, "encoders").model.class_token
    said = problem(alice.post("/jobs", json={"space_toml": toml, "preset": "smoke"}), 422)
    assert "leave class_token out, and write pooling = 'first'" in said


def test_when_too_many_ask_the_rest_are_told_to_come_again(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        state: Any = server._server.config.app.state  # type: ignore[union-attr]
        state.context = replace(
            state.context, thread_pools=ThreadPools(spaces=ThreadPool(1, 0, 0.0))
        )
        alice = server.client("alice")
        answer = alice.post("/spaces/check", json={"space_toml": DIGITS})
        assert "busy" in problem(answer, 503) and answer.headers["retry-after"] == "2"
        assert alice.post("/spaces/check", json={"space": "digits"}).status_code == 200
        assert alice.post("/jobs", json=SMOKE).status_code == 201


# -- processes ------------------------------------------------------------------------------------


def test_it_finds_what_is_found_here(reader: SpaceReader) -> None:
    given = JobRequest(space_toml=DIGITS, preset="smoke", seed=3)
    assert reader.search(given, ANYBODY) == read_search(given, Catalog(reader._settings))
    (process,) = reader._idle
    reader.check(SpaceSource(space_toml=DIGITS))
    assert reader._idle == [process]  # it is used again


def test_a_process_that_was_lost_is_replaced(reader: SpaceReader) -> None:
    reader.check(SpaceSource(space_toml=DIGITS))
    (process,) = reader._idle
    running = process.child.process or next(iter(_OF_HELPER))
    running.kill()  # whether or not its helper has seen it yet
    assert reader.check(SpaceSource(space_toml=DIGITS)).name == "digits"
    assert process not in reader._idle


# What would be text that takes long within all bounds: the process is told to take its time.
SLOW = {
    "time": "import service.api.space_reader as p\n"
    "def answer(*_):\n"
    "    while True: pass\n"
    "p.answer = answer\n"
    "p.CPU_S = 0\n"
    "p.main()",
    "memory": "import service.api.space_reader as p\n"
    "p.answer = lambda *_: {'found': bytearray(2**33)}\n"
    "p.main()",
    "a crash of a library": "import os, service.api.space_reader as p\n"
    "p.answer = lambda *_: os.abort()\n"
    "p.main()",
}


@pytest.fixture
def attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a program run in place of the process that reads."""

    def attacked(program: str) -> None:
        (tmp_path / "attacked.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(space_reader, "MODULE", "attacked")

    return attacked


@pytest.mark.parametrize("program", SLOW.values(), ids=SLOW)
def test_what_takes_too_much_costs_a_process_and_an_answer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, program: str, attack: Callable[[str], None]
) -> None:
    attack(program)
    attacked = SpaceReader(settings)
    with pytest.raises(ProblemError, match="took more than 2 s or 256 MB") as caught:
        attacked.check(SpaceSource(space_toml=DIGITS))
    assert (caught.value.status, caught.value.errors[0].field) == (422, "/space_toml")
    assert not attacked._idle
    monkeypatch.undo()
    assert attacked.check(SpaceSource(space_toml=DIGITS)).name == "digits"
    attacked.close()


def test_a_process_that_gives_no_answer_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, attack: Callable[[str], None]
) -> None:
    silent = "import signal, service.api.space_reader as p\np.answer = lambda *_: signal.pause()"
    attack(f"{silent}\np.main()")
    monkeypatch.setattr(space_reader, "WALL_S", 0.1)
    attacked = SpaceReader(settings)
    with pytest.raises(ProblemError, match="the machine is busy") as caught:
        attacked.check(SpaceSource(space_toml=DIGITS))
    assert (caught.value.status, caught.value.errors) == (503, [])
    assert caught.value.headers == {"Retry-After": "10"}
    assert not attacked._idle


ASKS: dict[str, Callable[[SpaceReader], object]] = {
    "checkpoints": lambda reader: reader.checkpoints(),
    "a search": lambda reader: reader.search(JobRequest(start="llama", data="texts"), ANYBODY),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_of_a_process_without_limits_nobody_is_at_fault(
    settings: Settings, ask: Callable[[SpaceReader], object], attack: Callable[[str], None]
) -> None:
    attack(SLOW["a crash of a library"])
    attacked = SpaceReader(settings)
    with pytest.raises(ProblemError, match="the machine is busy") as caught:
        ask(attacked)
    assert caught.value.status == 503 and not attacked._idle


def test_a_process_that_does_not_begin_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[str], None]
) -> None:
    attack("import signal\nsignal.pause()")
    monkeypatch.setattr(space_reader, "START_S", 0.0)
    started: list[Any] = []
    begin = subprocess.Popen

    def begun(*given: Any, **values: Any) -> Any:
        started.append(begin(*given, **values))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", begun)
    with pytest.raises(ProblemError, match="the machine is busy"):
        SpaceReader(Settings(home=tmp_path)).checkpoints()
    assert [one.poll() for one in started] == [-signal.SIGKILL]


def test_loading_libraries_takes_nothing_of_the_time_of_an_answer(
    reader: SpaceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.check(SpaceSource(space_toml=DIGITS))
    (process,) = reader._idle
    exchange, waits = process._exchange, []

    def noted(line: bytes, wait_s: float) -> bytes:
        waits.append(wait_s)
        return exchange(line, wait_s)

    monkeypatch.setattr(process, "_exchange", noted)
    reader.check(SpaceSource(space_toml=DIGITS))
    assert waits == [space_reader.START_S, space_reader.WALL_S]


def test_our_own_mistakes_are_not_the_spaces(
    settings: Settings, attack: Callable[[str], None]
) -> None:
    attack("import sys, service.api.space_reader as p\np.answer = lambda *_: sys.exit(1)\np.main()")
    with pytest.raises(space_reader.LostError, match="ended with 1"):
        SpaceReader(settings).check(SpaceSource(space_toml=DIGITS))


def test_one_that_is_lost_while_it_loads_libraries_is_nobodys_fault(
    settings: Settings, attack: Callable[[str], None]
) -> None:
    attack("import os, service.api.space_reader as p\np._loaded = lambda *_: os.abort()\np.main()")
    with pytest.raises(ProblemError, match="the machine is busy") as caught:
        SpaceReader(settings).check(SpaceSource(space_toml=DIGITS))
    assert caught.value.status == 503


def test_a_process_that_has_grown_is_not_used_again(
    reader: SpaceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.check(SpaceSource(space_toml=DIGITS))
    (process,) = reader._idle
    monkeypatch.setattr(process, "answer", lambda *_: {"problem": [422, "no", None], "spent": True})
    with pytest.raises(ProblemError, match="no"):
        reader.check(SpaceSource(space_toml=DIGITS))
    assert not reader._idle and process.child._socket.fileno() == -1  # it was ended


def test_an_answer_is_json_whatever_is_wrong(tmp_path: Path) -> None:
    catalog = Catalog(Settings(home=tmp_path))
    good = answer("space", {"space_toml": DIGITS}, catalog)
    assert good["found"]["name"] == "digits" and "problem" not in good
    status, detail, field = answer("space", {"space_toml": "x"}, catalog)["problem"]
    assert (status, field) == (422, "/space_toml") and "not TOML" in detail
    assert mapped_bytes() > 0

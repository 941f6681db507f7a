"""`nas helper` begins the processes of an API that does without their libraries."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from nas.request.spec import SpaceSource
from search_spaces.errors import NasError
from search_spaces.loading import dump_space, load_space
from service.api.problems import ProblemError
from service.api.space_reader import GO, SpaceReader
from service.children import (
    LONGEST_PLACE,
    SOCKET_FILE,
    Child,
    LostError,
    NoHelperError,
    socket_place,
)
from service.data_uploads import DataUploads
from service.settings import Settings
from tests.docker.test_health import stage
from tests.service.test_data_uploads import LINES, begun, checked, ended, put
from tests.service.test_processes import ROOT, Service
from tests.support.service_cases import Server, problem

DIGITS = SpaceSource(space_toml=dump_space(load_space("digits")))
CODE = "from service.commands import helper; import typer; typer.run(helper)"
TOLD = "Helping at "


def command(home: Path, *options: str) -> list[str]:
    return [sys.executable, "-c", CODE, "--home", str(home), *options]


@contextmanager
def helping(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A helper that waits."""
    process = subprocess.Popen(command(home), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(TOLD)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait()
        process.stderr.close()
    assert code in (0, -signal.SIGKILL)


def children(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(number) for number in found.stdout.split()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def helper(home: Path) -> Iterator[subprocess.Popen[str]]:
    with helping(home) as process:
        yield process


def test_it_answers_what_the_api_asks(helper: subprocess.Popen[str], home: Path) -> None:
    reader, own = (SpaceReader(Settings(home=home, helper=helped)) for helped in (True, False))
    assert reader.check(DIGITS) == own.check(DIGITS)
    (process,) = reader._idle
    assert process.child.process is None and len(children(helper)) == 1
    reader.close()
    own.close()
    assert helper.poll() is None


def test_a_process_ends_with_its_connection(helper: subprocess.Popen[str], home: Path) -> None:
    child = Child(Settings(home=home, helper=True), "service.data_preparing")
    child.send(b"")  # no order: it ends with an error, of which the code is told
    with pytest.raises(LostError, match="ended with 1"):
        child.read(60.0)
    child.end()
    other = Child(Settings(home=home, helper=True), "service.api.space_reader")
    other.send(Settings(home=home).model_dump_json().encode())
    assert other.read(60.0) == b"ready"
    (number,) = children(helper)
    other.end()
    while number in children(helper):
        os.sched_yield()


def test_only_its_owner_may_ask_it(helper: subprocess.Popen[str], home: Path) -> None:
    assert (home / SOCKET_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", [b"os\n", b"x" * 1000, b"\xff\n", b""])
def test_other_modules_are_not_begun(
    helper: subprocess.Popen[str], home: Path, line: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(socket_place(home))
        one.sendall(line)
        one.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert one.recv(100) == b""
    assert not children(helper)


def test_its_health(helper: subprocess.Popen[str], home: Path, tmp_path: Path) -> None:
    there, nowhere = (
        subprocess.run(command(place, "--check"), capture_output=True, text=True)
        for place in (home, tmp_path)
    )
    assert (there.returncode, there.stdout) == (0, "a helper answers\n")
    assert nowhere.returncode != 0 and "NoHelperError" in nowhere.stderr


def test_one_is_enough(helper: subprocess.Popen[str], home: Path) -> None:
    second = subprocess.run(command(home), capture_output=True, text=True)
    assert second.returncode != 0 and "has a helper already" in second.stderr
    assert (home / SOCKET_FILE).exists()


def test_data_are_prepared_by_it(helper: subprocess.Popen[str], home: Path) -> None:
    with Server(home, helper=True) as server:
        alice = server.client("alice")
        place = begun(alice)
        put(alice, place, LINES)
        assert alice.post(f"{place}/finish").status_code == 202
        assert ended(alice, place) is None
        (found,) = alice.get("/data").json()["data"]
        assert (found["name"], found["task"]) == ("mails", "classification")


IMPORTED = {"pillow": "PIL", "protobuf": "google", "python-dateutil": "dateutil"}
# The packages that docker/Dockerfile takes out of the API's image cannot be imported.
HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
"""


def test_an_api_does_without_what_its_image_lacks(tmp_path: Path) -> None:
    removed = stage("build-api").partition("uninstall --yes ")[2].partition("\n\n")[0]
    names = {
        IMPORTED.get(word, word).replace("-", "_") for word in removed.replace("\\\n", " ").split()
    }
    assert {"torch", "pyarrow", "transformers"} <= names
    (tmp_path / "sitecustomize.py").write_text(HIDING.format(names=names))
    path, home = os.pathsep.join([str(tmp_path), str(ROOT)]), tmp_path / "home"
    with helping(home):
        served = Service(home, "--workers", "0", NAS_HELPER="1", PYTHONPATH=path)
        try:
            with Server(home) as own:
                alice = own.client("alice")
                job = own.finished(alice)
                network = alice.get(f"/jobs/{job}/front").json()["front"][0]["id"]
            assert served.client.get("/checkpoints").json() == []
            asked = {"space_toml": DIGITS.space_toml}
            assert served.client.post("/spaces/check", json=asked).json()["name"] == "digits"
            limits = {"params": 40_000, "latency_ms": 50}
            served.submit(space="digits", preset="smoke", limits=limits)
            served.submit(**asked, preset="smoke", workload="batch=2")
            for place in ("front", f"architectures/{network}", "report", "artifacts"):
                assert served.client.get(f"/jobs/{job}/{place}").status_code == 200, place
            for place in (f"/jobs/{job}", f"/jobs/{job}/networks?id={network}", "/new", "/data"):
                page = httpx.get(served.url + place, headers=served.headers)
                assert page.status_code == 200, place
        finally:
            served.kill(signal.SIGTERM)


def test_one_that_was_killed_is_followed_by_another(tmp_path: Path) -> None:
    reader = SpaceReader(Settings(home=tmp_path, helper=True))
    with helping(tmp_path) as first:
        reader.check(DIGITS)
        first.kill()
        first.wait()
    reader.close()
    with pytest.raises(ProblemError, match="helper of this service does not answer") as caught:
        reader.check(DIGITS)
    assert caught.value.status == 503 and caught.value.headers == {"Retry-After": "10"}
    with helping(tmp_path):
        assert reader.check(DIGITS).name == "digits"
        reader.close()
    assert not (tmp_path / SOCKET_FILE).exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_is_lost_within_an_answer_takes_its_processes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    reader, send = SpaceReader(Settings(home=tmp_path, helper=True)), Child.send
    gone = select.poll()
    with helping(tmp_path) as first:

        def lose(child: Child, line: bytes) -> None:
            if line == GO:
                first.send_signal(how)
                first.wait()
                gone.register(child._socket, select.POLLRDHUP)
                gone.poll()  # else its process might be quick enough to answer
            send(child, line)

        waits = Child(Settings(home=tmp_path, helper=True), "service.api.space_reader")
        waits.send(Settings(home=tmp_path).model_dump_json().encode())
        assert waits.read(60.0) == b"ready"
        monkeypatch.setattr(Child, "send", lose)
        with pytest.raises(ProblemError, match="helper of this service was lost") as caught:
            reader.check(DIGITS)
        assert caught.value.status == 503 and caught.value.headers == {"Retry-After": "10"}
        with pytest.raises(NoHelperError):
            waits.read(60.0)
        waits.end()
        assert first.stderr is not None and first.stderr.read() == ""  # also of its processes


def test_without_one_strangers_are_told_to_come_again(tmp_path: Path) -> None:
    with Server(tmp_path, helper=True) as server:
        alice = server.client("alice")
        asked = alice.post("/spaces/check", json={"space_toml": DIGITS.space_toml})
        assert "helper" in problem(asked, 503) and asked.headers["retry-after"] == "10"
        assert alice.get("/spaces/digits").status_code == 200
        place = begun(alice)
        put(alice, place, LINES)
        alice.post(f"{place}/finish")
        checked()
        (left,) = DataUploads(server.settings).on_their_way("alice")
        assert left.state == "failed" and "helper" in left.note
        task = {"task": "classification"}
        assert alice.post(f"{place}/finish", json=task).status_code == 202  # once there is one


def test_a_home_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    long = tmp_path / ("x" * LONGEST_PLACE)
    with pytest.raises(NasError, match="too long for a socket"):
        socket_place(long)
    with pytest.raises(NasError, match="too long for a socket"):
        Child(Settings(home=long, helper=True), "service.data_preparing")
    with pytest.raises(NoHelperError):
        Child(Settings(home=tmp_path, helper=True), "service.data_preparing")

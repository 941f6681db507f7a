"""`nas profile`: a real one of a tiny space, going on where it stopped, and bad requests."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from latency.acceptance import MOST_UNIT_SESSIONS, UNIT_SESSIONS, SessionTimes
from latency.machine import MachineState
from latency.timing import Timing
from latency.workload import KEYS, Workload
from nas.console.app import app
from nas.console.commands.profile import _objectives
from nas.profiling import profile_device as module
from nas.profiling.device_profile import DeviceProfile, read_device_profile
from nas.profiling.files import journal_path
from nas.profiling.profile_device import ROUNDS
from nas.profiling.timed_work import num_sessions
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from tests.support.pipeline_cases import TINY, edited
from tests.support.profile_cases import WORKLOAD, made_profile
from tests.support.timing_cases import Machine

pytestmark = pytest.mark.usefixtures("few_regressors")

OUT = Path("board.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, encoding="utf-8")
    return tmp_path


def profile(*arguments: str, out: Path = OUT) -> Result:
    given = ("--space", "./tiny.toml", "--threads", "1", "--out", str(out))
    return CliRunner().invoke(app, ["profile", *given, *arguments])


def test_the_help_names_all_that_may_be_said_of_a_workload() -> None:
    command: Any = typer.main.get_command(app)
    (workload,) = (one for one in command.commands["profile"].params if one.name == "workload")
    assert f": {', '.join(KEYS)}." in workload.help and "context" in KEYS


class Killed(BaseException):
    """The process ends here."""


class FakeDevice:
    """Times networks by their layers; may be killed in a session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timed: list[str] = []
        self.fatal = -1
        self._sessions = 0
        monkeypatch.setattr(module, "time_session", self)

    def __call__(
        self, space: Any, reference: Architecture, networks: Sequence[Architecture], *_: Any
    ) -> SessionTimes:
        if self._sessions == self.fatal:
            raise Killed
        self._sessions += 1
        self.timed += [network.id for network in networks]
        times = tuple(_time(network) for network in networks)
        return SessionTimes(_time(reference), 0.0, times, MachineState(1.0), 0.0)


def timer_sessions(sessions: int) -> int:
    """Sessions of the timer that so many of a profile take; the first one sets the unit."""
    return UNIT_SESSIONS + (sessions - 1) * num_sessions(ROUNDS)


def _time(network: Architecture) -> Timing:
    assert network.encoder is not None
    return Timing((1.0 + len(network.encoder.layers),) * 3)


def test_a_real_profile_is_written_whole() -> None:
    done = profile("--samples", "8", "--workload", "batch=2", "--name", "my board", "--json")
    assert done.exit_code == 0, done.output
    made = read_device_profile(OUT)
    assert made.name == "my board" and len(made.workloads[0].measured) == 8
    assert made.workloads[0].workload.batch == 2
    assert json.loads(done.stdout)["digest"] == made.digest
    assert not journal_path(OUT).exists()


def test_several_workloads_and_a_table_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDevice(monkeypatch)
    out = Path("my board.json")
    done = profile("--samples", "12", "--workload", "batch=1", "--workload", "batch=3", out=out)
    assert done.exit_code == 0, done.output
    assert [one.workload.batch for one in read_device_profile(out).workloads] == [1, 3]
    assert [done.stdout.count(word) for word in ("batch 1,", "batch 3,", "MAPE")] == [1, 1, 6]
    assert "12 of 12 networks timed" in done.stderr
    assert done.stdout.splitlines()[-1].endswith("--device-profile 'my board.json'")


def finished(fake: FakeDevice, out: Path) -> DeviceProfile:
    assert profile("--samples", "30", "--quiet", out=out).exit_code == 0
    return read_device_profile(out)


def test_a_killed_profile_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice(monkeypatch)
    whole = finished(fake, Path("whole.json"))
    broken = FakeDevice(monkeypatch)
    broken.fatal = timer_sessions(2)
    with pytest.raises(Killed):
        profile("--samples", "30")
    with journal_path(OUT).open("ab") as stream:
        stream.write(b'{"workload": 0, "sess')  # cut while it was written
    broken.fatal = -1
    assert finished(broken, OUT).digest == whole.digest
    assert broken.timed == fake.timed


@pytest.mark.parametrize("busy", [1, 2])
def test_a_killed_profile_goes_on_doubting_until_its_reference_is_sure(
    monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    machine, whole = Machine(monkeypatch), Path("whole.json")
    fatal = -1

    def slow(n: int) -> float:
        """In the first sessions of the profile one moment is faster than all others."""
        if n == fatal:
            machine.sessions.pop()
            raise Killed
        return 2.0 if n % MOST_UNIT_SESSIONS and n < busy * MOST_UNIT_SESSIONS else 1.0

    machine.slow = slow
    assert profile("--samples", "30", "--quiet", out=whole).exit_code == 0
    machine.sessions.clear()
    fatal = MOST_UNIT_SESSIONS
    with pytest.raises(Killed):
        profile("--samples", "30")
    fatal = -1
    done = profile("--samples", "30")
    assert done.exit_code == 0, done.output
    assert read_device_profile(OUT).digest == read_device_profile(whole).digest
    counts = [int(number) for number in re.findall(r"(\d+) of 30 networks timed", done.stderr)]
    assert counts[:3] == [15, 25, 30] and set(counts[3:]) == {30}  # those timed again count once


def test_the_journal_of_another_request_is_not_mixed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice(monkeypatch)
    fake.fatal = timer_sessions(2)
    with pytest.raises(Killed):
        profile("--samples", "30")
    fake.fatal = -1
    done = profile("--samples", "20")
    assert done.exit_code == 2
    assert "another request, which differs in samples (30 there, 20 here):" in done.stderr
    journal_path(OUT).write_text("{}\n")
    done = profile("--samples", "30")
    assert done.exit_code == 2 and "is damaged" in done.stderr
    journal_path(OUT).write_text('{"request": {}}\n{"workload": Infinity}\n')
    done = profile("--samples", "30")
    assert done.exit_code == 2 and "is damaged (cannot convert float infinity" in done.stderr


BAD = {
    "unknown key": (("--workload", "sauce=4"), "has no key 'sauce'; did you mean 'source'"),
    "too many": (("--samples", "9999999999999"), "times at most 4096 networks"),
    "threads": (("--threads", "100000"), "--threads 100000 is more than the"),
    "a page that is the profile": (("--report", "./board.json"), "would write the same file"),
    "a page that is the journal": (("--report", "board.json.journal"), "the same file"),
    "a page that is there": (("--report", "tiny.toml"), "--report tiny.toml is there already"),
    "a page that is a folder": (("--report", ""), "--report . is a folder"),
    "a page in no folder": (("--report", "no/page.html"), "there is no folder no; make it"),
    "too few": (("--samples", "7"), "--samples 7 is too few"),
    "twice": (("--workload", "batch=1", "--workload", "batch=1"), "given twice"),
    "generate": (("--workload", "target=3,mode=generate"), "its networks classify"),
    "patches": (("--workload", "source=99999"), "every image of the space tiny has 4 patches"),
    "target": (("--workload", "target=4"), "write nothing; leave out target"),
    "no number": (("--workload", "batch=x"), "must be a positive integer"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_are_one_sentence(what: str) -> None:
    arguments, message = BAD[what]
    done = profile(*arguments)
    assert done.exit_code == 2 and message in done.stderr and not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert [file.name for file in Path().iterdir()] == ["tiny.toml"]


def test_a_token_is_timed_behind_the_longest_text_as_in_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def stop(request: Any, out: Path) -> Any:
        asked.extend(request.workloads)
        raise UsageError("enough")

    monkeypatch.setattr(module, "profile_device", stop)
    given = ("--space", "lm-small", "--threads", "1", "--workload", "mode=decode")
    CliRunner().invoke(app, ["profile", *given, "--out", str(OUT)])
    assert asked == [Workload(1, 4095, mode="decode")]


def test_a_search_with_what_stands_behind_a_context_is_named_with_its_objectives() -> None:
    token = Workload(1, 64, mode="decode")
    assert _objectives(made_profile(token)) == " --objectives quality,decode_ms"
    assert _objectives(made_profile(token, WORKLOAD)) == ""


def test_a_space_of_too_few_networks_is_refused() -> None:
    few = edited(
        ("embed_dim = [4, 8]", "embed_dim = [4]"),
        ("num_layers = [1, 2]", "num_layers = [1]"),
        ('["softmax", "linear", "omni"]', '["softmax"]'),
    )
    Path("tiny.toml").write_text(few, encoding="utf-8")
    done = profile()
    assert done.exit_code == 2 and "--samples" not in done.stderr
    assert "the space tiny has only 4 networks, and a predictor needs at least 8" in done.stderr
    assert [file.name for file in Path().iterdir()] == ["tiny.toml"]


def test_lengths_over_the_space_are_refused() -> None:
    done = CliRunner().invoke(
        app,
        ["profile", "--space", "listops", "--workload", "source=4096", "--out", "x.json"],
    )
    assert done.exit_code == 2 and "max_length of the space listops is 512" in done.stderr


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (Path("no/such/board.json"), "there is no folder no/such"),
        (Path("."), "is a folder"),
        (Path("tiny.toml"), "is there already"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(out: Path, message: str) -> None:
    done = profile(out=out)
    assert done.exit_code == 2 and message in done.stderr

"""`--retime` forgets what was timed, and times it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from latency.timings import read_timings
from nas.console.app import app
from nas.profiling import profile_device
from nas.profiling.device_profile import read_device_profile, write_device_profile
from nas.profiling.files import journal_path
from nas.run.events import Event, Note
from nas.run.folder import RunFolder, checksum
from nas.stages.pipeline import run_search
from search_spaces.errors import UsageError
from tests.support.pipeline_cases import NUMBERS, TINY, finished, named, tiny, work
from tests.support.profile_cases import made_profile

pytestmark = pytest.mark.usefixtures("few_regressors")

TIMED = ("quality", "latency_ms")
KEPT = ["declare", "supernet"]
OUT = Path("board.json")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, encoding="utf-8")
    return tmp_path


def began(cache: Path) -> dict[str, float]:
    """Network → when the timing that the cache has of it began."""
    (file,) = [f for f in (cache / "profiles").glob("*.jsonl") if f.name.count(".") == 1]
    profile = read_timings(file)
    return {key: min(one.began for one in profile.readings(key)) for key in profile.entries}


def retime(folder: RunFolder) -> list[Event]:
    return list(run_search(folder, retime=True))


def test_a_finished_search_is_timed_anew_also_when_that_was_killed(
    tmp_path: Path, own_cache: Path
) -> None:
    folder = finished(tmp_path / "run", objectives=TIMED, limits={"latency_ms": 1e6})
    digest, weights = folder.spec.digest, checksum(folder.path / "supernet/last.pt")
    before, first = began(own_cache), (folder.path / "latency/profile.jsonl").read_text()
    events = retime(folder)
    assert named(events, "StageSkipped")[:2] == KEPT
    started = named(events, "StageStarted")
    # Where the new times let the same networks be observed, ranking them is not done again.
    assert started[:2] == ["latency", "observe"] and {"verify", "front"} <= set(started)
    after = began(own_cache)
    assert min(after.values()) > max(before.values())
    assert (folder.path / "latency/profile.jsonl").read_text() != first
    again = RunFolder.open(folder.path)
    assert (again.spec.digest, checksum(again.path / "supernet/last.pt")) == (digest, weights)
    notes = [event.message for event in events if isinstance(event, Note)]
    assert any("what was timed before is forgotten: everything is" in note for note in notes)
    assert "what was timed before is forgotten" in (folder.path / "events.jsonl").read_text()
    assert set(named(work(folder), "StageSkipped")) >= {"latency", "verify", "front"}
    steps = run_search(RunFolder.open(folder.path), retime=True)
    assert isinstance(next(steps), Note)
    steps.close()  # as one that is killed: it goes on without the option
    started = named(work(RunFolder.open(folder.path)), "StageStarted")
    assert "latency" in started and "verify" in started and "supernet" not in started
    assert min(began(own_cache).values()) > max(after.values())


def test_a_search_that_times_nothing_has_nothing_to_time_anew(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name latency_ms .*; this one has quality, flops"):
        retime(tiny(tmp_path / "run"))


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def search(*arguments: str) -> Result:
    settings = [f"--set={name}={value}" for name, value in NUMBERS.items()]
    given = ("--space", "./tiny.toml", "--out", "run", "--preset", "smoke", *settings)
    return nas("search", "--retrain=1", *given, *arguments)


def refused(done: Result, why: str) -> None:
    assert done.exit_code == 2, done.output
    assert why in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("here")
def test_a_search_and_its_resumption_take_the_option() -> None:
    done = search("--objectives", "quality,latency_ms", "--retime", "--json")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "forgotten" in lines[0]["message"]
    again = nas("resume", "run", "--retime", "--json")
    assert again.exit_code == 0, again.output
    told = [json.loads(line) for line in again.stdout.splitlines()]
    started = [line["stage"] for line in told if line["event"] == "StageStarted"]
    assert started[0] == "latency" and "supernet" not in started


@pytest.mark.usefixtures("here")
def test_what_cannot_be_timed_anew_is_told() -> None:
    refused(search("--objectives", "quality,flops", "--retime"), "name latency_ms")
    assert not Path("run").exists()
    write_device_profile(OUT, made_profile())
    elsewhere = search("--device-profile", str(OUT), "--retime")
    refused(elsewhere, "--retime cannot time on board")
    assert not Path("run").exists()
    assert search("--device-profile", str(OUT)).exit_code == 0
    refused(nas("resume", "run", "--retime"), "nas profile --retime")


def profile(*arguments: str) -> Result:
    given = ("--space", "./tiny.toml", "--threads", "1", "--out", str(OUT), "--samples", "8")
    return nas("profile", *given, *arguments)


def times() -> dict[str, Any]:
    (workload,) = read_device_profile(OUT).workloads
    return {one.architecture.id: one.latency.value for one in workload.measured}


@pytest.mark.usefixtures("here")
def test_a_finished_profile_is_timed_anew_but_for_another_request() -> None:
    assert profile().exit_code == 0
    first = times()
    assert "nothing was timed" in profile().stderr and times() == first
    journal_path(OUT).write_text("of a profile that was not finished")
    done = profile("--retime")
    assert done.exit_code == 0 and "nothing was timed" not in done.stderr, done.output
    assert times() != first and not journal_path(OUT).exists()
    content = OUT.read_bytes()
    refused(profile("--retime", "--seed", "1"), "a request which differs in seed")
    assert OUT.read_bytes() == content


class Stopped(BaseException):
    """The process ends here."""


@pytest.mark.usefixtures("here")
def test_the_journal_of_another_request_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Stopped

    monkeypatch.setattr(profile_device, "time_session", stop)
    journal = journal_path(OUT)
    with pytest.raises(Stopped):
        profile("--seed", "1")
    content = journal.read_bytes()
    refused(profile("--retime"), "another request, which differs in seed (1 there, 0 here)")
    assert journal.read_bytes() == content
    with journal.open("ab") as stream:
        stream.write(b"what was timed\n")
    with pytest.raises(Stopped):
        profile("--seed", "1", "--retime", "--samples", "9")
    (line,) = journal.read_text().splitlines()
    assert json.loads(line)["request"]["samples"] == 9

"""The files of `nas profile`: finished ones, other requests, other processes, other lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.profiling.device_profile import read_device_profile
from nas.profiling.files import claimed, journal_path, lock_path
from search_spaces.errors import DataError, UsageError
from tests.nas.console.commands.test_profile import (
    OUT,
    FakeDevice,
    Killed,
    here,
    profile,
    timer_sessions,
)

__all__ = ["here"]
pytestmark = pytest.mark.usefixtures("few_regressors")
PAGE = Path("board.html")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


@pytest.fixture
def made(fake: FakeDevice) -> bytes:
    """The text of a finished profile; nothing may be timed after it."""
    assert profile("--samples", "12", "--quiet").exit_code == 0
    assert sorted(file.name for file in Path().iterdir()) == [OUT.name, "tiny.toml"]
    fake.timed.clear()
    return OUT.read_bytes()


def test_the_page_of_a_finished_profile_is_written_later(made: bytes, fake: FakeDevice) -> None:
    done = profile("--samples", "12", "--report", str(PAGE))
    assert done.exit_code == 0 and "<title>" in PAGE.read_text("utf-8")
    assert "holds this profile already" in done.stderr and "cross-validated" in done.stdout
    assert OUT.read_bytes() == made and not fake.timed
    assert not lock_path(OUT).exists()


OTHERS = {
    "samples (12 there, 20 here)": ("--samples", "20"),
    "seed (0 there, 1 here)": ("--samples", "12", "--seed", "1"),
    "workloads:": ("--samples", "12", "--workload", "batch=1", "--workload", "batch=2"),
    "name": ("--samples", "12", "--name", "other"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_profile_of_another_request_is_refused(made: bytes, fake: FakeDevice, what: str) -> None:
    done = profile(*OTHERS[what], "--report", str(PAGE))
    assert done.exit_code == 2 and f"which differs in {what}" in done.stderr
    assert "--out board.json is there already" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert OUT.read_bytes() == made and not fake.timed and not PAGE.exists()


def test_a_small_space_is_finished_by_fewer(fake: FakeDevice) -> None:
    text = Path("tiny.toml").read_text("utf-8").replace("[1, 2]", "[1]")
    Path("tiny.toml").write_text(text, "utf-8")
    assert profile("--samples", "4096", "--quiet").exit_code == 0
    found = len(read_device_profile(OUT).workloads[0].measured)
    assert found < 100 and profile().exit_code == 0


def test_a_profile_that_another_process_makes_is_refused(fake: FakeDevice) -> None:
    with claimed(OUT):
        done = profile("--samples", "12")
    assert done.exit_code == 2 and "another nas profile is making board.json:" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not fake.timed
    assert not journal_path(OUT).exists() and not lock_path(OUT).exists()


def test_a_lock_is_let_go_when_a_profile_fails(fake: FakeDevice) -> None:
    fake.fatal = 1
    with pytest.raises(Killed):
        profile("--samples", "12")
    assert journal_path(OUT).exists() and not lock_path(OUT).exists()
    with claimed(OUT), pytest.raises(UsageError, match="another nas profile"), claimed(OUT):
        pass


def test_a_lock_that_cannot_be_made_is_told() -> None:
    with pytest.raises(DataError, match="choose another --out"), claimed(Path("tiny.toml") / OUT):
        pass


def stopped(fake: FakeDevice, samples: int, sessions: int) -> None:
    fake.fatal = timer_sessions(sessions)
    with pytest.raises(Killed):
        profile("--samples", str(samples))
    fake.fatal = -1


def test_more_samples_go_on_from_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FakeDevice(monkeypatch)
    assert profile("--samples", "30", "--quiet", out=Path("whole.json")).exit_code == 0
    broken = FakeDevice(monkeypatch)
    stopped(broken, 20, 1)
    stopped(broken, 30, 2)
    assert profile("--samples", "30", "--quiet").exit_code == 0
    assert broken.timed == whole.timed
    assert read_device_profile(OUT).digest == read_device_profile(Path("whole.json")).digest

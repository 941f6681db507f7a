"""A run's folder: made once, never taken from another, and nothing half written in it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nas.results.networks import choose_inherited
from nas.run.events import Note, Progress, StageFinished
from nas.run.folder import RunFolder, checksum
from nas.run.layout import PROTECTED_FILE
from search_spaces.errors import DamagedRunError, NasError, RunConflictError, UsageError
from tests.support.pipeline_cases import logged, spec_of, tiny, tree


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return tiny(tmp_path / "run")


# -- making and opening -------------------------------------------------------------------------


def test_made_and_opened(folder: RunFolder) -> None:
    assert RunFolder.open(folder.path).spec == folder.spec
    before = tree(folder.path)
    assert tiny(folder.path).spec == folder.spec
    assert tree(folder.path) == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"seed": 5}, "seed is 0 there and 5 here"),
        ({"pick": "best"}, "pick is 'knee' there"),
        ({"numbers": {"observations": "13"}}, "budget differs"),
    ],
)
def test_another_request_is_a_conflict(
    folder: RunFolder, values: dict[str, Any], words: str
) -> None:
    before = tree(folder.path)
    with pytest.raises(RunConflictError, match=words) as caught:
        tiny(folder.path, **values)
    assert "--out" in str(caught.value) and "nas resume" in str(caught.value)
    assert tree(folder.path) == before


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", ".spec.json.txt", "deep/notes.txt"])
def test_a_folder_of_other_files_is_left_alone(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(RunConflictError, match="is no run folder"):
        tiny(tmp_path / "run")
    assert tree(tmp_path / "run") == {name: b"mine"}


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunConflictError, match="is no run folder"):
        RunFolder.create(tmp_path / "run", spec_of(tmp_path / "x"))
    assert (tmp_path / "run").read_text() == "mine"


def test_a_folder_that_was_being_made_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".spec.json.4711.tmp").write_text("{")
    assert RunFolder.open(tiny(tmp_path / "run").path).spec.seed == 0


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_no_run_to_open(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is no run folder"):
        RunFolder.open(tmp_path / name)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '"spec"', "{}", '{"sha256": ""}'])
def test_a_request_that_is_none(folder: RunFolder, text: str) -> None:
    (folder.path / "spec.json").write_text(text)
    with pytest.raises(DamagedRunError, match=r"spec\.json is damaged"):
        RunFolder.open(folder.path)


# -- locking ------------------------------------------------------------------------------------


def test_one_process_at_a_time(folder: RunFolder) -> None:
    with (
        folder.locked(),
        pytest.raises(RunConflictError, match="another process is working on"),
        RunFolder.open(folder.path).locked(),
    ):
        pass
    with RunFolder.open(folder.path).locked():
        pass


def test_commands_in_messages_can_be_typed_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "my run; yes")
    typed = f"'{folder.path}'"
    with (
        folder.locked(),
        pytest.raises(RunConflictError, match=re.escape(f"nas show {typed}")),
        RunFolder.open(folder.path).locked(),
    ):
        pass
    (folder.path / PROTECTED_FILE).write_text("{")
    with pytest.raises(DamagedRunError, match=re.escape(f"nas resume {typed} --keep")):
        _ = folder.protected
    with pytest.raises(UsageError, match=re.escape(f"nas show {typed} lists")):
        choose_inherited(folder, None)


def test_the_lock_goes_with_an_error(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="broken"), folder.locked():
        raise ValueError("broken")
    with folder.locked():
        pass


# -- records ------------------------------------------------------------------------------------


def test_a_record_and_its_damage(folder: RunFolder) -> None:
    folder.write_json("a/b.json", {"x": 1})
    folder.finish("stage", "digest", ["a/b.json"], 1.23456)
    record = folder.record("stage")
    assert record is not None and record.seconds == 1.235
    assert record.outputs == {"a/b.json": checksum(folder.path / "a/b.json")}
    assert folder.damage(record) is None
    folder.write_json("a/b.json", {"x": 2})
    assert "b.json is damaged" in (folder.damage(record) or "")
    (folder.path / "a/b.json").unlink()
    assert "b.json is missing" in (folder.damage(record) or "")
    assert folder.record("other") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '{"stage": "stage"}',
        '{"stage": "other", "digest": "", "outputs": {}, "seconds": 1}',
        '{"stage": "stage", "digest": "", "outputs": [], "seconds": 1}',
        '{"stage": "stage", "digest": "", "outputs": {}, "seconds": 1, "more": 1}',
    ],
)
def test_a_record_that_is_none(folder: RunFolder, text: str) -> None:
    (folder.path / "stages").mkdir()
    (folder.path / "stages" / "stage.json").write_text(text)
    with pytest.raises(DamagedRunError, match=r"stages/stage\.json is damaged"):
        folder.record("stage")


def test_forgetting_takes_files_folders_and_the_record(folder: RunFolder) -> None:
    for name in ("one.json", "deep/two.json", "deep/three.json", "kept.json"):
        folder.write_json(name, {})
    folder.finish("stage", "digest", ["one.json"], 1.0)
    folder.forget("stage", ["one.json", "deep", "never/there"])
    assert set(tree(folder.path)) == {"spec.json", "kept.json"}


def test_what_a_stage_was_begun_with(folder: RunFolder) -> None:
    assert not folder.begun_otherwise("stage", "a")
    folder.begin("stage", "a")
    assert not folder.begun_otherwise("stage", "a") and folder.begun_otherwise("stage", "b")
    folder.begin("stage", "b")
    assert not folder.begun_otherwise("stage", "b")


# -- journals -----------------------------------------------------------------------------------


def test_a_journal_grows(folder: RunFolder) -> None:
    assert folder.read_journal("deep/j.jsonl") == []
    folder.append("deep/j.jsonl", [{"n": 1}, {"n": 2}])
    folder.append("deep/j.jsonl", [])
    folder.append("deep/j.jsonl", [{"n": "drei ✓"}])
    assert folder.read_journal("deep/j.jsonl") == [{"n": 1}, {"n": 2}, {"n": "drei ✓"}]


def test_a_cut_line_is_not_read_and_gone_with_the_next(folder: RunFolder) -> None:
    folder.append("j.jsonl", [{"n": 1}, {"n": 2}])
    file = folder.path / "j.jsonl"
    file.write_bytes(file.read_bytes()[:-3])
    before = file.read_bytes()
    assert folder.read_journal("j.jsonl") == [{"n": 1}]
    assert file.read_bytes() == before  # who only looks leaves it alone
    folder.append("j.jsonl", [{"n": 3}])
    assert file.read_bytes() == b'{"n": 1}\n{"n": 3}\n'


def test_every_cut_leaves_the_whole_lines(folder: RunFolder) -> None:
    lines = [{"n": n, "text": "x" * n} for n in range(4)]
    folder.append("j.jsonl", lines)
    whole = (folder.path / "j.jsonl").read_bytes()
    for size in range(len(whole) + 1):
        (folder.path / "j.jsonl").write_bytes(whole[:size])
        kept = folder.read_journal("j.jsonl")
        assert kept == lines[: whole[:size].count(b"\n")]
        folder.append("j.jsonl", [{"n": 9}])
        assert folder.read_journal("j.jsonl") == [*kept, {"n": 9}]


@pytest.mark.parametrize("bad", [b"{\n", b"\xff\n", b"\n", b"{}{}\n", b"nonsense\n"])
def test_a_broken_line_is_named(folder: RunFolder, bad: bytes) -> None:
    (folder.path / "j.jsonl").write_bytes(b'{"n": 1}\n' + bad + b'{"n": 2}\n')
    with pytest.raises(DamagedRunError, match=r"j\.jsonl, line 2"):
        folder.read_journal("j.jsonl")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1}])
def test_values_without_a_json_form_leave_no_trace(folder: RunFolder, value: object) -> None:
    folder.append("j.jsonl", [{"n": 1}])
    folder.write_json("f.json", 1)
    with pytest.raises((ValueError, TypeError)):
        folder.append("j.jsonl", [{"n": 2}, {"n": value}])
    with pytest.raises((ValueError, TypeError)):
        folder.write_json("f.json", value)
    assert folder.read_journal("j.jsonl") == [{"n": 1}] and folder.read_json("f.json") == 1


@pytest.mark.parametrize("text", [b"", b"{", b"\xff"])
def test_json_that_is_none_is_named(folder: RunFolder, text: bytes) -> None:
    (folder.path / "f.json").write_bytes(text)
    with pytest.raises(DamagedRunError, match=r"f\.json cannot be read.*nas resume"):
        folder.read_json("f.json")
    with pytest.raises(DamagedRunError, match=r"g\.json cannot be read"):
        folder.read_json("g.json")


def test_events_are_kept_behind_a_line_that_was_cut(folder: RunFolder) -> None:
    folder.log(Progress("stage", 1, 2, "ünïcode"))
    file = folder.path / "events.jsonl"
    file.write_bytes(file.read_bytes() + b'{"time": 3, "ev')
    folder.log(Note("stage", "after"))
    folder.log(Note("stage", "that"))
    assert [event.get("message") for event in logged(folder)] == ["ünïcode", "after", "that"]
    assert len(file.read_bytes().splitlines()) == 3


def test_events_are_read_with_their_times(folder: RunFolder) -> None:
    assert list(folder.events()) == []
    kept = [Progress("retrain-ab", 1, 2, "ünïcode"), StageFinished("retrain-abc", 2.5)]
    for event in kept:
        folder.log(event)
    assert [event for _, event in folder.events()] == kept
    assert [event for _, event in folder.events("retrain-ab")] == kept[:1]
    times = [told["time"] for told in logged(folder)]
    assert [told_at for told_at, _ in folder.events()] == times


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 3, "ev',
        "[1]",
        '{"event": "Note", "stage": "a", "message": "it has no time"}',
        '{"time": "noon", "event": "Note", "stage": "a", "message": "b"}',
        '{"time": 3, "event": "Eclipse", "stage": "a"}',
        '{"time": 3, "event": "StageFinished", "stage": "a"}',
    ],
)
def test_events_that_cannot_be_read_are_passed_over(folder: RunFolder, line: str) -> None:
    (folder.path / "events.jsonl").write_text(f"{line}\n")
    folder.log(Note("stage", "after"))
    assert [event for _, event in folder.events()] == [Note("stage", "after")]


# -- disks --------------------------------------------------------------------------------------


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_file(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_json("f.json", 1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        folder.write_json("f.json", 2)
    assert folder.read_json("f.json") == 1
    assert set(tree(folder.path)) == {"spec.json", "f.json"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_really_full_disk(small_disk: Path) -> None:
    folder = tiny(small_disk / "run")
    folder.write_json("f.json", "old")
    with pytest.raises(OSError, match="No space"):
        folder.write_json("f.json", "x" * 200_000)
    with pytest.raises(OSError, match="No space"):
        folder.append("j.jsonl", [{"n": n} for n in range(20_000)])
    assert folder.read_json("f.json") == "old"
    kept = folder.read_journal("j.jsonl")
    assert kept == [{"n": n} for n in range(len(kept))]


def test_a_disk_that_only_reads(small_disk: Path) -> None:
    folder = tiny(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises((OSError, NasError)), folder.locked():
        folder.write_json("f.json", 1)
    with pytest.raises(OSError, match="Read-only"):
        tiny(small_disk / "other")
    assert json.loads((folder.path / "spec.json").read_text())["seed"] == 0

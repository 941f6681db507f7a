"""Runs that meet other runs, other files, full disks and Ctrl-C, through the command."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nas.run.folder
from nas.console.app import app
from nas.run.folder import RunFolder
from search_spaces.errors import RunConflictError
from tests.support.pipeline_cases import (
    NUMBERS,
    ROOT,
    TINY,
    done_twice,
    finished,
    finished_once,
    kill,
    results,
    spec_of,
    step_to,
    tiny,
    tree,
    work,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


def search(space: Path, out: Path, *more: str, numbers: Mapping[str, str] = NUMBERS) -> list[str]:
    settings = [part for item in numbers.items() for part in ("--set", "=".join(item))]
    costs = ["--objectives", "quality,flops", "--preset", "smoke", "--pick", "knee", "--quiet"]
    costs.append("--no-baseline")  # as in `tiny`
    return ["search", "--space", str(space), "--out", str(out), *settings, *costs, *more]


def nas_(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stderr


def process(*arguments: str) -> subprocess.Popen[str]:
    code = "from nas.console.app import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pipesize=4096,  # it cannot tell much more than was read
        # A shell ignores it in what it runs in the background, and that is handed down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


# -- other runs, other files --------------------------------------------------------------------


def test_the_users_own_space_end_to_end(space: Path, whole: RunFolder, tmp_path: Path) -> None:
    assert nas_(*search(space, tmp_path / "run")) == (0, "")
    assert results(RunFolder.open(tmp_path / "run")) == results(whole)
    before = tree(tmp_path / "run")
    code, said = nas_(*search(space, tmp_path / "run", "--seed", "3"))
    assert code == 2 and "seed is 0 there and 3 here" in said and "--out" in said
    assert tree(tmp_path / "run") == before


def test_two_processes_at_once_of_which_one_is_killed(
    space: Path, whole: RunFolder, tmp_path: Path
) -> None:
    run = tiny(tmp_path / "run")
    first = step_to(run, "ArchitectureMeasured observe", 5)
    before = tree(tmp_path / "run")
    for command in (["resume", str(tmp_path / "run")], search(space, tmp_path / "run")):
        code, said = nas_(*command)
        assert code == 2 and "another process is working on" in said
    with pytest.raises(RunConflictError):
        work(RunFolder.open(tmp_path / "run"))
    assert tree(tmp_path / "run") == before
    kill(first)
    assert nas_("resume", str(tmp_path / "run"), "--quiet")[0] == 0
    assert results(run) == results(whole) and done_twice(run) == []


@pytest.mark.parametrize("limit", ["params=3", "flops=3", "latency_ms=1e-6"])
def test_a_refused_limit_leaves_no_folder(space: Path, tmp_path: Path, limit: str) -> None:
    code, said = nas_(*search(space, tmp_path / "run", "--limit", limit))
    assert code == 2 and "the smallest it can reach is" in said
    assert not (tmp_path / "run").exists()


# -- interruptions ------------------------------------------------------------------------------


def test_stopped_by_ctrl_c_and_resumed(space: Path, tmp_path: Path) -> None:
    # More than the pipe holds: it is still at it when the signal comes.
    many = {"observations": "60", "rounds.first": "56"}
    command = search(space, tmp_path / "run", "--json", numbers=NUMBERS | many)
    working = process(*(part for part in command if part != "--quiet"))
    assert working.stdout is not None
    next(line for line in working.stdout if '"ArchitectureMeasured"' in line)
    working.send_signal(signal.SIGINT)
    _, said = working.communicate()
    assert working.returncode == 130 and "Traceback" not in said and "nas resume" in said, said
    run = RunFolder.open(tmp_path / "run")
    assert nas_("resume", str(run.path), "--quiet")[0] == 0
    assert done_twice(run) == []
    assert results(run) == results(finished(tmp_path / "whole", numbers=many))


# -- disks --------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_again_and_again(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sync, left = tiny(tmp_path / "run"), os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    for writes in (1, 11, 32):
        left = writes
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            code, said = nas_("resume", str(run.path), "--quiet")
        assert code == 1 and "no space is left" in said and "nas resume" in said
        assert "Traceback" not in said and not (run.path / "crash.log").exists()
    assert nas_("resume", str(run.path), "--quiet")[0] == 0
    assert results(run) == results(whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds a third of a run."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_really_full_disk_that_grows(small_disk: Path, whole: RunFolder) -> None:
    run = tiny(small_disk / "run")
    code, said = nas_("resume", str(run.path), "--quiet")
    assert code == 1 and "no space is left" in said
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    assert nas_("resume", str(run.path), "--quiet")[0] == 0
    assert results(run) == results(whole)


def test_a_disk_that_only_reads(small_disk: Path, space: Path) -> None:
    run = tiny(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in (["resume", str(run.path)], search(space, small_disk / "new")):
        code, said = nas_(*command)
        assert code == 1 and "read-only file system" in said and "Traceback" not in said
        assert "should not have happened" not in said


def test_a_folder_nobody_may_write(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, _: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    spec_of(tmp_path / "run")
    monkeypatch.setattr(nas.run.folder, "write_atomically", refused)
    code, said = nas_(*search(space, tmp_path / "run"))
    assert code == 1 and "permission denied" in said and "Traceback" not in said

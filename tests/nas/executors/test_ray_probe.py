"""What a process on a host sees of folders, and that it can be sent where nothing of ours is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nas.executors import ray_probe
from nas.executors.ray_probe import Probe, data_sight, run_sight
from supernet.data.manifest import FILE_NAME
from tests.layering_rules import FLOORS, imports

MARKER, CONTENT = ".nas-check-1", "content"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the file of the command in it."""
    (tmp_path / MARKER).write_text(CONTENT)
    return tmp_path


def test_the_same_run_folder_is_left_as_it_was(run: Path) -> None:
    assert run_sight(run, MARKER, CONTENT) == "same"
    assert [file.name for file in run.iterdir()] == [MARKER]


def test_another_run_folder_is_not_written_to(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert run_sight(other, MARKER, CONTENT) == "another"
    assert run_sight(run, MARKER, "content of another command") == "another"
    assert run_sight(run / "nothing", MARKER, CONTENT) == "missing"
    assert run_sight(run / MARKER, MARKER, CONTENT) == "missing"
    assert not list(other.iterdir())


def test_a_run_folder_that_cannot_be_read_or_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)  # root may do everything
        assert run_sight(run, MARKER, CONTENT) == "not writable"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        assert run_sight(run, MARKER, CONTENT) == "unreadable"


def prepared(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.npy").write_bytes(b"1234")
    manifest = '{"files": {"train.npy": {"size": 4, "sha256": ""}}}'
    (folder / FILE_NAME).write_text(manifest)
    return folder


def test_prepared_data_are_known_by_their_manifest(tmp_path: Path) -> None:
    first = data_sight(prepared(tmp_path / "first"), FILE_NAME)
    assert first is not None and first["manifest"] and first["damaged"] is None
    assert first == data_sight(prepared(tmp_path / "second"), FILE_NAME)
    with (tmp_path / "second" / FILE_NAME).open("a") as file:
        file.write("\n")
    second = data_sight(tmp_path / "second", FILE_NAME)
    assert second is not None and second["manifest"] != first["manifest"]


def test_data_that_were_copied_in_part(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data")
    (folder / "train.npy").write_bytes(b"12")
    assert (data_sight(folder, FILE_NAME) or {})["damaged"] == "train.npy"
    (folder / "train.npy").unlink()
    assert (data_sight(folder, FILE_NAME) or {})["damaged"] == "train.npy"
    (folder / FILE_NAME).write_text('{"files": ')
    assert (data_sight(folder, FILE_NAME) or {})["damaged"] == FILE_NAME


def test_other_data_are_counted(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "names.txt").write_text("cats\n")
    (tmp_path / ".nfs0001").write_text("of a file that somebody removed while it was open")
    found = {"manifest": None, "damaged": None, "entries": 2, "size": 5}
    assert data_sight(tmp_path, FILE_NAME) == found
    assert data_sight(tmp_path / "names.txt", FILE_NAME) == found | {"entries": 1}
    assert data_sight(tmp_path / "gone", FILE_NAME) is None


def test_it_imports_nothing_of_ours() -> None:
    file = Path(ray_probe.__file__)
    found = {one.target.split(".")[0] for one in imports({ray_probe.__name__: file})}
    assert found >= {"json", "torch"} and not found & FLOORS.keys()


@pytest.mark.ray
def test_it_can_be_sent_where_nothing_of_ours_is(tmp_path: Path) -> None:
    from ray import cloudpickle

    order = {"run": None, "data": None, "manifest": FILE_NAME}
    cloudpickle.register_pickle_by_value(ray_probe)
    try:
        (tmp_path / "probe").write_bytes(cloudpickle.dumps(Probe(order)))
    finally:
        cloudpickle.unregister_pickle_by_value(ray_probe)
    code = (
        "import importlib.util, json, pickle, sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        "assert importlib.util.find_spec('nas') is None\n"
        "print(json.dumps(pickle.load(open('probe', 'rb')).facts()))"
    )
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=known | {"RAY_AUTH_MODE": "token"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["versions"]["package"] is None and facts["versions"]["torch"]
    assert facts["token"] and facts["run"] is None and facts["data"] is None

"""Files are there in full or not there at all."""

from __future__ import annotations

import errno
import os
import platform
from pathlib import Path

import pytest

from search_spaces.errors import UsageError
from search_spaces.files import building_folder, replacing, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_in_utf8_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "text.json"
    write_atomically(path, "τ = 0.9\n")
    assert path.read_bytes() == "τ = 0.9\n".encode()
    assert names(path.parent) == ["text.json"]


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    write_atomically(path, "a long first version")
    write_atomically(path, "second")
    assert path.read_text() == "second"


def test_the_name_changes_last(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old" and temporary != path
        assert temporary.parent == path.parent  # a rename must not cross file systems
    assert path.read_text() == "new"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_alone(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "text.json"
    path.write_text("old")
    with pytest.raises(failure), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise failure
    assert path.read_text() == "old"
    assert names(tmp_path) == ["text.json"]


def test_a_failure_of_a_first_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert names(tmp_path) == []


def test_writing_nothing_is_an_error_and_not_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"


def test_content_is_on_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, order = tmp_path / "text.json", list[str]()
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append("sync")
        sync(descriptor)

    def replaced(source: Path, target: Path) -> Path:
        order.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_atomically(path, "text")
    assert order[:2] == ["sync", "rename"]


def test_processes_of_two_hosts_have_temporary_files_of_their_own(tmp_path: Path) -> None:
    """Both may have the same number."""
    path = tmp_path / "text.json"
    with replacing(path) as mine:
        mine.write_text("mine")
        with replacing(path) as theirs:
            theirs.write_text("theirs")
        assert mine != theirs and path.read_text() == "theirs"
    assert path.read_text() == "mine" and names(tmp_path) == ["text.json"]


def refuse(path: Path, *_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_a_refused_file_is_called_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("write_text", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(OSError, match="text.json") as caught:
        write_atomically(tmp_path / "text.json", "new")
    assert caught.value.filename == str(tmp_path / "text.json")


@pytest.mark.parametrize("inside", ["", "weights/last.pt"])
def test_a_refused_folder_is_called_by_its_own_name(inside: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="made") as caught, building_folder(tmp_path / "made") as made:
        refuse(made / inside)
    assert caught.value.filename == str(tmp_path / "made" / inside)
    assert names(tmp_path) == []


@pytest.mark.parametrize("place", ["file/made", "file/above/made", "/proc/above/made"])
def test_where_no_folder_can_be_made_it_is_said(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match="no folder can be made at .*/made; name another"),
        building_folder(tmp_path / place),
    ):
        pass


def test_hosts_that_build_one_folder_do_not_clear_what_the_other_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes may have the same number."""
    path = tmp_path / "made"
    with building_folder(path) as mine:
        (mine / "whose").write_text("mine")
        with monkeypatch.context() as patch:
            patch.setattr(platform, "node", lambda: "other.host")
            with building_folder(path) as theirs:
                (theirs / "whose").write_text("theirs")
        assert (path / "whose").read_text() == "theirs"
    assert (path / "whose").read_text() == "mine" and names(tmp_path) == ["made"]


def test_a_folder_that_was_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with (
        pytest.raises(UsageError, match="made was made by another process meanwhile"),
        building_folder(path, replace=False),
    ):
        path.mkdir()
        (path / "whose").write_text("theirs")
    assert (path / "whose").read_text() == "theirs" and names(tmp_path) == ["made"]

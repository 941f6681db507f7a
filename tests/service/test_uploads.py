"""Files of checkpoints that come to a service, without HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from service import uploads as module
from service.auth import Role, Token
from service.settings import GIB, Settings
from service.uploads import LARGEST_SMALL, UnreadError, UploadError, Uploads, drop_unfinished

FILES = {"config.json": 2, "model.safetensors": 9}
ALICE, BOB = Token("1", "alice", Role.submitter, 0.0), Token("2", "bob", Role.submitter, 0.0)
ADMIN = Token("3", "root", Role.admin, 0.0)
LOCKS = ("/.lock", "/.finishing")


def place(home: Path, **values: float) -> Uploads:
    home.mkdir(exist_ok=True)
    return Uploads(Settings(home=home, **values))  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path) -> Uploads:
    return place(tmp_path / "home")


def read(folder: Path, size: int) -> tuple[str, str]:
    """A reader to whom everything is a llama."""
    assert size == sum(FILES.values()) and (folder / "config.json").read_bytes() == b"xx"
    return "llama", "language_modelling"


def send(made: Uploads, upload: str, name: str, data: bytes, owner: str = "alice") -> str:
    part = made.receive(owner, upload, name)
    try:
        part.write(data)
        return part.keep()
    finally:
        part.close()


def uploaded(made: Uploads, name: str = "tiny", owner: str = "alice") -> None:
    begun = made.begin(owner, name, FILES).id
    for file, size in FILES.items():
        send(made, begun, file, b"x" * size, owner)
    made.finish(owner, begun, read)


def names(made: Uploads, viewer: Token) -> list[str]:
    return [one.address for one in made.seen_by(viewer)]


def refused(act: Callable[[], object], status: int, words: str) -> None:
    with pytest.raises(UploadError) as caught:
        act()
    assert caught.value.status == status and words in str(caught.value), caught.value


def everything(home: Path) -> list[str]:
    """What is there besides whole checkpoints."""
    found = (path.relative_to(home).as_posix() for path in home.rglob("*"))
    return sorted(path for path in found if "/." in path and not path.endswith(LOCKS))


def test_a_checkpoint_is_there_when_all_of_it_is(made: Uploads, tmp_path: Path) -> None:
    begun = made.begin("alice", "tiny", FILES).id
    for file, size in FILES.items():
        refused(lambda: made.finish("alice", begun, read), 409, "have not come yet")
        assert names(made, ALICE) == []
        send(made, begun, file, b"x" * size)
    found = made.finish("alice", begun, read)
    assert (found.family, found.bytes, names(made, ALICE)) == ("llama", 11, ["alice/tiny"])
    assert made.find(ALICE, "tiny") == found == made.find(ADMIN, "alice/tiny")
    assert everything(tmp_path) == []


def test_one_that_is_not_read_on_a_busy_machine_stays_for_another_try(made: Uploads) -> None:
    def busy(folder: Path, size: int) -> tuple[str, str]:
        raise UnreadError("the machine is busy")

    begun = made.begin("alice", "tiny", FILES).id
    for file, size in FILES.items():
        send(made, begun, file, b"x" * size)
    refused(lambda: made.finish("alice", begun, busy), 503, "busy")
    assert names(made, ALICE) == []
    assert made.finish("alice", begun, read).bytes == 11


def test_one_that_cannot_be_read_leaves_nothing(made: Uploads, tmp_path: Path) -> None:
    def unreadable(folder: Path, size: int) -> tuple[str, str]:
        raise UploadError(422, "no")

    begun = made.begin("alice", "tiny", FILES).id
    for file, size in FILES.items():
        send(made, begun, file, b"x" * size)
    refused(lambda: made.finish("alice", begun, unreadable), 422, "no")
    refused(lambda: made.finish("alice", begun, read), 404, "there is no upload")
    assert everything(tmp_path) == [] and names(made, ADMIN) == []
    uploaded(made)  # its name is free


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "/etc/passwd",
        "a/../config.json",
        "1_Pooling/../config.json",
        "1_Pooling/config.json/x",
        "..\\config.json",
        ".hidden.safetensors",
        "upload.json",
        "config.json\n",
        "config.json\0",
        "",
        "pytorch_model.bin",
        "model.pt",
        "model.pkl",
        "model.safetensors.bin",
        "modeling_llama.py",
        "sub/model.safetensors",
        "m\u00f6del.safetensors",
        "1_Pooling/model.safetensors",
    ],
)
def test_nothing_but_a_checkpoints_files_is_taken(made: Uploads, tmp_path: Path, name: str) -> None:
    asked = {**FILES, name: 1}
    refused(lambda: made.begin("alice", "tiny", asked), 422, "is no file of a checkpoint")
    begun = made.begin("alice", "tiny", FILES).id
    refused(lambda: send(made, begun, name, b"x"), 404, "not among the files")
    assert {path.name for path in tmp_path.rglob("*")} <= {
        *("home", "uploads", "alice", ".lock", "upload.json", f".coming-{begun}")
    }


@pytest.mark.parametrize(
    "name",
    ["1_Pooling/config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "merges.txt"],
)
def test_all_files_of_a_checkpoint_are_taken(made: Uploads, name: str) -> None:
    begun = made.begin("alice", "tiny", {**FILES, name: 1}).id
    send(made, begun, name, b"x")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "a\0", "x" * 101, "\u00e4"])
def test_a_name_is_a_name(made: Uploads, name: str) -> None:
    refused(lambda: made.begin("alice", name, FILES), 422, "a checkpoint's name")


def test_bytes_are_those_that_were_announced(made: Uploads, tmp_path: Path) -> None:
    begun = made.begin("alice", "tiny", FILES).id
    refused(lambda: send(made, begun, "config.json", b"xxx"), 413, "more than the 2 bytes")
    refused(lambda: send(made, begun, "config.json", b"x"), 422, "1 bytes came of config.json")
    assert [path for path in everything(tmp_path) if "config" in path or ".part" in path] == []
    assert send(made, begun, "config.json", b"yy") != send(made, begun, "config.json", b"xx")


def test_files_have_bounds(tmp_path: Path) -> None:
    made = place(tmp_path, upload_file_gib=0.5)
    large = {**FILES, "model.safetensors": GIB // 2 + 1}
    refused(lambda: made.begin("alice", "tiny", large), 413, "such a file may have 536,870,912")
    made.begin("alice", "tiny", {**large, "model.safetensors": GIB // 2})
    text = {**FILES, "tokenizer.json": LARGEST_SMALL + 1}
    refused(lambda: made.begin("alice", "tiny", text), 413, "tokenizer.json has 67,108,865 bytes")
    negative = {**FILES, "config.json": -1}
    refused(lambda: made.begin("alice", "tiny", negative), 413, "config.json has -1 bytes")
    many = {f"model-{n}.safetensors": 1 for n in range(module.MOST_FILES)}
    refused(lambda: made.begin("alice", "tiny", {**FILES, **many}), 422, "too many")
    for lacking in FILES:
        rest = {name: size for name, size in FILES.items() if name != lacking}
        refused(lambda asked=rest: made.begin("a", "tiny", asked), 422, "has a config.json and")


def test_an_owner_has_a_quota_also_of_what_is_announced(tmp_path: Path) -> None:
    made = place(tmp_path, upload_gib_per_owner=25 / GIB)
    uploaded(made)
    begun = made.begin("alice", "second", FILES)
    refused(lambda: made.begin("alice", "third", FILES), 507, "take 11, uploads that are not")
    made.begin("bob", "third", FILES)
    made.drop("alice", begun.id)
    made.begin("alice", "third", FILES)


def test_the_disk_is_not_filled(made: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEFT_FREE", 2**80)
    refused(lambda: made.begin("alice", "tiny", FILES), 507, "no room")


def test_an_owner_has_so_many_and_no_more(made: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 1)
    begun = [made.begin("alice", f"n{n}", FILES).id for n in range(module.MOST_OPEN)]
    refused(lambda: made.begin("alice", "more", FILES), 429, "4 uploads of alice")
    made.drop("alice", begun[0])
    uploaded(made)
    refused(lambda: made.begin("alice", "more", FILES), 507, "which are the most: delete one")


def test_of_two_uploads_of_one_name_the_first_to_end_has_it(made: Uploads, tmp_path: Path) -> None:
    first, second = (made.begin("alice", "tiny", FILES).id for _ in range(2))
    for begun in (first, second):
        for file, size in FILES.items():
            send(made, begun, file, b"x" * size)
    kept = made.finish("alice", second, read)
    refused(lambda: made.finish("alice", first, read), 409, "a checkpoint named tiny already")
    refused(lambda: made.begin("alice", "tiny", FILES), 409, "a checkpoint named tiny already")
    assert made.seen_by(ALICE) == [kept] and everything(tmp_path) == []
    uploaded(made, owner="bob")  # who has names of his own


def test_who_has_lost_the_answer_may_finish_again(made: Uploads) -> None:
    begun = made.begin("alice", "tiny", FILES).id
    for file, size in FILES.items():
        send(made, begun, file, b"x" * size)
    kept = made.finish("alice", begun, read)
    assert made.finish("alice", begun, read) == kept == made.find(ALICE, "tiny")
    refused(lambda: made.finish("bob", begun, read), 404, "there is no upload")
    made.delete(kept)
    refused(lambda: made.finish("alice", begun, read), 404, "there is no upload")


def test_what_was_read_is_not_changed_any_more(
    made: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FINISH_S", 0.0)
    begun = made.begin("alice", "tiny", FILES).id
    for file, size in FILES.items():
        send(made, begun, file, b"x" * size)
    late = made.receive("alice", begun, "config.json")
    late.write(b"!!")

    def reading(folder: Path, size: int) -> tuple[str, str]:
        refused(late.keep, 404, "there is no upload")
        refused(lambda: send(made, begun, "config.json", b"!!"), 404, "there is no upload")
        refused(lambda: made.finish("alice", begun, read), 503, "try again")
        refused(lambda: made.drop("alice", begun), 404, "there is no upload")
        return read(folder, size)

    made.finish("alice", begun, reading)
    late.close()
    folder = tmp_path / "home" / "uploads" / "alice" / "tiny"
    assert {path.name for path in folder.iterdir()} == {*FILES, "upload.json"}
    assert (folder / "config.json").read_bytes() == b"xx"


def test_each_sees_his_own_and_administrators_all(made: Uploads) -> None:
    uploaded(made)
    uploaded(made, "other", "bob")
    assert (names(made, ALICE), names(made, BOB)) == (["alice/tiny"], ["bob/other"])
    assert names(made, ADMIN) == ["alice/tiny", "bob/other"]
    assert (
        made.find(BOB, "tiny") is made.find(BOB, "alice/tiny") is made.find(ADMIN, "tiny") is None
    )
    for name in (
        "../alice/tiny",
        "bob/../alice/tiny",
        "./tiny",
        ".",
        "..",
        "/tiny",
        "alice/..",
        "",
    ):
        assert made.find(BOB, name) is made.find(ADMIN, name) is None
    upload = made.begin("alice", "third", FILES).id
    refused(lambda: made.get("bob", upload), 404, "there is no upload")
    refused(lambda: send(made, upload, "config.json", b"xx", "bob"), 404, "there is no upload")
    refused(lambda: made.drop("root", upload), 404, "there is no upload")


def test_a_deleted_one_is_gone(made: Uploads, tmp_path: Path) -> None:
    uploaded(made)
    found = made.find(ALICE, "tiny")
    assert found is not None
    made.delete(found)
    made.delete(found)  # by somebody who was slower
    assert names(made, ADMIN) == [] and list((tmp_path / "home" / "trash").iterdir()) == []
    uploaded(made)


@pytest.mark.parametrize("began", [True, False])
def test_what_nobody_goes_on_with_is_deleted(made: Uploads, tmp_path: Path, began: bool) -> None:
    uploaded(made)
    left, going = (made.begin("alice", name, FILES).id for name in ("left", "going"))
    for upload in (left, going):
        send(made, upload, "config.json", b"xx")
    folder = tmp_path / "home" / "uploads" / "alice"
    _age(folder / f".coming-{left}", module.LONGEST_S + 1 if began else 0, module.IDLE_S + 1)
    (folder / f".coming-{left}").rename(folder / f".aside-{left}")  # killed while it was read
    drop_unfinished(tmp_path / "home" / "uploads")
    locks = {lock.removeprefix("/") for lock in LOCKS}
    assert {path.name for path in folder.iterdir()} == {*locks, "tiny", f".coming-{going}"}
    send(made, going, "model.safetensors", b"x" * 9)


def _age(folder: Path, began_s: float, changed_s: float) -> None:
    """Let an upload have begun, or been changed last, so long ago."""
    facts = json.loads((folder / "upload.json").read_text())
    (folder / "upload.json").write_text(json.dumps({**facts, "began": facts["began"] - began_s}))
    for path in (folder, *folder.iterdir()):
        moment = path.stat().st_mtime - (0 if began_s else changed_s)
        os.utime(path, (moment, moment))


def test_what_a_killed_process_left_is_no_checkpoint(made: Uploads, tmp_path: Path) -> None:
    uploaded(made)
    owner = tmp_path / "home" / "uploads" / "alice"
    (owner / ".coming-0123456789abcdef0123").mkdir()  # before it was announced
    (owner / "half").mkdir()
    (owner / "half" / "upload.json").write_text("{")
    (owner / "file").touch()
    assert names(made, ADMIN) == ["alice/tiny"]
    refused(lambda: made.get("alice", "0123456789abcdef0123"), 404, "there is no upload")

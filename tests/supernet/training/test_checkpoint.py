"""Checkpoints: whole or not at all, nothing in them runs, another training's are not taken up."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.errors import DamagedRunError
from supernet.training.checkpoint import CheckpointFolder, load, save

STATE: dict[str, Any] = {
    "epoch": 3,
    "losses": [0.5, 0.25],
    "model": {"weight": torch.arange(400.0).view(20, 20), "bias": torch.ones(20)},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    save(path, STATE)
    return path


def test_what_was_saved_is_read_back(checkpoint: Path) -> None:
    state = load(checkpoint)
    assert state["epoch"] == 3 and state["losses"] == [0.5, 0.25]
    assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])


def test_same_state_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "deeper" / "another-name.pt"
    save(other, STATE)
    assert other.read_bytes() == checkpoint.read_bytes()
    save(other, {**STATE, "epoch": 4})
    assert other.read_bytes() != checkpoint.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_cut_off_files_are_refused_by_name(checkpoint: Path, share: float) -> None:
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamagedRunError, match=r"last\.pt"):
        load(checkpoint)


def test_every_single_cut_is_refused(checkpoint: Path) -> None:
    whole = checkpoint.read_bytes()
    for size in range(0, len(whole), 61):
        checkpoint.write_bytes(whole[:size])
        with pytest.raises(DamagedRunError):
            load(checkpoint)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"not a checkpoint", b"PK\x03\x04", b"{}", bytes(range(256))],
    ids=["empty", "zeros", "text", "zip's first bytes", "json", "bytes"],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "best.pt"
    path.write_bytes(content)
    with pytest.raises(DamagedRunError, match=r"best\.pt"):
        load(path)


def test_one_changed_weight_is_noticed(checkpoint: Path) -> None:
    """Torch itself would load it."""
    whole = checkpoint.read_bytes()
    place = whole.index(STATE["model"]["weight"].numpy().tobytes()) + 402
    checkpoint.write_bytes(whole[:place] + b"\x07" + whole[place + 1 :])
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 3
    with pytest.raises(DamagedRunError, match=r"last\.pt is damaged"):
        load(checkpoint)


def test_damage_anywhere_is_refused_or_harmless(checkpoint: Path) -> None:
    """Zeroed stretches: an error of ours or the same state, never anything else."""
    whole, refused = checkpoint.read_bytes(), 0
    for start in range(0, len(whole) - 40, 97):
        checkpoint.write_bytes(whole[:start] + b"\0" * 40 + whole[start + 40 :])
        try:
            state = load(checkpoint)
        except DamagedRunError:
            refused += 1
        else:
            assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])
    assert refused > 10


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedRunError, match="best.pt"):
        load(tmp_path / "best.pt")


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedRunError):
        load(tmp_path)


class Intruder:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_code_in_a_checkpoint_does_not_run(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "intruded"
    torch.save({"model": Intruder(target)}, checkpoint)
    with pytest.raises(DamagedRunError, match=r"last\.pt"):
        load(checkpoint)
    checkpoint.write_bytes(pickle.dumps({"model": Intruder(target)}))
    with pytest.raises(DamagedRunError, match=r"last\.pt"):
        load(checkpoint)
    assert not target.exists()
    pickle.loads(pickle.dumps(Intruder(target)))  # and it would have run
    assert target.exists()


def test_something_else_than_a_dictionary_is_refused(checkpoint: Path) -> None:
    torch.save([1, 2], checkpoint)
    with pytest.raises(DamagedRunError, match="not a checkpoint"):
        load(checkpoint)


def test_a_folder_gives_back_its_own_training_only(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "supernet", "digest-a")
    assert folder.load_last() is None
    folder.save_last(STATE)
    state = folder.load_last()
    assert state is not None and state["epoch"] == 3 and state["digest"] == "digest-a"
    assert CheckpointFolder(folder.path, "digest-b").load_last() is None


def test_a_checkpoint_without_a_digest_is_not_taken_up(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "digest-a")
    save(folder.last, STATE)
    assert folder.load_last() is None


def test_a_failed_save_leaves_the_old_checkpoint(checkpoint: Path) -> None:
    before = checkpoint.read_bytes()
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        save(checkpoint, {"model": lambda: None})
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == ["last.pt"]


def test_a_full_disk_keeps_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    save(tmp_path / "last.pt", {"epoch": 1})
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "last.pt", {"epoch": 2})
    assert load(tmp_path / "last.pt") == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]

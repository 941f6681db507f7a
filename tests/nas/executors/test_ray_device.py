"""The worker that times networks: what is told of it while it works, and when it is lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.executors import board
from nas.executors.board import Board, read_workers
from search_spaces.errors import ExecutorError

pytestmark = pytest.mark.ray


def device_on(made: Board, monkeypatch: pytest.MonkeyPatch, **ray: Any) -> Any:
    """A device whose worker is there, in place of whose Ray a test answers."""
    from nas.executors import ray_device

    nobody: Any = SimpleNamespace()
    device = ray_device.Device(nobody, nobody, made)
    actor = SimpleNamespace(cost=SimpleNamespace(remote=lambda *_: "a call"))
    monkeypatch.setattr(device, "_new", lambda kind: actor)
    monkeypatch.setattr(ray_device, "ray", SimpleNamespace(**ray))
    return device


def test_a_timing_is_told_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def wait(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        seen.append(read_workers(tmp_path)[0].doing)
        monkeypatch.setattr(board, "WRITE_EVERY_S", 0.0)
        return (calls, []) if len(seen) > 1 else ([], calls)

    made = Board(tmp_path)
    made.change("device", doing="idle")
    monkeypatch.setattr(board, "WRITE_EVERY_S", 1e9)
    device = device_on(made, monkeypatch, wait=wait, get=lambda call: 7.0)
    assert device.call("cpu", "cost") == 7.0
    assert seen == ["idle", "timing"] and read_workers(tmp_path)[0].doing == "idle"


def test_one_that_was_lost_is_not_told_to_be_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import RayActorError

    def get(call: Any) -> Any:
        raise RayActorError

    made = Board(tmp_path)
    kill, wait = (lambda actor: None), (lambda calls, timeout: (calls, []))
    device = device_on(made, monkeypatch, get=get, kill=kill, wait=wait)
    with pytest.raises(ExecutorError, match="the worker that times networks was lost"):
        device.call("cpu", "cost")
    assert made.state("device").doing == "ended"

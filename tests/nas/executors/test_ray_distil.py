"""Distilling layers side by side: what is told of all jobs at once.

How layers are dealt out is a test of `tests.nas.run.test_layer_distillation`, and that the result
is the same as in one process one of `tests.nas.stages.test_start`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nas.run.events import Note
from supernet.inheritance.local import LocalReport

pytestmark = pytest.mark.ray
NOBODY: Any = SimpleNamespace()


def told(
    monkeypatch: pytest.MonkeyPatch, parts: list[list[int]], *items: Any
) -> tuple[dict[str, list[int]], list[LocalReport | Note]]:
    """The jobs and their layers, and what comes of what they put into the mailbox."""
    from nas.executors import ray_distil
    from nas.executors.ray_jobs import JobRoom

    jobs: dict[str, list[int]] = {}

    def side_by_side(kind: Any, keys: list[str], *_: Any) -> Iterator[Any]:
        jobs.update({key: kind._jobs[key] for key in keys})
        yield from items

    monkeypatch.setattr(ray_distil, "parts_left", lambda run, width: parts)
    monkeypatch.setattr(ray_distil, "side_by_side", side_by_side)
    room = JobRoom(2, 1, 0)
    return jobs, list(ray_distil.distil_side_by_side(NOBODY, 2, room, NOBODY, NOBODY))


def test_each_part_is_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [[0, 1, 2], [4, 5]]
    assert told(monkeypatch, parts)[0] == {"0-2": [0, 1, 2], "4-5": [4, 5]}
    assert told(monkeypatch, []) == ({}, [])


def test_an_update_is_told_when_jobs_have_done_it_in_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = Note("distil", "a worker was lost")
    items = [
        ("0-1", LocalReport(1, 3, 0.6)),
        ("0-1", LocalReport(2, 3, 0.3)),
        note,
        ("2-2", LocalReport(1, 3, 0.9)),
        ("2-2", LocalReport(2, 3, 0.6)),
        ("0-1", LocalReport(1, 3, 0.5)),  # it begins anew
        ("0-1", LocalReport(3, 3, 0.2)),
        ("2-2", LocalReport(3, 3, 0.5)),
    ]
    _, found = told(monkeypatch, [[0, 1], [2]], *items)
    assert found[1] == note
    reports = [one for one in found if isinstance(one, LocalReport)]
    assert [one.update for one in reports] == [1, 2, 3]
    assert [one.error for one in reports] == pytest.approx([0.3, 0.4, 0.3])

"""The checkpoint and the picked network are timed by how much they have read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.objectives.cache import contexts_of
from nas.report.checkpoint_section import checkpoint_section
from nas.request.spec import SearchSpec
from nas.results.reader import read_contents
from nas.run.events import Note
from nas.run.folder import RunFolder
from nas.run.stages import search_stages
from nas.stages import contexts
from nas.stages.base import Run
from supernet.pretrained.checkpoint import read_checkpoint
from tests.nas.stages import test_start
from tests.support.export_cases import hub_without_net
from tests.support.report_cases import words_of

pytestmark = pytest.mark.export

llama, data, run = test_start.llama, test_start.data, test_start.run


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture
def folder(run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder.open(Path(shutil.copytree(run.path, tmp_path / "run")))


def test_both_are_timed_for_every_length(
    folder: RunFolder, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list(contexts.work(Run(folder)))
    found = read_contents(folder)
    assert found.picked is not None
    network, lengths = read_checkpoint(llama).architecture, contexts_of(found.space)
    assert len(events) == len(found.context_times) == 2 * len(lengths) > 4
    assert [one.context for one in found.context_times] == lengths * 2
    for one in found.context_times:
        assert list(one.ms) == [network.id, found.picked.id] and min(one.ms.values()) > 0
    page = words_of(checkpoint_section(found))
    assert page.count(f"{lengths[-1]} positions, ms") == 2 and "× " in page
    lines = folder.read_journal(contexts.CONTEXTS_FILE)
    folder.write_journal(contexts.CONTEXTS_FILE, lines[:3])
    timed = contexts._timed
    left: list[int] = []

    def once(run: Run, networks: Any, workload: Any) -> dict[str, float]:
        left.append(workload.context)
        return timed(run, networks, workload)

    monkeypatch.setattr(contexts, "_timed", once)
    list(contexts.work(Run(folder)))
    assert left == [line["context"] for line in lines[3:]]
    assert folder.read_journal(contexts.CONTEXTS_FILE)[:3] == lines[:3]


def test_no_longer_prompt_is_read_than_takes_long(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = contexts_of(folder.spec.space)[0]
    with monkeypatch.context() as patch:
        patch.setattr(contexts, "LONGEST_S", 0.0)
        list(contexts.work(Run(folder)))
    times = read_contents(folder).context_times
    assert [(one.mode, one.context) for one in times] == [("decode", first), ("prefill", first)]
    monkeypatch.setattr(contexts, "_timed", lambda run, networks, workload: {"a": 1000.0})
    folder.write_journal(contexts.CONTEXTS_FILE, [])
    list(contexts.work(Run(folder)))  # four times the length: four and sixteen times as long
    assert [one.context for one in read_contents(folder).context_times] == [first, first]


def test_what_does_not_fit_or_is_not_here_is_told_and_left_out(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(contexts, "_timed", full)
        notes = [one for one in contexts.work(Run(folder)) if isinstance(one, Note)]
    assert len(notes) == 2 and "there is no memory to time" in notes[0].message
    with monkeypatch.context() as patch:
        patch.setattr(contexts, "MOST_STATE_MB", 0.0)
        assert list(contexts.work(Run(folder))) == []
    monkeypatch.setattr(Run, "computes_on", "cuda")
    (note,) = contexts.work(Run(folder))
    assert isinstance(note, Note) and "nothing is timed" in note.message
    assert folder.read_journal(contexts.CONTEXTS_FILE) == []


def test_only_searches_for_a_time_have_it(run: RunFolder) -> None:
    def has(spec: SearchSpec) -> bool:
        return "contexts" in [stage.name for stage in search_stages(spec)]

    assert not has(run.spec)
    asks = run.spec.model_copy(update={"objectives": ("quality", "decode_ms")})
    assert has(asks) and not has(asks.model_copy(update={"start": None}))

"""What the digest of a stage counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nas.executors.retraining.stage import retrain_stage
from nas.request.spec import Start
from nas.run.events import Event, StageSkipped
from nas.run.folder import RunFolder
from nas.run.layout import begun_file
from nas.run.opened import OpenedRun
from nas.run.stage_digest import stage_digest
from nas.run.stage_runner import run_stage
from nas.run.stages import SEARCH_STAGES
from tests.support.pipeline_cases import tiny

ID = "0123456789ab"
WEIGHTS = f"retrained/{ID}/weights.pt"
START = Start(folder="checkpoint", digest="of it")


def test_a_front_reads_what_the_checkpoint_is_worth(tmp_path: Path) -> None:
    """Where there is none, the digest is that of versions that did not count it."""
    folder = tiny(tmp_path / "run")
    (front,) = (stage for stage in SEARCH_STAGES if stage.name == "front")
    found = [stage_digest(folder, front)]
    assert found == [stage_digest(folder, replace(front, reads=()))]
    for quality in (1.0, 1.1):
        folder.write_json("inherited/baseline.json", {"values": {"quality": quality}})
        found.append(stage_digest(folder, front))
    assert len({*found}) == 3


def supernet(folder: RunFolder, weights: str) -> None:
    """Pretend that a supernet was trained."""
    (folder.path / "supernet").mkdir(exist_ok=True)
    (folder.path / "supernet/last.pt").write_text(weights, encoding="utf-8")
    folder.finish("supernet", "digest", ("supernet/last.pt",), 1.0)


def retrained(folder: RunFolder, says: str, kept: list[str] | None = None) -> bool:
    """Whether a network is trained, which leaves what is said; `kept` is what it finds."""

    def work(run: OpenedRun) -> Iterator[Event]:
        if kept is not None:
            kept.extend(one.read_text() for one in (run.folder.path / WEIGHTS,) if one.exists())
        (run.folder.path / WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
        for name in stage.outputs:
            (run.folder.path / name).write_text(says, encoding="utf-8")
        yield from ()

    stage = retrain_stage(folder.spec, ID)
    return not any(
        isinstance(one, StageSkipped) for one in run_stage(OpenedRun(folder), stage, work)
    )


@pytest.mark.parametrize("start", [None, START])
def test_a_retraining_reads_the_supernet_that_it_begins_with(
    tmp_path: Path, start: Start | None
) -> None:
    """From scratch it begins with none."""
    folder = tiny(tmp_path / "run", start=start)
    supernet(folder, "first")
    assert retrained(folder, "one") and not retrained(folder, "two")
    supernet(folder, "other")
    assert retrained(folder, "three") == (start is not None)


@pytest.mark.parametrize("ended", [True, False])
def test_a_retraining_of_before_holds(tmp_path: Path, ended: bool) -> None:
    """Earlier versions did not count the supernet."""
    folder = tiny(tmp_path / "run", start=START)
    supernet(folder, "first")
    stage = retrain_stage(folder.spec, ID)
    before = stage_digest(folder, replace(stage, needs=("declare",)))
    assert retrained(folder, "one")
    folder.begin(stage.name, before)
    folder.finish(stage.name, before, stage.outputs, 1.0)
    if ended:
        assert not retrained(folder, "two")
        return
    kept: list[str] = []
    folder.forget(stage.name, ())  # it goes on, and notes what it reads
    assert retrained(folder, "two", kept) and kept == ["one"]
    assert (folder.path / begun_file(stage.name)).read_text() == stage_digest(folder, stage)
    folder.forget(stage.name, ())
    supernet(folder, "other")
    assert retrained(folder, "three", kept) and kept == ["one"]

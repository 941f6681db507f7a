"""What the digest of a stage counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nas.run.stage_digest import stage_digest
from nas.run.stages import SEARCH_STAGES
from tests.support.pipeline_cases import tiny


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

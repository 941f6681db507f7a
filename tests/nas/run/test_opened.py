"""What the trainings of a run draw."""

from __future__ import annotations

from pathlib import Path

from nas.request.spec import Start
from nas.run.opened import DISTIL, FINE_TUNE, OpenedRun
from tests.support.pipeline_cases import tiny


def test_trainings_from_scratch_have_the_seed_of_their_run(tmp_path: Path) -> None:
    run = OpenedRun(tiny(tmp_path / "run"))
    for purpose in (DISTIL, FINE_TUNE):
        assert run.training_seed(purpose) == run.spec.seed
        assert run.training_digest(purpose) == run.spec.digest


def test_from_a_checkpoint_each_has_its_own_and_takes_up_none_of_another_seed(
    tmp_path: Path,
) -> None:
    run = OpenedRun(tiny(tmp_path / "run"))
    start = Start(folder=str(tmp_path), digest="0" * 64)
    run.spec = run.spec.model_copy(update={"start": start})
    purposes = (DISTIL, FINE_TUNE)
    assert len({run.spec.seed, *map(run.training_seed, purposes)}) == 3
    assert len({run.spec.digest, *map(run.training_digest, purposes)}) == 3

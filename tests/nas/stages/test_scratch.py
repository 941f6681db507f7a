"""Networks of a checkpoint's search are trained without it, too, for comparison."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.report.checkpoint_section import checkpoint_section
from nas.results.reader import read_contents
from nas.results.state import read_state
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError
from supernet.training.loop import Trainer
from tests.nas.stages import test_start
from tests.nas.stages.test_pipeline_recall import check
from tests.support.export_cases import hub_without_net
from tests.support.report_cases import words_of

pytestmark = pytest.mark.export

llama, data, run = test_start.llama, test_start.data, test_start.run


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def trained(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["retrain", str(folder), "--from-scratch", *more])


def test_its_scores_stand_beside_those_of_the_fine_tuned_one(
    run: RunFolder, tmp_path: Path
) -> None:
    folder = RunFolder.open(Path(shutil.copytree(run.path, tmp_path / "run")))
    picked = read_contents(folder).picked
    assert picked is not None
    tuned = picked.id  # beside it the checkpoint was trained on
    before = {file: file.read_bytes() for file in (folder.path / "retrained" / tuned).iterdir()}
    done = trained(folder.path)
    assert done.exit_code == 0, done.output
    assert f"Scratch {tuned}, test" in done.stdout
    assert all(file.read_bytes() == content for file, content in before.items())
    place = folder.path / "retrained" / tuned
    assert {file.name for file in place.iterdir()} - {file.name for file in before} == {
        "from_scratch.json"
    }
    result = json.loads((place / "from_scratch.json").read_text())
    check("retrained", result)
    own = json.loads((place / "result.json").read_text())
    assert result["id"] == tuned and result["epochs"] == own["epochs"]
    assert result["valid_loss"] != own["valid_loss"] and result["test_loss"] != own["test_loss"]
    contents = read_contents(folder)
    assert [one.id for one in contents.from_scratch] == [tuned]
    page = words_of(checkpoint_section(contents))
    assert f"{tuned} fine-tuned" in page and f"{tuned} trained from scratch" in page
    state = read_state(folder, thorough=True)
    assert f"scratch-{tuned}" in [one.name for one in state.stages] and not state.problems
    again = trained(folder.path, "--pick", tuned)
    assert (
        again.exit_code == 0
        and (place / "from_scratch.json").read_text() == json.dumps(result, indent=2) + "\n"
    )


def test_one_that_is_stopped_goes_on_to_the_same_scores(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = (
        RunFolder.open(Path(shutil.copytree(run.path, tmp_path / name)))
        for name in ("whole", "stopped")
    )
    assert trained(whole.path).exit_code == 0
    steps = Trainer.run

    def ends(self: Trainer) -> Iterator[Any]:
        for number, report in enumerate(steps(self)):
            if number == 1:
                raise KeyboardInterrupt
            yield report

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", ends)
        assert trained(stopped.path).exit_code != 0
    (left,) = stopped.path.glob("retrained/*/from_scratch/last.pt")
    assert trained(stopped.path).exit_code == 0 and not left.exists()
    (one,), (other,) = (
        list(folder.path.glob("retrained/*/from_scratch.json")) for folder in (whole, stopped)
    )
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("more", [("--tune", "2", "--executor", "ray"), ("--epochs", "3")])
def test_what_does_not_go_with_it_is_refused(run: RunFolder, more: tuple[str, ...]) -> None:
    done = trained(run.path, *more)
    assert done.exit_code == 2 and "does not go with --from-scratch" in done.stderr


def test_networks_without_a_checkpoint_are_trained_from_scratch_as_it_is(tmp_path: Path) -> None:
    from nas.stages.scratch import train_from_scratch
    from tests.support.pipeline_cases import finished_once

    folder = finished_once(tmp_path)
    with pytest.raises(UsageError, match="trained from scratch as it is"):
        list(train_from_scratch(folder, ["best"]))

"""Cuts are undone after a search, by `nas resume --keep`, without training anything again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import nas.stages.prune
from nas.console.app import app
from nas.run.folder import RunFolder
from nas.run.layout import PROTECTED_FILE
from nas.search.pruning.prune import PruningSettings
from search_spaces.loading import parse_space
from search_spaces.space import SearchSpace
from tests.support.pipeline_cases import (
    finished,
    logged,
    results,
    spec_of,
    tiny,
    work,
)

AGAIN = ["prune", "evolve", "verify", "front", "exchange"]


@pytest.fixture(scope="module", autouse=True)
def _impatient() -> Iterator[None]:
    """Cut whatever can be cut, although a tiny search has learnt nothing."""
    settings = PruningSettings(-1, 0, sample=512, min_elite=1, max_lift=1e9, tolerance=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nas.stages.prune, "PruningSettings", lambda **_: settings)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("protected") / "run").path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> RunFolder:
    """A finished run whose cuts may be undone."""
    return RunFolder.open(shutil.copytree(whole, tmp_path / "run"))


def resume(folder: RunFolder, *keep: str) -> Result:
    words = [word for text in keep for word in ("--keep", text)]
    return CliRunner().invoke(app, ["resume", str(folder.path), *words])


def pruned(folder: RunFolder) -> SearchSpace:
    return parse_space((folder.path / "pruned_space.toml").read_text(), "pruned")


def shown(folder: RunFolder) -> dict[str, object]:
    made = CliRunner().invoke(app, ["show", str(folder.path), "--json"])
    return dict(json.loads(made.stdout))


def ended(folder: RunFolder) -> list[str]:
    return [event["stage"] for event in logged(folder) if event["event"] == "StageFinished"]


def test_all_undoes_every_cut_and_none_brings_them_back(run: RunFolder) -> None:
    before, cut, done = results(run)["pareto.json"], pruned(run), len(ended(run))
    assert cut.size < run.spec.space.size
    assert resume(run, "all").exit_code == 0
    assert pruned(run).size == run.spec.space.size
    assert [s for s in ended(run)[done:] if not s.startswith("re")] == AGAIN
    assert shown(run)["keep"] == ["all"] and shown(run)["state"] == "finished"
    assert resume(run, "none").exit_code == 0
    assert not (run.path / PROTECTED_FILE).exists() and shown(run)["keep"] == []
    assert pruned(run).size == cut.size and results(run)["pareto.json"] == before


def test_one_choice_is_kept_and_the_run_says_so(run: RunFolder) -> None:
    gone = next(
        f"{slot.name}={choice}"
        for slot, left in zip(run.spec.space.slots, pruned(run).slots, strict=True)
        for choice in slot.choices
        if choice not in left.choices
    )
    done = resume(run, gone)
    name, _, choice = gone.partition("=")
    assert choice in map(str, pruned(run).slot(name).choices)
    assert gone in done.stderr and gone in (run.path / "report.html").read_text()
    assert gone in CliRunner().invoke(app, ["show", str(run.path)]).stdout
    assert "Skipped" not in done.stderr and resume(run).exit_code == 0  # they stay in force
    assert shown(run)["keep"] == [gone]


def test_the_same_protected_choices_again_do_nothing(run: RunFolder) -> None:
    resume(run, "encoder.attention=omni")
    done = len(ended(run))
    resume(run, "encoder.attention=omni")
    assert len(ended(run)) == done


def test_undoing_is_resumed_where_it_was_cut_off(run: RunFolder) -> None:
    from nas.stages.pipeline import run_search

    run.protect({"encoder.attention": ("omni",)})
    assert shown(run)["state"] == "stopped at prune"
    for count in range(1, 60):
        with closing(run_search(RunFolder.open(run.path))) as stream:  # type: ignore[type-var]
            if all(number < count for number, _ in enumerate(stream, start=1)):
                break
    other = tiny(run.path.parent / "other")
    other.protect({"encoder.attention": ("omni",)})
    work(other)
    assert results(run)["pareto.json"] == results(other)["pareto.json"]
    assert shown(run)["state"] == "finished"


def test_protected_choices_of_the_request_are_in_force_until_others_are(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run", keep={"encoder.attention": ("omni",)})
    work(folder)
    kinds = [s.choices for s in pruned(folder).slots if s.gene == "attention"]
    assert all("omni" in choices for choices in kinds)
    assert spec_of(tmp_path / "b").digest != folder.spec.digest
    resume(folder, "none")
    assert shown(folder)["keep"] == [] and (folder.path / PROTECTED_FILE).exists()
    resume(folder, "encoder.attention=omni")
    assert not (folder.path / PROTECTED_FILE).exists()


def test_a_choice_that_is_not_there_changes_nothing(run: RunFolder) -> None:
    done = resume(run, "encoder.attention=omny")
    assert done.exit_code == 2 and "did you mean 'omni'" in done.stderr
    assert not (run.path / PROTECTED_FILE).exists() and shown(run)["state"] == "finished"


def test_a_run_that_another_process_works_on_keeps_its_protected_choices(run: RunFolder) -> None:
    with run.locked():
        done = resume(run, "all")
    assert done.exit_code == 2 and "another process is working" in done.stderr
    assert not (run.path / PROTECTED_FILE).exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"keep": {"encoder.colour": [1]}}'])
def test_a_damaged_list_of_protected_choices_is_named_and_can_be_written_anew(
    run: RunFolder, content: str
) -> None:
    (run.path / PROTECTED_FILE).write_text(content)
    done = resume(run)
    assert done.exit_code == 1 and "vetoes.json is damaged" in done.stderr
    assert "damaged at prune" in str(shown(run)["state"])
    assert resume(run, "none").exit_code == 0 and shown(run)["state"] == "finished"

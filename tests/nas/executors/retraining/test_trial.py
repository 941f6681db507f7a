"""Training from scratch: the only door to the test split, opened once and last."""

from __future__ import annotations

import ast
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nas.run.folder import RunFolder
from nas.run.supernet_training import training_losses
from nas.search.front import read_front
from nas.stages.retrain import retrain
from search_spaces.architecture import Architecture
from search_spaces.errors import (
    DamagedRunError,
    DataError,
    DivergedError,
    RunConflictError,
    UsageError,
)
from supernet.data.examples import load_test_split
from supernet.data.sources import SOURCES, Examples, Request, Source
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import StandAlone
from supernet.training.checkpoint import load
from supernet.training.loop import EpochReport, Trainer
from supernet.training.sampling import SingleNetwork
from tests.support.pipeline_cases import (
    ROOT,
    SEARCH,
    finished,
    finished_once,
    logged,
    named,
    results,
    tiny,
    tree,
    work,
)


def test_losses_are_told_as_numbers() -> None:
    assert training_losses(EpochReport(1, 4, 0.5)) == {"loss": 0.5}
    losses = training_losses(EpochReport(2, 4, 0.25, (1.0, 2.0)))
    assert losses == {"loss": 0.25, "validation_loss": 1.5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(whole.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def closed(*_: Any) -> Any:
    raise DataError("the test split was opened")


class Door:
    """Counts who opens the test split, and notes what had happened by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        trained = Trainer._train_epoch

        def spy(*arguments: Any) -> Any:
            self.calls.append("test")
            return load_test_split(*arguments)

        def epoch(trainer: Trainer) -> float:
            self.calls.append("epoch")
            return trained(trainer)

        monkeypatch.setattr("supernet.tasks.classification.load_test_split", spy)
        monkeypatch.setattr(Trainer, "_train_epoch", epoch)


# -- the test split -----------------------------------------------------------------------------


def without_test(source: Source) -> Callable[[Request], Examples]:
    return lambda request: replace(source.open(request), test=closed)


def test_no_search_stage_opens_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supernet.tasks.classification.load_test_split", closed)
    for name, source in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, source._replace(open=without_test(source)))
    run = tiny(tmp_path / "run")
    with pytest.raises(DataError, match="the test split was opened"):
        work(run)
    ended = [event["stage"] for event in logged(run) if event["event"] == "StageFinished"]
    assert ended == [*SEARCH, "report"]  # which tells of what there is
    assert (run.path / "pareto.json").exists() and not list(run.path.glob("retrained/*/result*"))


OPENERS = re.compile(r"load_test_split|test_arrays|_?open_(\w+_)?test")
# Modules that make a test split out of the user's files, or hand it over; they open none that is
# prepared already.
MAKERS = {f"supernet/data/prepare/{name}.py" for name in ("embedding", "examples", "text")}
DEFINED = {
    "nas/fairseq/data.py",
    "supernet/tasks/base.py",  # where a task opens it when it is asked to
    *(
        f"supernet/data/{name}.py"
        for name in ("examples", "prepared", "recall", "sources", "synthetic")
    ),
}


def names(path: Path) -> set[str]:
    """Names a module uses that lead to a test split; definitions of functions are no uses."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case (
                ast.Attribute(attr=str(name))
                | ast.Name(id=str(name))
                | ast.alias(name=str(name))
                | ast.Constant(value=str(name))
            ) if OPENERS.fullmatch(name):
                found.add(name)
            case ast.Attribute(attr="test"):
                found.add("test")
    return found


def test_only_retraining_and_evaluation_by_name_open_the_test_split() -> None:
    users = {}
    for package in ("nas", "supernet", "latency", "search_spaces"):
        for path in (ROOT / package).rglob("*.py"):
            if found := names(path):
                users[path.relative_to(ROOT).as_posix()] = found
    door = {
        "nas/executors/retraining/stage.py": {"open_test"},
        "nas/fairseq/backend.py": {"open_test"},  # the last step for weights from elsewhere
        "nas/results/networks.py": {"open_test"},  # `nas evaluate`: the user asks for it
        "nas/console/commands/evaluate.py": {"test"},  # the word for it, as a choice
        "supernet/tasks/classification.py": {"_open_test", "load_test_split", "open_test"},
        "supernet/tasks/embedding.py": {"_open_test", "open_test"},
        "supernet/tasks/translation.py": {"_open_test", "open_test"},
        "supernet/tasks/language_modelling.py": {"_open_test", "open_recall_test", "open_test"},
        "search_spaces/recall_form.py": {"test"},  # what the generated sequences are of
        "nas/fairseq/data.py": {"open_data_bin_test"},
        "supernet/data/examples.py": {"test_arrays"},
        "supernet/data/sources.py": {"open_test", "test"},
        "supernet/tasks/base.py": {"_open_test"},
    }
    assert users == door | {maker: {"test"} for maker in MAKERS}


def test_what_opens_a_test_split_is_defined_in_few_modules() -> None:
    defined = set()
    for path in (path for room in ("supernet", "nas") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and OPENERS.fullmatch(node.name):
                defined.add(path.relative_to(ROOT).as_posix())
    assert defined == DEFINED


def test_who_prepares_a_test_split_does_not_search() -> None:
    """What makes test splits is imported by `nas data prepare` alone, and for plain folders."""
    users = {
        path.relative_to(ROOT).as_posix()
        for package in ("nas", "supernet", "latency")
        for path in (ROOT / package).rglob("*.py")
        if re.search(
            r"supernet\.data\.prepare(\.embedding|\.examples|\.text)? import",
            path.read_text("utf-8"),
        )
    }
    rooms = {f"supernet/data/prepare/{name}.py" for name in ("__init__", "folder")}
    assert users == {"nas/console/commands/data.py", *rooms}


@pytest.mark.parametrize(
    "text",
    [
        "from a import load_test_split",
        "b.load_test_split()",
        "getattr(b, 'load_test_split')",
        "from a import open_data_bin_test as opened",
        "b.STREAM.open_test(0)",
        "s.test(r)",
        "task.open_test()",
        "getattr(task, 'open_test')",
        "task._open_test",
    ],
)
def test_the_search_for_names_finds_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    assert names(tmp_path / "module.py")


def test_it_is_opened_once_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(monkeypatch)
    run = finished(tmp_path / "run")
    assert door.calls == ["epoch"] * 4 + ["test"]
    work(run)
    assert door.calls.count("test") == 1


def test_a_kill_after_the_last_step_does_not_open_it_again(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = results(run)
    (record,) = run.path.glob("stages/retrain-*.json")
    record.unlink()
    (folder,) = run.path.glob("retrained/*")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / ".last.pt.1.tmp").touch()
    door = Door(monkeypatch)
    work(run)
    assert door.calls == [] and results(run) == before
    assert not (folder / "checkpoints").exists()


def test_an_interrupted_retraining_opens_it_once(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch)
    entry = read_front(run).entries[-1]
    shutil.rmtree(run.path / "retrained")
    (run.path / "stages" / f"retrain-{entry.id}.json").unlink(missing_ok=True)
    for count in (2, 3, 99):
        stream = retrain(run, entry.id)
        for number, _ in enumerate(stream, start=1):
            if number == count:
                break
        stream.close()  # type: ignore[attr-defined]
    assert door.calls == ["epoch", "epoch", "test"]


# -- results ------------------------------------------------------------------------------------


def test_the_weights_are_those_of_the_network(whole: RunFolder) -> None:
    (file,) = whole.path.glob("retrained/*/weights.pt")
    state = load(file)
    network = StandAlone(
        EncoderClassifier, whole.spec.space.model, Architecture.from_json(state["architecture"])
    )
    network.network.load_state_dict(state["model"])
    result = whole.read_json(f"retrained/{file.parent.name}/result.json")
    assert sum(p.numel() for p in network.parameters()) == result["params"]
    assert result["epochs"] == 2 and result["seed"] == 0 and result["dataset"] == "digits"
    assert 0 <= result["test_accuracy"] <= 1


def test_another_network_beside_the_first(run: RunFolder) -> None:
    before, front = results(run), read_front(run)
    (first,) = (path.parent.name for path in run.path.glob("retrained/*/result.json"))
    other = next(entry.id for entry in front.entries if entry.id != first)
    events = list(retrain(run, other[:8]))
    assert named(events, "StageFinished") == [f"retrain-{other}", "report"]
    after = results(run)
    assert before.items() < after.items() and len(after) == len(before) + 1
    assert named(list(retrain(run, other)), "StageStarted") == []
    assert other in (run.path / "report.html").read_text()


def test_global_randomness_is_left_alone(run: RunFolder) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    list(retrain(run, read_front(run).entries[-1].id))
    assert torch.equal(torch.rand(3), expected)


def test_what_cannot_be_retrained(run: RunFolder, tmp_path: Path) -> None:
    before = tree(run.path)
    with pytest.raises(UsageError, match="nearest id is"):
        list(retrain(run, "ffffffffffff"))
    with pytest.raises(UsageError, match="has no front yet"):
        list(retrain(tiny(tmp_path / "new"), "knee"))
    with run.locked(), pytest.raises(RunConflictError, match="another process"):
        list(retrain(RunFolder.open(run.path), "knee"))
    file = run.path / "pareto.json"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(DamagedRunError, match="nas resume"):
        list(retrain(run, "knee"))
    file.write_bytes(before["pareto.json"])
    assert tree(run.path) == before


# -- divergence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["supernet", "retrain"])
def test_a_loss_that_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    losses = Trainer._backward

    def backward(trainer: Trainer, *arguments: Any) -> Tensor:
        alone = isinstance(trainer._sampler, SingleNetwork)
        broken = alone == (stage == "retrain") and trainer._epoch == 1
        found = losses(trainer, *arguments)
        return found * math.nan if broken else found

    run = tiny(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_backward", backward)
        with pytest.raises(DivergedError, match=r"nan in update \d+ with network [0-9a-f]{12}"):
            work(run)
    told = [event["stage"] for event in logged(run) if event["stage"] != "report"]
    assert told[-1].startswith(stage)
    work(RunFolder.open(run.path))
    assert results(run) == results(finished_once(tmp_path / "other"))


def test_wild_learning_rates_end_in_a_sentence_or_a_result(tmp_path: Path) -> None:
    numbers = {"supernet.learning_rate": "10", "supernet.clip_norm": "0", "supernet.epochs": "6"}
    run = tiny(tmp_path / "run", numbers=numbers)
    try:
        work(run)
    except DivergedError as error:
        assert "learning" in str(error)
    else:
        assert (run.path / "pareto.json").exists()

"""Evaluators of others, asked by workers of Ray: the same front, and what goes wrong on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nas.executors.base import ExecutorSettings
from nas.request.resolve import external_spec
from nas.request.spec import SearchRequest
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.stages.pipeline import run_search
from search_spaces.errors import EvaluationError, NasError
from search_spaces.genes import parse_genes
from tests.support.external_cases import GENES, NUMBERS, asked_twice, calls, failed_lines
from tests.support.pipeline_cases import named

pytestmark = pytest.mark.ray
SPACE = parse_genes(GENES, "mine.toml")
TWO = ExecutorSettings("ray", workers=2)

RIG = """
import glob
import json
import os
import signal
import time


def told(network):
    with open("calls.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(network) + "\\n")
    with open(f"process-{os.getpid()}", "w", encoding="utf-8"):
        pass
    print("what an evaluator prints")
    size = network["width"] * sum(network["ratio"])
    return {"quality": 2 + 40 / size, "std": 0.01, "costs": {"ms": 1 + size / 100}}


class Good:
    batch = 4

    def evaluate(self, networks):
        return [told(network) for network in networks]


class Exact(Good):
    def costs(self, networks):
        return {"ms": [1 + n["width"] * sum(n["ratio"]) / 100 for n in networks]}


class Together(Good):
    def evaluate(self, networks):
        answers = super().evaluate(networks)
        while len(glob.glob("process-*")) < 2:
            time.sleep(0.01)
        return answers


class Wrong(Good):
    def evaluate(self, networks):
        answers = super().evaluate(networks)
        for index, network in enumerate(networks):
            if network["layers"] == 1 and network["width"] == 16:
                os.kill(os.getpid(), signal.SIGKILL)
            if network["layers"] == 1 and network["width"] == 32:
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))  # deaf, as a library is
                time.sleep(1000)
            if network["layers"] == 1 and network["width"] == 64:
                answers[index] = float("nan")
        return answers


class Broken(Good):
    def evaluate(self, networks):
        raise ValueError("no rig")


class Absent:
    def __init__(self):
        raise OSError("the rig is off")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with evaluators, in which commands are given."""
    (tmp_path / "ray_rig.py").write_text(RIG, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def begun(path: Path, name: str, **asked: Any) -> RunFolder:
    values = {"objectives": ("quality", "ms"), "settings": NUMBERS, **asked}
    request = SearchRequest(space="", evaluator=f"ray_rig:{name}", **values)
    return RunFolder.create(path, external_spec(request, SPACE, f"ray_rig:{name}"))


def side_by_side(folder: RunFolder, settings: ExecutorSettings = TWO) -> Iterator[Event]:
    return run_search(RunFolder.open(folder.path), settings)


def front_of(folder: RunFolder) -> bytes:
    return (folder.path / "pareto.json").read_bytes()


@pytest.mark.parametrize("name", ["Good", "Exact"])
def test_the_same_front_and_nothing_asked_for_twice(
    name: str, here: Path, ray_session: None
) -> None:
    alone = begun(here / "alone", name)
    list(run_search(alone))
    mine = len(calls(here / "calls.jsonl"))
    (here / f"process-{os.getpid()}").unlink()
    run = begun(here / "run", name)
    list(side_by_side(run))
    assert front_of(run) == front_of(alone)
    asked = calls(here / "calls.jsonl")[mine:]
    assert len(asked) == mine and not asked_twice(asked)
    assert not (here / f"process-{os.getpid()}").exists()


def test_workers_are_asked_at_once(here: Path, ray_session: None) -> None:
    list(side_by_side(begun(here / "run", "Together")))  # which waits until two are asked
    assert len(list(here.glob("process-*"))) == 2


def test_begun_by_workers_and_ended_without(here: Path, ray_session: None) -> None:
    alone = begun(here / "alone", "Good")
    list(run_search(alone))
    mine, seen, run = len(calls(here / "calls.jsonl")), 0, begun(here / "run", "Good")
    with closing(side_by_side(run)) as stream:  # type: ignore[type-var]
        while seen < 5:
            seen += type(next(stream)).__name__ == "ArchitectureMeasured"
    assert "observe" in named(run_search(RunFolder.open(run.path)), "StageStarted")
    assert front_of(run) == front_of(alone)
    asked = calls(here / "calls.jsonl")[mine:]
    # What workers were busy with when the search ended is asked for again, and no more.
    assert len(asked_twice(asked)) <= 2


def test_what_goes_wrong_costs_its_network_and_is_asked_for_once(
    here: Path, ray_session: None
) -> None:
    run = begun(here / "run", "Wrong", settings=NUMBERS | {"observations": "24"})
    list(side_by_side(run, ExecutorSettings("ray", workers=2, timeout_s=2.0)))
    kinds = {16: "worker died", 32: "timeout", 64: "error"}
    failed = failed_lines(run)
    assert failed
    for line in failed:
        network = line["architecture"]
        assert network["layers"] == 1 and line["failed"]["kind"] == kinds[network["width"]]
        assert line["failed"]["tries"] == 1
    assert not asked_twice(calls(here / "calls.jsonl"))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("Broken", EvaluationError, "no rig"), ("Absent", NasError, "cannot be made.*the rig is off")],
)
def test_evaluators_that_never_work_end_in_a_sentence(
    name: str, kind: type[Exception], words: str, here: Path, ray_session: None
) -> None:
    with pytest.raises(kind, match=words):
        list(side_by_side(begun(here / "run", name)))


def test_a_machine_with_another_evaluator_or_without_the_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas.executors import ray_worker
    from nas.executors.ray_worker import AskingWorker, WorkOrder

    monkeypatch.setattr(ray_worker.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(ray_worker, "_Lines", lambda: None)
    spec = begun(here / "run", "Good").spec.model_dump(mode="json")
    with pytest.raises(NasError, match="is not that of the machine that works on the run"):
        AskingWorker().prepare(WorkOrder(spec, "another", 1, {}, str(here)), None)
    with pytest.raises(NasError, match="has no folder /nowhere.* in a folder that all machines"):
        AskingWorker().prepare(WorkOrder(spec, "None", 1, {}, "/nowhere"), None)

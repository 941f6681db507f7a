"""Evaluators of others, asked by workers of Ray: the same front, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.executors.base import ExecutorSettings
from nas.request.resolve import external_spec
from nas.request.spec import SearchRequest
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.stages.pipeline import run_search
from search_spaces.errors import DataError, EvaluationError, NasError
from search_spaces.genes import parse_genes
from tests.support.external_cases import GENES, NUMBERS, asked_twice, calls, failed_lines
from tests.support.pipeline_cases import named

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("few_regressors")]
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


class Slow(Good):
    def evaluate(self, networks):
        answers = super().evaluate(networks)
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return answers
        while True:
            time.sleep(0.01)


class Wrong(Good):
    def evaluate(self, networks):
        answers = super().evaluate(networks)
        for index, network in enumerate(networks):
            if network["layers"] == 1 and network["width"] == 16:
                os.kill(os.getpid(), signal.SIGKILL)
            if network["layers"] == 1 and network["width"] == 32:
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))  # deaf, as a library is
                time.sleep(1000)
            while network["layers"] == 1 and network["width"] == 128:
                time.sleep(0.01)
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
    monkeypatch.delitem(sys.modules, "ray_rig", raising=False)
    return tmp_path


def begun(path: Path, name: str, **asked: Any) -> RunFolder:
    values = {"objectives": ("quality", "ms"), "settings": NUMBERS, **asked}
    evaluator = name if ":" in name else f"ray_rig:{name}"
    request = SearchRequest(space="", evaluator=evaluator, **values)
    return RunFolder.create(path, external_spec(request, SPACE, evaluator))


def side_by_side(folder: RunFolder, settings: ExecutorSettings = TWO) -> Iterator[Event]:
    return run_search(RunFolder.open(folder.path), settings)


def stopped(folder: RunFolder) -> None:
    """Begin a run by workers, and leave it behind the fifth network."""
    seen = 0
    with closing(side_by_side(folder)) as stream:  # type: ignore[type-var]
        while seen < 5:
            seen += type(next(stream)).__name__ == "ArchitectureMeasured"


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
    mine, run = len(calls(here / "calls.jsonl")), begun(here / "run", "Good")
    stopped(run)
    assert "observe" in named(run_search(RunFolder.open(run.path)), "StageStarted")
    assert front_of(run) == front_of(alone)
    asked = calls(here / "calls.jsonl")[mine:]
    # An answer that had come with the last one, and what two workers were busy with.
    assert len(asked_twice(asked)) <= 3


def test_answers_that_came_before_one_that_is_slow_are_kept(here: Path, ray_session: None) -> None:
    alone = begun(here / "alone", "Good")
    list(run_search(alone))
    mine, run = len(calls(here / "calls.jsonl")), begun(here / "run", "Slow")
    stopped(run)  # the first network is waited for all the time
    assert len(run.read_journal("observations.jsonl")) >= 5
    list(side_by_side(run))
    assert front_of(run).replace(b":Slow", b":Good") == front_of(alone)
    lines = [folder.read_journal("observations.jsonl") for folder in (run, alone)]
    assert lines[0] == lines[1]
    assert len(asked_twice(calls(here / "calls.jsonl")[mine:])) <= 3


def test_another_evaluator_is_noticed_before_it_is_asked(
    here: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(here / "run", "Exact")
    stopped(run)
    asked = calls(here / "calls.jsonl")
    (here / "ray_rig.py").write_text(RIG.replace("/ 100 for n in", "/ 50 for n in"), "utf-8")
    monkeypatch.delitem(sys.modules, "ray_rig")
    with pytest.raises(DataError, match="is not what it was when this run began"):
        list(side_by_side(run))
    assert calls(here / "calls.jsonl") == asked


def test_what_goes_wrong_costs_its_network_and_is_asked_for_once(
    here: Path, ray_session: None
) -> None:
    run = begun(here / "run", "Wrong", settings=NUMBERS | {"observations": "24"})
    list(side_by_side(run, ExecutorSettings("ray", workers=2, timeout_s=2.0)))
    kinds = {16: "worker died", 32: "timeout", 64: "error", 128: "timeout"}
    failed = failed_lines(run)
    assert failed
    for line in failed:
        network = line["architecture"]
        assert network["layers"] == 1 and line["failed"]["kind"] == kinds[network["width"]]
        # A process that ended may have done so for others' sake.
        assert line["failed"]["tries"] == (2 if network["width"] == 16 else 1)
        if network["width"] == 32:
            assert line["failed"]["reason"] == "it took longer than 2 s"
    twice = [json.loads(one) for one in asked_twice(calls(here / "calls.jsonl"))]
    assert {one["width"] for one in twice} <= {16}


def test_commands_that_hang_end_with_their_time(here: Path, ray_session: None) -> None:
    (here / "hang.sh").write_text("echo $$ > $$.pid; exec sleep 1000\n", "utf-8")
    run = begun(here / "run", "command:/bin/sh hang.sh")
    with pytest.raises(EvaluationError, match="it took longer than 1 s"):
        list(side_by_side(run, ExecutorSettings("ray", workers=2, timeout_s=1.0)))
    hung = [int(file.stem) for file in here.glob("*.pid")]
    assert hung
    # Those of the last two workers end when Ray has ended these.
    ended = time.monotonic() + 30
    while any(alive(process) for process in hung) and time.monotonic() < ended:
        time.sleep(0.05)
    assert not [process for process in hung if alive(process)]


def alive(process: int) -> bool:
    """Whether a process works; one that nobody has looked after does not."""
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text("utf-8")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("Broken", EvaluationError, "no rig"), ("Absent", NasError, "cannot be made.*the rig is off")],
)
def test_evaluators_that_never_work_end_in_a_sentence(
    name: str, kind: type[Exception], words: str, here: Path, ray_session: None
) -> None:
    with pytest.raises(kind, match=words):
        list(side_by_side(begun(here / "run", name)))


def test_what_an_evaluator_says_at_the_second_try_was_tried_twice(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas.executors import ray_worker
    from nas.executors.base import Failure

    monkeypatch.setattr(ray_worker, "_Lines", lambda: SimpleNamespace(take=list))
    worker = ray_worker.AskingWorker(str(here), 9.0)
    for said, outcome in (
        ({"failure": "no"}, Failure("error", "no", 2)),
        ({"quality": 1.0}, {"quality": 1.0}),
    ):
        worker._evaluator = SimpleNamespace(evaluate=lambda networks, said=said: [said])
        worker._wanted = ()
        assert worker.evaluate({"network": {"width": 16}, "costs": {}}, 2).outcome == outcome


def test_a_machine_with_another_evaluator_or_without_the_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas.executors import ray_worker
    from nas.executors.ray_worker import AskingWorker, WorkOrder

    monkeypatch.setattr(ray_worker.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(ray_worker, "_Lines", lambda: None)
    spec = begun(here / "run", "Good").spec.model_dump(mode="json")
    with pytest.raises(NasError, match="is not that of the machine that works on the run"):
        AskingWorker(str(here), 9.0).prepare(WorkOrder(spec, "another", 1, {}), None)
    with pytest.raises(NasError, match="has no folder /nowhere.* in a folder that all machines"):
        AskingWorker("/nowhere", 9.0).prepare(WorkOrder(spec, "None", 1, {}), None)

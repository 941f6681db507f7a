"""What a run does on a device gives way to those who time there, and nothing else changes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from latency.turns import computing, timing
from nas.executors import attempts
from nas.executors.attempts import EvaluationTimeoutError, time_limit
from nas.executors.local import LocalExecutor
from nas.profiling import timed_work
from nas.profiling.latency_meter import LatencyMeter
from nas.run.events import Event, Note
from nas.run.folder import RunFolder
from nas.run.stage_runner import run_stage
from nas.run.stages import Stage
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from supernet.tasks import evaluation, translating
from supernet.tasks.evaluation import evaluate, score
from supernet.training.parallel import ProcessGroup
from tests.support.pipeline_cases import spec_of
from tests.support.task_cases import SPACES, networks_of, supernet_of, task_of
from tests.support.turn_cases import computed_on, timed_on
from tests.support.turn_run_cases import TIMED, search


def run_of(tmp_path: Path) -> Run:
    return Run(RunFolder.create(tmp_path / "run", spec_of(tmp_path / "run")))


# -- searches at once -------------------------------------------------------------------------


class Log:
    """What two searches tell a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self.text = pipe, ""

    def until(self, word: str) -> None:
        """Read on until something is told."""
        while True:
            new = os.read(self._pipe, 1).decode()
            self.text += new
            if new == word:
                return


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Log, int]]:
    monkeypatch.setenv("NAS_LOCK_DIR", str(tmp_path / "locks"))
    read, write = os.pipe()
    yield Log(read), write
    os.close(read)
    os.close(write)


@pytest.mark.slow  # three processes with torch
def test_no_update_is_made_while_another_search_times(tmp_path: Path, log: tuple[Log, int]) -> None:
    told, pipe = log
    with search("train", tmp_path / "one", pipe) as training:
        told.until("<")
        training.send_signal(signal.SIGSTOP)
        with search("time", tmp_path / "two", pipe) as timer:
            told.until("!")
            training.send_signal(signal.SIGCONT)
            assert timer.stdin is not None
            timer.stdin.write(3 * "\n")
            timer.stdin.flush()
            for _ in range(3):
                told.until(")")
            timed = told.text
            told.until("(")  # ends with the next line
            with search("train-unasked", tmp_path / "three", pipe) as other:
                told.until("x")
                other.kill()
            timer.kill()
        disturbed = told.text
        told.until(">")  # it goes on, although the timer was killed
        training.kill()
    assert timed.count("()") == 3
    assert re.fullmatch(r"(<!?>|!|\(\))*", timed)
    assert disturbed.endswith("(x")  # who does not take turns disturbs


# -- what computes, and what gives way ----------------------------------------------------------


def test_a_stage_computes_and_gives_way_at_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen, given = run_of(tmp_path), [], []
    monkeypatch.setattr("nas.run.stage_runner.give_way", lambda: given.append(1))

    def work(_run: Run) -> Iterator[Event]:
        for _ in range(3):
            seen.append(computed_on())
            yield Note("some", "thing")

    for _ in run_stage(run, Stage("some", "Some", (), {}), work):
        pass
    assert seen == [True] * 3 and len(given) == 5  # begun and ended are events as well
    assert not computed_on()


def test_a_run_whose_events_nobody_wants_any_more_lets_go(tmp_path: Path) -> None:
    def work(_run: Run) -> Iterator[Event]:
        yield Note("some", "thing")

    events = run_stage(run_of(tmp_path), Stage("some", "Some", (), {}), work)
    next(events)
    assert computed_on()
    events.close()  # type: ignore[attr-defined]
    assert not computed_on()


def test_networks_are_timed_alone_and_measured_in_company(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path / "run", objectives=TIMED)
    meter, seen = LatencyMeter(spec), []
    one = networks_of(spec.space, 1)
    time_beside, timed_call = timed_work.time_beside, timed_work.timed_call

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(("timing", timed_on(), computed_on()))
        return time_beside(*arguments, **options)

    monkeypatch.setattr(timed_work, "time_beside", watched)
    with computing("cpu"):
        meter.measure(one)
        meter.time_afresh(one, 1)
        assert set(seen) == {("timing", True, True)}
        assert computed_on() and not timed_on()
    monkeypatch.setattr(
        timed_work, "timed_call", lambda *a: seen.append(computed_on()) or timed_call(*a)
    )
    seen.clear()
    LocalExecutor().measure(spec, "peak_memory_mb", one[0])
    assert seen == [True]


def test_every_batch_and_every_written_token_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    task, space, given = task_of("translation"), SPACES["translation"], []
    (network,), model = networks_of(space, 1), supernet_of(space)
    batches = sum(1 for _ in task.evaluation(model, network, task.valid, "cpu"))
    monkeypatch.setattr(evaluation, "give_way", lambda: given.append("batch"))
    monkeypatch.setattr(translating, "give_way", lambda: given.append("token"))
    evaluate(task, model, network, task.valid)
    assert given == ["batch"] * batches
    score(task, model, network, task.valid)
    assert given.count("token") > 1


def test_ranks_that_wait_for_each_other_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """One gives way before an update: the others are in the midst of it, and wait for that one."""
    import torch.distributed as dist

    seen: list[bool] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: seen.append(computed_on()))
    group = ProcessGroup()
    model = supernet_of(SPACES["classification"])
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    with computing("cpu"):
        group.sum(torch.tensor([1.0]))
        group.agrees(1)
        group.add_up(model.parameters())
        assert len(seen) >= 3 and not any(seen)
        assert computed_on()


# -- with Ray ---------------------------------------------------------------------------------


@pytest.mark.ray
def test_a_worker_of_ray_computes_only_while_it_evaluates(tmp_path: Path) -> None:
    from nas.executors.ray_worker import EvaluationWorker

    class Watching(EvaluationWorker):
        def __init__(self) -> None:
            super().__init__()
            self._device = "cpu"

        def quality(self, network: Architecture) -> dict[str, float]:
            return {"quality": float(computed_on())}

    worker = Watching()
    network = networks_of(SPACES["classification"], 1)[0].to_json()
    assert worker.evaluate(network, 1).outcome == {"quality": 1.0}
    assert not computed_on()


@pytest.mark.ray
def test_the_driver_of_ray_does_not_compute_while_it_waits(tmp_path: Path) -> None:
    from nas.executors.base import ExecutorSettings
    from nas.executors.ray import PASSED_ON, RayExecutor, _others_work

    ended = []

    def work() -> Generator[bool, None, None]:
        try:
            yield computed_on()
            yield computed_on()
        finally:
            ended.append(True)

    with computing("cpu"):
        items = _others_work(work())
        assert not next(items) and computed_on()
        items.close()  # type: ignore[attr-defined]
        assert ended
        assert list(_others_work(work())) == [False, False] and computed_on()
    run = run_of(tmp_path)
    assert RayExecutor(ExecutorSettings("ray"), run.folder).computes_on(run.spec) == "cpu"
    assert "NAS_LOCK_DIR" in PASSED_ON  # workers on this machine meet at the same place


# -- time limits ------------------------------------------------------------------------------


class Waits:
    """In place of this process' turns: seconds that it has waited."""

    waited_s = 5.0


def test_waiting_for_others_does_not_count_as_an_evaluation_s_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alarms: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda _which, seconds: alarms.append(seconds))
    monkeypatch.setattr(attempts, "TURNS", Waits)

    def ring() -> None:
        handler: Callable[[int, None], None] = signal.getsignal(signal.SIGALRM)  # type: ignore[assignment]
        handler(signal.SIGALRM, None)

    with time_limit(10.0):
        monkeypatch.setattr(Waits, "waited_s", 12.0)
        ring()
        assert alarms == [10.0, 7.0]
        with pytest.raises(EvaluationTimeoutError, match="longer than 10 s"):
            ring()


# -- on a graphics card -----------------------------------------------------------------------


@pytest.mark.gpu
def test_a_card_is_timed_with_the_processor_and_computed_on_alone() -> None:
    import torch

    card = f"cuda-{torch.cuda.get_device_properties(0).uuid}"
    with computing("cuda"), computing("cuda:0"):
        assert computed_on(card) and not computed_on("cpu")
        with timing("cuda:0"):
            assert timed_on(card) and timed_on("cpu")


def test_a_card_that_is_not_there_counts_as_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with computing("cuda:3"):
        assert computed_on("cpu")

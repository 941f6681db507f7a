"""One contract for every executor: the same numbers in the same order, whatever goes wrong."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from nas.executors.attempts import attempt, time_limit
from nas.executors.base import Executor, ExecutorSettings, Failure, Outcome
from nas.executors.local import LocalExecutor
from nas.executors.opening import open_executor
from nas.run.folder import RunFolder
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.errors import ExecutorError, UsageError
from tests.support.pipeline_cases import finished_once, spec_of
from tests.support.ray_cases import Poison, PoisonedSource, poisoned_worker

TIMED = ("quality", "latency_ms")
Made = Callable[..., tuple[Executor, Run]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose supernet is trained."""
    return finished_once(tmp_path_factory.mktemp("executors") / "run")


@pytest.fixture(scope="module")
def networks(folder: RunFolder) -> list[Architecture]:
    return [
        Architecture.from_json(x["architecture"]) for x in folder.read_journal("observations.jsonl")
    ]


@pytest.fixture(scope="module")
def known(folder: RunFolder) -> list[Outcome]:
    """What the search itself found."""
    lines = folder.read_journal("observations.jsonl")
    return [{k: v for k, v in line.items() if k not in ("id", "architecture")} for line in lines]


class ExecutorContract:
    """Subclasses say how an executor is made for a run, some of whose networks misbehave."""

    @pytest.fixture
    def made(self, folder: RunFolder) -> Made:
        raise NotImplementedError

    def test_outcomes_come_to_the_last_bit_also_after_an_evaluation_given_up(
        self, made: Made, networks: list[Architecture], known: list[Outcome]
    ) -> None:
        executor, run = made(one_worker=True)
        with executor:
            assert list(executor.evaluate(run, networks)) == known
            assert list(executor.evaluate(run, networks[::-1][:3])) == known[::-1][:3]
            assert list(executor.evaluate(run, [])) == []
            outcomes = executor.evaluate(run, networks)
            assert next(outcomes) == known[0]
            outcomes.close()  # type: ignore[attr-defined]
            assert list(executor.evaluate(run, networks[3:5])) == known[3:5]
            executor.release()
            assert list(executor.evaluate(run, networks[5:6])) == known[5:6]

    def test_what_fails_is_told_and_the_rest_comes_in_order(
        self, made: Made, networks: list[Architecture], known: list[Outcome], tmp_path: Path
    ) -> None:
        bad = {1: "raise", 2: "memory", 3: "nan", 4: "hang", 5: f"once:raise:{tmp_path / 'mark'}"}
        executor, run = made({networks[i].id: how for i, how in bad.items()}, timeout_s=2.0)
        with executor:
            found = worth(executor.evaluate(run, networks[:8]))
        kinds = [one.kind if isinstance(one, Failure) else "" for one in found]
        assert kinds == ["", "error", "memory", "not finite", "timeout", "", "", ""]
        assert [one.tries for one in found[1:5] if isinstance(one, Failure)] == [2, 2, 1, 2]
        assert found[1] == Failure("error", "RuntimeError: a bad kernel", 2)
        assert [one for one in found if not isinstance(one, Failure)] == [known[0], *known[5:8]]

    def test_networks_are_timed_and_remembered_and_memory_is_measured(
        self, made: Made, networks: list[Architecture], tmp_path: Path
    ) -> None:
        executor, _ = made()
        spec = spec_of(tmp_path / "run", objectives=TIMED)
        with executor:
            executor.check(spec)
            meter = executor.meter(spec, None)
            assert meter.header.device == executor.device(spec) == LocalExecutor().device(spec)
            assert not meter.known(networks[0])
            (first,) = meter.measure(networks[:1]).values
            assert meter.known(networks[0]) and not first.doubtful
            assert meter.measure(networks[:2]).values[0] == first
            assert meter.in_sessions(networks[:1]).values[0].sessions > 1
            assert executor.measure(spec, "peak_memory_mb", networks[0]) > 0


def worth(told: Iterable[Outcome | str]) -> list[Outcome]:
    """The outcomes, without what was lost meanwhile."""
    return [one for one in told if not isinstance(one, str)]


class TestLocal(ExecutorContract):
    @pytest.fixture
    def made(self, folder: RunFolder) -> Made:
        def make(
            poison: Poison | None = None, one_worker: bool = True, **settings: float
        ) -> tuple[Executor, Run]:
            run = Run(folder)
            return (
                LocalExecutor(ExecutorSettings(**settings)),  # type: ignore[arg-type]
                PoisonedSource(run, poison or {}),  # type: ignore[return-value]
            )

        return make

    def test_networks_are_scored_with_the_threads_of_the_supernets_training(
        self, networks: list[Architecture], tmp_path: Path
    ) -> None:
        before = torch.get_num_threads()

        class Threads:
            spec = spec_of(tmp_path / "run", numbers={"supernet.threads": str(before + 1)})

            def prepare(self) -> None:
                pass

            def quality(self, network: Architecture) -> dict[str, float]:
                return {"quality": float(torch.get_num_threads())}

        with LocalExecutor() as executor:
            for outcome in executor.evaluate(Threads(), networks[:2]):  # type: ignore[arg-type]
                assert outcome == {"quality": before + 1}
                assert torch.get_num_threads() == before


@pytest.mark.ray
class TestRay(ExecutorContract):
    @pytest.fixture
    def made(self, folder: RunFolder, tmp_path: Path, ray_session: None) -> Made:
        from nas.executors.ray import RayExecutor

        def make(
            poison: Poison | None = None, one_worker: bool = False, **settings: float
        ) -> tuple[Executor, Run]:
            values = {"workers": 1 if one_worker else 2, **settings}
            where = ExecutorSettings("ray", **values)  # type: ignore[arg-type]
            return RayExecutor(where, folder, poisoned_worker(poison or {})), Run(folder)

        return make

    def test_a_worker_killed_is_replaced_and_its_network_tried_again(
        self, made: Made, networks: list[Architecture], known: list[Outcome]
    ) -> None:
        executor, run = made({networks[2].id: "die"}, one_worker=True)
        with executor:
            told = list(executor.evaluate(run, networks[:5]))
        lost = [one for one in told if isinstance(one, str)]
        assert len(lost) == 2 and all("its process ended; another takes its" in one for one in lost)
        assert re.match(rf"worker-0 on \S+ was lost: {networks[2].id}: ", lost[0])
        found = worth(told)
        assert found[2] == Failure("worker died", "its process ended", 2)
        assert found[:2] + found[3:] == known[:2] + known[3:5]
        log = "".join(f.read_text() for f in (run.folder.path / "workers").glob("worker-*.log"))
        assert f"lost: {networks[2].id}: its process ended" in log
        assert not (run.folder.path / "workers" / "state.json").exists()

    def test_a_device_that_nobody_offers_is_one_sentence(self, made: Made, tmp_path: Path) -> None:
        executor, _ = made()
        spec = spec_of(tmp_path / "run", device="cuda", objectives=TIMED)
        with executor:
            assert executor.device(spec) is None
            with pytest.raises(ExecutorError, match=r"ray start --resources='\{\"nas_latency_cuda"):
                executor.meter(spec, None)

    def test_data_that_are_not_there_end_it(
        self, made: Made, networks: list[Architecture], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor, run = made(one_worker=True)
        monkeypatch.setattr(Run, "data_digest", "of other data")
        with executor, pytest.raises(ExecutorError, match="put the same files at the same path"):
            list(executor.evaluate(run, networks))


def test_a_value_that_is_none_at_the_second_try_was_tried_twice(
    networks: list[Architecture],
) -> None:
    found = iter([{"quality": math.nan}, {"quality": 1.0}])
    outcome = attempt(lambda network: next(found), networks[0], 2)
    assert outcome == Failure("not finite", "its quality is nan", 2)
    assert attempt(lambda network: next(found), networks[0], 2) == {"quality": 1.0}


@pytest.mark.parametrize("seconds", [1e10, 1e308, math.inf])
def test_no_number_of_seconds_is_too_large_for_a_limit(seconds: float) -> None:
    with time_limit(seconds):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1e8
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "local"},
        {"kind": "ray", "ray_address": "auto", "workers": 3},
        {"kind": "ray", "ray_address": "10.0.0.1:6379", "cpus_per_worker": 2},
        {"kind": "ray", "ray_address": "[::1]:6379"},
    ],
)
def test_settings(values: dict[str, object]) -> None:
    assert ExecutorSettings(**values).kind == values["kind"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "slurm"}, "takes local or ray"),
        ({"workers": 2}, "--workers is for --executor ray"),
        ({"ray_address": "auto"}, "--ray-address is for --executor ray"),
        ({"kind": "ray", "workers": 0}, "at least 1"),
        ({"kind": "ray", "cpus_per_worker": -1}, "--cpus-per-worker"),
        ({"kind": "ray", "ray_address": "ray://head:10001"}, r"HOST:PORT .*'ray://head:10001'"),
        ({"kind": "ray", "ray_address": "head"}, "HOST:PORT"),
        ({"kind": "ray", "ray_address": "head:99999"}, "HOST:PORT"),
        ({"timeout_s": 0.0}, "above 0; given 0"),
        ({"timeout_s": float("nan")}, "above 0"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ExecutorSettings(**values)  # type: ignore[arg-type]


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, folder: RunFolder) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'nas-service\[ray\]'"):
        open_executor(ExecutorSettings("ray"), folder)
    assert isinstance(open_executor(ExecutorSettings(), folder), LocalExecutor)

"""A search tells before it works how long it will take, and what it took stands beside it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.table import Table

from latency import acceptance
from nas.console.commands.results import duration_words, final_lines
from nas.console.tables import duration_table
from nas.report import write_report
from nas.request.presets import budget_for
from nas.request.spec import build_spec
from nas.results.state import read_state
from nas.run import pace
from nas.run.duration import (
    CHECK,
    CHOSEN_UPDATE,
    EVALUATION,
    FIT,
    GENERATION,
    OWN_UPDATE,
    PLAIN_UPDATE,
    SCORE,
    SECOND,
    UNEVEN,
    UPDATE,
    Asked,
    Duration,
    Plan,
    read_duration,
)
from nas.run.events import DurationTold, Event, Note, StageFinished, StageStarted
from nas.run.folder import RunFolder
from nas.run.pace import Stopwatch, typical_seconds
from nas.run.stages import REPORT, SEARCH_STAGES
from nas.stages import calibration
from nas.stages.base import Run
from nas.stages.calibration import calibrate
from nas.stages.halve import stops_of
from nas.stages.pipeline import run_search
from nas.stages.telling import duration_of, plan_of
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, TooLargeError
from search_spaces.loading import dump_space, load_space
from supernet.training.sampling import SingleNetwork
from tests.support.cli_fakes import LARGE, SMALL
from tests.support.pipeline_cases import finished_once, named, results, tiny

BATCHES = 23
NAMES = [stage.name for stage in (*SEARCH_STAGES, REPORT)] + ["retrain"]


def digits(preset: str = "quick", numbers: dict[str, str] | None = None, **values: Any) -> Asked:
    space = load_space("digits")
    given = {"space_toml": dump_space(space), "dataset": "digits", "preset": preset}
    budget = budget_for(space, preset, numbers or {})
    return Asked(build_spec(**(given | {"budget": budget} | values)), lambda _: BATCHES)


def counts(plan: Plan, most: bool = False) -> dict[str, float]:
    """How often each unit is done, or is done at most."""
    found: dict[str, float] = {}
    for part in plan.parts:
        count = part.count if part.most is None or not most else part.most
        if count:
            found[part.unit] = found.get(part.unit, 0.0) + count
    return found


@pytest.mark.parametrize("stage", NAMES)
def test_each_stage_tells_its_work_or_a_reason_for_nothing(stage: str) -> None:
    plan = plan_of(stage)(digits(baseline="plain", retrain=3))
    assert plan.what
    assert all(count > 0 for count in counts(plan).values())
    assert plan.parts or stage in ("declare", "inherit", "front")


def test_trainings_are_counted_from_the_request() -> None:
    found = plan_of("supernet")(digits())
    assert found.what == "60 epochs, 1,380 updates"
    assert counts(found) == {UPDATE: 1380, CHECK: 12 * 32}
    alone = digits(numbers={"own_updates": "50", "own_seeds": "2", "observations": "16"})
    assert counts(plan_of("observe")(alone)) | {FIT: 0, GENERATION: 0} == {
        OWN_UPDATE: 1600,
        CHECK: 32,
        EVALUATION: 32,
        FIT: 0,
        GENERATION: 0,
    }


def test_candidates_and_the_rest_of_the_winners_training_cost_1_7_trainings() -> None:
    asked = digits(retrain=3)
    assert stops_of(asked) == [0.2, 0.5]
    halved, rest = counts(plan_of("halve")(asked)), counts(plan_of("retrain")(asked))
    assert halved[CHOSEN_UPDATE] + rest[CHOSEN_UPDATE] == pytest.approx(1.7 * 100 * BATCHES)
    assert rest[SCORE] == 2


def test_baselines_are_trained_beside_the_winner() -> None:
    found = counts(plan_of("retrain")(digits(baseline="plain")))
    assert found[PLAIN_UPDATE] == 2300 and found[CHOSEN_UPDATE] == 4600 and found[SCORE] == 6
    given = counts(plan_of("retrain")(digits(baseline=SMALL.to_json())))
    assert given[PLAIN_UPDATE] == given[CHOSEN_UPDATE] == 2300


@pytest.mark.parametrize(
    ("pick", "cost", "wanted"),
    [
        ("2x", "latency_ms", {PLAIN_UPDATE: 1150}),
        ("1.5x", "flops", {PLAIN_UPDATE: 2300 / 1.5}),
        ("2x", "params", {CHOSEN_UPDATE: 2300}),
        ("knee", "flops", {CHOSEN_UPDATE: 2300}),
    ],
)
def test_how_much_less_a_pick_computes_than_the_checkpoint_is_told_by_it(
    pick: str, cost: str, wanted: dict[str, float]
) -> None:
    asked = digits(pick=pick, objectives=("quality", cost))
    alone = counts(plan_of("retrain")(asked))
    assert alone[CHOSEN_UPDATE] == 2300 and PLAIN_UPDATE not in alone
    begun = Asked(asked.spec.model_copy(update={"start": object()}), asked.batches)
    found = counts(plan_of("retrain")(begun))
    assert {unit: found[unit] for unit in (PLAIN_UPDATE, CHOSEN_UPDATE) if unit in found} == wanted
    given = Asked(begun.spec.model_copy(update={"baseline": SMALL.to_json()}), asked.batches)
    assert counts(plan_of("retrain")(given))[CHOSEN_UPDATE] == 2300


def test_what_is_known_is_not_timed_again() -> None:
    fresh, known = digits(), digits()
    known = Asked(known.spec, known.batches, {"latency_ms": 10}, frozenset())
    new = Asked(fresh.spec, fresh.batches, {"latency_ms": 40}, frozenset({"latency_ms"}))
    unit = "timing of a network in a session: latency_ms"
    beside = 9 + 3  # copies of the reference, which is small, and of the yardstick
    assert counts(plan_of("latency")(known)) == {unit: 5 * (10 + beside)}
    first = {unit: 5 * (40 + beside) + 7 * beside}
    assert counts(plan_of("latency")(new)) == first | {"second": 11 + 48 / 3}
    assert counts(plan_of("latency")(replace(new, watched=True))) == first | {"second": 11}
    nothing = plan_of("latency")(Asked(fresh.spec, fresh.batches, {"latency_ms": 0}))
    assert nothing.parts == () and nothing.what == "0 networks to time, 40 known"


def test_beside_other_work_timings_are_repeated_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAS_TIMING_PATIENCE_S", "60")
    unit = "timing of a network in a session: latency_ms"
    known = Asked(digits().spec, digits().batches, {"latency_ms": 10}, frozenset())
    new = Asked(known.spec, known.batches, {"latency_ms": 10}, frozenset({"latency_ms"}))
    beside = 9 + 3
    sample = 10 * (10 + 3 * beside)  # twice as many sessions, and those that confirm
    assert counts(plan_of("latency")(known), most=True) == {unit: sample, "second": 3 * 60}
    first = counts(plan_of("latency")(new), most=True)
    assert first == {unit: sample + 50 * beside, "second": 3 * 60 + 59}
    baselines = counts(plan_of("baseline")(digits(baseline="plain")), most=True)
    assert baselines == {unit: 2 * 10 * (1 + beside), "second": 2 * 60}
    trained = plan_of("supernet")(known)
    assert counts(trained, most=True) == counts(trained)


def test_where_the_speed_comes_and_goes_timings_take_longer() -> None:
    new = Asked(digits().spec, digits().batches, {"latency_ms": 10}, frozenset({"latency_ms"}))
    plan, unit = plan_of("latency")(new), "timing of a network in a session: latency_ms"
    assert list(dict.fromkeys(plan.units)) == [unit, UNEVEN, SECOND]
    even = {unit: 1.0, SECOND: 0.0, UNEVEN: 0.0}
    beside = 9 + 3
    assert plan.seconds(even) == 5 * (10 + beside) + 7 * beside
    assert plan.seconds(even | {UNEVEN: 1.0}) == 7.5 * (10 + beside) + 7 * beside
    waits = {unit: 0.0, SECOND: 1.0, UNEVEN: 1.0}
    assert plan.seconds(waits | {UNEVEN: 0.0}) == 11 + 48 / 3
    assert plan.seconds(waits) == 11 + 48 * 2 / 3
    watched = plan_of("latency")(replace(new, watched=True))
    assert watched.seconds(waits) == watched.seconds(waits | {UNEVEN: 0.0}) == 11
    assert plan.most_seconds(waits) == plan.most_seconds(waits | {UNEVEN: 0.0})
    trained = plan_of("supernet")(new)
    assert UNEVEN not in set(trained.units)
    told = Duration(calibration={UNEVEN: 1.0}, calibrated_s=2.0)
    assert told.about == "from 2.0 s of calibration on this machine, whose speed comes and goes"


def test_elsewhere_nothing_is_timed() -> None:
    here, there = digits(), digits()
    there = Asked(there.spec, there.batches, elsewhere=True)
    assert len(plan_of("verify")(there).parts) < len(plan_of("verify")(here).parts)


# -- calibrating ----------------------------------------------------------------------------------

SHIPPED = [
    (module, name, getattr(module, name))
    for module, name in [(calibration, "MOST_ROUNDS"), (pace, "ENOUGH_S"), (pace, "MOST_UPDATES")]
]


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations as long as those of users, which other tests shorten."""
    for module, name, value in SHIPPED:
        monkeypatch.setattr(module, name, value)


class Clock:
    """Goes on by a second at every look."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return float(next(self._ticks))


@pytest.mark.usefixtures("as_shipped")
def test_a_stopwatch_leaves_out_the_first_update_and_the_slowest() -> None:
    times = iter([0.0, 9.0, 9.1, 9.4, 9.5])
    watch = Stopwatch(SingleNetwork(SMALL), lambda: next(times))
    with pytest.raises(Exception, match="^$"):
        for _ in range(9):
            watch.draw()
    seconds, sizes, _ = zip(*watch.timed(), strict=True)
    assert seconds == pytest.approx([0.1, 0.1]) and sizes == (1, 1)


@pytest.mark.usefixtures("as_shipped")
def test_batches_of_few_tokens_say_what_those_of_many_take() -> None:
    """Of two updates that were timed one was short; the mean of all batches holds 50 tokens."""
    assert typical_seconds([0.1, 0.3], [10, 30], iter([20, 80])) == pytest.approx(0.5)
    assert typical_seconds([0.1, 0.3], [29, 30], iter(())) == pytest.approx(0.2)
    reads, times = iter([10, 40, 50, 90, 100]), iter([0.0, 9.0, 9.3, 9.4, 9.9])
    watch = Stopwatch(SingleNetwork(SMALL), lambda: next(times), lambda: next(reads))
    with pytest.raises(Exception, match="^$"):
        for _ in range(9):
            watch.draw()
    # .3 s of 30, .1 s of 10, .5 s of 40: the slowest of its size.
    seconds, sizes, _ = zip(*watch.timed(), strict=True)
    assert dict(zip(sizes, seconds, strict=True)) == pytest.approx({30: 0.3, 10: 0.1})


class Turns:
    """A sampler that draws some networks in turn."""

    def __init__(self, *networks: Architecture) -> None:
        self._networks = itertools.cycle(networks)

    def draw(self) -> list[Architecture]:
        """The next one."""
        return [next(self._networks)]


@pytest.mark.usefixtures("as_shipped")
def test_few_long_updates_are_told_by_the_operations_of_what_was_drawn() -> None:
    sampler, large = Turns(SMALL, LARGE), 4.0

    def cost(networks: Sequence[Architecture]) -> float:
        return float(np.mean([large if one == LARGE else 1.0 for one in networks]))

    times = iter([0.0, 9.0, 9.4, 9.6])  # .4 s of the large one, and .2 s, slow, of the small one
    watch = Stopwatch(sampler, lambda: next(times))
    with pytest.raises(Exception, match="^$"):
        for _ in range(9):
            watch.draw()
    ((seconds, _, found),) = watch.timed(cost)
    assert (seconds, found) == pytest.approx((0.4, large))
    seconds, _, found = watch.timed()[0]  # without costs the small one is the faster
    assert (seconds, found) == pytest.approx((0.2, 1.0))


def test_units_are_differences_of_the_clock_and_no_generator_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("run.pace", "stages.calibration"):
        monkeypatch.setattr(f"nas.{module}.operations", lambda space, networks: 1.0)
    run = Run(finished_once(tmp_path / "run"))
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    units = (UPDATE, OWN_UPDATE, PLAIN_UPDATE, CHOSEN_UPDATE, CHECK, EVALUATION, SCORE)
    found = calibrate(run, units, Clock())
    assert {found[unit] for unit in units[:4]} == {1.0}
    examples = run.task.describe()["num_valid"]
    assert found[CHECK] == found[EVALUATION] == found[SCORE] == examples / 16
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state()) == str(states[1])
    assert random.getstate() == states[2]


@pytest.mark.parametrize(
    ("beats_ms", "uneven"),
    [
        ([1.0, 1.04] * 15, False),
        ([1.0, 1.2, 1.2] * 10, True),
        ([1.0] * 20 + [3.0] * 10, False),  # spells of which timings need not wait for the end
        ([1.0] * 10 + [3.0] * 20, True),
        ([1.0, 3.0, 3.0, 3.0, 3.0], False),  # too few to tell
    ],
)
def test_a_machine_is_uneven_where_a_network_is_seldom_fast(
    monkeypatch: pytest.MonkeyPatch, beats_ms: list[float], uneven: bool
) -> None:
    monkeypatch.setattr(acceptance, "TOLERANCES", acceptance.Tolerances())
    assert calibration._uneven(beats_ms) is uneven


def test_a_network_is_timed_between_the_steps_to_see_whether_the_machine_is_uneven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "TOLERANCES", acceptance.Tolerances())
    run, beats_ms = Run(finished_once(tmp_path / "run")), itertools.cycle([1.0, 2.0, 2.0])
    monkeypatch.setattr(calibration._Bench, "measured", lambda *_: 0.5)

    def beat(bench: Any) -> None:
        bench._beats_ms.append(next(beats_ms))

    monkeypatch.setattr(calibration._Bench, "beat", beat)
    steps = (UPDATE, OWN_UPDATE, CHECK, EVALUATION, SCORE, FIT)
    found = calibrate(run, (*steps, UNEVEN), lambda: 0.0)
    assert found == dict.fromkeys(steps, 0.5) | {UNEVEN: 1.0}
    assert UNEVEN not in calibrate(run, steps, lambda: 0.0)


@pytest.mark.usefixtures("as_shipped")
def test_a_spell_of_other_work_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round is ten times as slow as the others."""
    run, seconds = Run(finished_once(tmp_path / "run")), iter([5.0, 0.5, 0.5, 0.5])
    monkeypatch.setattr(calibration._Bench, "measured", lambda *_: next(seconds))
    assert calibration.calibrate(run, [UPDATE], lambda: 0.0) == {UPDATE: 0.5}
    assert next(seconds) == 0.5  # three rounds, the last of which found nothing else


@pytest.mark.usefixtures("as_shipped")
def test_steps_that_take_long_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looks = Run(finished_once(tmp_path / "run")), iter([0.0, 16.0])
    monkeypatch.setattr(calibration._Bench, "measured", lambda *_: 15.0)
    assert calibration.calibrate(run, [UPDATE], lambda: next(looks)) == {UPDATE: 15.0}


# -- telling --------------------------------------------------------------------------------------


def told(folder: RunFolder, tells: bool = True) -> list[Event]:
    return list(run_search(folder, tells=tells))


def test_a_search_that_tells_finds_the_same(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    events = told(folder)
    names = [type(one).__name__ for one in events]
    assert names.count("DurationTold") == 1
    before = events[: names.index("DurationTold")]
    assert [one.stage for one in before if isinstance(one, StageStarted)] == ["declare"]
    assert results(folder) == results(finished_once(tmp_path / "other"))
    duration = read_duration(folder)
    assert duration is not None and not duration.reason and duration.seconds > 0
    state = read_state(folder, thorough=True)
    assert state.told.told.keys() == {one.name for one in state.stages} - {"declare"}
    line = duration_words(state)
    assert line.startswith("told ") and ", took " in line and line.endswith(" times)")
    assert f"Time    {line}" in final_lines(folder)
    write_report(folder)
    assert "Duration: told" in (folder.path / "report.html").read_text("utf-8")
    assert named(told(RunFolder.open(folder.path)), "DurationTold") == []  # nothing is left


def test_a_run_that_goes_on_keeps_what_was_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(tmp_path / "run")
    running = run_search(folder, tells=True)
    next(one for one in running if isinstance(one, StageStarted) and one.stage == "observe")
    running.close()  # type: ignore[attr-defined]
    first = read_duration(folder)
    monkeypatch.setattr("nas.stages.telling.calibrate", lambda *_: pytest.fail("told again"))
    (again,) = [one for one in told(folder) if isinstance(one, DurationTold)]
    assert read_duration(folder) == first
    assert "supernet" not in [one["stage"] for one in again.stages]
    assert first is not None and again.seconds == first.seconds


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DataError("a file is gone"), "a file is gone"),
        (OSError("no room"), "no room"),
        (MemoryError(), "the memory does not suffice"),
        (TooLargeError("the training does not fit"), "the memory does not suffice"),
        (torch.OutOfMemoryError("2.0 GiB are wanted"), "the memory does not suffice"),
        (RuntimeError("DefaultCPUAllocator: can't allocate"), "the memory does not suffice"),
    ],
)
def test_a_calibration_that_fails_stops_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("nas.stages.telling.calibrate", fails)
    folder = tiny(tmp_path / "run")
    running = run_search(folder, tells=True)
    event = next(one for one in running if isinstance(one, DurationTold))
    assert event.reason == f"calibrating failed: {why}"
    assert str(duration_table(event)) == f"no duration is told: calibrating failed: {why}"
    assert duration_words(read_state(folder, thorough=False)).startswith("not told: calibrating")
    assert next(one for one in running if isinstance(one, StageFinished)).stage == "supernet"
    running.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [TypeError("our own mistake"), RuntimeError("shapes differ")])
def test_a_mistake_of_our_own_in_a_calibration_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("nas.stages.telling.calibrate", fails)
    folder = tiny(tmp_path / "run")
    with pytest.raises(type(error), match=str(error)):
        told(folder)
    assert read_duration(folder) is None


def test_stages_whose_time_is_not_told_are_named_beside_the_sum() -> None:
    stages = ({"label": "Inherit", "what": "", "seconds": None},)
    stages += ({"label": "Distil", "what": "", "seconds": 3.0},)
    table = duration_table(DurationTold("declare", stages, 3.0, "from 1.0 s"))
    assert isinstance(table, Table)
    assert list(table.columns[1].cells)[-1] == "from 1.0 s; not told: Inherit"
    whole = duration_table(DurationTold("declare", stages[1:], 3.0, "from 1.0 s"))
    assert isinstance(whole, Table) and list(whole.columns[1].cells)[-1] == "from 1.0 s"


def latency_run(path: Path) -> RunFolder:
    return tiny(path, objectives=("quality", "latency_ms"))


def told_busy(folder: RunFolder) -> list[str]:
    """What is told of a busy machine before the search works."""
    running = run_search(folder, tells=True)
    first = itertools.takewhile(lambda one: getattr(one, "stage", "") == "declare", running)
    messages = [one.message for one in first if isinstance(one, Note)]
    running.close()  # type: ignore[attr-defined]
    return [message for message in messages if "busy" in message]


def test_a_busy_machine_is_told_where_networks_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "other work kept 1.9 of 2 cores busy"
    monkeypatch.setattr("nas.stages.telling.why_busy", lambda *_: why)
    folder = latency_run(tmp_path / "run")
    (message,) = told_busy(folder)
    assert message.startswith(f"the machine is busy now ({why}): what times networks (")
    assert "Time sampled networks, Measure the best" in message
    assert message in [one.message for _, one in folder.events() if isinstance(one, Note)]
    duration = read_duration(folder)
    assert duration is not None and duration.busy == why and duration.warning == message
    assert told_busy(folder) == []  # who goes on finds another moment
    assert duration_of(folder.spec, duration.calibration).warning == message
    assert told_busy(tiny(tmp_path / "without")) == []


def test_a_machine_at_rest_is_not_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nas.stages.telling.why_busy", lambda *_: None)
    folder = latency_run(tmp_path / "run")
    assert told_busy(folder) == []
    duration = read_duration(folder)
    assert duration is not None and duration.busy == duration.warning == ""


def test_a_run_that_was_begun_without_is_not_told_of(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    running = run_search(folder)
    next(one for one in running if isinstance(one, StageStarted) and one.stage == "observe")
    running.close()  # type: ignore[attr-defined]
    assert named(told(folder), "DurationTold") == []
    assert read_duration(folder) is None

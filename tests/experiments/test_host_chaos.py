"""The study that cuts hosts off: what it plans, whom it blames for a write, and what success is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from experiments.file_writers import Watch, Write, final, late_writes
from experiments.host_chaos import (
    CUT_S,
    OTHERS,
    STUDY,
    Blow,
    Outcome,
    as_body,
    noticed_s,
    plan,
    row,
)
from experiments.ray_chaos import REQUEST
from nas.request.spec import SearchRequest
from search_spaces.files import write_atomically

BLOW = Blow("cut", 12, 0.1, 60.0, "host-1", "local")
GOOD = Outcome(1, BLOW, "host-1", "observe", 41.0, ["host-1"], 1, 0, [], True, 130.0)


def test_a_plan_is_seeded_and_even() -> None:
    stages = ["supernet"] * 3 + ["observe"] * 90 + ["retrain"] * 7
    one, same, other = (plan(np.random.default_rng(seed), 20, stages, True) for seed in (0, 0, 1))
    assert one == same != other
    assert {stages[blow.event - 1] for blow in one} == set(stages)
    assert set(Counter(blow.target for blow in one).values()) == {2, 3}
    assert all(CUT_S[0] <= blow.cut_s <= CUT_S[1] and blow.host in OTHERS for blow in one)
    searches = plan(np.random.default_rng(0), 20, stages, False)
    assert not {blow.target for blow in searches} & {"database", "slow database"}


def test_the_job_is_the_search() -> None:
    request = SearchRequest.model_validate(as_body(REQUEST, 3))
    assert (request.space, request.preset, request.seed) == ("digits", "smoke", 3)
    assert request.overrides["supernet.epochs"] == "2" == request.overrides["retrain.epochs"]


def write(at: float, file: str, pid: int) -> Write:
    return Write(at, file, pid, None, None)


def test_only_who_was_given_up_is_late_and_only_where_another_took_over() -> None:
    writes = [
        write(1, "last.pt", 1),
        write(2, "last.pt", 2),  # before anything happened
        write(3, "last.pt", 1),
        write(11, "a.json", 1),  # nobody else writes that
        write(12, "last.pt", 1),  # nobody has taken over yet
        write(13, "last.pt", 2),
        write(14, "b.json", 2),
    ]
    assert late_writes(writes, 10, lambda one: one.pid == 1) == []
    writes += [write(15, "last.pt", 1), write(16, "b.json", 3)]
    assert late_writes(writes, 10, lambda one: one.pid == 1) == ["last.pt"]


@pytest.mark.hosts
def test_writes_are_seen_with_their_process(tmp_path: Path) -> None:
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('text')"
    folder = tmp_path / "watched"
    folder.mkdir()
    with Watch(folder) as watch:
        process = subprocess.Popen([sys.executable, "-c", code, folder / "a.json"])
        process.wait()
        write_atomically(folder / "own.json", "of this process, which is not told")
    assert [(one.file, one.pid) for one in watch.writes] == [("a.json", process.pid)]


def test_a_temporary_file_goes_by_its_final_name() -> None:
    assert final("run/.pareto.json.ab12.tmp") == "run/pareto.json"
    assert final(".last.pt.ab12.tmp") == "last.pt" and final("run/.lock") == "run/.lock"


def test_a_loss_is_noticed_with_the_first_line_that_tells_of_it(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "worker-0.log").write_text(
        "1970-01-01T00:00:05.000+00:00 lost: earlier\n"
        "1970-01-01T00:00:12.500+00:00 lost: its machine cannot be reached: gone\n"
        "1970-01-01T00:00:11.000+00:00 aa evaluated in 0.1 s\n"
    )
    assert noticed_s(tmp_path, 10.0) == 2.5
    assert noticed_s(tmp_path, 20.0) is None


def test_a_line_of_the_table_says_what_happened() -> None:
    cells = "1 cut host-1|observe|60|41|host-1|1|equal|130"
    assert " ".join(row(GOOD)[:2]) + "|" + "|".join(row(GOOD)[2:]) == cells
    killed = replace(GOOD, blow=replace(BLOW, target="search"), late=["last.pt"], equal=False)
    assert row(killed)[1] == "search, resumed by local"
    assert row(killed)[7] == "DIFFERENT, late writes"


def test_runs_keep_their_numbers_in_the_plan() -> None:
    table, _ = STUDY.show([asdict(replace(GOOD, number=number)) for number in (6, 7)])
    assert isinstance(table, Table) and list(table.columns[0].cells) == ["6", "7"]


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"noticed_s": None, "left": [], "redone": 3}, True),
        ({"equal": False}, False),
        ({"repeated": 1}, False),
        ({"late": ["last.pt"]}, False),
        ({"error": "it hangs"}, False),
    ],
)
def test_what_counts_as_success(change: dict[str, object], good: bool) -> None:
    assert replace(GOOD, **change).good is good  # type: ignore[arg-type]


@pytest.mark.ray
@pytest.mark.hosts
@pytest.mark.slow
def test_hosts_that_are_cut_off_leave_the_same_front() -> None:
    assert STUDY.main(["--times", "2", "--seed", "1"]) == 0

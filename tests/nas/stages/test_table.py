"""Command, report, dashboard and docs name exactly the stages that a search has."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nas.report.summary_section import reproduce_section
from nas.results.reader import read_contents
from nas.results.state import read_state
from nas.run.folder import RunFolder
from nas.run.stages import OF_NETWORKS, REPORT, SEARCH_STAGES, Stage, search_stages, stage_label
from service.dashboard.run_views import RunView, stages
from service.jobs.states import Job, State
from tests.support.run_fixture import empty_run, finished_run
from tests.support.trained_cases import LANGUAGE

ROOT = Path(__file__).resolve().parents[3]
ALWAYS = ["declare", "supernet", "observe", "rank", "verify", "front", "exchange"]
# A request → the stages that it has beside those of every search.
REQUESTS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"latency", "prune", "evolve"}),
    ({"objectives": ("quality", "flops")}, {"prune", "evolve"}),
    ({"objectives": ("quality", "peak_memory_mb")}, {"memory", "prune", "evolve"}),
    (
        {"objectives": ("quality", "flops"), "limits": {"latency_ms": 1.0}},
        {"latency", "prune", "evolve"},
    ),
    ({"limits": {"peak_memory_mb": 99.0}, "searcher": "nsga2"}, {"latency", "memory"}),
    ({"searcher": "random"}, {"latency"}),
    (
        {"searcher": "random", "baseline": "plain", "retrain": 3},
        {"latency", "baseline", "halve"},
    ),
    ({"objectives": ("quality", "decode_ms")}, {"decode", "prune", "evolve"}),
    (
        {"objectives": ("quality", "flops"), "limits": {"prefill_ms": 9.0}},
        {"prefill", "prune", "evolve"},
    ),
    (
        {"searcher": "random", "start": {"folder": "/models/tiny", "digest": "0" * 64}},
        {"latency", "inherit", "distil"},
    ),
    (
        {
            "space_toml": LANGUAGE,
            "dataset": "synthetic",
            "searcher": "random",
            "objectives": ("quality", "decode_ms"),
            "start": {"folder": "/models/tiny", "digest": "0" * 64},
        },
        {"decode", "inherit", "distil", "contexts"},
    ),
]


@pytest.fixture(params=REQUESTS, ids=lambda given: str(given[0]))
def search(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RunFolder, list[Stage]]:
    """A run that has not begun, and the stages that it should have."""
    values, special = request.param
    wanted = [one for one in SEARCH_STAGES if one.name in {*ALWAYS, *special}]
    return empty_run(tmp_path / "run", **values), wanted


def test_every_stage_is_walked_over() -> None:
    special = {name for _, names in REQUESTS for name in names}
    assert {one.name for one in SEARCH_STAGES} == {*ALWAYS, *special}


def test_a_search_has_the_stages_it_needs(search: tuple[RunFolder, list[Stage]]) -> None:
    folder, wanted = search
    assert search_stages(folder.spec) == wanted


def test_the_command_names_them(search: tuple[RunFolder, list[Stage]]) -> None:
    folder, wanted = search
    shown = [stage.name for stage in read_state(folder, thorough=False).stages]
    assert shown == [*(stage.name for stage in wanted), "retrain", REPORT.name]


def test_the_report_names_them_and_their_files(search: tuple[RunFolder, list[Stage]]) -> None:
    folder, wanted = search
    run = read_contents(folder)
    labels = [stage.label.lower() for stage in wanted]
    assert [left.lower() for left in run.unfinished] == [*labels, "retrain the picked network"]
    page = reproduce_section(run)
    for stage in SEARCH_STAGES:
        assert all((f"<code>{name}</code>" in page) == (stage in wanted) for name in stage.outputs)


def test_the_dashboard_names_them(search: tuple[RunFolder, list[Stage]]) -> None:
    folder, wanted = search
    assert timeline(folder) == [(stage.label, "open") for stage in wanted]


def test_a_finished_search_leaves_nothing_to_come(tmp_path: Path) -> None:
    """The timeline once promised for ever to measure memory that nobody had asked for."""
    folder = finished_run(tmp_path / "run")
    shown = timeline(folder)
    assert [label for label, state in shown if state != "done"] == []
    assert shown[: len(ALWAYS) + 3] == [(one.label, "done") for one in search_stages(folder.spec)]


def timeline(folder: RunFolder) -> list[tuple[str, str]]:
    """What a job's page tells of its stages."""
    view = cast(RunView, SimpleNamespace(contents=read_contents(folder)))
    job = cast(Job, SimpleNamespace(state=State.succeeded))
    return [(one.label, one.state) for one in stages(view, job)]


@pytest.mark.parametrize("stage", [*SEARCH_STAGES, REPORT], ids=lambda stage: stage.name)
def test_its_work_stands_in_a_file_named_like_it(stage: Stage) -> None:
    found = find_spec(f"nas.stages.{stage.name}")
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text("utf-8"))
    assert "work" in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("stage", SEARCH_STAGES, ids=lambda stage: stage.name)
def test_it_reads_what_earlier_ones_wrote(stage: Stage) -> None:
    earlier = [one.name for one in SEARCH_STAGES[: SEARCH_STAGES.index(stage)]]
    assert set(stage.needs) <= set(earlier)


def test_the_docs_name_all() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    names = [stage.name for stage in (*SEARCH_STAGES, REPORT)]
    assert [name for name in rows if name in names] == names


def test_the_docs_name_their_files_and_no_others_for_them() -> None:
    text = (ROOT / "docs/run_folder.md").read_text("utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    for stage in (*SEARCH_STAGES, REPORT):
        named = [cell for cell, by, *_ in rows if by == stage.name]
        told = {part.strip("| `") for cell in named for part in cell.split(", ")}
        assert {Path(name).name for name in told} == {Path(name).name for name in stage.files}


def test_stages_of_networks_have_a_label() -> None:
    assert [stage_label(f"{prefix}abc") for prefix in OF_NETWORKS] == [
        "Retrain abc",
        "Train from scratch abc",
        "Look into abc",
        "Export abc",
    ]

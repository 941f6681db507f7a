"""Limits: nobody trains for one that no network can meet, and those that can be met are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nas.executors.local import LocalExecutor
from nas.objectives.size import network_costs
from nas.stages.feasibility import cheapest, check_costs, check_limits, rounded_up
from search_spaces.errors import NasError, UnreachableLimitError, UsageError
from search_spaces.loading import load_space, parse_space, space_names
from search_spaces.operators import enumerate_all, sample
from tests.support.pipeline_cases import TINY, edited, finished, logged, spec_of, tiny, work

SPACES = {
    "plain": TINY,
    "norm-linear": edited(('"cosformer"', '"norm"')),
    "bigbird": edited(('"performer"', '"bigbird"')),
    "linformer": edited(('"performer"', '"linformer"')),
    "class token": edited(
        ("class_token = false", "class_token = true"), ("max_length = 4", "max_length = 5")
    ),
    "no softmax": edited(('["softmax", "linear", "omni"]', '["linear", "omni"]')),
    "deep omni": edited(
        ("num_layers = [1, 2]", "num_layers = [2]"), ("omni_span = 2", "omni_span = 1")
    ),
}


@pytest.mark.parametrize("text", SPACES.values(), ids=SPACES)
def test_the_cheapest_network_is_found(text: str) -> None:
    space = parse_space(text, "space")
    least = network_costs(space, enumerate_all(space, 1000)).min(axis=0)
    found = network_costs(space, space.encode(cheapest(space))).min(axis=0)
    assert found.tolist() == least.tolist()


@pytest.mark.parametrize("name", space_names())
def test_no_sampled_network_is_cheaper(name: str) -> None:
    space = load_space(name)
    rows = sample(space, np.random.default_rng(0), 300)
    least = network_costs(space, space.encode(cheapest(space))).min(axis=0)
    assert (network_costs(space, rows) >= least).all()


@pytest.mark.parametrize("name", ["params", "flops"])
def test_the_edge_is_reachable_and_less_is_not(name: str) -> None:
    space = parse_space(TINY, "space")
    rows = enumerate_all(space, 1000)
    least = network_costs(space, rows)[:, ("params", "flops").index(name)].min()
    check_costs(space, {name: least})
    with pytest.raises(UnreachableLimitError, match=f"the smallest it can reach is {least:,.0f};"):
        check_costs(space, {name: least - 1})


@pytest.mark.parametrize(
    ("value", "text"), [(0.4691, "0.47"), (0.469, "0.469"), (12.0, "12"), (1234.5, "1.24e+03")]
)
def test_the_smallest_value_is_rounded_up(value: float, text: str) -> None:
    assert rounded_up(value) == text and float(text) >= value


def test_other_limits_do_not_matter_to_costs() -> None:
    check_costs(parse_space(TINY, "space"), {"latency_ms": 1e-9})
    check_costs(parse_space(TINY, "space"), {})


def test_a_latency_nobody_reaches(tmp_path: Path) -> None:
    with pytest.raises(
        UnreachableLimitError, match=r"latency_ms=1e-06: the smallest .* is [\d.]+;"
    ):
        check_limits(spec_of(tmp_path / "run", limits={"latency_ms": 1e-6}), LocalExecutor())
    check_limits(spec_of(tmp_path / "run", limits={"latency_ms": 1e6}), LocalExecutor())


@pytest.mark.parametrize("name", ["params", "flops", "latency_ms"])
def test_nothing_is_trained_for_such_a_limit(tmp_path: Path, name: str) -> None:
    run = tiny(tmp_path / "run", limits={name: 1e-6})
    with pytest.raises(UnreachableLimitError):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}
    assert not list(run.path.glob("stages/*.json")) and not (run.path / "supernet").exists()


@pytest.mark.parametrize("name", ["params", "flops"])
def test_tight_limits_are_kept(tmp_path: Path, name: str) -> None:
    space = parse_space(TINY, "space")
    costs = network_costs(space, enumerate_all(space, 1000))[:, ("params", "flops").index(name)]
    most = float(sorted(costs)[5])
    run = finished(tmp_path / "run", limits={name: most})
    front = run.read_json("pareto.json")["front"]
    assert front and all(entry["measured"][name] <= most for entry in front)
    lines = run.read_journal("verification.jsonl")
    assert lines and all(line["measured"][name] <= most for line in lines)


def test_a_latency_limit_without_the_objective(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", limits={"latency_ms": 1000.0})
    front = run.read_json("pareto.json")
    assert [o["name"] for o in front["objectives"]] == ["quality", "flops"]
    assert all(0 < entry["measured"]["latency_ms"] <= 1000 for entry in front["front"])


def test_a_limit_that_all_measured_networks_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas.stages.feasibility.check_limits", lambda *_: None)
    run = tiny(tmp_path / "run", limits={"flops": 1.0})
    with pytest.raises(NasError, match=r"none of the \d+ measured networks keeps flops ≤ 1") as e:
        work(run)
    assert not isinstance(e.value, UsageError)
    assert not (run.path / "pareto.json").exists()

"""Limits: nobody trains for one that no network can meet, and those that can be met are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas.executors.local import LocalExecutor
from nas.objectives import counted
from nas.objectives.size import network_costs
from nas.request.presets import budget_for
from nas.request.spec import SearchSpec, build_spec
from nas.run.folder import RunFolder
from nas.stages.base import Run
from nas.stages.feasibility import cheapest, check_costs, check_limits, check_request, rounded_up
from search_spaces.errors import NasError, UnreachableLimitError, UsageError
from search_spaces.loading import dump_space, load_space, parse_space, space_names
from search_spaces.space import SearchSpace
from search_spaces.variation import enumerate_all, largest, sample, smallest
from tests.support.pipeline_cases import TINY, edited, finished, logged, spec_of, tiny, work

pytestmark = pytest.mark.usefixtures("few_regressors")

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

# Long sources want linear attention, short targets softmax, and both as many heads as there are.
LENGTHS = """
[space]
name = "lengths"
task = "translation"

[model]
max_length = 256
qkv_dim = 128
linear_kernel = "norm"

[model.input]
kind = "tokens"
vocab_size = 50
target_vocab_size = 50

[encoder]
embed_dim = [8]
num_layers = [1, 2]
attention = ["softmax", "linear"]
num_heads = [1, 2]
ffn_dim = [8]

[decoder]
embed_dim = [8]
num_layers = [1]
self_attention = ["softmax", "linear"]
self_num_heads = [1, 2]
cross_attention = ["softmax", "linear"]
cross_num_heads = [1, 2]
ende_connect = [1]
ffn_dim = [8]

[workload]
source = 200
target = 30
"""
MIXED = {
    "lengths": LENGTHS,
    "narrow heads": edited(("head_dim = 4", "qkv_dim = 16")),
    "layers that differ": edited(("num_layers = [1, 2]", "num_layers = [2]"))
    + '\n[encoder.layer.0]\nattention = ["softmax", "omni"]\n'
    + '\n[encoder.layer.1]\nattention = ["linear", "omni"]\n',
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


@pytest.mark.parametrize("text", [*SPACES.values(), *MIXED.values()], ids=[*SPACES, *MIXED])
@pytest.mark.parametrize("name", ["params", "flops"])
def test_the_edge_is_reachable_and_less_is_not(name: str, text: str) -> None:
    space = parse_space(text, "space")
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


# -- what is counted at a workload ----------------------------------------------------------------


def asked(space: SearchSpace, cost: str = "flops", **limits: float) -> SearchSpec:
    """A search for quality and that cost."""
    given: dict[str, Any] = {"space_toml": dump_space(space), "dataset": "synthetic"}
    return build_spec(
        **given,
        budget=budget_for(space, "smoke", {}),
        preset="smoke",
        objectives=("quality", cost),
        limits=limits,
        pick="knee",
    )


RECALL = load_space("recall")  # networks of at most 128 tokens
TOO_MUCH = {
    "a long source": ({"source": 129}, "flops", "source is 129 tokens"),
    "behind a context": ({"source": 999, "context": 9}, "decode_ms", "source is 999 tokens"),
    "while decoding": ({"source": 999, "context": 9, "mode": "decode"}, "flops", "source is 999"),
    "no number": ({"source": "x"}, "flops", "source must be an integer.*given 'x'"),
    "a cache of nothing": ({}, "kv_cache_mb", "needs the source length"),
}


@pytest.mark.parametrize(("workload", "cost", "words"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_workload_that_no_network_takes(workload: dict[str, Any], cost: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_request(asked(replace(RECALL, workload=workload), cost), LocalExecutor())


@pytest.mark.parametrize(
    ("workload", "cost"),
    [
        ({"source": 128}, "flops"),
        ({"source": 128, "context": 9}, "decode_ms"),
        ({"source": 128, "context": 9, "mode": "decode"}, "flops"),
        ({"source": 128}, "kv_cache_mb"),
        ({}, "flops"),
    ],
)
def test_one_that_every_network_takes(workload: dict[str, Any], cost: str) -> None:
    check_request(asked(replace(RECALL, workload=workload), cost), LocalExecutor())


def test_the_smallest_cache_is_observed_where_caches_are_limited(tmp_path: Path) -> None:
    """Linear attention keeps least with the most heads, softmax as much with few as with many."""
    slots = tuple(
        replace(slot, choices=_wide_or_narrow(slot.gene, slot.choices)) for slot in RECALL.slots
    )
    model = replace(RECALL.model, head_dim=None, qkv_dim=32)
    space = replace(RECALL, model=model, slots=slots)
    (least,) = counted(space, enumerate_all(space), ["kv_cache_mb"]).values()
    limits = {"kv_cache_mb": float(least.min())}
    free, limited = (
        Run(RunFolder.create(tmp_path / name, asked(space, **given)))
        for name, given in (("free", {}), ("limited", limits))
    )
    assert np.array_equal(free.ends, np.concatenate([largest(space), smallest(space)]))
    (found,) = counted(space, limited.sampled_rows, ["kv_cache_mb"]).values()
    assert found.min() == least.min()


def _wide_or_narrow(gene: str, choices: tuple[Any, ...]) -> tuple[Any, ...]:
    match gene:
        case "self_attention":
            return ("softmax", "linear")
        case "self_num_heads":
            return (1, 2, 4, 8)
    return choices[-1:]

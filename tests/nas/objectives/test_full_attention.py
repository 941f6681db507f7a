"""Layers of full attention: by hand, by the networks themselves, limited and asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from nas.executors.local import LocalExecutor
from nas.objectives import COSTS, OBJECTIVES, counted, exact
from nas.request.presets import budget_for
from nas.request.spec import SearchSpec, build_spec
from nas.results.contents import RunContents
from nas.results.partial_front import partial_front, reference
from nas.results.reader import read_contents
from nas.results.tables import RunResults
from nas.run.folder import RunFolder
from nas.search.front import pick, read_front
from nas.search.scoring import CostScorer
from nas.stages.feasibility import check_limits
from nas.stages.pipeline import run_search
from search_spaces.architecture import self_attention
from search_spaces.errors import UnreachableLimitError, UsageError
from search_spaces.loading import dump_space, load_space, parse_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "pareto.schema.json").read_text()
)
NAME = "full_attention_layers"
TEXT = """\
[space]
name = "mixed-lm"
task = "language_modelling"

[model]
max_length = 48
head_dim = 4
positions = "none"
linear_kernel = "norm"

[model.input]
kind = "tokens"
vocab_size = 100

[decoder]
embed_dim = [8]
num_layers = [1, 2, 3]
self_attention = ["softmax", "window:4", "linear", "skip"]
self_num_heads = [1, 2]
ffn_dim = [8]

[data]
dataset = "synthetic"

[workload]
source = 24
"""


def mixed() -> SearchSpace:
    return parse_space(TEXT, "mixed.toml")


def counts(space: SearchSpace, rows: np.ndarray) -> list[float]:
    return counted(space, rows, [NAME])[NAME].tolist()


@pytest.mark.parametrize("name", ["digits", "multi30k", "recall", "wmt14", "cifar10"])
def test_the_networks_say_the_same(name: str) -> None:
    """Of encoders, decoders and both, with omnidirectional layers that are full or not."""
    space = load_space(name)
    rows = sample_distinct(space, np.random.default_rng(0), 20)
    for kernel in ("full", "performer"):
        model = replace(space.model, omni_kernel=kernel)
        full = {"softmax", "omni"} if kernel == "full" else {"softmax"}
        expected = [
            sum(
                self_attention(layer).attention in full
                for stack in (one.encoder, one.decoder)
                if stack is not None
                for layer in stack.layers
            )
            for one in space.decode(rows)
        ]
        assert counts(replace(space, model=model), rows) == expected
        assert len(set(expected)) > 1


def test_it_is_told_where_it_is_asked_for() -> None:
    space = mixed()
    rows = sample_distinct(space, np.random.default_rng(1), 3)
    assert NAME not in exact(space, rows, ["quality"])
    assert exact(space, rows, [NAME])[NAME].tolist() == counts(space, rows)


def test_the_smallest_has_none_where_another_kind_is_offered() -> None:
    space = mixed()
    ends = OBJECTIVES[NAME].ends
    assert ends is not None and counts(space, ends(space)) == [0.0]


def asked(limit: float, text: str = TEXT) -> dict[str, Any]:
    space = parse_space(text, "mixed.toml")
    lengths = {f"{part}.segment_length": "32" for part in ("supernet", "retrain")}
    return {
        "preset": "smoke",
        "objectives": ("quality", NAME),
        "limits": {NAME: limit},
        "space_toml": dump_space(space),
        "dataset": "synthetic",
        "budget": budget_for(space, "smoke", lengths | {"supernet.epochs": "1"}),
        "pick": f"{NAME}<=0",
    }


def limited(limit: float, text: str = TEXT) -> SearchSpec:
    return build_spec(**asked(limit, text))


def test_a_limit_below_the_smallest_is_refused() -> None:
    softmax = TEXT.replace(', "window:4", "linear", "skip"', "")
    check_limits(limited(1.0, softmax), LocalExecutor())
    with pytest.raises(UnreachableLimitError, match=r"smallest it can reach is 1; raise"):
        check_limits(limited(0.5, softmax), LocalExecutor())


def test_a_search_keeps_a_limit_and_has_a_front_by_layers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", limited(1.0))
    for _ in run_search(folder):
        pass
    front = read_front(folder)
    found = {entry.measured[NAME] for entry in front.entries}
    assert 0 in found and found <= {0, 1}
    assert pick(front, f"{NAME}<=0").measured[NAME] == 0
    assert front.reference[1] == 4  # the largest network has three, and is not alone with them
    assert partial_reference(read_contents(folder)) == 4
    Draft202012Validator(SCHEMA).validate(folder.read_json("pareto.json"))
    assert str(RunResults(folder.path).front.dtypes[NAME]) == "Int64"


def partial_reference(contents: RunContents) -> float:
    """As it is known before the search has ended."""
    early = replace(contents, front=None)
    return reference(early, partial_front(early))[1]


def test_none_at_all_may_be_the_limit(tmp_path: Path) -> None:
    costs = CostScorer(mixed(), {}, ("quality", NAME), {NAME: 0.0}, 1.0)
    rows = sample_distinct(mixed(), np.random.default_rng(2), 30)
    scores, numbers = costs.score(rows), counts(mixed(), rows)
    assert scores.violations.tolist() == numbers and 0 in numbers and 2 in numbers
    with pytest.raises(UsageError, match="kv_cache_mb=0 must be above 0"):
        build_spec(**{**asked(1.0), "limits": {"kv_cache_mb": 0.0}})
    with pytest.raises(UsageError, match="full_attention_layers=-1 must be at least 0"):
        limited(-1.0)


def test_the_schema_knows_every_objective() -> None:
    assert SCHEMA["$defs"]["objective"]["properties"]["name"]["enum"] == list(OBJECTIVES)


def test_it_depends_on_no_workload() -> None:
    assert {name for name in COSTS if not OBJECTIVES[name].of_workload} == {"params", NAME}

"""Top features on models whose important genes are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nas.run.folder import RunFolder
from nas.search.sensitivity import direction, read_features, top_features
from search_spaces.costs.genotypes import genotype_totals
from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from search_spaces.space import Genotypes
from tests.support.planted import SPACE, Floats
from tests.support.run_fixture import empty_run, finished_run


def only(*weights: tuple[str, float]) -> Callable[[Genotypes], dict[str, Floats]]:
    """A prediction that is a weighted sum of choice indices of some slots."""

    def predict(rows: Genotypes) -> dict[str, Floats]:
        values = [weight * rows[:, SPACE.slot_index[name]] for name, weight in weights]
        return {"quality": np.sum(values, axis=0, dtype=np.float64)}

    return predict


def test_shares_are_those_of_the_variance() -> None:
    # Indices 0-3 have variance 1.25, indices 0-2 2/3: 1.25 against 4 * 2/3.
    predict = only(("encoder.embed_dim", -1.0), ("encoder.num_layers", 2.0))
    found = top_features(SPACE, predict, ["quality"], 0, samples=20_000)["quality"]
    assert [f.name for f in found.genes] == ["encoder.num_layers", "encoder.embed_dim"]
    assert [f.share for f in found.genes] == pytest.approx([0.681, 0.319], abs=0.01)
    assert [f.direction for f in found.genes] == ["less helps", "more helps"]


def test_a_gene_in_one_layer_counts_for_all_and_is_found_among_the_slots() -> None:
    predict = only(("encoder.0.ffn_dim", -1.0))
    found = top_features(SPACE, predict, ["quality"], 0)["quality"]
    assert [f.name for f in found.genes] == ["encoder.ffn_dim"]
    assert [f.name for f in found.slots] == ["encoder.0.ffn_dim"]
    assert found.slots[0].share == 1.0


def test_kinds_are_named_and_sizes_have_a_direction() -> None:
    kinds = {"softmax": 0.2, "linear": 0.3, "omni": 0.1}
    assert direction(kinds) == "omni helps, linear hurts"
    assert direction({8: 0.1, 16: 0.2}) == "less helps"
    assert direction({8: 0.2, 16: 0.1, 32: 0.3}) == "best at 16"
    assert direction({8: 0.2, 16: 0.2}) == "makes no difference alone"


def test_a_constant_prediction_has_no_features() -> None:
    found = top_features(SPACE, only(("encoder.embed_dim", 0.0)), ["quality"], 0)["quality"]
    assert found.genes == found.slots == ()


def test_the_same_seed_gives_the_same_answer_and_lists_have_an_end() -> None:
    space = load_space("wmt14-hat")

    def predict(rows: Genotypes) -> dict[str, Floats]:
        params, flops = genotype_totals(space, rows, source_length=30)
        return {"params": params.astype(np.float64), "flops": flops.astype(np.float64)}

    one, two = (top_features(space, predict, ["params", "flops"], 3) for _ in range(2))
    assert one == two and set(one) == {"params", "flops"}
    assert len(one["flops"].slots) == 10
    assert {f.direction for f in one["flops"].genes} <= {"less helps"}


def test_a_run_tells_what_decides_quality_and_every_cost(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    found = read_features(folder)
    assert list(found) == ["quality", "latency_ms"]
    assert found["latency_ms"].genes[0].name == "encoder.num_layers"
    assert found["latency_ms"].genes[0].direction == "less helps"
    assert found == read_features(RunFolder.open(folder.path))


def test_a_run_without_a_ranker_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no ranker yet"):
        read_features(empty_run(tmp_path / "run"))

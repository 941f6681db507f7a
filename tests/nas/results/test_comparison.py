"""Several runs beside each other: what they share, and when a hypervolume says something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nas.request.picks import read_conditions
from nas.results.comparison import (
    ComparedRun,
    common_hypervolumes,
    compare_runs,
    gene_summaries,
    rows,
)
from nas.results.reader import read_contents
from nas.search.front import Baseline
from search_spaces.loading import dump_space
from tests.support.run_fixture import finished_run, retrain


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    place = tmp_path_factory.mktemp("runs")
    made = [finished_run(place / f"run-{seed}", seed=seed) for seed in (3, 4)]
    other = finished_run(place / "other", objectives=("quality", "params", "latency_ms"))
    front = read_contents(made[0]).front
    assert front is not None
    retrain(made[0], front.entries[0])
    return [ComparedRun(one.path.name, read_contents(one), "same") for one in (*made, other)]


def with_reference(run: ComparedRun, *reference: float) -> ComparedRun:
    front = replace(run.front, reference=reference)
    return replace(run, contents=replace(run.contents, front=front))


def box(run: ComparedRun, corner: tuple[float, ...]) -> float:
    """The share of two objectives' box, by summing rectangles."""
    points = sorted(
        (entry.value("latency_ms"), entry.value("quality")) for entry in run.front.entries
    )
    area, best = 0.0, corner[0]
    for place, (x, y) in enumerate(points):
        best = min(best, y)
        right = points[place + 1][0] if place + 1 < len(points) else corner[1]
        area += max(0.0, min(right, corner[1]) - x) * (corner[0] - best)
    return area / (corner[0] * corner[1])


def test_hypervolumes_have_one_box(runs: list[ComparedRun]) -> None:
    one, two = with_reference(runs[0], 0.4, 3.0), with_reference(runs[1], 0.5, 2.5)
    made = compare_runs([one, two])
    assert made.difference is None and made.objectives == ("quality", "latency_ms")
    assert made.reference == {"quality": 0.5, "latency_ms": 3.0}
    assert made.hypervolumes == pytest.approx(
        [box(one, (0.5, 3.0)), box(two, (0.5, 3.0))], abs=1e-8
    )
    assert compare_runs([]).runs == () and compare_runs([one]).difference is None


WORDS = ["objectives", "data", "measures of quality", "devices", "workloads"]


@pytest.mark.parametrize("word", WORDS)
def test_what_differs_gives_no_hypervolume(runs: list[ComparedRun], word: str) -> None:
    other = runs[1]
    spec = other.contents.spec
    changed = {
        "objectives": runs[2],
        "data": replace(other, data="others"),
        "measures of quality": replace(
            other,
            contents=replace(other.contents, spec=spec.model_copy(update={"quality": "accuracy"})),
        ),
        "devices": replace(
            other, contents=replace(other.contents, spec=spec.model_copy(update={"device": "cuda"}))
        ),
        "workloads": worked(other, batch=64),
    }[word]
    made = compare_runs([runs[0], changed])
    assert made.difference is not None and f"different {word}" in made.difference
    assert made.hypervolumes == () and made.reference == {}
    assert made.objectives == ("quality", "latency_ms")
    assert made.alike == made.objectives[word == "measures of quality" :]


def worked(run: ComparedRun, **changes: int) -> ComparedRun:
    """The run, with another workload."""
    spec = run.contents.spec
    space = replace(spec.space, workload={**spec.space.workload, **changes})
    changed = spec.model_copy(update={"space_toml": dump_space(space)})
    changed = type(spec).model_validate(changed.model_dump())
    return replace(run, contents=replace(run.contents, spec=changed))


@pytest.mark.parametrize(
    ("cost", "changes", "alike"),
    [
        *(("params", {"source": 8}, True), ("flops", {"batch": 64}, True)),
        ("flops", {"source": 8}, True),  # of pictures, whose length is the network's
    ],
)
def test_a_workload_counts_as_far_as_costs_depend_on_it(
    tmp_path: Path, cost: str, changes: dict[str, int], alike: bool
) -> None:
    contents = read_contents(finished_run(tmp_path / "run", objectives=("quality", cost)))
    run = ComparedRun("run", contents, "same")
    assert (compare_runs([run, worked(run, **changes)]).difference is None) is alike


def test_a_box_may_begin_below_nought_or_have_no_extent(runs: list[ComparedRun]) -> None:
    good, cheap = runs[0].front.entries[:2]
    entries = (
        replace(good, measured={"quality": -0.5, "latency_ms": 1.0}),
        replace(cheap, measured={"quality": 0.0, "latency_ms": 0.5}),
    )
    front = replace(runs[0].front, entries=entries, reference=(0.0, 2.0), origin=-0.5)
    reference, (volume,) = common_hypervolumes([front])
    assert reference == {"quality": 0.0, "latency_ms": 2.0} and volume == pytest.approx(0.5)
    flat = replace(front, entries=entries[1:], origin=0.0)
    assert common_hypervolumes([flat]) == (reference, [0.0])


def test_networks_are_filtered_and_become_rows(runs: list[ComparedRun]) -> None:
    made = compare_runs(runs[:2])
    every = made.networks()
    assert len(every) == sum(len(run.front.entries) for run in made.runs)
    quick = made.networks(read_conditions("latency_ms<=1.12"))
    assert {one.entry.id for one in quick} == {
        one.entry.id for one in every if one.entry.value("latency_ms") <= 1.12
    }
    assert made.networks(read_conditions("decode_ms<=1")) == []  # nobody knows it
    results = [{one.id for one in run.contents.retrained} for run in made.runs]
    assert every[0].entry.id in results[0]
    trained = [(one.run, one.entry.id) for one in made.networks(retrained=True)]
    assert trained == [(one.run, one.entry.id) for one in every if one.entry.id in results[one.run]]
    found = rows(made, every, ["a", "b"])
    assert {tuple(row) for row in found} == {tuple(found[0])}
    assert found[0]["job"] == "a" and found[0]["test_accuracy"] == 0.975
    assert found[-1]["job"] == "b" and (found[-1]["test_accuracy"] is None) == (
        every[-1].result is None
    )


def test_genes_are_summed_up_over_the_layers(runs: list[ComparedRun]) -> None:
    run = runs[0]
    for entry in run.front.entries:
        found = gene_summaries(run.contents, entry)
        stack = entry.architecture.encoder
        assert stack is not None
        layers = stack.layers
        assert found["encoder.num_layers"] == len(layers)
        assert found["encoder.embed_dim"] == stack.embed_dim
        mean = sum(layer.ffn_dim for layer in layers) / len(layers)
        assert found["encoder.ffn_dim (mean)"] == pytest.approx(mean)
        kinds = [value for name, value in found.items() if name.startswith("encoder.attention = ")]
        assert sum(map(int, kinds)) == len(layers)


def test_baselines_stand_behind_the_front(runs: list[ComparedRun]) -> None:
    run = runs[0]
    plain = replace(runs[1].front.entries[0], measured={"params": 9.0}, predicted={})
    on_front = run.front.entries[0]
    baselines = tuple(Baseline(one, ("largest",)) for one in (plain, on_front))
    front = replace(run.front, baselines=baselines)
    made = compare_runs([replace(run, contents=replace(run.contents, front=front))])
    found = made.networks()
    assert [one.entry.id for one in found] == [*(e.id for e in front.entries), plain.id]
    assert [one.baseline for one in found] == [True, *[False] * (len(front.entries) - 1), True]
    assert plain.id not in {one.entry.id for one in made.networks(read_conditions("quality<=9"))}


def test_costs_that_are_called_as_columns_have_columns_of_their_own(
    runs: list[ComparedRun],
) -> None:
    run = runs[0]
    told = {"job": 1.5, "title": 2.5, "baseline": 3.5, "cost_job": 4.5, "predicted_quality": 5.5}
    entries = tuple(replace(e, measured={**e.measured, **told}) for e in run.front.entries)
    front = replace(run.front, entries=entries)
    made = compare_runs([replace(run, contents=replace(run.contents, front=front))])
    for row, one in zip(rows(made, made.networks(), ["a"]), made.networks(), strict=True):
        assert (row["job"], row["title"], row["baseline"]) == ("a", run.title, False)
        assert row["predicted_quality"] == one.entry.predicted["quality"]
        names = ("cost_job", "cost_title", "cost_baseline", "cost_cost_job")
        assert [row[name] for name in names] == [1.5, 2.5, 3.5, 4.5]
        assert row["cost_predicted_quality"] == 5.5

"""`nas.results.open`: a run as pandas DataFrames."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import nas.results
from nas.executors.base import Failure
from nas.results.reader import read_contents
from nas.results.state import read_state
from nas.results.tables import RunResults
from nas.run.events import Note, StageFinished, StageStarted
from nas.run.folder import RunFolder
from nas.run.stages import search_stages
from nas.searching import search
from nas.stages.outcomes import values_of
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.genes import parse_genes
from tests.support import report_cases
from tests.support.external_cases import GENES, NUMBERS, Good, loss, ms
from tests.support.run_fixture import OBSERVED, empty_run, finished_run

finished, run, contents = report_cases.finished, report_cases.run, report_cases.contents

TABLES = ("front", "networks", "observations", "timeline")


@pytest.fixture(scope="module")
def results(finished: Path) -> RunResults:
    return nas.results.open(finished)


def test_the_front_is_that_of_the_run(finished: Path, results: RunResults) -> None:
    front = read_contents(RunFolder.open(finished)).front
    assert front is not None and results.final
    assert list(results.front.index) == [entry.id for entry in front.entries]
    for name in ("quality", "latency_ms", "params", "flops"):
        assert results.front[name].tolist() == [entry.value(name) for entry in front.entries]
    predicted = [entry.predicted["latency_ms"] for entry in front.entries]
    assert results.front["predicted_latency_ms"].tolist() == predicted
    picked = results.front[results.front["picked"]]
    assert picked.index.tolist() == results.front[results.front["retrained"]].index.tolist()
    assert picked["test_accuracy"].tolist() == [0.975]


def test_genes_are_those_of_the_networks(finished: Path, results: RunResults) -> None:
    run = read_contents(RunFolder.open(finished))
    table = results.observations
    assert len(table) == OBSERVED and list(table.index) == [one.id for one in run.observed]
    for entry in run.observed:
        stack, row = entry.architecture.encoder, table.loc[entry.id]
        assert stack is not None
        assert row["encoder.embed_dim"] == stack.embed_dim
        assert row["encoder.num_layers"] == len(stack.layers)
        for number in range(4):
            there = number < len(stack.layers)
            assert pd.isna(row[f"encoder.{number}.attention"]) is not there
            assert pd.isna(row[f"encoder.{number}.ffn_dim"]) is not there
            if there:
                assert row[f"encoder.{number}.attention"] == stack.layers[number].attention
                assert row[f"encoder.{number}.ffn_dim"] == stack.layers[number].ffn_dim


def test_genes_that_are_called_as_columns_have_columns_of_their_own(tmp_path: Path) -> None:
    ours = {"width": "id", "norm": "params", "eps": "quality"}
    text = GENES
    for name, other in ours.items():
        text = text.replace(f"genes.{name}]", f"genes.{other}]").replace(
            f"{{ {name} =", "{ params ="
        )

    class Renamed(Good):
        def answer(self, network: dict[str, Any]) -> Any:
            back = {other: name for name, other in ours.items()}
            return super().answer({back.get(name, name): one for name, one in network.items()})

    space = parse_genes(text, "mine.toml")
    search(space, Renamed(), ["quality", "ms"], out=tmp_path / "run", settings=NUMBERS)
    run = nas.results.open(tmp_path / "run")
    for table in (run.front, run.networks, run.observations):
        assert {"gene_id", "gene_params", "gene_quality", "ratio.0"} <= {*table.columns}
        assert set(table["gene_id"]) <= {16, 32, 64, 128}
    entry = run.contents.observed[0]
    row = run.observations.loc[entry.id]
    assert row["quality"] == entry.measured["quality"]
    assert row["gene_params"] == entry.network["params"]


# Names of columns of the tables.
NAMES = "source tries state label started picked on_front retrained predicted_quality".split()


def test_costs_that_are_called_as_columns_have_columns_of_their_own(tmp_path: Path) -> None:
    class Named(Good):
        def answer(self, network: dict[str, Any]) -> Any:
            costs = dict.fromkeys([*NAMES, "time_in_attention"], ms(network))
            return {"quality": loss(network), "costs": costs}

    objectives = ["quality", "time_in_attention"]
    limits = dict.fromkeys(NAMES, 1e9)
    space, path = parse_genes(GENES, "mine.toml"), tmp_path / "run"
    search(space, Named(), objectives, limits=limits, out=path, settings=NUMBERS)
    run = nas.results.open(path)
    measured = {one.id: one.measured for one in (*run.contents.observed, *run.contents.verified)}
    for table in (run.front, run.networks, run.observations):
        there = table[table.index.isin(list(measured))]
        for name in NAMES:
            assert there[f"cost_{name}"].tolist() == [measured[one][name] for one in there.index]
        assert there["time_in_attention"].tolist() == there["cost_source"].tolist()
    assert set(run.networks["source"]) <= {
        "front",
        "verified",
        "observed",
        "population",
        "baseline",
    }
    assert run.front["on_front"].all() and not run.front["retrained"].any()


def test_genes_of_any_name_have_the_type_of_their_values(tmp_path: Path) -> None:
    class Renamed(Good):
        def answer(self, network: dict[str, Any]) -> Any:
            known = {"width": network["attention"], "ratio": network["encoder"]}
            return super().answer(network | known)

    text = GENES.replace("genes.width", "genes.attention").replace("genes.ratio", "genes.encoder")
    space = parse_genes(text.replace("integer = [1, 2, 4]", "real = [0.5, 1.5, 4.0]"), "mine.toml")
    search(space, Renamed(), ["quality", "ms"], out=tmp_path / "run", settings=NUMBERS)
    run = nas.results.open(tmp_path / "run")
    for table in (run.front, run.networks, run.observations):
        types = table.dtypes.astype(str)
        assert types["attention"] == types["encoder.0"] == "float64" and types["norm"] == "str"
        assert set(table["attention"]) <= {16, 32, 64, 128}
        assert set(table["encoder.0"]) <= {0.5, 1.5, 4.0}


def test_networks_are_listed_once_from_where_they_are_known_best(
    finished: Path, results: RunResults
) -> None:
    run, table = read_contents(RunFolder.open(finished)), results.networks
    assert table.index.is_unique
    known = {one.id for one in (*run.observed, *run.verified, *run.population)}
    assert set(table.index) == known
    assert table["on_front"].sum() == len(results.front)
    assert set(table.loc[table["source"] == "front"].index) == set(results.front.index)
    assert table.loc[table["source"] == "population", "quality"].isna().all()
    assert table.loc[table["source"] == "verified", "quality"].notna().all()


def test_the_timeline_has_every_stage_in_order(run: RunFolder) -> None:
    run.log(StageStarted("supernet", "Train the supernet"))
    run.log(Note("supernet", "half way"))
    run.log(StageFinished("supernet", 1.5))
    table = nas.results.open(run.path).timeline
    wanted = [stage.name for stage in search_stages(run.spec)]
    assert list(table.index)[: len(wanted)] == wanted
    assert table.loc[wanted, "state"].unique().tolist() == ["done"]
    assert table.loc["observe", "seconds"] == 3.0 and pd.isna(table.loc["observe", "started"])
    assert table.loc["supernet", "ended"] >= table.loc["supernet", "started"]
    assert str(table["started"].dt.tz) == "UTC"


def test_types_and_files(results: RunResults, tmp_path: Path) -> None:
    for name in TABLES:
        table = getattr(results, name)
        table.to_parquet(tmp_path / f"{name}.parquet")
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), table)
        table.to_csv(tmp_path / f"{name}.csv")
        again = pd.read_csv(tmp_path / f"{name}.csv", index_col=0)
        assert again.index.tolist() == table.index.tolist()
        assert again.columns.tolist() == table.columns.tolist()
    types = results.networks.dtypes.astype(str)
    assert types["quality"] == types["predicted_latency_ms"] == "float64"
    assert types["params"] == types["encoder.0.ffn_dim"] == "Int64"
    assert types["encoder.0.attention"] == types["doubtful"] == "str"
    assert types["on_front"] == types["picked"] == types["retrained"] == "bool"


# -- runs that are not finished, or not whole -----------------------------------------------------


def test_a_run_that_has_not_begun_has_empty_tables(tmp_path: Path) -> None:
    results = nas.results.open(empty_run(tmp_path / "new").path)
    assert not results.final
    assert len(results.front) == len(results.networks) == len(results.observations) == 0
    assert results.front.index.name == "id" and "picked" in results.front
    assert set(results.timeline["state"]) == {"to do"}
    for name in TABLES:
        getattr(results, name).to_parquet(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize("left", [0, 1, 8, 99])
def test_the_timeline_has_the_stages_that_nas_show_lists(run: RunFolder, left: int) -> None:
    records = sorted((run.path / "stages").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    for record in records[len(records) - min(left, len(records)) :]:
        record.unlink()
    if left > 1:
        (run.path / "pareto.json").unlink()
    listed = read_state(run, thorough=False).stages
    timeline = nas.results.open(run.path).timeline
    assert [(one.name, one.state) for one in listed] == list(timeline["state"].items())
    assert (timeline["label"].str.len() > 0).all()


def test_a_run_that_still_observes_has_a_front_of_what_is_known(run: RunFolder) -> None:
    for name in ("pareto.json", "verification.jsonl", "population.jsonl"):
        (run.path / name).unlink()
    results = nas.results.open(run.path)
    assert not results.final
    assert 0 < len(results.front) < len(results.networks) == OBSERVED
    lowest = results.observations["quality"].min()
    assert results.front["quality"].iloc[0] == lowest


def test_failed_networks_stand_last_with_the_reason(run: RunFolder) -> None:
    line = run.read_journal("observations.jsonl")[0]
    other = run.read_journal("verification.jsonl")[0]
    failure = values_of(Failure("memory", "it needs too much", 2))
    run.append(
        "observations.jsonl",
        [{"id": other["id"], "architecture": other["architecture"], **failure}],
    )
    table = nas.results.open(run.path).observations
    assert table.index[0] == line["id"] and pd.isna(table["failed"].iloc[0])
    last = table.iloc[-1]
    assert (last.name, last["failed"], last["tries"]) == (other["id"], "memory", 2)
    assert last["reason"] == "it needs too much" and pd.isna(last["quality"])


def test_a_run_of_a_version_without_events_marks_and_importances(run: RunFolder) -> None:
    shutil.rmtree(run.path / "retrained")
    (run.path / "ranker" / "importances.json").unlink()
    (run.path / "events.jsonl").write_bytes(b'{"time": 3, "ev\n{"event": "Note"}\n')
    results = nas.results.open(run.path)
    assert len(results.front) and not results.networks["retrained"].any()
    assert results.timeline["started"].isna().all()


@pytest.mark.parametrize("name", ["observations.jsonl", "pareto.json", "latency/profile.jsonl"])
def test_a_damaged_file_is_named(run: RunFolder, name: str) -> None:
    (run.path / name).write_text("{\n", "utf-8")
    with pytest.raises(DamagedRunError, match=name) as refused:
        nas.results.open(run.path)
    assert "\n" not in str(refused.value) and "nas resume" in str(refused.value)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no run folder"):
        nas.results.open(tmp_path)


def test_a_run_without_latency_has_no_column_of_it(tmp_path: Path) -> None:
    spec = {"objectives": ("quality", "flops")}
    results = nas.results.open(finished_run(tmp_path / "run", **spec).path)
    assert "latency_ms" not in results.front and "latency" not in results.timeline.index

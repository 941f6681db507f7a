"""The front of a search that is still measuring: qualities measured, other costs as predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from latency.predictor import LatencyPredictor
from nas.results.contents import RunContents
from nas.results.partial_front import hypervolume_history, partial_front
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from search_spaces.encoding import encode_features
from search_spaces.errors import DamagedRunError
from service.api.run_cache import read_run
from service.dashboard.run_views import choice_table, front_charts, growth_chart
from tests.support.run_fixture import OBSERVED, TIMED, finished_run


def running(path: Path, **values: object) -> RunFolder:
    """A search that has observed its networks and verified none."""
    folder = finished_run(path, **values)
    for name in ("pareto.json", "verification.jsonl"):
        (folder.path / name).unlink()
    return folder


def with_memory(folder: RunFolder) -> RunContents:
    """The same after memory was measured for some of the networks."""
    networks = [entry.architecture for entry in read_contents(folder).observed]
    lines = [{"id": one.id, "peak_memory_mb": 50.0 + n} for n, one in enumerate(networks[:TIMED])]
    folder.append("memory/observed.jsonl", lines)
    space = folder.spec.space
    features = encode_features(space, space.encode(networks[:TIMED]))
    known = [line["peak_memory_mb"] for line in lines]
    depths = space.depths(space.encode(networks[:TIMED]), space.stacks[-1])
    predictor = LatencyPredictor.fit(features, known, baselines={"depth": depths}, seed=0)
    folder.write_json("memory/predictor.json", predictor.to_json())
    return read_contents(folder)


def test_networks_that_were_not_timed_count_as_predicted(tmp_path: Path) -> None:
    found = partial_front(read_contents(running(tmp_path / "run")))
    timed = [entry for entry in found.measured if "latency_ms" in entry.measured]
    assert len(found.measured) == OBSERVED and len(timed) == TIMED
    guessed = [entry for entry in found.measured if entry not in timed]
    assert all({"latency_ms", "latency_std_ms"} <= entry.predicted.keys() for entry in guessed)
    best = min(found.measured, key=lambda entry: (entry.value("latency_ms"), entry.id))
    assert best.id in {entry.id for entry in found.entries}


def test_before_anything_is_predicted_only_timed_networks_count(tmp_path: Path) -> None:
    folder = running(tmp_path / "run")
    (folder.path / "latency" / "predictor.json").unlink()
    assert len(partial_front(read_contents(folder)).measured) == TIMED


def test_memory_is_measured_or_predicted_too(tmp_path: Path) -> None:
    observed = with_memory(running(tmp_path / "run")).observed
    assert observed[0].measured["peak_memory_mb"] == 50.0
    assert "peak_memory_mb" not in observed[0].predicted | observed[-1].measured
    guess = observed[-1].predicted
    assert guess["peak_memory_mb"] > 0 and guess["peak_memory_std_mb"] >= 0


def test_predicted_costs_are_held_against_limits(tmp_path: Path) -> None:
    contents = read_contents(running(tmp_path / "run", limits={"latency_ms": 1.0}))
    assert contents.spec.limits
    kept = partial_front(contents).entries
    assert all(entry.value("latency_ms") <= 1.0 for entry in kept)


def test_a_predictor_of_another_space_is_told_of(tmp_path: Path) -> None:
    folder = running(tmp_path / "run")
    predictor = LatencyPredictor.fit(
        [[float(n)] for n in range(12)], [1.0 + n for n in range(12)], baselines={}, seed=0
    )
    folder.write_json("latency/predictor.json", predictor.to_json())
    with pytest.raises(DamagedRunError, match=r"observations.jsonl is damaged"):
        read_contents(folder)


def test_the_curve_of_a_finished_run_ends_at_its_result(tmp_path: Path) -> None:
    contents = read_contents(finished_run(tmp_path / "run"))
    found = partial_front(contents)
    assert found.front is not None
    assert len(found.measured) > OBSERVED - 1
    assert hypervolume_history(contents, found)[-1][1] == pytest.approx(found.front.hypervolume)


def test_the_page_says_what_is_predicted_so_far(tmp_path: Path) -> None:
    view = read_run(running(tmp_path / "run"))
    assert view.contents.front is not None and not view.final
    assert any("latency_ms" not in entry.measured for entry in view.contents.front.entries)
    table = str(choice_table(view, "job"))
    assert "Latency with ± is predicted." in table and "±" in table
    assert "front so far" in str(front_charts(view))
    assert "may costs that are predicted so far" in str(growth_chart(view))
    finished = read_run(finished_run(tmp_path / "other"))
    assert "so far" not in str(choice_table(finished, "job")) + str(front_charts(finished))

"""Peak memory as an objective and a limit of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from latency.workload import Workload
from nas.profiling.device_profile import dumped
from nas.profiling.timed_work import network_cost
from nas.run.folder import RunFolder
from nas.run.layout import DEVICE_PROFILE_FILE
from nas.search.front import read_front
from search_spaces.errors import UnreachableLimitError
from search_spaces.variation import enumerate_all
from tests.support.pipeline_cases import finished, results, spec_of, tiny, work
from tests.support.profile_cases import SPACE, made_profile

pytestmark = pytest.mark.usefixtures("few_regressors")

OBJECTIVES = ("quality", "peak_memory_mb")


def all_megabytes() -> list[float]:
    workload = Workload.from_mapping(SPACE.workload)
    networks = SPACE.decode(enumerate_all(SPACE, 1000)[::20])
    return sorted(
        network_cost("peak_memory_mb", SPACE, network, workload, "cpu") for network in networks
    )


def test_a_search_for_little_memory_repeats_to_the_byte(tmp_path: Path) -> None:
    one, two = (finished(tmp_path / name, objectives=OBJECTIVES) for name in ("a", "b"))
    assert results(one)["pareto.json"] == results(two)["pareto.json"]
    front = read_front(one)
    workload = Workload.from_mapping(SPACE.workload)
    for entry in front.entries:
        again = network_cost("peak_memory_mb", SPACE, entry.architecture, workload, "cpu")
        assert entry.measured["peak_memory_mb"] == pytest.approx(again, abs=1e-6)
        assert "peak_memory_std_mb" in entry.predicted
    assert "peak memory" in (one.path / "report.html").read_text(encoding="utf-8")


def test_a_limit_on_memory_is_kept(tmp_path: Path) -> None:
    values = all_megabytes()
    most = values[len(values) // 2]
    run = finished(tmp_path / "run", limits={"peak_memory_mb": most})
    entries = read_front(run).entries
    assert entries and all(entry.measured["peak_memory_mb"] <= most for entry in entries)


def test_an_unreachable_one_is_refused_before_training(tmp_path: Path) -> None:
    run = tiny(tmp_path / "run", limits={"peak_memory_mb": 1e-6})
    with pytest.raises(UnreachableLimitError, match="the smallest it can reach is 0"):
        work(run)
    assert not (run.path / "supernet").exists()


def test_a_stopped_measurement_goes_on(tmp_path: Path) -> None:
    whole = finished(tmp_path / "a", objectives=OBJECTIVES)
    run = tiny(tmp_path / "b", objectives=OBJECTIVES)
    lines = (whole.path / "memory" / "observed.jsonl").read_text().splitlines(keepends=True)
    (run.path / "memory").mkdir()
    (run.path / "memory" / "observed.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    work(run)
    assert (run.path / "memory" / "observed.jsonl").read_text() == "".join(lines)
    assert results(run)["pareto.json"] == results(whole)["pareto.json"]


def test_another_device_is_predicted(tmp_path: Path) -> None:
    profile = made_profile()
    spec = spec_of(tmp_path / "x", objectives=OBJECTIVES, device_profile=profile.digest)
    run = RunFolder.create(tmp_path / "run", spec, {DEVICE_PROFILE_FILE: dumped(profile)})
    work(run)
    front = read_front(run)
    assert front.predicted_for == {"peak_memory_mb": "board"}
    assert all(entry.value("peak_memory_mb") > 1 for entry in front.entries)

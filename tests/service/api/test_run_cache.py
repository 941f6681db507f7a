"""What is kept of runs: made once for all who ask, and in nobody else's time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nas.results.comparison import ComparedRun, compare_runs
from nas.search.front import FRONT_FILE
from service.api.run_cache import Kept, read_run
from tests.support.run_fixture import finished_run


def test_a_front_so_far_has_the_origin_of_its_curve(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    (folder.path / FRONT_FILE).unlink()
    lines = folder.read_journal("observations.jsonl")
    (folder.path / "observations.jsonl").unlink()
    (folder.path / "verification.jsonl").unlink()
    folder.append("observations.jsonl", [{**one, "quality": 0.0} for one in lines])
    view = read_run(folder)
    made = compare_runs([ComparedRun("run", view.contents, None)])
    assert made.hypervolumes == (round(view.curve[-1][1], 9),)
    folder.append("observations.jsonl", [{**lines[0], "id": "0" * 12, "quality": -0.5}])
    view = read_run(folder)
    assert view.contents.front is not None and view.contents.front.origin == -0.5
    made = compare_runs([ComparedRun("run", view.contents, None)])
    assert made.hypervolumes == (round(view.curve[-1][1], 9),)


def test_who_asks_for_another_value_waits_for_nobody() -> None:
    """Whatever the hashes of the keys are: a large run must not keep small ones waiting."""
    kept: Kept[str] = Kept(1_000)

    def make() -> str:
        others = ThreadPoolExecutor(1)
        try:
            asked = [others.submit(kept.get, str(n), 0, lambda: "small", len) for n in range(64)]
            assert {one.result(timeout=60) for one in asked} == {"small"}
        finally:  # without waiting for one that waits for this
            others.shutdown(wait=False, cancel_futures=True)
        return "large"

    assert kept.get("run", 0, make, len) == "large"


def test_who_asks_for_the_same_value_waits_for_it() -> None:
    kept: Kept[int] = Kept(1_000)
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(kept.get, "run", 0, make, int) for _ in range(64)]
        assert {one.result() for one in asked} == {1}
    assert kept.get("run", 1, make, int) == 2 and len(made) == 2
    assert not kept._making

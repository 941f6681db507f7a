"""What is kept of runs: made once for all who ask, and in nobody else's time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from service.api.run_cache import Kept


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

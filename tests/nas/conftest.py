"""What every test of the search gets: rankers and features quickly chosen, timings of a moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from latency.timer import time_calls
from tests.support import pipeline_cases


@pytest.fixture(scope="module", autouse=True)
def few_rankers() -> Iterator[None]:
    """See `pipeline_cases.few_rankers`; tests of the choice put a fixture of that name in place."""
    with pipeline_cases.few_rankers():
        yield


@pytest.fixture(scope="module", autouse=True)
def few_samples() -> Iterator[None]:
    """See `pipeline_cases.few_samples`."""
    with pipeline_cases.few_samples():
        yield


@pytest.fixture(scope="module", autouse=True)
def short_samples() -> Iterator[None]:
    """Timings repeat a short call a few times only: nobody minds here how exact they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(time_calls.__kwdefaults__, "min_sample_s", 1e-4)
        yield

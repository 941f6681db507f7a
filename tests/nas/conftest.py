"""What every test of the search gets: all that is chosen, timed or calibrated takes a moment."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from latency import timer
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
    """Timings repeat a short call a few times only, and leave what is garbage until later.

    Nobody minds here how exact they are.
    """
    kept = SimpleNamespace(
        isenabled=gc.isenabled, disable=gc.disable, enable=gc.enable, collect=lambda: 0
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "time_calls", partial(timer.time_calls, min_sample_s=1e-4))
        patch.setattr(timer, "gc", kept)
        yield


@pytest.fixture(scope="module", autouse=True)
def short_calibrations() -> Iterator[None]:
    """See `pipeline_cases.short_calibrations`; tests of it take the numbers back."""
    with pipeline_cases.short_calibrations():
        yield

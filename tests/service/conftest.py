"""What every test of the service gets: pages and durations that are quickly made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import pipeline_cases


@pytest.fixture(scope="module", autouse=True)
def few_samples() -> Iterator[None]:
    """See `pipeline_cases.few_samples`."""
    with pipeline_cases.few_samples():
        yield


@pytest.fixture(scope="module", autouse=True)
def short_calibrations() -> Iterator[None]:
    """See `pipeline_cases.short_calibrations`."""
    with pipeline_cases.short_calibrations():
        yield

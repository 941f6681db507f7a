"""What every test of the search gets: rankers, features and durations that are quickly found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
def short_calibrations() -> Iterator[None]:
    """See `pipeline_cases.short_calibrations`; tests of it put a fixture of that name in place."""
    with pipeline_cases.short_calibrations():
        yield

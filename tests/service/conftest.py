"""What every test of the service gets: pages whose features are quickly ordered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import pipeline_cases


@pytest.fixture(scope="module", autouse=True)
def few_samples() -> Iterator[None]:
    """See `pipeline_cases.few_samples`."""
    with pipeline_cases.few_samples():
        yield

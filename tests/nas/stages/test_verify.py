"""The stage that verifies: what was interrupted ends in the same bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nas.stages import verify


def test_what_is_predicted_does_not_depend_on_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last bits of a matrix product depend on the number of rows."""

    def predicted(run: Any, rows: Any) -> list[dict[str, float]]:
        return [{"quality": float(row[0]) + 1e-13 * len(rows)} for row in rows]

    monkeypatch.setattr(verify, "predicted_values", predicted)
    batch = [cast(Any, SimpleNamespace(id=str(n), row=np.array([[n]]))) for n in range(4)]
    run = cast(Any, None)
    whole = verify._predictions(run, batch, batch)
    assert verify._predictions(run, batch, batch[2:]) == whole[2:]
    assert verify._predictions(run, batch, []) == []

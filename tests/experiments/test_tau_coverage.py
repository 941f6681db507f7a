"""The study of tau's interval: what counts as success."""

from __future__ import annotations

import pytest

from experiments.tau_coverage import STUDY


@pytest.mark.parametrize(
    ("networks", "ours", "good"), [(16, 0.935, True), (64, 0.93, False), (8, 0.9, True)]
)
def test_the_mark_is_of_16_networks_and_more(networks: int, ours: float, good: bool) -> None:
    rows = [{"networks": 24, "ours": 0.95}, {"networks": networks, "ours": ours}]
    assert STUDY.met(rows) is good


def test_no_draw_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        STUDY.main(["--draws", "0"])
    assert "1 or more" in capsys.readouterr().err

"""The study of onnxruntime's speed: a row for each network, of numbers that fit each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline_cases import TINY

pytestmark = pytest.mark.export
study: Any = pytest.importorskip("experiments.onnx_speed", reason="the extra export")


@pytest.fixture
def space(tmp_path: Path) -> str:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY, encoding="utf-8")
    return str(file)


def test_a_row_for_each_network(space: str, capsys: pytest.CaptureFixture[str]) -> None:
    study.STUDY.main(["--space", space, "--networks", "1", "--rounds", "3", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["networks"]
    assert row["low"] <= row["ratio"] <= row["high"]
    assert min(row["torch_ms"], row["onnx_ms"], row["export_s"], row["file_mb"]) > 0


def test_a_workload_that_does_not_fit_is_refused(
    space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.STUDY.main(["--space", space, "--workload", "target=3,mode=generate"]) == 2
    assert "its networks classify" in capsys.readouterr().err

"""A run folder of version 0.1, made before this version and read by it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nas.results
from nas.console.app import app

# Made by 0.1: nas search --space tiny.toml --preset smoke --objectives quality,flops --seed 3
ARCHIVE = Path(__file__).parents[2] / "fixtures" / "run_0_1.tar.xz"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def called(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def winner(run: Path) -> str:
    return next(path.parent.name for path in run.glob("retrained/*/result.json"))


def test_it_is_shown_and_reported(run: Path) -> None:
    front = json.loads((run / "pareto.json").read_text())["front"]
    told = called("show", run)
    assert all(entry["id"] in told for entry in front) and winner(run) in told
    called("report", run)
    assert winner(run) in (run / "report.html").read_text()
    assert list(nas.results.open(run).front.index) == [entry["id"] for entry in front]


def test_what_it_trained_is_exported(run: Path, tmp_path: Path) -> None:
    called("export", run, "--format", "safetensors", "--out", tmp_path / "model")
    assert (tmp_path / "model" / "architecture.json").is_file()


def test_it_is_retrained_and_keeps_its_front(run: Path) -> None:
    before = (run / "pareto.json").read_bytes()
    called("retrain", run, "--pick", "cheapest", "--quiet")
    assert len(list(run.glob("retrained/*/result.json"))) == 2
    assert (run / "pareto.json").read_bytes() == before

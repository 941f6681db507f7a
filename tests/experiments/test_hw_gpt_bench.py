"""The study on HW-GPT-Bench, on a small benchmark of other sizes than any published one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.hw_gpt_bench import LEVELS, STUDY, TableLatency, met, read_bench, show, sound
from search_spaces.errors import DataError
from tests.support.study_cases import printed

COUNT, LAYERS = 240, 4
WIDTHS, DEPTHS, RATIOS, HEADS = (64, 96), (2, 3, 4), (1, 2), (2, 4, 6)


def _table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    depth = rng.choice(DEPTHS, COUNT)
    there = np.arange(LAYERS) < depth[:, None]
    return {
        "embed_dim": rng.choice(WIDTHS, COUNT),
        "num_layers": depth,
        "bias": rng.integers(2, size=COUNT),
        "mlp_ratio": rng.choice(RATIOS, (COUNT, LAYERS)) * there,
        "num_heads": rng.choice(HEADS, (COUNT, LAYERS)) * there,
    }


def _codes(table: dict[str, np.ndarray]) -> np.ndarray:
    """The surrogate's inputs, one network and one gene after the other."""
    rows = []
    for n in range(COUNT):
        row: list[bool] = [table["embed_dim"][n] == width for width in WIDTHS]
        row += [table["num_layers"][n] == depth for depth in DEPTHS]
        for ratio in table["mlp_ratio"][n]:
            row += [ratio == choice for choice in RATIOS]
        for heads in table["num_heads"][n]:
            row += [heads == choice for choice in HEADS]
        rows.append([*row, table["bias"][n] == 1, table["bias"][n] == 0])
    return np.array(rows, dtype=np.float64)


def _write(folder: Path, change: dict[str, Any] | None = None) -> Path:
    rng = np.random.default_rng(1)
    table = _table()
    codes = _codes(table)
    sizes = [codes.shape[1], 8, 8, 1]
    weights: dict[str, np.ndarray] = {}
    values = codes
    for number, (inner, outer) in enumerate(pairwise(sizes), start=1):
        weight = rng.normal(size=(outer, inner)).astype(np.float32)
        bias = np.full(outer, 30.0 if outer == 1 else 0.1, dtype=np.float32)
        weights |= {f"fc{number}.weight": weight, f"fc{number}.bias": bias}
        values = values @ weight.T + bias
        values = np.maximum(values, 0) if outer > 1 else values
    table["perplexity"] = values[:, 0]
    work = table["embed_dim"][:, None] * (table["mlp_ratio"] + 0.1 * table["num_heads"])
    ms = 1 + 0.01 * work.sum(axis=1) + 0.1 * table["bias"]
    table["latency_board"] = ms
    table["latency_phone"] = np.where(np.arange(COUNT) == 7, 400 * ms, 2 * ms)
    for name, value in (change or {}).items():
        if value is None:
            del table[name]
        elif name.startswith("fc"):
            weights[name] = value
        else:
            table[name] = value
    np.savez(folder / "hwgpt_tiny.npz", **table)
    np.savez(folder / "perplexity_tiny_mlp.npz", **weights)
    return folder


def _options(folder: Path, *more: str) -> list[str]:
    given = ["--data", str(folder), "--scale", "tiny", "--seeds", "1", "--reference", "2"]
    given += ["--workers", "1"]
    return [*given, "--work", str(folder / "work"), "--evaluations", "44", "--json", *more]


def test_sizes_and_devices_come_from_the_files(tmp_path: Path) -> None:
    bench = read_bench(_write(tmp_path), "tiny")
    assert bench.space.gene("embed_dim").choices == WIDTHS
    assert bench.space.gene("mlp_ratio").choices == RATIOS
    assert len(bench.space.slots) == 3 + 2 * LAYERS
    assert list(bench.latencies) == ["board", "phone"]
    with np.load(tmp_path / "hwgpt_tiny.npz") as table:
        np.testing.assert_allclose(bench.perplexity(bench.rows), table["perplexity"], rtol=1e-6)
        networks = bench.space.decode(bench.rows)
        assert [network["bias"] for network in networks] == table["bias"].tolist()


def test_latency_is_that_of_the_table(tmp_path: Path) -> None:
    bench = read_bench(_write(tmp_path), "tiny")
    found = TableLatency(bench, "board")(bench.rows)
    np.testing.assert_allclose(found, bench.latencies["board"], rtol=1e-6)
    # One broken measurement of the phone is named and does not count.
    assert np.flatnonzero(~sound(bench, "phone")).tolist() == [7]
    np.testing.assert_allclose(TableLatency(bench, "phone")(bench.rows), 2 * found, rtol=1e-6)


def test_the_command_prints_json_and_keeps_searches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path)
    names = ["random", "evolution", "local", "regularised", "nsga2"]
    options = _options(tmp_path, "--device", "board", "--searcher", *names)
    assert STUDY.main(options) == 0
    first = capsys.readouterr().out
    found = json.loads(first)
    assert list(found["search"]) == list(found["latency"]) == ["board"]
    assert list(found["search"]["board"]) == names
    for numbers in found["search"]["board"].values():
        assert {"90", "95", "97", "98", "99", "share"} <= set(numbers)
        assert len(numbers["99"]) == len(numbers["share"]) == 1
        assert 0 < numbers["share"][0] <= 1
    for size in ("20", "60", "100"):
        errors = found["latency"]["board"][size]
        assert {"median", "mean", "best_plain"} <= set(errors)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    assert STUDY.main(options) == 0
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()} == kept


@pytest.mark.ray
@pytest.mark.slow
def test_the_command_searches_by_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a command its functions are those of no module that workers could import by its name."""
    _write(tmp_path)
    options = _options(tmp_path, "--device", "board", "--searcher", "random", "local")
    command = [sys.executable, "-m", "experiments.hw_gpt_bench", *options, "--executor", "ray"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "work")
    assert STUDY.main(options) == 0
    assert json.loads(done.stdout) == json.loads(capsys.readouterr().out)


def test_latency_is_predicted_without_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path)
    assert STUDY.main(_options(tmp_path, "--device", "board", "phone", "--searcher")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["search"] == {} and not (tmp_path / "work").exists()
    named = {device: errors["100"]["odd"] for device, errors in found["latency"].items()}
    assert named["board"] < 3 and found["latency"]["board"]["60"]["median"] < 1


def test_rank_evolve_searches_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path)
    names = ["rank-evolve", "rank-evolve-timed"]
    assert STUDY.main(_options(tmp_path, "--device", "board", "--searcher", *names)) in (0, 1)
    for found in json.loads(capsys.readouterr().out)["search"]["board"].values():
        (share,) = found["share"]
        assert share > 0.8


@pytest.mark.parametrize(
    ("name", "reach", "text", "good"),
    [
        ("rank-evolve", [200, 390, 300, 290], "295 (200–390)", True),
        ("rank-evolve-timed", [200, 390, 304, 298], "301 (200–390)", False),
        ("rank-evolve", [200, None, None], "× (200–×)", False),
        ("evolution", [None], "× (×–×)", True),
    ],
)
def test_at_most_300_evaluations_in_the_median_are_asked_of_our_searcher(
    name: str, reach: list[int | None], text: str, good: bool
) -> None:
    numbers = {**dict.fromkeys(map(str, LEVELS), reach), "share": [0.5]}
    content = {"search": {"board": {name: numbers}}, "latency": {}}
    assert met(content) is good and text in printed(show(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mlp_ratio": None}, "no array 'mlp_ratio'"),
        ({"num_heads": np.zeros(COUNT, dtype=int)}, "no array 'num_heads'"),
        ({"latency_board": None, "latency_phone": None}, "latency_DEVICE"),
        ({"fc1.weight": np.zeros((8, 5))}, "do not fit"),
        ({"fc3.bias": np.array([90.0])}, "is off by"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_bench(_write(tmp_path, change), "tiny")


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.main(_options(tmp_path)) == 2
    assert "No such file" in capsys.readouterr().err
    _write(tmp_path)
    assert STUDY.main(_options(tmp_path, "--device", "toaster")) == 2
    assert "the table has board, phone" in capsys.readouterr().err

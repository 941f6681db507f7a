"""The study on HAT's latencies: CSV form, terms, JSON, and what it says of bad files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import harness, latency_predictors
from experiments.latency_predictors import (
    FEATURES,
    LATENCIES,
    STUDY,
    Plan,
    drift,
    physical_terms,
    read_latencies,
    study,
)
from latency.predictor import LatencyPredictor
from search_spaces.errors import DataError, UsageError

HEADER = [*FEATURES, *LATENCIES]
PLAN = Plan(sizes=(20, 40), num_test=30, num_seeds=2)
QUICK = ["--train", "20", "40", "--test", "30", "--seeds", "2"]
Rows = list[list[float]]


def made_up(count: int, noise: float = 0.01) -> Rows:
    """Networks whose decoder pays for each layer's products, as a processor does."""
    rng = np.random.default_rng(0)
    features = np.column_stack(
        [
            rng.choice([512, 640], count),
            np.full(count, 6),
            rng.uniform(512, 3072, count),
            rng.uniform(2, 8, count),
            rng.choice([512, 640], count),
            rng.integers(1, 7, count),
            rng.uniform(512, 3072, count),
            *rng.uniform(2, 8, (2, count)),
            rng.uniform(1, 3, count),
        ]
    )
    decoder = 20 + features[:, 5] * (2 + features[:, 4] * features[:, 6] / 1e5)
    encoder = 1 + features[:, 0] * features[:, 2] / 1e6
    times = np.column_stack([encoder, decoder]) * np.exp(rng.normal(0, noise, (count, 1)))
    return np.column_stack([features, times]).tolist()


def write(path: Path, rows: Rows, header: list[str] = HEADER) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "board.csv", made_up(90))


def test_terms_of_one_network() -> None:
    row = np.array([[512, 6, 1000, 4, 640, 2, 2000, 8, 4, 1.5]])
    expected = [
        640,
        2,
        2 * 640,
        2 * 640 * 2000,
        2 * (8 + 4 * 1.5),
        2 * 1.5 * 512,
        6 * 512 * (2 * 1000 + 4 * 512),
    ]
    np.testing.assert_array_equal(physical_terms(row), [expected])


def test_latency_is_encoder_and_decoder(tmp_path: Path) -> None:
    rows = [[*range(1, 11), 3.0, 40.0], [*range(1, 11), 5.0, 60.0]]
    backwards = [[*row[::-1], 0.0] for row in rows]
    header = [*HEADER[::-1], "latency_std_encoder"]
    for data in (
        read_latencies(write(tmp_path / "a.csv", rows)),
        read_latencies(write(tmp_path / "b.csv", backwards, header)),
    ):
        np.testing.assert_array_equal(data.ms, [43, 65])
        np.testing.assert_array_equal(data.features, [range(1, 11)] * 2)
        np.testing.assert_array_equal(data.decoder_depth, [[6], [6]])


def test_terms_beat_the_columns_where_cost_is_products(file: Path) -> None:
    rows = study(read_latencies(file), PLAN)["rows"]
    for size in ("20", "40"):
        errors = {name: np.mean(row["mape"][size]) for name, row in rows.items()}
        assert errors["predictor"] < 2.5
        assert errors["predictor"] < 0.7 * errors["linear"]
        assert errors["linear"] < errors["decoder_depth"]
    assert np.mean(rows["predictor"]["kendall_tau"]["40"]) > 0.9


def test_json_has_the_promised_form(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.main(["--csv", str(file), "--json", *QUICK]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"mape", "kendall_tau", "baselines"}
    assert set(printed["baselines"]) == {"linear", "decoder_depth"}
    for part in (printed, *printed["baselines"].values()):
        for metric in ("mape", "kendall_tau"):
            assert set(part[metric]) == {"20", "40"}
    assert 0.1 < printed["mape"]["40"] < 5  # percent


def test_without_options_all_files_are_read_and_results_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}.csv", made_up(60))
    monkeypatch.setattr(latency_predictors, "FOLDER", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(latency_predictors, "DEFAULT", Plan((10,), 20, 1))
    assert STUDY.main(["--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"one", "two"}
    kept = json.loads((tmp_path / "latency_predictors.json").read_text(encoding="utf-8"))
    assert set(kept["one"]) == {"rows", "chosen", "within", "drift"}


def test_a_folder_without_files_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(latency_predictors, "FOLDER", tmp_path)
    assert STUDY.main([]) == 2
    assert "name one with --csv FILE" in capsys.readouterr().err


def test_the_table_shows_every_row(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.main(["--csv", str(file), *QUICK]) == 0
    shown = capsys.readouterr().out
    for words in ("board", "predictor", "decoder depth", "trees of terms", "within ±1 std"):
        assert words in shown


def test_a_missed_target_is_said_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_predictors, "TARGET_SIZE", 40)
    monkeypatch.setattr(latency_predictors, "TARGETS", {"wild": 5.0, "calm": 5.0})
    wild = write(tmp_path / "wild.csv", made_up(90, noise=0.5))
    calm = write(tmp_path / "calm.csv", made_up(90))
    assert [STUDY.main(["--csv", str(path), *QUICK]) for path in (wild, calm)] == [1, 0]


def test_slow_spells_show_as_drift(tmp_path: Path) -> None:
    rows = np.array(made_up(300))
    rows[100:160, -2:] *= 1.3
    slow, steady = (
        read_latencies(write(tmp_path / "a.csv", data)) for data in (rows.tolist(), made_up(300))
    )
    train = np.arange(0, 300, 4)
    found = [drift(d, LatencyPredictor.fit(d.terms[train], d.ms[train])) for d in (slow, steady)]
    assert found[0]["neighbours"] > 0.8 > 0.3 > found[1]["neighbours"]
    assert found[0]["mape_steady"] < 0.5 * found[0]["mape"]
    assert found[0]["median"] < 2


def broken(tmp_path: Path, column: str, text: str) -> Path:
    path = write(tmp_path / "board.csv", made_up(90))
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = lines[4].split(",")
    cells[HEADER.index(column)] = text
    path.write_text("\n".join([*lines[:4], ",".join(cells), *lines[5:]]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("decoder_embed_dim", "wide", "line 5: decoder_embed_dim must be a finite .* 'wide'"),
        ("decoder_embed_dim", "", "line 5: decoder_embed_dim .* not empty"),
        ("decoder_embed_dim", "nan", "not 'nan'"),
        ("latency_mean_encoder", "inf", "latency_mean_encoder .* not 'inf'"),
        ("latency_mean_decoder", "-3", "line 5: latency_mean_decoder must be positive, not -3"),
        ("latency_mean_encoder", "0", "must be positive"),
        ("encoder_layer_num", "-6", "line 5: encoder_layer_num must be between 0 and 1,000,000"),
        ("decoder_ffn_embed_dim_avg", "1e300", "not 1e300"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, column: str, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_latencies(broken(tmp_path, column, text))


def test_a_short_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [[1.0] * 12, [1.0] * 5])
    with pytest.raises(DataError, match="line 3: decoder_layer_num .* not empty"):
        read_latencies(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "lacks the column encoder_embed_dim"),
        (",".join(HEADER[:-1]).encode(), "lacks the column latency_mean_decoder"),
        (b"\xff\xfe\x00\x80", "cannot be read"),
        (",".join(HEADER).encode(), "has 0 networks"),
        (None, "No such file"),
    ],
)
def test_a_bad_file_is_one_sentence(
    tmp_path: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_bytes(content)
    assert STUDY.main(["--csv", str(path), "--json"]) == 2
    output = capsys.readouterr()
    assert said in output.err and output.err.count("\n") == 1 and output.out == ""


def test_too_few_networks_say_how_many_are_needed(file: Path) -> None:
    with pytest.raises(DataError, match=r"90 networks; .* needs 800: give a longer file"):
        study(read_latencies(file), Plan())


@pytest.mark.parametrize("plan", [Plan((7,), 30, 1), Plan((20,), 1, 1), Plan((20,), 30, 0)])
def test_plans_that_measure_nothing_are_refused(file: Path, plan: Plan) -> None:
    with pytest.raises(UsageError, match="fit at least 8 rows"):
        study(read_latencies(file), plan)

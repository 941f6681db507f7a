"""The report of a run whose files are missing, damaged or of another task or schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nas.report import write_report
from nas.report.page import CHAPTERS, render
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from search_spaces.errors import DamagedRunError
from tests.support import report_cases
from tests.support.report_cases import charts, words_of
from tests.support.run_fixture import empty_run, finished_run, rewrite

OPTIONAL = [
    "data.json",
    "latency/profile.jsonl",
    "latency/predictor.json",
    "supernet/history.json",
    "observations.jsonl",
    "ranker/report_card.json",
    "pruned_space.toml",
    "pruning.json",
    "population.jsonl",
    "verification.jsonl",
    "pareto.json",
]

finished, run = report_cases.finished, report_cases.run


# -- runs that are not finished -----------------------------------------------------------------


def test_a_run_that_has_not_begun_says_so_everywhere(tmp_path: Path) -> None:
    page = render(read_contents(empty_run(tmp_path / "new")))
    assert page.count('class="missing"') == len(CHAPTERS) - 1
    assert "nas resume new" in words_of(page)
    assert charts(page) == {}


def test_any_file_may_be_missing(run: RunFolder) -> None:
    before = render(read_contents(run))
    for name in OPTIONAL:
        content = (run.path / name).read_bytes()
        (run.path / name).unlink()
        assert render(read_contents(run)) != before, name
        (run.path / name).write_bytes(content)


def test_without_latency_nothing_is_said_about_times(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", objectives=("quality", "flops"))
    page = render(read_contents(run))
    assert set(charts(page)) >= {"front-flops"}
    assert not {"front-latency_ms", "latency-check"} & set(charts(page))
    assert "no network was timed" in words_of(page)
    assert "not finished" not in words_of(page)


def test_a_pick_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    spec = folder.spec.model_copy(update={"pick": "0" * 12})
    page = render(read_contents(RunFolder(folder.path, spec)))
    assert "The picked network is" not in words_of(page)


# -- damaged files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OPTIONAL if name.endswith(".json")])
@pytest.mark.parametrize("content", ["{", "[1]", "7", "\udcff"])
def test_a_damaged_file_is_named(run: RunFolder, name: str, content: str) -> None:
    (run.path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DamagedRunError, match=re.escape(name)):
        write_report(run)
    assert not (run.path / "report.html").exists()


@pytest.mark.parametrize("name", ["observations.jsonl", "population.jsonl", "verification.jsonl"])
@pytest.mark.parametrize("line", ["{", "{}", "[]"])
def test_a_damaged_line_is_named(run: RunFolder, name: str, line: str) -> None:
    file = run.path / name
    file.write_text(f"{line}\n{file.read_text('utf-8')}", "utf-8")
    with pytest.raises(DamagedRunError, match=f"{name}, line 1"):
        read_contents(run)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("supernet/history.json", (0, "train_loss"), "2.5"),
        ("pruning.json", ("cuts", 0, "evidence", "lift", "ratio"), None),
        ("pruning.json", ("cuts", 0, "share"), "half"),
        ("pruning.json", ("kept", 0, "evidence", "observed_effect"), "x"),
        ("pareto.json", ("front", 0, "architecture", "encoder", "embed_dim"), -1),
        ("pareto.json", ("front", 0, "measured", "quality"), "low"),
        ("ranker/importances.json", ("encoder.embed_dim",), True),
        ("data.json", ("num_train",), "many"),
        ("latency/predictor.json", ("report", "chosen"), "nobody"),
    ],
)
def test_a_wrong_value_is_found(
    run: RunFolder, name: str, path: tuple[str | int, ...], value: object
) -> None:
    rewrite(run, name, path, value)
    with pytest.raises(DamagedRunError, match=re.escape(name)):
        read_contents(run)


@pytest.mark.parametrize("gene", [-1, 99])
def test_a_network_outside_the_space_is_found(run: RunFolder, gene: int) -> None:
    lines = run.read_journal("population.jsonl")
    lines[0]["genotypes"][0][0] = gene
    (run.path / "population.jsonl").unlink()
    run.append("population.jsonl", lines)
    with pytest.raises(DamagedRunError, match=r"population\.jsonl"):
        read_contents(run)


def test_a_cut_line_is_skipped_and_left_alone(run: RunFolder) -> None:
    before = read_contents(run)
    file = run.path / "observations.jsonl"
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"id": "12')
    size = file.stat().st_size
    assert read_contents(run).observed == before.observed
    assert file.stat().st_size == size


# -- scores of networks trained from scratch ------------------------------------------------------


def retrained_file(run: RunFolder) -> str:
    (file,) = run.path.glob("retrained/*/result.json")
    return file.relative_to(run.path).as_posix()


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ({}, "was right on 97.5 % of the test split"),
        ({"test_bleu": 31.237, "valid_bleu": 30.0}, "reached a BLEU of 31.24 on the test split"),
        (
            {"test_perplexity": 1234.5, "valid_perplexity": 9.0},
            "reached a perplexity of 1,234.50 on the test split",
        ),
        (
            {
                "test_perplexity": 12.3,
                "valid_perplexity": 9.0,
                "test_perplexity_per_word": 80.0,
                "test_bits_per_character": 1.5,
            },
            "of 12.30 (per token; perplexity per word 80.00, bits per character 1.50) "
            "on the test split",
        ),
    ],
)
def test_the_score_that_the_task_is_known_by_is_told(
    run: RunFolder, scores: dict[str, float], told: str
) -> None:
    for name, value in scores.items():
        rewrite(run, retrained_file(run), (name,), value)
    text = words_of(render(read_contents(run))).replace("\u00a0", " ")
    assert told in text.replace(" ,", ",")


def test_results_of_schema_1_are_read(run: RunFolder) -> None:
    name = retrained_file(run)
    data = {k: v for k, v in run.read_json(name).items() if k not in ("task", "test_loss")}
    run.write_json(name, data | {"schema": 1})
    assert "97.5" in words_of(render(read_contents(run)))


@pytest.mark.parametrize("name", ["test_accuracy", "valid_accuracy", "valid_loss"])
def test_results_without_scores_are_damaged(run: RunFolder, name: str) -> None:
    file = retrained_file(run)
    run.write_json(file, {k: v for k, v in run.read_json(file).items() if k != name})
    with pytest.raises(DamagedRunError, match=re.escape(file)):
        read_contents(run)


def test_an_observation_without_quality_is_damaged(run: RunFolder) -> None:
    lines = run.read_journal("observations.jsonl")
    del lines[1]["quality"]
    (run.path / "observations.jsonl").unlink()
    run.append("observations.jsonl", lines)
    with pytest.raises(DamagedRunError, match=r"observations\.jsonl, line 2"):
        read_contents(run)

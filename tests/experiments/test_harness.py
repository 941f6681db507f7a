"""The harness of the studies: exit codes, JSON, what is kept, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import harness
from experiments.harness import Study, done_jobs, journaled, table_of
from search_spaces.errors import UsageError


def measure(options: harness.Options) -> dict[str, int]:
    if options.value < 0:
        raise UsageError("give a value of 0 or more")
    return {"value": options.value}


STUDY = Study(
    "made_up",
    "Is the value small?",
    lambda parser: parser.add_argument("--value", type=int, default=1) and None,
    measure,
    lambda found: [table_of("values", ("name", "value"), [("[a]", found["value"])]), "that is all"],
    lambda found: found["value"] < 5,
    lambda options: "made_up" if options.value > 1 else None,
)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("value", "code"), [(1, 0), (2, 0), (5, 1)])
def test_marks_decide_the_exit_code_and_options_what_is_kept(
    value: int, code: int, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert STUDY.main(["--value", str(value)]) == code
    shown = capsys.readouterr().out
    assert "[a]" in shown and str(value) in shown and "that is all" in shown
    file = results / "made_up.json"
    assert file.exists() is (value > 1)
    assert value == 1 or json.loads(file.read_text()) == {"value": value}


def test_json_is_the_numbers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDY.main(["--value", "7", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"value": 7}


def test_an_error_is_one_sentence_and_nothing_is_kept(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert STUDY.main(["--value", "-1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: give a value of 0 or more\n" and captured.out == ""
    assert list(results.iterdir()) == []


def test_help_says_question_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        STUDY.main(["--help"])
    text = capsys.readouterr().out
    assert "Is the value small?" in text and "--value" in text and "--json" in text


class Doubled(int):
    @property
    def key(self) -> str:
        return str(int(self))


def double(job: Doubled) -> dict[str, object]:
    return {"key": job.key, "value": 2 * job}


def test_a_journal_keeps_what_is_done(tmp_path: Path) -> None:
    journal, jobs = tmp_path / "folder" / "journal.jsonl", [Doubled(n) for n in (1, 2, 3)]
    done = {"2": {"key": "2", "value": 0}}
    fresh = list(journaled(double, jobs, done, journal, workers=1))
    assert [line["key"] for line in fresh] == ["1", "3"] and done["2"]["value"] == 0
    assert list(done_jobs(journal).values()) == fresh and done_jobs(tmp_path / "none") == {}

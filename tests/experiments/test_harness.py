"""The harness of the studies: exit codes, JSON, what is kept, and errors."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import harness
from experiments.harness import Study, add_workers, done_in, done_jobs, journaled, table_of
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


def test_a_number_that_is_none_is_null(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"value": 2, "tau": math.nan, "factors": [math.inf, 1.5]}
    study = replace(STUDY, measure=lambda options: numbers)
    assert study.main(["--value", "2", "--json"]) == 0
    right = {"value": 2, "tau": None, "factors": [None, 1.5]}
    for text in (capsys.readouterr().out, (results / "made_up.json").read_text()):
        assert json.loads(text, parse_constant=pytest.fail) == right


def test_numbers_that_cannot_be_printed_are_kept(results: Path) -> None:
    def show(found: Any) -> list[str]:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        replace(STUDY, show=show).main(["--value", "2"])
    assert json.loads((results / "made_up.json").read_text()) == {"value": 2}


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_no_process_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    study = replace(STUDY, add_options=add_workers)
    assert study.parser.parse_args(["--workers", "1"]).workers == 1
    with pytest.raises(SystemExit, match="2"):
        study.main([f"--workers={count}"])
    assert f"give a whole number of 1 or more; given '{count}'" in capsys.readouterr().err


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
    assert {line["key"] for line in fresh} == {"1", "3"} and done["2"]["value"] == 0
    assert list(done_jobs(journal).values()) == fresh and done_jobs(tmp_path / "none") == {}


def double_but_the_first(job: Doubled) -> dict[str, object]:
    if job == 1:
        raise UsageError("the first fails")
    return double(job)


def in_journal(jobs: list[Doubled], folder: Path) -> list[str]:
    journal = folder / "journal.jsonl"
    with pytest.raises(UsageError, match="the first fails"):
        list(journaled(double_but_the_first, jobs, {}, journal, workers=1))
    return list(done_jobs(journal))


def handed_over(jobs: list[Doubled], folder: Path) -> list[str]:
    found = []
    with pytest.raises(UsageError, match="the first fails"):
        for job, _ in done_in("local", double_but_the_first, jobs, workers=2):
            found.append(job.key)
    return found


@pytest.mark.parametrize("kept", [in_journal, handed_over])
def test_where_one_fails_what_was_begun_is_handed_over_and_the_rest_left_out(
    kept: Callable[[list[Doubled], Path], list[str]], tmp_path: Path
) -> None:
    found = kept([Doubled(n) for n in range(1, 1000)], tmp_path)
    assert "2" in found and "999" not in found


ASK_FOR_EVER = """
import threading
from experiments.harness import processes

def wait():
    print("begun", flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    with processes(1) as pool:
        pool.submit(wait).result()
"""


def test_processes_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(ASK_FOR_EVER, encoding="utf-8")
    paths = os.environ | {"PYTHONPATH": str(Path(harness.__file__).parents[1])}
    study = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=paths)
    with study:
        assert study.stdout is not None and study.stdout.readline() == b"begun\n"
        study.kill()
        rest, _ = study.communicate(timeout=60)  # ends when nobody can write any more
        assert rest == b""

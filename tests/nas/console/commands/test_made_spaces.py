"""`nas space new`, and searches of data without a space: one is made, kept beside them and used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.console.commands.checked_spaces import checked_space
from nas.request.fitted_space import Pace
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from tests.support.prepare_cases import pictures, run, write_jsonl

SETTINGS = ("observations=16", "verified=2", "supernet.epochs=1", "retrain.epochs=1")
FEW = [
    *("--objectives", "quality,flops", "--no-baseline", "--retrain", "1"),
    *(f"--set={one}" for one in SETTINGS),
]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    pixels, labels = pictures(120)
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    run(
        tmp_path,
        "classification",
        source=(tmp_path / "a.npz",),
        out=tmp_path / "pets",
        allow_overlap=True,
    )
    return tmp_path / "pets"


@pytest.fixture(autouse=True)
def paces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked for a pace; nothing is timed."""
    asked: list[Any] = []

    def measure_pace(space: Any, data: Path, device: str) -> Pace:
        asked.append((space, data, device))
        return Pace(0.01, 0.01, 0.001, 4, 1)

    monkeypatch.setattr("nas.run.pace.measure_pace", measure_pace)
    return asked


def nas(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_space_is_printed_and_can_be_searched(pets: Path, tmp_path: Path) -> None:
    done = nas("space", "new", "--data", pets, "--size", "small", "--quiet")
    assert done.exit_code == 0, done.output
    (tmp_path / "mine.toml").write_text(done.stdout)
    space = checked_space(str(tmp_path / "mine.toml"))
    assert space.name == "pets" and 128 in space.slot("encoder.embed_dim").choices


def test_data_alone_are_searched_and_gone_on_with(pets: Path, tmp_path: Path, paces: Any) -> None:
    words = ["search", "--data", pets, "--preset", "smoke", *FEW, "--out", tmp_path / "run"]
    done = nas(*words)
    assert done.exit_code == 0, done.output
    assert (pets / "space-cpu-1h.toml").is_file() and "made a space" in done.stderr
    assert len(read_contents(RunFolder.open(tmp_path / "run")).front.entries) > 0
    asked = len(paces)
    again = nas(*words)
    assert again.exit_code == 0 and "holds this search already" in again.stderr
    assert len(paces) == asked, "the space is made once"


def test_other_hours_make_another_space(pets: Path, tmp_path: Path) -> None:
    words = ["search", "--data", pets, "--preset", "smoke", *FEW, "--hours", "0.5"]
    done = nas(*words, "--limit", "params=1", "--out", tmp_path / "run")  # so that nothing is done
    assert done.exit_code == 2 and "the smallest it can reach is" in done.stderr
    assert (pets / "space-cpu-0.5h.toml").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--space", "digits", "--hours", "2"], "hours is for a space that is made for data"),
        (["--hours", "2"], "no space is given"),
        (["--data", "synthetic"], "no space is given"),
        (["--data", "{tmp}/none"], "does not exist"),
        (["--data", "{tmp}"], "holds no data made by nas data prepare"),
        (["--data", "{tmp}/pets", "--hours", "0"], "--hours"),
    ],
)
def test_what_no_space_is_made_for_is_refused(
    pets: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    done = nas("search", *(word.replace("{tmp}", str(tmp_path)) for word in words))
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    assert not list(pets.glob("*.toml"))


def test_a_file_of_texts_is_prepared_first(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    done = nas("search", "--data", tmp_path / "a.jsonl")
    told = " ".join(done.stderr.split())
    made = f"nas data prepare --task TASK --source {tmp_path / 'a.jsonl'} --out DIR makes one"
    assert done.exit_code == 2 and made in told

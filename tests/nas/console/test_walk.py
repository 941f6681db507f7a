"""The walk of a new user: three commands from raw files to a prediction, for five kinds of data."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.e2e

COMMAND = "from nas.console.app import app; app()"
DATA = Path(
    os.environ.get("NAS_TEST_DATA", Path(__file__).resolve().parents[3].parent / "shared/data")
)
LINES = 1200


def lines_of(name: str, count: int = LINES) -> list[str]:
    """The first lines of a packed file of the data."""
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"{file} is not there; NAS_TEST_DATA names the folder of real data")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.removesuffix("\n") for line in islice(lines, count)]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def cifar(raw: Path) -> tuple[list[object], Path]:
    """Pictures in one folder for each class."""
    file = DATA / "cifar10/cifar10_subset_12k_uint8.npz"
    if not file.is_file():
        pytest.skip(f"{file} is not there; NAS_TEST_DATA names the folder of real data")
    with np.load(file) as arrays:
        pixels, labels = arrays["x_train"][:300], arrays["y_train"][:300]
        names = [str(name) for name in arrays["class_names"]]
    for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        path = raw / "pictures" / names[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return ["--task", "classification", "--source", raw / "pictures"], path


def movies(raw: Path) -> tuple[list[object], Path]:
    """Reviews in a table, whose folds are held out whole."""
    import pandas as pd

    found = [json.loads(line) for line in lines_of("longseq/movie_reviews.jsonl.gz", 2000)[::10]]
    table = pd.DataFrame(found)
    table.to_parquet(raw / "reviews.parquet")
    table.drop(columns="label").head(3).to_json(raw / "new.jsonl", orient="records", lines=True)
    words = ["--task", "classification", "--source", raw / "reviews.parquet"]
    return [*words, "--group-by", "fold", "--max-length", 200], raw / "new.jsonl"


def tatoeba(raw: Path) -> tuple[list[object], Path]:
    """Sentences and their translations."""
    sides = [
        write_lines(raw / f"all.{end}", lines_of(f"mt/tatoeba/train.{end}.gz")[-LINES:])
        for end in ("en", "de")
    ]
    new = write_lines(raw / "new.en", ["Come in.", "I am happy."])
    return ["--task", "translation", "--source", sides[0], "--target", sides[1]], new


def text(name: str) -> Callable[[Path], tuple[list[object], Path]]:
    """Running text."""

    def written(raw: Path) -> tuple[list[object], Path]:
        file = write_lines(raw / "all.txt", lines_of(name))
        prompts = write_lines(raw / "new.txt", ["The", "def"])
        return ["--task", "language_modelling", "--source", file], prompts

    return written


KINDS = {
    "cifar": cifar,
    "movies": movies,
    "tatoeba": tatoeba,
    "brown": text("lm/brown.train.txt.gz"),
    "python": text("lm/python_stdlib.train.txt.gz"),
}


def nas(folder: Path, *words: object) -> str:
    root = str(Path(__file__).resolve().parents[3])
    env = os.environ | {"NAS_CACHE_DIR": str(folder / "cache"), "NAS_LOCK_DIR": str(folder)}
    env["PYTHONPATH"] = root
    command = [sys.executable, "-c", COMMAND, *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_three_commands_lead_to_a_prediction(tmp_path: Path, kind: str) -> None:
    options, new = KINDS[kind](tmp_path)
    told = nas(tmp_path, "data", "prepare", *options, "--out", "data")
    assert "Next    nas search --data data" in told
    small = [
        "--preset",
        "smoke",
        "--objectives",
        "quality,params",
        "--hours",
        "0.01",
        "--no-baseline",
    ]
    nas(tmp_path, "search", "--data", "data", *small, "--out", "run")
    answers = [
        json.loads(line)
        for line in io.StringIO(nas(tmp_path, "predict", "run", new, "--tokens", "4", "--json"))
    ]
    manifest = json.loads((tmp_path / "data/manifest.json").read_text("utf-8"))
    assert all(split["examples"] for split in manifest["splits"].values())
    if manifest["content"] != "stream":  # whose lines come back, such as return
        assert all(not split["overlap"] for split in manifest["splits"].values())
    if manifest["label_names"]:
        assert all(answer["answer"] in manifest["label_names"] for answer in answers)
    assert len(answers) == {"cifar": 1, "movies": 3}.get(kind, 2)

"""Searching folders that `nas data prepare` made for classification."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from nas.run.folder import RunFolder
from search_spaces.errors import DataError
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from supernet.data.examples import load_search_data, load_test_split
from tests.support.pipeline_cases import NUMBERS, edited, finished, logged, named, tiny, work
from tests.support.prepare_cases import pictures, run, write_folder, write_jsonl, write_pairs

IMAGES = ModelSettings(ImageInput(8, 4, 3), max_length=4, num_classes=3, head_dim=4)
TEXTS = ModelSettings(TokenInput(257), max_length=17, num_classes=2, head_dim=4)
# The tiny space of the pipeline's tests, for the two kinds of data.
IMAGE_SPACE = edited(("channels = 1", "channels = 3"), ("num_classes = 10", "num_classes = 3"))
TEXT_SPACE = edited(
    ('kind = "image"\nimage_size = 8\npatch_size = 4\nchannels = 1', 'kind = "tokens"'),
    ("num_classes = 10", "num_classes = 2"),
    ("max_length = 4", "max_length = 17"),
    ('dataset = "digits"', 'dataset = "listops"'),
).replace('kind = "tokens"', 'kind = "tokens"\nvocab_size = 257')


def prepare_images(folder: Path) -> Path:
    """60 images of 3 classes: 54 to train on, 6 to judge by, and 30 brighter ones for test."""
    pixels, labels = pictures(60)
    test = {"x_test": pixels[:30] // 2 + 100, "y_test": labels[:30]}
    arrays: Any = {"x_train": pixels // 2, "y_train": labels} | test
    np.savez(folder / "a.npz", **arrays)
    run(folder, "classification", source=(folder / "a.npz",), out=folder / "pets")
    return folder / "pets"


def prepare_texts(folder: Path, **changes: Any) -> Path:
    write_jsonl(folder / "a.jsonl")
    asked = {"tokenizer": "bytes", "out": folder / "mails", **changes}
    run(folder, "classification", source=(folder / "a.jsonl",), **asked)
    return folder / "mails"


def bring(made: Path, place: Path) -> None:
    for file in made.glob("test.*"):
        shutil.copy(file, place)


CASES = {"pets": (prepare_images, IMAGE_SPACE), "mails": (prepare_texts, TEXT_SPACE)}


@pytest.mark.parametrize("name", CASES)
def test_a_search_reads_the_test_split_only_to_retrain(tmp_path: Path, name: str) -> None:
    prepare, text = CASES[name]
    data = prepare(tmp_path)
    shutil.copytree(data, tmp_path / "whole")
    for file in data.glob("test.*"):
        file.unlink()
    folder = tiny(tmp_path / "run", text, data=str(data), dataset=name)
    with pytest.raises(DataError, match=r"test\."):
        work(folder)
    ended = [event["stage"] for event in logged(folder) if event["event"] == "StageFinished"]
    assert ended[-2:] == ["exchange", "report"] and not list(
        folder.path.glob("retrained/*/result.json")
    )
    bring(tmp_path / "whole", data)
    assert named(work(RunFolder.open(folder.path)), "StageFinished")[-1] == "report"
    (file,) = folder.path.glob("retrained/*/result.json")
    assert json.loads(file.read_text())["dataset"] == name
    assert folder.read_json("data.json")["dataset"] == name


def test_the_same_data_give_the_same_front(tmp_path: Path) -> None:
    data = prepare_images(tmp_path)
    values: Any = {"data": str(data), "dataset": "pets"}
    fronts = [
        (finished(tmp_path / run / "run", IMAGE_SPACE, **values).path / "pareto.json").read_bytes()
        for run in ("a", "b")
    ]
    assert fronts[0] == fronts[1]


@pytest.mark.parametrize("space", ["digits", None])
def test_the_command_takes_a_folder_for_any_space(tmp_path: Path, space: str | None) -> None:
    text = IMAGE_SPACE if space else IMAGE_SPACE.replace('[data]\ndataset = "digits"\n', "")
    (tmp_path / "s.toml").write_text(text, "utf-8")
    sets = [word for name, value in NUMBERS.items() for word in ("--set", f"{name}={value}")]
    given = [
        "--space",
        str(tmp_path / "s.toml"),
        "--objectives",
        "quality,flops",
        *sets,
        "--retrain=1",
    ]
    where = ["--data", str(prepare_images(tmp_path)), "--out", str(tmp_path / "run"), "--quiet"]
    done = CliRunner().invoke(app, ["search", *given, *where])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run/data.json").read_text())["dataset"] == "pets"
    report = (tmp_path / "run/report.html").read_text()
    assert "--data " in report and "--dataset" not in report


@pytest.mark.parametrize(
    ("space", "data", "message"),
    [
        ("digits", "mails", "hold texts, but the networks of this space read images"),
        ("digits", "empty", "has no manifest.json"),
        ("digits", "file", "digits needs no file; leave out --data"),
        ("cifar10", "file", "is no .npz file"),
        ("cifar10", None, "cifar10 is read from a file; pass it with --data"),
    ],
)
def test_data_that_do_not_fit_are_wrong_use(
    tmp_path: Path, space: str, data: str | None, message: str
) -> None:
    """Exit code 2, as the guide says; it was 1, that of runs which failed."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no arrays")
    given = ["search", "--space", space, "--preset", "smoke", "--out", str(tmp_path / "run")]
    if data is not None:
        path = prepare_texts(tmp_path) if data == "mails" else tmp_path / data
        given += ["--data", str(path)]
    done = CliRunner().invoke(app, given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split()) and not (tmp_path / "run").exists()


def test_images_are_normalised_by_the_training_split(tmp_path: Path) -> None:
    path = str(prepare_images(tmp_path))
    data = load_search_data("cifar10", path, IMAGES, 0)
    assert (data.name, len(data.train), len(data.valid)) == ("pets", 54, 6)
    assert data.train.inputs.shape == (54, 3, 8, 8) and data.train.image_size == 8
    means = data.train.inputs.mean(dim=(0, 2, 3))
    assert torch.allclose(means, torch.zeros(3), atol=1e-5) and len(data.background) == 3
    test = load_test_split("digits", path, IMAGES, 0)
    assert len(test) == 30 and test.inputs.mean() > 1  # 100 of 255 brighter, by train's scale


def test_texts_are_rows_of_bytes(tmp_path: Path) -> None:
    path = str(prepare_texts(tmp_path))
    data = load_search_data("listops", path, TEXTS, 0)
    test = load_test_split("listops", path, TEXTS, 0)
    assert data.train.inputs.dtype == test.inputs.dtype == torch.int64
    assert int(data.train.inputs.max()) == 1 + 0xC3 and data.label_names == ("no", "yes")
    assert data.background == () and len(test) == 4


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    data = prepare_images(tmp_path)
    first = load_search_data("pets", str(data), IMAGES, 0).digest
    moved = data.rename(tmp_path / "other")
    assert load_search_data("digits", str(moved), IMAGES, 5).digest == first
    np.savez(tmp_path / "b.npz", x_train=pictures(60, seed=1)[0], y_train=pictures(60)[1])
    run(tmp_path, "classification", source=(tmp_path / "b.npz",), out=tmp_path / "c")
    assert load_search_data("pets", str(tmp_path / "c"), IMAGES, 0).digest != first


IMAGE_MISFITS: dict[str, ModelSettings] = {
    "hold images, but .* read tokens": replace(TEXTS, num_classes=3),
    "have 3 classes, but .* num_classes = 10; set it to 3": replace(IMAGES, num_classes=10),
    "3 colour channels, but .* read 1": replace(IMAGES, input=ImageInput(8, 4, 1)),
    "8 x 8 pixels, but .* 4 x 4;.*--image-size 4": replace(IMAGES, input=ImageInput(4, 2, 3)),
    "the space has no num_classes": replace(IMAGES, num_classes=None),
}
TEXT_MISFITS: dict[str, ModelSettings] = {
    "hold texts, but .* read images": replace(IMAGES, num_classes=2),
    "257 tokens with padding, but .* vocab_size = 256": replace(TEXTS, input=TokenInput(256)),
    "has 17 bytes, but .* read 16;.*--max-length 16": replace(TEXTS, class_token=True),
}


@pytest.mark.parametrize("load", [load_search_data, load_test_split])
def test_data_that_do_not_fit_the_space_are_refused(tmp_path: Path, load: Any) -> None:
    images, texts = str(prepare_images(tmp_path)), str(prepare_texts(tmp_path))
    for path, misfits in ((images, IMAGE_MISFITS), (texts, TEXT_MISFITS)):
        for message, model in misfits.items():
            with pytest.raises(DataError, match=message):
                load("digits", path, model, 0)
    load("digits", images, replace(IMAGES, input=ImageInput(16, 4, 3)), 0)  # is enlarged


def test_folders_that_cannot_be_searched_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "raw")
    write_pairs(tmp_path)
    run(tmp_path)  # prepared for translation
    damaged = prepare_images(tmp_path)
    (damaged / "train.images.bin").write_bytes(b"short")
    messages = {
        "raw": "no manifest.json.*nas data prepare",
        "out": "data for translation, but classification is needed",
        "none": "there is no folder .*none",
        "pets": r"train\.images\.bin",
    }
    for name, message in messages.items():
        with pytest.raises(DataError, match=message):
            load_search_data("cifar10", str(tmp_path / name), IMAGES, 0)

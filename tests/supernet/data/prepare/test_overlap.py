"""What splits share: equal files are refused, equal examples counted."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces.errors import UsageError
from supernet.data.prepare import plan
from supernet.data.prepare.plan import Overlaps
from tests.nas.console.commands.test_data import translate
from tests.support.prepare_cases import pictures, png, run, write_folder, write_jsonl, write_pairs

Given = dict[str, Any]


def pairs(folder: Path) -> tuple[str, Given, Path]:
    write_pairs(folder)
    return "translation", {}, folder / "train.en"


def text(folder: Path) -> tuple[str, Given, Path]:
    write_pairs(folder)
    return "language_modelling", {}, folder / "train.en"


def texts(folder: Path) -> tuple[str, Given, Path]:
    write_jsonl(folder / "a.jsonl")
    write_jsonl(folder / "b.jsonl", 20)
    lines = (folder / "b.jsonl").read_text("utf-8")
    (folder / "b.jsonl").write_text(lines.replace('"\\u00e4', '"o\\u00e4'), "utf-8")
    return "classification", {"source": (folder / "a.jsonl",)}, folder / "a.jsonl"


def images(folder: Path) -> tuple[str, Given, Path]:
    write_folder(folder / "images")
    return "classification", {"source": (folder / "images",)}, folder / "images"


KINDS = {"pairs": pairs, "text": text, "texts": texts, "images": images}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_file_for_two_splits_is_refused_unless_it_is_meant(
    tmp_path: Path, kind: str, split: str
) -> None:
    task, given, train = KINDS[kind](tmp_path)
    copy = tmp_path / f"copy{train.suffix}"
    if train.is_dir():
        shutil.copytree(train, copy)
    else:
        shutil.copyfile(train, copy)
    same = (copy, tmp_path / "train.de") if kind == "pairs" else (copy,)
    given[split] = same
    with pytest.raises(UsageError, match=rf"train split and .* of the {split} split hold the same"):
        run(tmp_path, task, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    made = run(tmp_path, task, allow_overlap=True, **given).manifest.splits[split]  # type: ignore[arg-type]
    # Of labelled examples, the other held-out split comes out of the training file.
    assert made.overlap["train"] >= 0.8 * made.examples


def test_a_packed_copy_is_a_copy(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    packed = tmp_path / "packed.en.gz"
    packed.write_bytes(gzip.compress((tmp_path / "test.en").read_bytes()))
    with pytest.raises(UsageError, match=r"packed\.en\.gz of the valid split and .*test\.en"):
        run(tmp_path, "language_modelling", valid=(packed,))


@pytest.mark.parametrize("kind", KINDS)
def test_splits_of_their_own_share_nothing(tmp_path: Path, kind: str) -> None:
    task, given, _ = KINDS[kind](tmp_path)
    if kind == "texts":
        given["valid"] = (tmp_path / "b.jsonl",)
    splits = run(tmp_path, task, **given).manifest.splits  # type: ignore[arg-type]
    assert {name: split.overlap.get("train", 0) for name, split in splits.items()} == {
        "train": 0,
        "valid": 0,
        "test": 0,
    }


def test_equal_lines_are_counted_and_blank_ones_are_not(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    known = (tmp_path / "train.en").read_text("utf-8").splitlines()[:3]
    with (tmp_path / "test.en").open("a", encoding="utf-8") as file:
        file.writelines(f"{line} \n" for line in (*known, known[0], "", "quite new"))
    with (tmp_path / "train.en").open("a", encoding="utf-8") as file:
        file.write("\n")
    splits = run(tmp_path, "language_modelling").manifest.splits
    assert splits["test"].overlap == {"train": 4} and splits["valid"].overlap == {}


def test_of_pairs_the_sides_are_counted_too(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    for ending, lines in (("en", slice(0, 5)), ("de", slice(2, 7))):
        known = (tmp_path / f"train.{ending}").read_text("utf-8").splitlines()
        with (tmp_path / f"test.{ending}").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in [*known[:2], *known[lines]])
    shared = run(tmp_path).manifest.splits["test"].overlap
    assert shared == {"train": 2, "train.source": 7, "train.target": 7}
    (tmp_path / "out").rename(tmp_path / "moved")
    done = translate(tmp_path)
    told = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert "2 of 37 pairs of test are in train too (7 source lines and 7 target lines)" in told
    assert "valid are in" not in told


def test_equal_examples_are_held_out_together(tmp_path: Path) -> None:
    pixels, labels = pictures(40)
    for number, label in enumerate(labels):
        path = tmp_path / f"images/{label}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(pixels[number % 20]))  # each picture twice, in two classes
    splits = run(tmp_path, "classification", source=(tmp_path / "images",)).manifest.splits
    assert all(split.examples >= 2 for split in splits.values())
    assert all(split.overlap == {} for split in splits.values())


def test_a_file_for_two_splits_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    for ending in ("en", "de"):
        (tmp_path / f"test.{ending}").write_bytes((tmp_path / f"train.{ending}").read_bytes())
    done = translate(tmp_path)
    assert done.exit_code == 2 and "--allow-overlap" in done.stderr and done.stdout == ""
    printed = json.loads(translate(tmp_path, "--allow-overlap", "--json").stdout)
    assert printed["splits"]["test"]["overlap"]["train"] == 200


def test_training_examples_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the training split stays in memory; the files it waits in have no names."""
    monkeypatch.setattr(plan, "HASHES_PER_CHUNK", 7)
    rng = np.random.default_rng(0)
    numbers = {split: rng.integers(0, 60, 100).tolist() for split in ("train", "valid", "test")}
    with Overlaps(tmp_path) as overlaps:
        for split, drawn in numbers.items():
            overlaps.add(split, (str(number).encode() for number in drawn))
        assert list(tmp_path.iterdir()) == []
        found = overlaps.of("test", ("train", "valid"))
    assert found == {
        other: sum(number in numbers[other] for number in numbers["test"])
        for other in ("train", "valid")
    }

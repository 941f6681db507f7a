"""Examples in named columns: found by name, the same from every form, told where they are bad."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import subprocess
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import told
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.plan import SPLITS
from supernet.data.prepare.records import Columns, column_names, read_records
from supernet.data.prepare.splits import files_of
from supernet.data.prepared import EXAMPLES, PAIRS
from tests.support.prepare_cases import pictures, png, run, write_jsonl

LABELLED = Columns((("text", "label"),))
TRANSLATED = Columns((("source", "target"),))


def save_to_disk(folder: Path, table: pa.Table) -> None:
    """What `save_to_disk` of `datasets` writes: streams of arrow's, and notes about them."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = len(table) // 2
    for name, part in zip(names, (table.slice(0, half), table.slice(half)), strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, part.schema) as w:
            w.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_split": folder.name}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def with_classes(table: pa.Table, column: str, names: list[str]) -> pa.Table:
    """A table with the names of classes as `datasets` keeps them."""
    features = {column: {"names": names, "_type": "ClassLabel"}}
    told = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": told})


def write_as(folder: Path, form: str, rows: dict[str, list[Any]]) -> Path:
    """Columns in one of the forms."""
    path, table = folder / f"data.{form}", pa.table(rows)
    lines = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    match form:
        case "parquet":
            parquet.write_table(table, path, row_group_size=7)
        case "feather":
            feather.write_feather(table, path)
        case "arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as w:
                w.write_table(table)
        case "saved":
            path = folder / "saved"
            save_to_disk(path, table)
        case "csv" | "tsv":
            between = "," if form == "csv" else "\t"
            cells = [list(rows), *([*map(str, line.values())] for line in lines)]
            quoted = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row] for row in cells]
            text = "\r\n".join(between.join(row) for row in quoted)
            path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        case "jsonl.gz":
            text = "\n\n".join(map(json.dumps, lines))  # blank lines are none
            path.write_bytes(gzip.compress(text.encode()))
    return path


FORMS = ("parquet", "feather", "arrow", "saved", "csv", "tsv", "jsonl.gz")


def test_every_form_holds_the_same(tmp_path: Path) -> None:
    texts = [f'say "{n}",\nor {n}; ä' for n in range(40)]
    rows: dict[str, list[Any]] = {"id": list(range(40)), "review": texts, "stars": [1, 5] * 20}
    found = {}
    for form in FORMS:
        path = write_as(tmp_path, form, rows)
        records = list(read_records([path], LABELLED))
        assert [record.values for record in records] == list(
            zip(texts, rows["stars"], strict=True)
        ), form
        run(tmp_path, "classification", source=(path,), out=tmp_path / "of" / form)
        found[form] = EXAMPLES.open(tmp_path / "of" / form).digest
    assert len(set(found.values())) == 1


def test_columns_are_found_by_name_or_told(tmp_path: Path) -> None:
    nested = {"translation": [{"de": "gut", "en": "good"}], "id": ["a"]}
    for form in ("parquet", "jsonl.gz", "saved"):
        path = write_as(tmp_path, form, nested)
        (record,) = read_records([path], Columns((("source", "target"),)))
        assert record.values == ("gut", "good")
        assert "translation.de" in column_names(next(tmp_path.iterdir()))
    other = Columns((("source", "target"),), {"source": "translation.en", "target": "id"})
    assert next(read_records([tmp_path / "data.parquet"], other)).values == ("good", "a")
    csv_file = write_as(tmp_path, "csv", {"en": ["a"], "de": ["b"]})
    (record,) = read_records([csv_file], Columns((("source", "target"),)))
    assert record.values == ("a", "b")
    path = write_as(tmp_path, "csv", {"words": ["a"], "kind": ["b"]})
    with pytest.raises(
        DataError, match=r"'words', 'kind': which holds the text and the label\? Say so with --c"
    ):
        list(read_records([path], LABELLED))
    with pytest.raises(DataError, match="has no column 'wrods', only 'words', 'kind'"):
        list(read_records([path], Columns((("text", "label"),), {"text": "wrods"})))


def test_the_first_pair_decides_what_is_source_and_target(tmp_path: Path) -> None:
    lines = [{"en": "hello", "de": "hallo"}, {"de": "welt", "en": "world"}]
    right = [("hello", "hallo"), ("world", "welt")]
    for inside in (False, True):
        written = [{"translation": line} if inside else line for line in lines]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, written)))
        columns = Columns((("source", "target"),))
        for _ in range(2):
            found = list(read_records([tmp_path / "a.jsonl"], columns))
            assert [one.values for one in found] == right
    (tmp_path / "train.csv").write_text("en,de\na,b\n")
    (tmp_path / "valid.csv").write_text("de,en\nc,d\n")
    (tmp_path / "test.csv").write_text("fr,en\ne,f\n")
    columns = Columns((("source", "target"),))
    assert [one.values for one in read_records([tmp_path / "train.csv"], columns)] == [("a", "b")]
    assert [one.values for one in read_records([tmp_path / "valid.csv"], columns)] == [("d", "c")]
    with pytest.raises(DataError, match="'fr', 'en', but source and target were 'en' and 'de'"):
        list(read_records([tmp_path / "test.csv"], columns))


def test_splits_of_pairs_agree_on_source_and_target(tmp_path: Path) -> None:
    sides = {"en": [f"the fox {n}" for n in range(60)], "de": [f"der fuchs {n}" for n in range(60)]}
    train = write_as(tmp_path, "csv", sides)
    (tmp_path / "v").mkdir()
    other = {name: [f"{text} too" for text in texts] for name, texts in sides.items()}
    valid = write_as(tmp_path / "v", "csv", dict(reversed(other.items())))
    run(tmp_path, source=(train,), target=(), valid=(valid,), test=(), vocab_size=60)
    assert (tmp_path / "out/valid.source.txt").read_text().splitlines() == other["en"]


@pytest.mark.parametrize(
    ("names", "given", "right"),
    [
        (["query", "document"], {}, ("query", "document")),
        (["query", "passage", "document"], {}, ("query", "passage")),
        (["question", "answer", "comment"], {}, ("question", "answer")),
        (["anchor", "positive", "text"], {}, ("anchor", "positive")),
        (["q", "document"], {"query": "q"}, ("q", "document")),
        (["query", "passage", "body"], {"text": "body"}, ("body",)),
        (["document"], {}, ("document",)),
    ],
)
def test_pairs_keep_their_queries(
    names: list[str], given: dict[str, str], right: tuple[str, ...]
) -> None:
    assert Columns((("text",), ("query", "passage")), given).find(names) == right


def test_classes_have_the_names_that_datasets_gave_them(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    save_to_disk(tmp_path / "data", with_classes(table, "label", ["neg", "pos"]))
    records = list(read_records([tmp_path / "data"], LABELLED))
    assert [record.values for record in records[:2]] == [("a", "pos"), ("b", "neg")]
    assert records[2].problem == "label is -1, and there are 2 classes from 0 on"


def test_a_folder_of_splits(tmp_path: Path) -> None:
    for split, count in {"train": 30, "validation": 6, "test": 8, "unsupervised": 2}.items():
        rows = {"text": [f"{split} {n}" for n in range(count)], "label": [0, 1] * (count // 2)}
        save_to_disk(tmp_path / "saved" / split, pa.table(rows))
        (tmp_path / "hub/data").mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(rows), tmp_path / f"hub/data/{split}-00000-of-1.parquet")
    names = {"splits": ["train", "validation", "test", "unsupervised"]}
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps(names))
    made = run(tmp_path, "classification", source=(tmp_path / "saved",))
    assert [split.examples for split in made.manifest.splits.values()] == [30, 6, 8]
    assert [split.classes for split in made.manifest.splits.values()][2] == {"0": 4, "1": 4}
    assert "unsupervised: a split that is called by no usual name" in made.ignored[0]
    (tmp_path / "hub/data/unsupervised-00000-of-1.parquet").unlink()
    (tmp_path / "hub/README.md").write_text("about it")
    hub = run(tmp_path, "classification", source=(tmp_path / "hub",), out=tmp_path / "hubs")
    assert [split.examples for split in hub.manifest.splits.values()] == [30, 6, 8]
    assert "README.md" in hub.ignored[0]


@pytest.mark.parametrize(
    "names",
    [
        ("reviews_train.csv", "reviews_valid.csv", "reviews_test.csv"),
        ("imdb-train.csv", "imdb-dev.csv", "imdb-test.csv"),
        ("trainset.csv", "validset.csv", "testset.csv"),
        ("training.csv", "evaluation.csv", "testing.csv"),
        ("train1.csv", "eval1.csv", "test1.csv"),
        ("wiki.train.csv", "wiki.valid.csv", "wiki.test.csv"),
        ("reviewsTrain.csv", "reviewsVal.csv", "reviewsTest.csv"),
        ("my train_data/contest.csv", "dev/latest.csv", "testdata/pretrained.csv"),
    ],
)
def test_a_split_is_a_word_of_a_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = tmp_path / "test"  # whose own name tells nothing
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text,label\n")
    found = files_of({"train": [folder]}, Doctor())
    assert found == {split: [folder / name] for split, name in zip(SPLITS, names, strict=True)}


def test_words_in_which_a_split_is_called_are_none(tmp_path: Path) -> None:
    names = ("contest", "latest", "dataset", "pretrained", "device", "protest_2", "interval")
    for name in names:
        (tmp_path / f"{name}.csv").write_text("text,label\n")
    (tmp_path / "valid.csv").write_text("text,label\n")
    found = files_of({"train": [tmp_path]}, Doctor())
    assert [file.stem for file in found["train"]] == sorted(names)
    assert {*found} == {"train", "valid"} and len(found["valid"]) == 1


def test_words_of_titles_are_no_splits(tmp_path: Path) -> None:
    """Where no name is for training names begin with splits; a folder decides for its files."""
    names = ("development-plan.csv", "evaluation of tests.csv", "notes.csv", "unit-testing.csv")
    for name in names:
        (tmp_path / name).write_text("text,label\n")
    assert [*files_of({"train": [tmp_path]}, Doctor())] == ["train"]
    for place in ("train", "test"):
        (tmp_path / "texts" / place).mkdir(parents=True)
        for name in names:
            (tmp_path / "texts" / place / name).write_text("text,label\n")
    found = files_of({"train": [tmp_path / "texts"]}, Doctor())
    assert {split: len(files) for split, files in found.items()} == {"train": 4, "test": 4}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("train.csv", "extra.csv"), r"extra\.csv is called by no split, unlike train\.csv beside"),
        (
            ("b.csv", "test.csv", "train/a.csv"),
            r"b\.csv is called by no split, unlike train.a\.csv beside it: put",
        ),
        (
            ("train_test.csv",),
            r"train_test\.csv is called by several splits, train and test: rename",
        ),
    ],
)
def test_files_whose_split_cannot_be_known_are_refused(
    tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text,label\na,0\n")
    with pytest.raises(DataError, match=rf"{words}.* --source, --valid and --test$"):
        files_of({"train": [tmp_path]}, Doctor())


def test_pictures_in_columns(tmp_path: Path) -> None:
    pixels, labels = pictures(30)
    for number, image in enumerate(pixels):
        (tmp_path / f"{number}.png").write_bytes(png(image))
    rows = [f"{n}.png,{label}" for n, label in enumerate(labels)]
    (tmp_path / "named.csv").write_text("\n".join(["file_name,label", *rows, "none.png,1"]))
    inside = [{"bytes": png(image), "path": None} for image in pixels]
    table = pa.table({"image": inside, "label": labels})
    parquet.write_table(with_classes(table, "label", ["a", "b", "c"]), tmp_path / "in.parquet")
    with pytest.raises(DataError, match=rf"named\.csv:32: {tmp_path}/none\.png: cannot be read"):
        run(tmp_path, "classification", source=(tmp_path / "named.csv",))
    made = run(tmp_path, "classification", source=(tmp_path / "named.csv",), skip_bad=True)
    assert made.manifest.splits["train"].dropped == {"bad": 1} and len(made.bad) == 1
    run(tmp_path, "classification", source=(tmp_path / "in.parquet",), out=tmp_path / "in")
    one, other = EXAMPLES.open(tmp_path / "out"), EXAMPLES.open(tmp_path / "in")
    assert (one.train.inputs == other.train.inputs).all()  # type: ignore[union-attr]
    assert other.label_names == ("a", "b", "c") and one.label_names == ("0", "1", "2")


def test_pictures_that_were_changed_are_prepared_anew(tmp_path: Path) -> None:
    for number, (image, label) in enumerate(zip(*pictures(30), strict=True)):
        (tmp_path / f"{number}.png").write_bytes(png(image))
        with (tmp_path / "named.csv").open("a") as file:
            file.write(f"{number}.png,{label}\n" if number else f"image,label\n0.png,{label}\n")
    source = (tmp_path / "named.csv",)
    run(tmp_path, "classification", source=source)
    assert run(tmp_path, "classification", source=source).found
    (tmp_path / "7.png").write_bytes(png(pictures(1, seed=1)[0][0]))
    with pytest.raises(UsageError, match="prepared from other files"):
        run(tmp_path, "classification", source=source)


@pytest.mark.parametrize("what", ["text", "image"])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_of_which_nothing_is_left_is_refused(tmp_path: Path, split: str, what: str) -> None:
    for number, image in enumerate(pictures(40)[0]):
        (tmp_path / f"{number}.png").write_bytes(png(image))
    given = {}
    for name in ("train", "valid", "test"):
        labels = ["good", "bad"] if name == split else ["Good", "Bad"]
        labels = [""] if name == split == "train" else labels
        rows = [f"{n}.png,{labels[n % len(labels)]}" for n in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{what},label", *rows]))
        given["source" if name == "train" else name] = (tmp_path / f"{name}.csv",)
    with pytest.raises(DataError, match=f"nothing is left of the {split} split: none of its 40"):
        run(tmp_path, "classification", **given, skip_bad=True, allow_overlap=True)
    assert not (tmp_path / "out").exists()


def test_lines_of_which_nothing_is_left_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a line\n" * 50)
    (tmp_path / "valid.txt").write_bytes(b"\xff\n" * 3)
    given: Any = {"source": (tmp_path / "train.txt",), "valid": (tmp_path / "valid.txt",)}
    with pytest.raises(DataError, match="nothing is left of the valid split: none of its 3"):
        run(tmp_path, "language_modelling", **given, test=(), vocab_size=None, skip_bad=True)


def test_pairs_in_columns_are_held_out_so_that_no_side_is_shared(tmp_path: Path) -> None:
    english = [f"the fox {n % 50}" for n in range(300)]
    german = [f"der fuchs {n % 70}" for n in range(100)] + [f"ein fuchs {n}" for n in range(200)]
    path = write_as(tmp_path, "tsv", {"en": english, "de": german})
    made = run(tmp_path, source=(path,), target=(), valid=(), test=(), vocab_size=60)
    splits = made.manifest.splits
    assert made.guessed == "en as source, de as target"
    assert sum(split.examples for split in splits.values()) == 300 and splits["test"].examples
    assert all(split.overlap == {} for split in splits.values())
    assert len(PAIRS.open(tmp_path / "out").valid) == splits["valid"].examples


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_groups_are_held_out_whole(tmp_path: Path, form: str) -> None:
    groups = [f"author {n // 10}" for n in range(200)]
    texts = [f"{group} writes {n}" for n, group in enumerate(groups)]
    labels = [n % 2 for n in range(200)]
    path = write_as(tmp_path, form, {"text": texts, "label": labels, "author": groups})
    run(tmp_path, "classification", source=(path,), group_by="author", tokenizer="bytes")
    data, test = EXAMPLES.open(tmp_path / "out"), EXAMPLES.open_test(tmp_path / "out")
    seen = []
    for split in (data.train, data.valid, test):
        rows = [bytes(int(t) - 1 for t in row).decode() for row in split.inputs]
        seen.append({text.partition(" writes")[0] for text in rows})
    assert [len(names) for names in seen] == [16, 2, 2] and len(set.union(*seen)) == 20
    with pytest.raises(DataError, match="has no column 'writer' to group by"):
        run(tmp_path, "classification", source=(path,), group_by="writer")


@pytest.mark.parametrize("form", ["csv", "jsonl.gz"])
def test_who_has_no_group_is_told(tmp_path: Path, form: str) -> None:
    groups = [f"author {n // 10}" if n % 3 else "" for n in range(120)]
    rows = {"text": list(map(str, range(120))), "label": [n % 2 for n in range(120)]}
    path = write_as(tmp_path, form, {**rows, "author": groups})
    columns = Columns((("text", "label"),), group_by="author")
    found = list(read_records([path], columns))
    assert [one.problem for one in found[:3]] == ["has no author", "", ""]
    made = run(tmp_path, "classification", source=(path,), group_by="author", skip_bad=True)
    assert sum(one.dropped.get("bad", 0) for one in made.manifest.splits.values()) == 40


def test_a_text_of_a_table_that_is_not_utf8_is_told_with_its_file(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9"], type=pa.binary())
    texts = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    parquet.write_table(pa.table({"text": texts, "label": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has a text that is not UTF-8 \(byte 0xe9\)"):
        list(read_records([tmp_path / "a.parquet"], LABELLED))


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_bytes().split(b"\n")
    lines[3:6] = [b"{", b"", b'{"text": "\xff", "label": "no"}']
    lines[8] = b'{"text": "three", "label": "maybe not"}'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "v.csv").write_text("text,label\nfine,no\nonly\nodd,perhaps\n\n,yes\n")
    given: Any = {"source": (tmp_path / "a.jsonl",), "valid": (tmp_path / "v.csv",)}
    with pytest.raises(DataError) as caught:
        run(tmp_path, "classification", **given, test=(tmp_path / "none.csv",))
    told = str(caught.value)
    for words in ("a.jsonl:4: not JSON", "a.jsonl:6: not UTF-8 (byte 0xff", "no file"):
        assert words in told
    for words in ("v.csv:3: has 1 cells, and there are 2 columns", "v.csv:6: the text is empty"):
        assert words in told
    assert "5 things are wrong" in told
    # It mends no missing file.
    assert told.endswith("Mend them; single examples can be left out with --skip-bad")
    with pytest.raises(DataError, match=r"(?s)v\.csv:4: the label 'perhaps' does not.*--skip-bad"):
        run(tmp_path, "classification", **given)
    made = run(tmp_path, "classification", **given, skip_bad=True)
    assert len(made.bad) == 5
    assert made.manifest.splits["train"].dropped == {"bad": 2}
    assert made.manifest.splits["valid"].dropped == {"bad": 3}
    assert made.manifest.splits["valid"].examples == 1
    # What was left out decides the content, so that the folder is found again.
    assert run(tmp_path, "classification", **given, skip_bad=True).found


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "a.csv": (b'text,label\n"open,1\n' + b"more,2\n" * 1100, r":2: a quotation mark .* not closed"),
    "b.csv": (b"text,text\na,b\n", "each with a name of its own"),
    "c.csv": (b"", "is empty"),
    "d.parquet": (b"PAR1 nonsense", "cannot be read as parquet"),
    "e.arrow": (b"nonsense", "cannot be read as arrow"),
    "f.csv": ("text,label\na,0\n".encode("utf-16"), "is UTF-16; convert it with iconv"),
    "g.jsonl": (
        '{"text": "a", "label": 0}\n'.encode("utf-16-le"),
        ": 2 lines hold the character NUL",
    ),
    "h.csv": (
        b"text,label\n" + b"".join(f"t,{n}\n".encode() for n in range(60)),
        "60 different labels of 60 examples",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_tables_are_one_sentence(tmp_path: Path, name: str) -> None:
    content, words = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}.*{words}"):
        run(tmp_path, "classification", source=(tmp_path / name,))


SENTENCES = [f"{'Café' if number % 2 else 'Tea'} number {number}" for number in range(400)]
ENCODED: dict[str, tuple[str, bytes]] = {
    "a.txt": ("language_modelling", "\n".join(SENTENCES).encode("latin-1")),
    "a.txt.gz": ("language_modelling", gzip.compress("\n".join(SENTENCES).encode("latin-1"))),
    "my own.csv": (
        "classification",
        b"text,label\n"
        + b"".join(f"{text},{n // 2 % 2}\n".encode("latin-1") for n, text in enumerate(SENTENCES)),
    ),
}


@pytest.mark.parametrize("name", ENCODED)
def test_of_a_file_that_is_not_utf8_one_sentence_tells_what_to_type(
    tmp_path: Path, name: str
) -> None:
    task, content = ENCODED[name]
    path = tmp_path / name
    path.write_bytes(content)
    given: dict[str, Any] = {"task": task, "vocab_size": None, "valid": (), "test": ()}
    with pytest.raises(DataError) as caught:
        run(tmp_path, **given, source=(path,))
    first = 3 if name.endswith("csv") else 2
    finding, _, skip = str(caught.value).rpartition("; ")
    assert skip == "or leave them out with --skip-bad"
    begin, command = finding.split("; if it is Latin-1, convert it with ")
    seen = f"the first is line {first} (byte 0xe9 at column 4)"
    assert begin == f"{path}: 200 lines are not UTF-8, {seen}"
    left = run(tmp_path, **given, source=(path,), skip_bad=True)
    assert left.bad == (finding,)
    assert sum(one.dropped.get("bad", 0) for one in left.manifest.splits.values()) == 200
    subprocess.run(command, shell=True, check=True)
    (converted,) = tmp_path.glob("*.utf8.*")
    whole = run(tmp_path, **given, source=(converted,), out=tmp_path / "whole").manifest
    assert sum(one.examples for one in whole.splits.values()) == 400


def test_lines_with_the_character_nul_are_told_once_too(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\n".join(SENTENCES).encode("utf-16-le"))
    with pytest.raises(DataError) as caught:
        run(tmp_path, "language_modelling", source=(path,), valid=(), test=(), vocab_size=None)
    assert str(caught.value) == (
        f"{path}: 400 lines hold the character NUL, the first is line 1; if it is UTF-16, convert "
        f"it with iconv -f UTF-16 -t UTF-8 {path} > {tmp_path / 'a.utf8.txt'}; or leave them out "
        "with --skip-bad"
    )


def test_lines_that_are_not_utf8_are_one_thing_among_others(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"t {n}", "label": n % 2}).encode() for n in range(40)]
    lines[3:9] = [b'{"text": "\xe9", "label": 1}', b"{", *([b'{"text": "\xfc", "label": 0}'] * 4)]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError) as caught:
        run(tmp_path, "classification", source=(path,))
    head, latin, broken, advice = str(caught.value).splitlines()
    assert head == "2 things are wrong with the data:"
    assert "a.jsonl: 5 lines are not UTF-8, the first is line 4 (byte 0xe9 at column 11)" in latin
    assert "a.jsonl:5: not JSON" in broken
    assert advice == "Mend them, or leave them out with --skip-bad"


def test_lines_of_text_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n" * 50)
    with pytest.raises(UsageError, match="--group-by is for data with named columns"):
        run(tmp_path, "language_modelling", source=(tmp_path / "a.txt",), group_by="author")


# -- cells of CSV -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("between", [",", ";", "\t", "|"])
def test_cells_are_texts_as_they_stand(tmp_path: Path, between: str, ending: str) -> None:
    path = tmp_path / "a.csv"
    cells = ["NA", "nan", "null", "001", "1e5", "-0.0", "True", " x ", "5'", '5" nail', "#1", "\\n"]
    lines = [f"source{between}target", *(f"{cell}{between}{cell}" for cell in cells)]
    path.write_bytes(b"\xef\xbb\xbf" + ending.join(lines).encode())
    found = list(read_records([path], TRANSLATED))
    assert [one.values for one in found] == [(cell, cell) for cell in cells]
    assert [one.line for one in found] == list(range(2, 2 + len(cells)))


def test_labels_of_csv_are_words_unless_they_are_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,NA\nb,001\nc,1e5\nd,7\n")
    assert [one.values[1] for one in read_records([path], LABELLED)] == ["NA", "001", "1e5", 7]


def test_a_cell_of_several_lines_counts_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('source,target\n"one\n\n""two""","a\nb"\n\nc\n"d"e,"""f"\n')
    first, short, last = read_records([path], TRANSLATED)
    assert (first.line, first.values) == (2, ('one\n\n"two"', "a\nb"))
    assert (short.line, short.problem) == (7, "has 1 cells, and there are 2 columns")
    assert (last.line, last.values) == (8, ("de", '"f'))


def test_a_column_alone_may_have_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text\n""\n" "\n\n  \n"a\n"\nb\n')
    found = read_records([path], Columns((("text",),)))
    right = [(2, ""), (3, " "), (5, "  "), (6, "a\n"), (8, "b")]
    assert [(one.line, *one.values) for one in found] == right


def test_lines_of_blanks_are_none_of_several_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n  \na\t1\n \t \n\t\t\n\nb\t2\n")
    found = list(read_records([path], LABELLED))
    assert [(one.line, bool(one.problem)) for one in found] == [(3, False), (4, True), (7, False)]


PLAIN = [
    ('"Well," he said, "go.', '"Nun, geh.'),
    ('"Stay."', '"Bleib."'),
    ("a", 'b "c'),
    ('"one', "two"),
    ("three", "four"),
]


def test_between_tabs_quotation_marks_may_be_characters_like_others(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    lines = ["source\ttarget", *("\t".join(pair) for pair in PLAIN), "alone"]
    path.write_text("\n".join(lines) + "\n")
    *found, short = read_records([path], TRANSLATED)
    assert [(one.line, one.values) for one in found] == list(enumerate(PLAIN, start=2))
    assert (short.line, short.problem) == (7, "has 1 cells, and there are 2 columns")
    for number, (_, last) in enumerate(PLAIN[:4]):  # each is a sign by itself, but for the second
        path.write_text(f"source\ttarget\n{lines[1 + number]}\nc\td\n")
        (first, *_) = read_records([path], TRANSLATED)
        assert first.values[1] == last.strip('"') if number == 1 else first.values == PLAIN[number]


@pytest.mark.parametrize(
    "cells", [("one\ntwo", "b"), ("a", "one\ntwo"), ('"', "\n"), ("\t", '"\n"')]
)
def test_whoever_quotes_between_tabs_may_break_lines(
    tmp_path: Path, cells: tuple[str, str]
) -> None:
    path = tmp_path / "a.tsv"
    rows = [("source", "target"), cells, ("c", "d"), cells]
    with path.open("w", newline="") as file:
        csv.writer(file, dialect="excel-tab").writerows(rows)
    assert [one.values for one in read_records([path], TRANSLATED)] == rows[1:]


@pytest.mark.parametrize("first", ["I have gone.\tIch bin gegangen.", f"Hi\t{'so ' * 20}"])
def test_a_first_line_that_names_no_columns_is_no_header(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{first}\nc\td\n")
    with pytest.raises(DataError, match="write a line above it that names the columns") as raised:
        list(read_records([path], Columns((("source", "target"),))))
    assert len(str(raised.value)) < 400
    path.write_text("It is so that this line is a sentence.\nand another\n")
    with pytest.raises(DataError, match="names the columns"):
        list(read_records([path], Columns((("text",),))))


def slowly(text: str) -> list[tuple[int, Any]]:
    """Line and cells, or their number where it is not 2, as Python's own reader finds them."""
    reader, found, last = csv.reader(io.StringIO(text, newline="\n")), list[tuple[int, Any]](), 0
    for cells in reader:
        if text.split("\n")[last].strip():  # where a record begins with a blank line it is one
            found.append((last + 1, tuple(cells) if len(cells) == 2 else len(cells)))
        last = reader.line_num
    return found


def test_records_are_those_of_another_reader(tmp_path: Path) -> None:
    random, path = Random(0), tmp_path / "a.csv"
    several = 0
    for _ in range(300):
        text = "".join(random.choices('ab ,,""\n\n;é', k=random.randrange(1, 40)))
        text = f"source,target\n{text}"
        text += '"' * (text.count('"') % 2)
        path.write_text(f"{text}\n", "utf-8", newline="\n")
        found = list(read_records([path], TRANSLATED))
        if found and "not closed" in found[-1].problem:
            continue  # a quotation mark in the midst of a cell is one like others
        right = slowly(f"{text}\n")[1:]
        assert [one.line for one in found] == [line for line, _ in right], text
        for one, (_, cells) in zip(found, right, strict=True):
            if isinstance(cells, int):
                assert one.problem.startswith(f"has {cells} cells"), text
            else:
                assert one.values == cells, text
                several += "\n" in "".join(cells)
    assert several > 10


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"a,b\nc,\xff\nd,e\n", 3, "not UTF-8 (byte 0xff at column 3)"),
        (b'a,b\n"c\n\xff",d\ne,f\n', 3, "not UTF-8"),
        (b"a,b\nc\0,d\ne,f\n", 3, "holds the character NUL"),
        (b"a,b\nc,d,e\nf,g\n", 3, "has 3 cells, and there are 2 columns"),
        (b'a,b\nc,d\ne,"f\ng,h\n', 4, "a quotation mark that opens here is not closed"),
    ],
)
def test_a_bad_record_is_told_with_its_line(
    tmp_path: Path, content: bytes, line: int, problem: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"source,target\n" + content)
    found = list(read_records([path], TRANSLATED))
    (bad,) = [one for one in found if one.problem]
    assert bad.line == line and bad.problem.startswith(problem)
    assert len(found) == 3 and found[0].values == ("a", "b")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"te\xffxt,label\na,1\n", ":1: not UTF-8"),
        ("text,label\na,1\n".encode("utf-16-le"), ":1: holds the character NUL"),
        (b'"text,label\na,1\n', ":1: a quotation mark that opens here is not closed"),
    ],
)
def test_a_header_that_cannot_be_read_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.csv{words}"):
        list(read_records([path], LABELLED))


def test_a_name_of_a_column_may_go_over_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\n  \n"the\ntext",label\na,1\n')
    assert column_names(path) == ["the\ntext", "label"]
    columns = Columns((("text", "label"),), {"text": "the\ntext"})
    (record,) = read_records([path], columns)
    assert (record.line, record.values) == (5, ("a", 1))


def test_csv_is_read_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = lambda _: chain([("source,target", "")], repeat(("a,b", "")))  # noqa: E731
    monkeypatch.setattr("supernet.data.prepare.csv_records.numbered_lines", endless)
    found = read_records([tmp_path / "a.csv"], TRANSLATED)
    assert [one.line for one in islice(found, 1000)] == list(range(2, 1002))


# -- the words of whoever reads -----------------------------------------------------------------


def test_messages_name_the_fields_as_they_are_called_where_they_are_read(tmp_path: Path) -> None:
    def said(match: str, name: str, content: str | bytes, **changes: Any) -> None:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        task = changes.pop("task", "classification")
        given = {"source": (path,), "target": (), "valid": (), "test": (), "vocab_size": None}
        with pytest.raises((DataError, UsageError)) as caught:
            run(tmp_path, task, **(given | changes))
        text = told(caught.value.marked, lambda field: f"<{field}>")
        assert re.search(match, text) and "--" not in text

    said(r"Say so with <columns\.text> and <columns\.label>$", "a.csv", "x,y\n1,2\n")
    said(r"classes come back; name .* with <columns\.label>$", *numbers_as_labels())
    said("leave it out with <skip_bad>$", "b.csv", "text,label\na,1\nb,2\n,1\n")
    lines = "a\n" * 50
    said("^<columns> is for data", "c.txt", lines, task="language_modelling", columns=TEXT)
    said("^<group_by> is for data", "c.txt", lines, task="language_modelling", group_by="x")
    said("^<image_size> is for images", "c.txt", lines, task="language_modelling", image_size=8)
    said("^<image_size> is for images", "b.csv", "text,label\na,1\nb,2\n", image_size=8)
    said("give more, <valid> FILE", "d.txt", "a\n", task="language_modelling")
    said("for the test split; give <test>$", "e.csv", "text,label\na,1\nb,2\n")
    said("^translation needs <target>: .* of <source>, .* as <source> alone$", "c.txt", lines, **TO)
    stored = io.BytesIO()
    np.savez(stored, x_train=np.zeros((9, 4, 5, 3), np.uint8), y_train=np.arange(9) % 2)
    said("give <image_size> to cut and scale them$", "f.npz", stored.getvalue())


TEXT = (("text", "x"),)
TO: dict[str, Any] = {"task": "translation"}


def numbers_as_labels() -> tuple[str, str]:
    """A file in which the labels are numbers of examples."""
    return "h.csv", "text,label\n" + "".join(f"t,{n}\n" for n in range(60))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a\\u0000b", "label": 1}', "text holds the character NUL"),
        ('{"text": "a", "label": ' + "1" * 5000 + "}", "not JSON: Exceeds the limit"),
        ('{"image": "a\\u0000b.png", "label": 1}', "a picture is a file's bytes or its path"),
        ('{"image": "\\ud800.png", "label": 1}', "a picture is a file's bytes or its path"),
    ],
)
def test_odd_values_are_told_and_end_nothing(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line + "\n", "utf-8")
    columns = Columns((("image", "label"),)) if "image" in line else LABELLED
    (record,) = read_records((file,), columns)
    assert words in record.problem


def test_half_characters_of_labels_and_groups_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"text": f"t {n}", "label": ("good", "b\ud800d")[n % 2], "author": f"a{n // 4}\udc00"}
        for n in range(80)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    first, second = islice(read_records((file,), replace(LABELLED, group_by="author")), 2)
    assert (first.values, second.values) == (("t 0", "good"), ("t 1", "b?d"))
    assert first.group == second.group == "a0?"
    run(tmp_path, "classification", source=(file,), group_by="author")
    assert EXAMPLES.open(tmp_path / "out").label_names == ("b?d", "good")


def test_endings_may_be_in_capitals(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"text": ["a", "b"], "label": [0, 1]}
    for form in ("parquet", "arrow", "csv"):
        written = write_as(tmp_path, form, rows)
        path = written.rename(tmp_path / written.name.upper())
        assert column_names(path) == ["text", "label"]
        assert [one.values for one in read_records([path], LABELLED)] == [("a", 0), ("b", 1)]


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_line_that_lacks_a_column_says_which(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(lines({"text": "a", "label": 1}, {"txt": "b", "label": 0}, {}))
    _, bad, empty = read_records((file,), LABELLED)
    assert bad.problem == "has no text, only 'txt', 'label'"
    assert empty.problem.startswith("a line is a JSON object such as {")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(lines({"en": "a", "de": "b"}, {"en": "a", "fr": "b"}))
    assert list(read_records((pairs,), TRANSLATED))[1].problem == "has no de, only 'en', 'fr'"


def test_lines_whose_columns_are_called_otherwise_are_told_as_those_of_tables(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(lines(*[{"text": "a", "mood": 1}] * 3))
    words = r"rows\.jsonl has the columns 'text', 'mood': which holds the label\? .* label=NAME$"
    with pytest.raises(DataError, match=words):
        list(read_records((file,), LABELLED))


@pytest.mark.parametrize("form", ["csv", "jsonl.gz"])
@pytest.mark.parametrize(
    "given", [{"source": "a", "target": "a"}, {"source": "target"}, {"target": "source"}]
)
def test_a_column_is_not_both_sides_of_a_pair(
    tmp_path: Path, given: dict[str, str], form: str
) -> None:
    sides = {name: [f"{name} {n}" for n in range(60)] for name in ("a", "source", "target")}
    path = write_as(tmp_path, form, sides)
    words = "would be the source and the target: name one for each with --column source=NAME and"
    with pytest.raises(UsageError, match=words):
        run(tmp_path, source=(path,), target=(), valid=(), test=(), columns=tuple(given.items()))


@pytest.mark.parametrize("packed", [False, True])
def test_carriage_returns_alone_end_no_lines(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / f"my rows.csv{'.gz' if packed else ''}"
    text = b"text,label\r" + b"".join(b"t %d,%d\r" % (n, n % 2) for n in range(40))
    path.write_bytes(gzip.compress(text) if packed else text)
    words = "end with carriage returns alone, and not with line feeds; convert it with "
    with pytest.raises(DataError, match=words) as caught:
        run(tmp_path, "classification", source=(path,))
    subprocess.run(str(caught.value).partition(words)[2], shell=True, check=True)
    run(tmp_path, "classification", source=(tmp_path / "my rows.lines.csv",))


@pytest.mark.parametrize("task", ["classification", "language_modelling", "translation"])
def test_pipes_are_no_texts(tmp_path: Path, task: Any) -> None:
    pipe = tmp_path / ("a.csv" if task == "classification" else "a.txt")
    os.mkfifo(pipe)
    (tmp_path / "b.txt").write_text("a line\n")
    target = (tmp_path / "b.txt",) if task == "translation" else ()
    with pytest.raises(DataError, match=r"a\.\w+ is a pipe or a device, which can be read only"):
        run(tmp_path, task, source=(pipe,), target=target, valid=(), test=())


def test_a_strangers_table_names_no_files(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"image": "/etc/passwd", "label": 1}\n', "utf-8")
    (record,) = read_records((file,), Columns((("image", "label"),), by_path=False))
    assert "here a picture is the bytes of its file" in record.problem
    assert Path("/etc/passwd") not in record.values


def test_lines_where_columns_are_wanted_are_told(tmp_path: Path) -> None:
    file = tmp_path / "train.en.txt"
    file.write_text("one\ntwo\n", "utf-8")
    with pytest.raises(DataError, match="has no columns, and what is wanted has several") as told:
        list(read_records((file,), TRANSLATED))
    assert str(told.value).endswith(", or each side as a file, --source FILE --target FILE")

"""`nas data prepare` on text: what is written, and what is refused with file and line."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from search_spaces import load_space
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.settings import TokenInput
from supernet.data.manifest import read_manifest
from supernet.data.prepare import prepare
from supernet.data.prepared import EXAMPLES, PAIRS, STREAM, check_fits, check_manifest_fits
from supernet.data.text_files import read_lines
from supernet.data.tokenizer import EOS, UNKNOWN
from tests.support.prepare_cases import COUNTS, request, run, write_pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pairs(tmp_path)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tokenizer", ["bpe", "unigram"])
def test_pairs_come_back_as_text(folder: Path, joint: bool, tokenizer: str) -> None:
    run(folder, joint=joint, tokenizer=tokenizer, vocab_size=58)
    data, test = PAIRS.open(folder / "out"), PAIRS.open_test(folder / "out")
    assert data.source_tokenizer is not None and data.target_tokenizer is not None
    assert (data.source_tokenizer is data.target_tokenizer) == joint
    assert [len(split) for split in (data.train, data.valid, test)] == list(COUNTS.values())
    for split, name in ((data.train, "train.{}"), (data.valid, "valid.{}.gz"), (test, "test.{}")):
        for side, rows, tokens in (
            ("en", split.source, data.source_tokenizer),
            ("de", split.target, data.target_tokenizer),
        ):
            lines = list(read_lines(folder / name.format(side)))
            assert tokens.decode([row.tolist() for row in rows]) == lines
    assert list(test.target_lines) == list(read_lines(folder / "test.de"))
    assert data.train.target_lines == ()


def test_manifest_tells_what_is_there(folder: Path) -> None:
    manifest = run(folder).manifest
    assert read_manifest(folder / "out") == manifest
    assert {name: split.examples for name, split in manifest.splits.items()} == COUNTS
    assert set(manifest.files) == set(files(folder / "out")) - {"manifest.json"}
    assert {file.name for file in manifest.inputs} == {p.name for p in folder.glob("*.*")}
    data = PAIRS.open(folder / "out")
    assert manifest.splits["train"].counts["source_tokens"] == len(data.train.source.tokens) + 200
    assert data.digest == manifest.search_digest and str(folder) not in manifest.model_dump_json()


def test_equal_requests_give_equal_folders(folder: Path) -> None:
    assert not run(folder).found
    before = files(folder / "out")
    again = run(folder)
    assert again.found and again.manifest == read_manifest(folder / "out")
    assert not run(folder, out=folder / "other").found
    assert files(folder / "other") == before == files(folder / "out")


def test_search_reads_no_byte_of_the_test_split(folder: Path) -> None:
    run(folder)
    digest = PAIRS.open(folder / "out").digest
    for path in (folder / "out").glob("test.*"):
        path.unlink()
    assert PAIRS.open(folder / "out").digest == digest
    with pytest.raises(DataError, match=r"test\.\w+\.\w+.* is missing"):
        PAIRS.open_test(folder / "out")


def test_only_training_is_filtered(folder: Path) -> None:
    for split in ("train", "test"):
        with (folder / f"{split}.en").open("a") as en, (folder / f"{split}.de").open("a") as de:
            en.write("the\n \nthe dog sees\n" + "the dog sees " * 90 + "\n")
            de.write("lo mavu mirt " * 5 + "\nlo\nlo mavu\n" + "lo mavu " * 90 + "\n")
    manifest = run(folder, max_length=60).manifest
    train, test = manifest.splits["train"], manifest.splits["test"]
    assert (train.examples, train.dropped) == (201, {"ratio": 1, "blank": 1, "too_long": 1})
    assert (test.examples, test.truncated, test.dropped) == (34, 1, {})
    rows = PAIRS.open_test(folder / "out")
    assert max(test.longest.values()) == 60 and len(rows.source[33]) == 59
    assert rows.source_lines[33] == "the dog sees " * 90 and len(rows.source[31]) == 0


def test_a_file_is_not_its_own_translation(folder: Path) -> None:
    words = r"train\.en is given as source and as target: give the sentences as one and"
    with pytest.raises(UsageError, match=words):
        run(folder, target=(folder / "train.en",))
    (folder / "link.de").symlink_to(folder / "train.en")
    with pytest.raises(UsageError, match=words):
        run(folder, test=(folder / "train.en", folder / "link.de"))


def test_several_files_follow_each_other(folder: Path) -> None:
    both = run(
        folder,
        source=(folder / "train.en", folder / "test.en"),
        target=(folder / "train.de", folder / "test.de"),
        valid=(folder / "valid.en.gz", folder / "valid.de.gz"),
        allow_overlap=True,  # the test split was learnt from
    )
    assert both.manifest.splits["train"].examples == 230


def test_rare_separators_end_no_line(folder: Path) -> None:
    for ending in ("en", "de"):
        path = folder / f"test.{ending}"
        path.write_bytes(b"\xef\xbb\xbf" + "a\u2028b\x0bc\u0085\r\nlast".encode())
    assert list(read_lines(folder / "test.en")) == ["a\u2028b\x0bc\u0085", "last"]
    run(folder)
    assert len(PAIRS.open_test(folder / "out")) == 2


def test_a_stream_has_every_line_and_its_end(folder: Path) -> None:
    (folder / "train.en").write_text("the dog\n\n  \nsees the cat\n", "utf-8")
    manifest = run(folder, "language_modelling", vocab_size=20).manifest
    data = STREAM.open(folder / "out")
    assert manifest.splits["train"].dropped == {"blank": 2} and data.source_tokenizer is not None
    assert (data.train.num_words, data.train.num_characters) == (5, 19)
    assert all(row[-1] == EOS for row in data.train.rows)
    rows = [row.tolist() for row in data.train.rows]
    assert data.source_tokenizer.decode(rows) == ["the dog", "sees the cat"]
    assert len(STREAM.open_test(folder / "out").rows) == 30


def test_a_stream_that_is_scored_keeps_its_blank_lines(folder: Path) -> None:
    """WikiText's: a blank line before and behind each heading is a line, and its end is a word."""
    lines = ["", "= the =", " ", "the dog", "", "sees the cat", ""]
    for name in ("valid.en", "test.en"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    more = {"valid": (folder / "valid.en",), "test": (folder / "test.en",)}
    manifest = run(folder, "language_modelling", **more, allow_overlap=True).manifest
    for split, found in (
        (manifest.splits["valid"], STREAM.open(folder / "out").valid),
        (manifest.splits["test"], STREAM.open_test(folder / "out")),
    ):
        assert split.dropped == {} and split.examples == len(found.rows) == len(lines)
        assert found.num_words == 8
        blank = [row.tolist() == [EOS] for row in found.rows]
        assert blank == [not line.strip() for line in lines]


def test_every_character_of_long_lines_has_a_token(folder: Path) -> None:
    lines = ["the dog sees " * 1500 + "ß", "x" + "ä" * 9000 + "字"]  # with spaces, and without
    (folder / "train.en").write_text("\n".join(lines), "utf-8")
    run(folder, "language_modelling", vocab_size=30)
    tokenizer = STREAM.open(folder / "out").source_tokenizer
    assert tokenizer is not None
    for character in "dßxä字":
        assert UNKNOWN not in tokenizer.encode([character])[0]
    assert UNKNOWN in tokenizer.encode(["ø"])[0]


# -- bad input ------------------------------------------------------------------------------------


def short(folder: Path) -> None:
    lines = (folder / "train.de").read_text("utf-8").splitlines(keepends=True)
    (folder / "train.de").write_text("".join(lines[:-3]), "utf-8")


def latin(folder: Path) -> None:
    lines = (folder / "test.de").read_bytes().split(b"\n")
    (folder / "test.de").write_bytes(b"\n".join([*lines[:6], "für".encode("latin-1"), *lines[7:]]))


def cut_gzip(folder: Path) -> None:
    data = (folder / "valid.en.gz").read_bytes()
    (folder / "valid.en.gz").write_bytes(data[: len(data) // 2])


BAD_FILES: dict[str, tuple[Any, str]] = {
    "lines": (short, r"train\.en:198: no partner.* 200 lines.*train\.de only 197"),
    "empty": (lambda f: (f / "test.en").write_bytes(b""), r"test\.en is empty"),
    "empty gzip": (
        lambda f: (f / "valid.de.gz").write_bytes(gzip.compress(b"")),
        r"valid\.de\.gz is empty",
    ),
    "latin-1": (latin, r"test\.de:7: not UTF-8 \(byte 0xfc at column 2\)"),
    "cut gzip": (cut_gzip, r"valid\.en\.gz is damaged"),
    "missing": (lambda f: (f / "train.de").unlink(), r"there is no file .*train\.de"),
    "missing split": (lambda f: (f / "test.de").unlink(), r"neither .*test\.de nor .*test\.de\.gz"),
    "blank": (
        lambda f: [(f / f"train.{e}").write_text("\n \n") for e in ("en", "de")],
        r"train\.en and train\.de: every line of it is blank",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_named_and_nothing_is_left(folder: Path, case: str) -> None:
    spoil, words = BAD_FILES[case]
    spoil(folder)
    before = sorted(folder.iterdir())
    with pytest.raises(DataError, match=words):
        run(folder)
    assert sorted(folder.iterdir()) == before


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": (
        {"vocab_size": 30_000},
        r"30000 is larger than train\.en and train\.de can give",
    ),
    "tiny vocabulary": ({"vocab_size": 20}, "too small"),
    "no target": ({"target": ()}, "needs --target"),
    "uneven": ({"target": (Path("a"), Path("b"))}, "1 files and --target 2"),
    "three": ({"test": (Path("a"),) * 3}, "--test is given 3 times"),
    "length": ({"max_length": 1}, "--max-length must be at least 2"),
    "ratio": ({"max_ratio": 0.5}, "--max-ratio must be at least 1"),
    "size": ({"image_size": 8}, "--image-size is for images"),
    "nothing": ({"source": ()}, "give the training data"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_are_refused_and_nothing_is_left(folder: Path, case: str) -> None:
    changes, words = BAD_REQUESTS[case]
    before = sorted(folder.iterdir())
    with pytest.raises(UsageError, match=words):
        run(folder, **changes)
    assert sorted(folder.iterdir()) == before


def test_everything_filtered_away_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match=r"nothing is left of the train split: 200 too_long"):
        run(folder, max_length=2)
    assert not list(folder.glob("*out*"))


def test_a_folder_of_a_file_for_each_language_says_how_to_give_them(folder: Path) -> None:
    sides = [folder / f"train.{ending}" for ending in ("de", "en")]
    held = [folder / f"valid.{ending}.gz" for ending in ("de", "en")]
    with pytest.raises(DataError) as caught:
        run(folder, source=(folder,), target=(), valid=(), test=())
    given = f"--source {sides[0]} --target {sides[1]} --valid {held[0]} --valid {held[1]} --test "
    assert f"give such a table, or the two sides of a translation as files, {given}" in str(
        caught.value
    )
    run(folder, source=(sides[0],), target=(sides[1],), valid=tuple(held))
    plain = folder / "plain"
    plain.mkdir()
    for name in ("news.en.txt", "news.de.txt"):
        (plain / name).write_text("a\n")
    with pytest.raises(DataError, match=r"--source \S+news\.de\.txt --target \S+news\.en\.txt$"):
        run(folder, source=(plain,), target=(), valid=(), test=())
    (plain / "news.en.txt").unlink()
    with pytest.raises(DataError, match="as files, --source FILE --target FILE$"):
        run(folder, source=(plain,), target=(), valid=(), test=())


def test_one_file_is_no_prefix_and_endings_are_needed(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--test .*test\.en is one file"):
        run(folder, test=(folder / "test.en",))
    for root in (Path(), Path("/")):
        with pytest.raises(UsageError, match=r"--valid \S+ is a folder; give the source and the"):
            run(folder, valid=(root,))
    (folder / "valid").mkdir()  # which may be called as what lies beside it
    assert not run(folder).found
    (folder / "train.en").rename(folder / "english")
    with pytest.raises(UsageError, match="english has no ending"):
        run(folder, source=(folder / "english",))


def test_language_modelling_takes_one_text(folder: Path) -> None:
    with pytest.raises(UsageError, match="leave out --target"):
        run(folder, "language_modelling", target=(folder / "train.de",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"joint": False}, "--separate is for trans"),
        ({"max_ratio": 2.0}, "--max-ratio is for trans"),
    ],
)
def test_language_models_have_no_pairs(folder: Path, changes: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(folder, "language_modelling", **changes)
    run(folder, vocab_size=90, **changes)


# -- the folder -----------------------------------------------------------------------------------


def test_a_stopped_preparation_leaves_nothing(folder: Path) -> None:
    def stop(label: str, done: int, total: int) -> None:
        assert not (folder / "out").exists()
        if label == "Writing valid":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(request(folder), stop)
    assert not list(folder.glob("*out*"))


def test_data_that_another_process_prepared_meanwhile_stay(folder: Path) -> None:
    def meet(label: str, done: int, total: int) -> None:
        if label == "Writing valid" and not (folder / "out").exists():
            (folder / "out").mkdir()
            (folder / "out/theirs").write_text("theirs")

    with pytest.raises(UsageError, match="out was made by another process meanwhile"):
        prepare(request(folder), meet)
    assert [path.name for path in folder.glob("*out*/*")] == ["theirs"]


def test_folders_of_others_are_left_alone(folder: Path) -> None:
    out = folder / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files \(mine\.txt\)"):
        run(folder)
    with pytest.raises(UsageError, match="is a file"):
        run(folder, out=out / "mine.txt")
    assert files(out) == {"mine.txt": b"mine"}
    (out / "mine.txt").unlink()
    assert not run(folder).found


@pytest.mark.parametrize("change", ["option", "task", "input", "damage"])
def test_other_prepared_data_are_left_alone(folder: Path, change: str) -> None:
    run(folder)
    if change == "damage":
        (folder / "out/train.source.tokens.bin").write_bytes(b"12")
    elif change == "input":
        (folder / "train.en").write_text((folder / "train.en").read_text("utf-8").upper(), "utf-8")
    before = files(folder / "out")
    task: Any = "language_modelling" if change == "task" else "translation"
    with pytest.raises(UsageError, match="name another --out, or delete that folder"):
        run(folder, task, **({"vocab_size": 151} if change == "option" else {}))
    assert files(folder / "out") == before


@pytest.mark.parametrize("damage", ["size", "content", "missing", "json", "format", "manifest"])
def test_damaged_folders_are_refused(folder: Path, damage: str) -> None:
    run(folder)
    file, manifest = folder / "out/train.target.tokens.bin", folder / "out/manifest.json"
    data, found = file.read_bytes(), json.loads(manifest.read_text("utf-8"))
    match damage:
        case "size" | "content":
            file.write_bytes(data[:-2] if damage == "size" else bytes([data[0] ^ 1]) + data[1:])
        case "missing" | "manifest":
            (file if damage == "missing" else manifest).unlink()
        case "json":
            manifest.write_text(manifest.read_text("utf-8")[:-5], "utf-8")
        case "format":
            manifest.write_text(json.dumps(found | {"format": 2}), "utf-8")
    with pytest.raises(DataError, match="prepare"):
        PAIRS.open(folder / "out")


def test_data_of_another_task_are_refused(folder: Path) -> None:
    run(folder)
    for opened in (STREAM.open, EXAMPLES.open):
        with pytest.raises(DataError, match="holds data for translation, but"):
            opened(folder / "out")
    with pytest.raises(DataError, match="there is no folder"):
        PAIRS.open(folder / "nowhere")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_length": 8}, "max_length of this space is 8"),
        ({"vocab": TokenInput(149)}, "source vocabulary.* 150 tokens.* --vocab-size 149"),
        ({"vocab": TokenInput(150, 90)}, "target vocabulary.* --vocab-size 90"),
    ],
)
def test_networks_must_be_large_enough(folder: Path, changes: Any, words: str) -> None:
    run(folder)
    data, space = PAIRS.open(folder / "out"), load_space("multi30k")
    manifest = read_manifest(folder / "out")
    check_fits(data, space.model)
    check_manifest_fits("out", manifest, space)
    changed = {"input" if name == "vocab" else name: value for name, value in changes.items()}
    model = dataclasses.replace(space.model, **changed)
    with pytest.raises(DataError, match=words) as opened:
        check_fits(data, model)
    with pytest.raises(DataError) as looked_at:
        check_manifest_fits("out", manifest, dataclasses.replace(space, model=model))
    assert looked_at.value.marked == opened.value.marked


def test_shared_embeddings_need_a_joint_vocabulary(folder: Path) -> None:
    run(folder, joint=False, vocab_size=90)
    with pytest.raises(NasError, match="--joint"):
        check_fits(PAIRS.open(folder / "out"), load_space("wmt14").model)
    with pytest.raises(NasError, match="--joint"):
        check_manifest_fits("out", read_manifest(folder / "out"), load_space("wmt14"))
    run(folder, out=folder / "joint")
    check_fits(PAIRS.open(folder / "joint"), load_space("wmt14").model)

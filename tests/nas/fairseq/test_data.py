"""fairseq's binarised data: dictionaries, rows, folders; against files written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nas.fairseq.binarised import (
    FairseqDictionary,
    detect_post_process,
    dictionary_text,
    read_indexed,
    write_indexed,
)
from nas.fairseq.data import DataBin, is_data_bin, open_data_bin
from search_spaces.errors import DataError
from search_spaces.loading import parse_space
from search_spaces.settings import TokenInput
from search_spaces.space import SearchSpace
from supernet.data.text_batches import collate_pairs
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import MARKS, UNKNOWN, join_words
from supernet.tasks.bleu import corpus_bleu
from supernet.tasks.opening import open_task
from supernet.tasks.translation import TranslationTask
from supernet.training_settings import TrainingSettings
from tests.support.data_bin_cases import WORDS, numbered, small_splits, write_data_bin, write_rows
from tests.support.trained_cases import TRANSLATION

SPACE = parse_space(TRANSLATION, "a space of the tests")
DICTIONARY = FairseqDictionary(WORDS)
ROWS = [[4, 5, 6, 2], [2], [23, 3, 2]]


def opened(folder: Path, space: SearchSpace = SPACE) -> TranslationTask:
    task = open_task(space, "any", str(folder), 0)
    assert isinstance(task, TranslationTask)
    return task


def with_data(**data: object) -> SearchSpace:
    return replace(SPACE, data={**SPACE.data, **data})


def with_input(**values: object) -> SearchSpace:
    assert isinstance(SPACE.model.input, TokenInput)
    shape = replace(SPACE.model.input, **values)  # type: ignore[arg-type]
    return replace(SPACE, model=replace(SPACE.model, input=shape))


# -- dictionaries ---------------------------------------------------------------------------------


def test_a_dictionary_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "dict.en.txt").write_text("the 9\n, 7\n\u2581a@@ 1\nmadeupword0000 0\n", "utf-8")
    found = FairseqDictionary.load(tmp_path / "dict.en.txt")
    assert found.symbols == (*MARKS, "the", ",", "\u2581a@@", "madeupword0000")
    assert found.encode(["the ,  new", ""]) == [[4, 5, UNKNOWN], []]
    assert found.decode([[4, 5, 3, 2], []]) == ["the , <unk>", ""]
    text = dictionary_text(found.symbols, [0, 0, 0, 0, 9, 7, 1, 0])
    assert text == (tmp_path / "dict.en.txt").read_text("utf-8")


def test_unknown_words_of_references_match_nothing() -> None:
    """fairseq writes <<unk>> in references, so that <unk> for everything scores nothing."""
    rows = [[4, UNKNOWN, 5, 2], [UNKNOWN] * 5]
    meant = DICTIONARY.references(rows)
    assert [line.split()[1] for line in meant] == ["<<unk>>", "<<unk>>"]
    assert [line.replace("<<unk>>", "<unk>") for line in meant] == DICTIONARY.decode(rows)
    assert DICTIONARY.references([[4, 5, 2], []]) == DICTIONARY.decode([[4, 5, 2], []])
    guess = [DICTIONARY.decode([[UNKNOWN] * 9])[0]]
    assert corpus_bleu(guess, guess).score == pytest.approx(100)
    assert corpus_bleu(guess, DICTIONARY.references([[UNKNOWN] * 9])).score < 40


def test_references_of_a_folder_have_their_unknown_words_escaped(tmp_path: Path) -> None:
    splits = small_splits()
    said, meant = splits["valid"]
    given = {**splits, "valid": (said, [f"unheard-of {line}" for line in meant])}
    task = opened(write_data_bin(tmp_path / "bin", given))
    assert task.valid.target_lines == tuple(f"<<unk>> {line}" for line in meant)


def test_marks_in_text_are_unknown_words() -> None:
    assert DICTIONARY.encode(["<s> <pad> </s> <unk>"]) == [[UNKNOWN] * 4]


def test_symbols_that_a_dictionary_cannot_say_are_renamed() -> None:
    text = dictionary_text([*MARKS, "a", "b c", "\u3000", ""], [1] * 8)
    assert [line.split(" ")[0] for line in text.splitlines()] == [
        "a",
        *(f"madeupsymbol{number:06d}" for number in (5, 6, 7)),
    ]


def test_an_overwritten_symbol_keeps_both_numbers(tmp_path: Path) -> None:
    (tmp_path / "dict.x.txt").write_text("a 3\nb 2\na 1 #fairseq:overwrite\n", "utf-8")
    found = FairseqDictionary.load(tmp_path / "dict.x.txt")
    assert found.encode(["a b"]) == [[6, 5]] and found.vocab_size == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"the\n", "dict.en.txt:1: found 'the'"),
        (b"the 9\na b\n", "dict.en.txt:2: found 'a b'"),
        (b" 9\n", "dict.en.txt:1"),
        (b"a -9\n", "dict.en.txt:1"),
        (b"a 9\na 8\n", "dict.en.txt:2: the symbol 'a' is there twice"),
        (b"a 9\n<pad> 8\n", "lists <pad>"),
        (b"\xff\xfe 9\n", "not UTF-8"),
    ],
)
def test_a_damaged_dictionary(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "dict.en.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        FairseqDictionary.load(tmp_path / "dict.en.txt")


def test_words_are_joined_as_they_were_split() -> None:
    assert join_words("no@@ where to g@@ o", "subword_nmt") == "nowhere to go"
    assert join_words("\u2581no where \u2581to", "sentencepiece") == "nowhere to"
    assert join_words("no@@ where", "none") == "no@@ where"
    plain = [*MARKS, *(f"w{n}" for n in range(50))]
    assert detect_post_process(plain) == "none"
    assert detect_post_process([*plain, "un@@"]) == "subword_nmt"
    assert detect_post_process([*plain, "\u2581un"]) == "sentencepiece"


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["<u2", "<i4", "<u4", "<i8"])
def test_rows_are_read_without_their_end_marks(tmp_path: Path, dtype: str) -> None:
    write_rows(tmp_path / "x", ROWS, dtype)
    rows = read_indexed(tmp_path / "x", DICTIONARY)
    assert [rows[n].tolist() for n in range(3)] == [[4, 5, 6], [], [23, 3]]
    assert rows.lengths.tolist() == [3, 0, 2] and rows.num_tokens == 5
    assert rows.taken(np.arange(1)).num_tokens == 3 and rows.padded(3).tolist()[2] == [23, 3, 0]
    assert isinstance(rows.tokens, np.memmap)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("vocab_size", [24, 70_000])
def test_written_rows_are_byte_by_byte_as_they_should_be(
    tmp_path: Path, count: int, vocab_size: int
) -> None:
    rows = [[*range(4, 4 + n)] for n in range(count)]
    write_indexed(tmp_path / "ours", TokenRows.of(rows), vocab_size)
    write_rows(tmp_path / "slow", [[*r, 2] for r in rows], "<u2" if vocab_size == 24 else "<i4")
    for ending in ("bin", "idx"):
        ours, slow = (tmp_path / f"{name}.{ending}" for name in ("ours", "slow"))
        assert ours.read_bytes() == slow.read_bytes()


def test_rows_with_gaps_are_written_as_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas.fairseq.binarised.ROWS_PER_CHUNK", 2)
    write_rows(tmp_path / "x", ROWS)
    write_indexed(tmp_path / "y", read_indexed(tmp_path / "x", DICTIONARY), 24)
    assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "y.bin").read_bytes()
    assert (tmp_path / "x.idx").read_bytes() == (tmp_path / "y.idx").read_bytes()


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def patch(path: Path, at: int, content: bytes) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:at] + content + data[at + len(content) :])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "x.idx").unlink(), "x.idx is missing"),
        (lambda p: (p / "x.bin").unlink(), "x.bin is missing"),
        (lambda p: cut(p / "x.bin", 2), "x.bin has 14 bytes, but x.idx tells of 16"),
        (lambda p: (p / "x.bin").write_bytes(b""), "x.bin has 0 bytes"),
        (lambda p: cut(p / "x.idx", 1), "x.idx is damaged or cut off"),
        (lambda p: cut(p / "x.idx", 40), "x.idx is damaged or cut off"),
        (lambda p: (p / "x.idx").write_bytes(b""), "is no index of fairseq's"),
        (lambda p: patch(p / "x.idx", 0, b"TNTIDX\0\0"), "'cached or lazy'.*--dataset-impl mmap"),
        (lambda p: patch(p / "x.idx", 0, b"HUFFIDX\0"), "'huffman'"),
        (lambda p: patch(p / "x.idx", 9, b"\2"), "of version 2"),
        (lambda p: patch(p / "x.idx", 17, b"\6"), "tokens of type 6"),
        (lambda p: patch(p / "x.idx", 18, b"\xff" * 8), "x.idx is damaged"),
        (lambda p: patch(p / "x.idx", 26, b"\xff" * 4), "x.idx is damaged"),
        (lambda p: patch(p / "x.idx", 46, b"\1"), "x.idx is damaged"),
        (lambda p: patch(p / "x.bin", 0, b"\x18\0"), "the token 24, but its dictionary has 24"),
        (lambda p: patch(p / "x.bin", 0, b"\1\0"), "padding or begin marks"),
        (lambda p: patch(p / "x.bin", 0, b"\2\0"), "do not end with one end mark each"),
        (lambda p: patch(p / "x.bin", 6, b"\4\0"), "do not end with one end mark each"),
    ],
)
def test_damaged_rows(tmp_path: Path, damage: object, message: str) -> None:
    write_rows(tmp_path / "x", ROWS)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        read_indexed(tmp_path / "x", DICTIONARY)


# -- folders --------------------------------------------------------------------------------------


def test_a_folder_becomes_a_task(tmp_path: Path) -> None:
    splits = small_splits()
    task = opened(write_data_bin(tmp_path / "bin", splits))
    assert task.name == "bin" and len(task.train) == 12
    assert task.source_tokenizer is task.target_tokenizer
    assert task.describe()["source_vocab_size"] == 24
    assert list(task.valid.source_lines) == splits["valid"][0]
    assert list(task.valid.target_lines) == splits["valid"][1]
    assert list(task.open_test().target_lines) == splits["test"][1]


def test_batches_hold_what_the_files_say(tmp_path: Path) -> None:
    splits = small_splits()
    task = opened(write_data_bin(tmp_path / "bin", splits))
    batch = collate_pairs(task.train, np.arange(12))
    for side, tokens in (("source", batch.source), ("target", batch.targets)):
        lines = splits["train"][side == "target"]
        for line, row in zip(lines, tokens.tolist(), strict=True):
            expected = numbered(line, WORDS)
            assert row == expected + [0] * (len(row) - len(expected))
    assert batch.inputs[:, 0].tolist() == [1] * 12


def test_an_epoch_has_every_pair_once(tmp_path: Path) -> None:
    task = opened(write_data_bin(tmp_path / "bin", small_splits()))
    parts = task.batches(TrainingSettings(max_tokens=32), seed=0, epoch=0, device="cpu")
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(12))


def test_the_digest_knows_the_content_and_not_the_test_split(tmp_path: Path) -> None:
    splits = small_splits()
    first = opened(write_data_bin(tmp_path / "a", splits)).digest
    assert opened(write_data_bin(tmp_path / "b", splits)).digest == first
    other = {**splits, "test": splits["train"]}
    assert opened(write_data_bin(tmp_path / "c", other)).digest == first
    assert opened(write_data_bin(tmp_path / "d", splits, WORDS[::-1])).digest != first
    other = {**splits, "valid": (splits["valid"][0][::-1], splits["valid"][1])}
    assert opened(write_data_bin(tmp_path / "e", other)).digest != first


def test_the_space_may_turn_the_direction_round(tmp_path: Path) -> None:
    splits = small_splits()
    folder = write_data_bin(tmp_path / "bin", splits)
    turned = opened(folder, with_data(languages=["de", "en"]))
    assert list(turned.valid.source_lines) == splits["valid"][1]
    assert turned.digest != opened(folder).digest


def test_words_are_joined_for_bleu_alone(tmp_path: Path) -> None:
    words = ["no@@", "where", "to", "go"]
    splits = {name: (["no@@ where to go"], ["to no@@ where"]) for name in ("train", "valid")}
    folder = write_data_bin(tmp_path / "bin", splits, words)
    task = opened(folder)
    assert task.post_process == "subword_nmt"
    assert task.valid.target_lines == ("to nowhere",)
    assert task.valid.source_lines == ("no@@ where to go",)
    plain = opened(folder, with_data(post_process="none"))
    assert plain.valid.target_lines == ("to no@@ where",)


def test_long_validation_rows_are_cut_and_their_references_are_not(tmp_path: Path) -> None:
    long = " ".join(["w1"] * 70)
    splits = {**small_splits(), "valid": ([long, "w2"], [long, "w3"])}
    task = opened(write_data_bin(tmp_path / "bin", splits))
    assert task.valid.source.lengths.tolist() == [63, 1] == task.valid.target.lengths.tolist()
    assert len(task.valid.source_lines[0].split()) == 63
    assert len(task.valid.target_lines[0].split()) == 70


def test_two_dictionaries_need_two_tables(tmp_path: Path) -> None:
    folder = write_data_bin(tmp_path / "bin", small_splits(), target_words=WORDS[::-1])
    with pytest.raises(DataError, match="--joined-dictionary"):
        opened(folder)
    task = opened(folder, with_input(share_embeddings=False))
    assert task.source_tokenizer is not task.target_tokenizer


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            with_input(vocab_size=23),
            "source dictionary of bin has 24.*; set vocab_size = 24",
        ),
        (with_input(target_vocab_size=20), "target dictionary of bin has 24.*--nwordstgt 20"),
        (replace(SPACE, model=replace(SPACE.model, max_length=6)), "longest training row.* 7 tok"),
        (with_data(languages=["en", "fr"]), r'holds en-de, but .*\["en", "fr"\]'),
        (with_data(languages="en-de"), "two names are needed"),
        (with_data(post_process="bpe"), "post_process .* 'bpe'; allowed are subword_nmt"),
    ],
)
def test_data_that_do_not_fit_the_space(tmp_path: Path, space: SearchSpace, message: str) -> None:
    folder = write_data_bin(tmp_path / "bin", small_splits())
    with pytest.raises(DataError, match=message):
        opened(folder, space)
    assert opened(folder).name == "bin"


def test_a_folder_with_several_pairs_needs_a_choice(tmp_path: Path) -> None:
    write_data_bin(tmp_path / "bin", small_splits())
    write_data_bin(tmp_path / "bin", small_splits(), languages=("en", "fr"))
    with pytest.raises(DataError, match=r"several pairs of languages \(en-de, en-fr\)"):
        opened(tmp_path / "bin")
    found = DataBin.find(tmp_path / "bin", with_data(languages=["en", "fr"]))
    assert (found.source, found.target) == ("en", "fr")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.en-de.en.idx", "train.en-de.en.idx is missing"),
        ("valid.en-de.de.bin", "valid.en-de.de.bin is missing"),
        ("dict.de.txt", "dict.de.txt is missing"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    folder = write_data_bin(tmp_path / "bin", small_splits())
    (folder / name).unlink()
    with pytest.raises(DataError, match=message):
        opened(folder)


def test_other_folders(tmp_path: Path) -> None:
    splits = small_splits()
    uneven = {**splits, "train": (splits["train"][0], splits["train"][1][:5])}
    with pytest.raises(DataError, match="12 rows of en and 5 of de"):
        opened(write_data_bin(tmp_path / "uneven", uneven))
    folder = write_data_bin(tmp_path / "parts", splits)
    (folder / "train1.en-de.en.idx").touch()
    with pytest.raises(DataError, match="training data in 2 parts"):
        opened(folder)
    (tmp_path / "empty").mkdir()
    assert not is_data_bin(tmp_path / "empty") and is_data_bin(folder)
    (folder / "manifest.json").touch()
    assert not is_data_bin(folder)


def test_a_folder_without_rows(tmp_path: Path) -> None:
    folder = write_data_bin(tmp_path / "bin", {"valid": (["w1"], ["w2"])})
    with pytest.raises(DataError, match=r"no train.SRC-TGT.SRC.idx"):
        opened(folder)
    write_data_bin(folder, {"train": ([], [])})
    with pytest.raises(DataError, match="0 rows of en"):
        open_data_bin(DataBin.find(folder, SPACE), 64)

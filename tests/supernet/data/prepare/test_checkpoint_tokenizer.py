"""Data that are prepared with the tokenizer of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import parse_space
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from supernet.building import build_network
from supernet.data.checkpoint_tokenizer import CheckpointTokenizer
from supernet.data.examples import load_search_data, load_test_split
from supernet.data.manifest import read_manifest
from supernet.data.prepare import prepare
from supernet.data.prepare.checkpoint_folder import read_folder
from supernet.data.prepare.plan import PrepareRequest
from supernet.data.prepared import STREAM, check_fits
from supernet.data.repeated_bigrams import with_recalled
from supernet.data.text_batches import stream_batches
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.sequence_models import LanguageModel
from supernet.tasks.evaluation import evaluate
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.opening import open_task
from tests.support.export_cases import hub_without_net
from tests.support.prepare_cases import silent
from tests.support.pretrained_cases import random_model, write_model
from tests.support.tokenizer_cases import (
    LINES,
    TEXTS,
    bounded,
    byte_level,
    prepared_examples,
    prepared_stream,
    word_pieces,
    write_checkpoint,
    write_labelled,
    write_texts,
)
from tests.support.trained_cases import LANGUAGE, networks

pytestmark = pytest.mark.export
pytest.importorskip("tokenizers", reason="the extra export")

KINDS: dict[str, Callable[[], Any]] = {
    "no marks": byte_level,
    "begin mark": lambda: byte_level(marked=True),
    "both marks": word_pieces,
}
SMALL = ModelSettings(input=TokenInput(vocab_size=300), max_length=64, head_dim=4)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def rows_of(tokenizer: Any, lines: tuple[str, ...]) -> list[list[int]]:
    """What the tokenizers package says, line by line."""
    if tokenizer.num_special_tokens_to_add(False):
        return [tokenizer.encode(line).ids for line in lines]
    return [tokenizer.encode(f"{line}\n").ids for line in lines]


class TestStreams:
    @pytest.mark.parametrize("kind", KINDS)
    def test_lines_are_joined_as_the_tokenizer_marks_them(self, tmp_path: Path, kind: str) -> None:
        made = KINDS[kind]()
        manifest = prepared_stream(tmp_path, bounded(made), pad_token="[PAD]").manifest
        data = STREAM.open(tmp_path / "data")
        kept = tuple(line for line in TEXTS["train"] if line.strip())
        assert [row.tolist() for row in data.train.rows] == rows_of(made, kept)
        assert [row.tolist() for row in data.valid.rows] == rows_of(made, TEXTS["valid"])
        assert manifest.splits["train"].dropped == {"blank": 3}
        assert manifest.tokenizer is not None and manifest.tokenizer.kind == "tokenizer_json"
        assert manifest.tokenizer.vocab_size == made.get_vocab_size()
        assert max(map(len, data.valid.rows)) > 4  # nothing was cut

    @pytest.mark.parametrize("kind", KINDS)
    def test_text_comes_back(self, tmp_path: Path, kind: str) -> None:
        prepared_stream(tmp_path, KINDS[kind](), pad_token="[PAD]")
        data = STREAM.open(tmp_path / "data")
        assert data.source_tokenizer is not None
        back = data.source_tokenizer.decode([row.tolist() for row in data.valid.rows])
        expected = [KINDS[kind]().decode(row) for row in rows_of(KINDS[kind](), LINES)]
        assert back == [text.removesuffix("\n") for text in expected]
        assert (back == list(LINES)) == (kind != "both marks")  # word pieces lose spaces

    def test_equal_requests_find_the_folder_and_others_do_not(self, tmp_path: Path) -> None:
        assert not prepared_stream(tmp_path, byte_level(), eos_token="!").found
        assert prepared_stream(tmp_path, byte_level(), eos_token="!").found
        assert prepared_stream(tmp_path, bounded(byte_level()), eos_token="!").found
        with pytest.raises(UsageError, match="with other options"):
            prepared_stream(tmp_path, byte_level(), eos_token="a")
        with pytest.raises(UsageError, match="with other options"):
            prepared_stream(tmp_path, byte_level(marked=True), eos_token="!")

    def test_a_line_over_the_longest_is_left_out_of_training(self, tmp_path: Path) -> None:
        model = write_checkpoint(tmp_path / "model", byte_level(marked=True))
        files = {split: (path,) for split, path in write_texts(tmp_path).items()}
        lengths = [len(row) for row in rows_of(byte_level(marked=True), TEXTS["train"])]
        limit = sorted(lengths)[-4]  # the longest line stands there three times
        request = PrepareRequest(
            "language_modelling", files.pop("train"), tmp_path / "data", tokenizer=model, **files
        )
        manifest = prepare(replace(request, max_length=limit, allow_overlap=True), silent).manifest
        assert manifest.splits["train"].dropped == {"blank": 3, "too_long": 3}
        assert manifest.splits["train"].longest == {"source": limit}

    def test_a_damaged_folder_is_refused(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        (tmp_path / "data" / "tokenizer.json").write_text("{}")
        with pytest.raises(DataError, match="bytes instead of"):
            STREAM.open(tmp_path / "data")


class TestBatches:
    def test_every_token_but_the_first_is_predicted_once(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        text = STREAM.open(tmp_path / "data").valid
        tokens = text.rows.tokens.astype(np.int64)
        assert 0 in tokens.tolist()
        for shuffle in (False, True):
            found = []
            for batch in stream_batches(text, 14, 7, seed=3, shuffle=shuffle):
                for read, told, real in zip(batch.inputs, batch.targets, batch.mask, strict=True):
                    pairs = torch.stack([read, told])[:, real].T.tolist()
                    found += [tuple(pair) for pair in pairs]
            expected = list(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))
            assert sorted(found) == sorted(expected) and (shuffle or found == expected)

    def test_a_text_of_one_token_has_no_batches(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        text = STREAM.open(tmp_path / "data").valid
        rows = replace(text.rows, tokens=text.rows.tokens[:1], offsets=np.array([0, 1]))
        assert list(stream_batches(replace(text, rows=rows), 14, 7, shuffle=False)) == []

    def test_recalled_tokens_are_those_of_the_segments_that_are_read(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        text = STREAM.open(tmp_path / "data").train
        length, window = 40, 3
        recalled = with_recalled(text, length, window).recalled
        assert recalled is not None and not recalled[0]
        tokens = text.rows.tokens.tolist()
        for start in range(1, len(tokens), length):
            for place in range(start, min(start + length, len(tokens))):
                pair = tokens[place - 1 : place + 1]
                earlier = [n for n in range(start, place) if tokens[n - 1 : n + 1] == pair]
                expected = bool(earlier) and place - earlier[-1] > window
                assert recalled[place] == expected, place

    @torch.inference_mode()
    @pytest.mark.parametrize("family", ["gpt2", "llama"])
    def test_the_loss_is_that_of_transformers(self, hub: Any, tmp_path: Path, family: str) -> None:
        """Of a text in which token 0 is a word."""
        made, size = byte_level(family == "llama"), {"vocab_size": 280}
        long = {"n_positions": 128} if family == "gpt2" else {"max_position_embeddings": 128}
        prepared_stream(tmp_path, made)
        write_model(hub, tmp_path / "model", family, **size, **long)
        network = read_checkpoint(tmp_path / "model").network()
        assert isinstance(network.network, LanguageModel)
        data = STREAM.open(tmp_path / "data")
        check_fits(data, network.network.settings)
        task = LanguageModellingTask(data, network.network.settings, 128, 0, lambda: data.valid)
        found = evaluate(task, network.network, network.architecture, task.valid, device="cpu")
        tokens = torch.from_numpy(data.valid.rows.tokens.astype(np.int64))[None]
        assert int((tokens == 0).sum()) == 2 and found.count == tokens.shape[1] - 1
        model = random_model(hub, family, **size, **long)
        assert abs(found.loss - float(model(tokens, labels=tokens).loss)) < 1e-5


class TestExamples:
    def test_texts_have_their_marks_also_where_they_are_cut(self, tmp_path: Path) -> None:
        made = word_pieces()
        prepared_examples(tmp_path, bounded(made), max_length=6)
        settings = replace(SMALL, max_length=8, num_classes=2)
        data = load_search_data("any", str(tmp_path / "data"), settings, 0)
        test = load_test_split("any", str(tmp_path / "data"), settings, 0)
        for split in (data.train, data.valid, test):
            for row in split.inputs.tolist():
                real = [token for token in row if token]
                assert (real[0], real[-1]) == (2, 3) and len(real) <= 6
        assert read_manifest(tmp_path / "data").splits["train"].truncated > 0
        assert data.reading["kind"] == "tokenizer_json" and data.tokenizer is not None
        whole = made.encode(f"{LINES[0]} 7").ids
        assert data.tokenizer.encode_cut(f"{LINES[0]} 7", 6) == ([*whole[:5], 3], True)
        assert data.tokenizer.encode_cut(f"{LINES[0]} 7", len(whole)) == (whole, False)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (replace(SMALL, num_classes=2, max_length=4), "tokens, but the networks of this space"),
            (replace(SMALL, num_classes=2, input=TokenInput(vocab_size=20)), "set vocab_size"),
            (replace(SMALL, num_classes=2, input=ImageInput(8, 4, 3)), "hold texts"),
        ],
    )
    def test_spaces_that_do_not_fit(
        self, tmp_path: Path, settings: ModelSettings, words: str
    ) -> None:
        prepared_examples(tmp_path, word_pieces())
        with pytest.raises(DataError, match=words):
            load_search_data("any", str(tmp_path / "data"), settings, 0)

    def test_a_word_with_the_number_of_padding_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="token 0 of .* is '!'"):
            prepared_examples(tmp_path, byte_level())

    def test_too_short_for_the_marks(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="at least 3, marks included; given 2"):
            prepared_examples(tmp_path, word_pieces(), max_length=2)


class TestReading:
    def test_what_stands_around_a_text(self, tmp_path: Path) -> None:
        found = {
            kind: read_folder(write_checkpoint(tmp_path / kind, KINDS[kind]())) for kind in KINDS
        }
        begin = byte_level(marked=True).token_to_id("<begin>")
        around = {kind: (one.begin, one.end) for kind, one in found.items()}
        assert around == {
            "no marks": ((), ()),
            "begin mark": ((begin,), ()),
            "both marks": ((2,), (3,)),
        }

    def test_padding_is_told_by_either_file(self, tmp_path: Path) -> None:
        pieces = word_pieces()
        filled = bounded(pieces, pad_token="[PAD]")
        asked = {
            "nowhere": read_folder(write_checkpoint(tmp_path / "1", pieces)),
            "rules": read_folder(write_checkpoint(tmp_path / "2", filled)),
            "names": read_folder(write_checkpoint(tmp_path / "3", pieces, pad_token="[PAD]")),
            "object": read_folder(
                write_checkpoint(tmp_path / "4", pieces, pad_token={"content": "[PAD]"})
            ),
            "another": read_folder(write_checkpoint(tmp_path / "5", filled, pad_token="[SEP]")),
            "unknown": read_folder(write_checkpoint(tmp_path / "6", pieces, pad_token="<none>")),
        }
        zero = {name for name, one in asked.items() if one.padding == 0}
        assert zero == {"rules", "names", "object"}

    def test_what_is_kept_neither_cuts_nor_fills_up(self, tmp_path: Path) -> None:
        read = read_folder(write_checkpoint(tmp_path / "model", bounded(word_pieces())))
        read.write(tmp_path)
        kept = json.loads((tmp_path / "tokenizer.json").read_text())
        assert kept["truncation"] is None and kept["padding"] is None
        again = CheckpointTokenizer.load(tmp_path)
        assert again.content == read.content and again.facts == read.facts

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("tokenizer.json", "{", "no JSON"),
            ("tokenizer.json", "[]", "an object of JSON is right"),
            ("tokenizer.json", "{}", "is no tokenizer"),
            ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": "a.B"}}', "code of its own"),
        ],
    )
    def test_damaged_folders(self, tmp_path: Path, name: str, content: str, words: str) -> None:
        model = write_checkpoint(tmp_path / "model", byte_level())
        (model / name).write_text(content)
        with pytest.raises(DataError, match=words):
            read_folder(model)

    def test_lines_that_would_run_together(self, tmp_path: Path) -> None:
        from tokenizers.pre_tokenizers import Whitespace

        made = byte_level()
        made.pre_tokenizer = Whitespace()
        with pytest.raises(DataError, match="would run together"):
            prepared_stream(tmp_path, made)


class TestFitting:
    def test_the_vocabulary_of_the_space(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        data = STREAM.open(tmp_path / "data")
        assert data.source_tokenizer is not None
        size = data.source_tokenizer.vocab_size
        check_fits(data, replace(SMALL, input=TokenInput(vocab_size=size)))
        words = f"numbers up to {size - 1}, but .* set vocab_size of the space to {size}"
        with pytest.raises(DataError, match=words):
            check_fits(data, replace(SMALL, input=TokenInput(vocab_size=size - 1)))

    def test_networks_with_a_memory_are_refused(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        data = STREAM.open(tmp_path / "data")
        LanguageModellingTask(data, SMALL, 32, 0, lambda: data.valid)
        with pytest.raises(UsageError, match="remove memory_length"):
            LanguageModellingTask(data, SMALL, 32, 8, lambda: data.valid)

    def test_a_space_searches_it(self, tmp_path: Path) -> None:
        prepared_stream(tmp_path, byte_level())
        space = parse_space(LANGUAGE.replace("vocab_size = 100", "vocab_size = 280"), "space")
        task = open_task(space, "any", str(tmp_path / "data"), 0)
        network = build_network(space.model, space.task, networks(space, 1)[0])
        part = task.with_valid(2)
        found = evaluate(part, network.network, network.architecture, part.valid, device="cpu")
        assert found.count == len(part.valid) - 1 and found.loss > 0
        lines = LINES[0], LINES[len(task.valid.rows) - 1]
        words, characters = (sum(map(len, x)) for x in ([one.split() for one in lines], lines))
        assert (part.valid.num_words, part.valid.num_characters) == (words, characters)


def command(folder: Path, task: str, *more: str) -> Any:
    given = ["--task", task, "--out", str(folder / "data"), *more]
    return CliRunner().invoke(app, ["data", "prepare", *given])


class TestCommand:
    def test_a_stream(self, tmp_path: Path) -> None:
        model = write_checkpoint(tmp_path / "model", byte_level())
        files = write_texts(tmp_path)
        given = [word for split in ("valid", "test") for word in (f"--{split}", str(files[split]))]
        given += ["--source", str(files["train"]), "--allow-overlap", "--tokenizer", str(model)]
        done = command(tmp_path, "language_modelling", *given)
        assert done.exit_code == 0, done.output
        assert (tmp_path / "data" / "tokenizer.json").is_file()
        refused = command(tmp_path, "language_modelling", *given, "--vocab-size", "99")
        assert refused.exit_code == 2 and "leave it out" in refused.output.replace("\n", " ")

    @pytest.mark.parametrize(
        ("task", "tokenizer", "words"),
        [
            ("translation", "model", "translation learns its vocabulary"),
            ("language_modelling", "nowhere", "is no folder; give bpe, unigram"),
            ("language_modelling", "texts", "has no tokenizer.json"),
            ("classification", "model", "--tokenizer DIR is for text"),
        ],
    )
    def test_refusals(self, tmp_path: Path, task: str, tokenizer: str, words: str) -> None:
        write_checkpoint(tmp_path / "model", byte_level())
        texts = tmp_path / "texts"
        file = str(write_texts(texts)["train"])
        write_labelled(texts)
        (tmp_path / "pictures").mkdir()
        given = ["--source", str(tmp_path / "pictures") if task == "classification" else file]
        given += ["--target", file] if task == "translation" else []
        given += ["--valid", file, "--test", file] if task == "language_modelling" else []
        done = command(tmp_path, task, *given, "--tokenizer", str(tmp_path / tokenizer))
        assert done.exit_code == 2 and words in done.output.replace("\n", " "), done.output
        assert not (tmp_path / "data").exists()

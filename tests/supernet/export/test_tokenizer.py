"""Exports of networks whose text a checkpoint's tokenizer makes into tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.results.export import Exported, verify_export
from nas.run.folder import RunFolder
from tests.support.export_cases import as_module, export_to, hub_without_net, module_of
from tests.support.tokenizer_cases import (
    LINES,
    bounded,
    byte_level,
    prepared_examples,
    prepared_stream,
    word_pieces,
)
from tests.support.trained_cases import LANGUAGE, trained

pytestmark = pytest.mark.export
pytest.importorskip("tokenizers", reason="the extra export")

LANGUAGE_SPACE = LANGUAGE.replace("vocab_size = 100", "vocab_size = 280")
TEXT_SPACE = """
[space]
name = "tiny-texts"
task = "classification"
[model]
max_length = 32
num_classes = 2
head_dim = 4
[model.input]
kind = "tokens"
vocab_size = 100
[encoder]
embed_dim = [8, 12]
num_layers = [1, 2]
attention = ["softmax", "linear"]
num_heads = [1, 2]
ffn_dim = [8, 16]
[data]
dataset = "synthetic"
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    for found in hub_without_net(tmp_path_factory):
        # What is loaded at its first use is loaded here.
        assert found.AutoTokenizer and found.AutoModelForSequenceClassification
        yield found


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A language model over a vocabulary in which 0 is a word."""
    path = tmp_path_factory.mktemp("language")
    prepared_stream(path, bounded(byte_level(marked=True)), bos_token="<begin>", eos_token="?")
    return trained(path / "run", LANGUAGE_SPACE, data=str(path / "data"), dataset="data")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A classifier of texts in word pieces."""
    path = tmp_path_factory.mktemp("texts")
    prepared_examples(path, bounded(word_pieces()))
    return trained(path / "run", TEXT_SPACE, data=str(path / "data"), dataset="data")


def tokens_of(exported: Exported, text: str) -> list[int]:
    """By the card: the file is all that is needed."""
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(exported.path / "tokenizer.json")).encode(text).ids
    return ids


def test_the_folder_of_a_language_model(language: RunFolder, tmp_path: Path) -> None:
    made = export_to(language, "safetensors", tmp_path / "out")
    verify_export(made.path)
    assert tokens_of(made, LINES[0]) == byte_level(marked=True).encode(LINES[0]).ids
    reading = json.loads((made.path / "reading.json").read_text())
    assert reading["padding"] is None and reading["num_words"] == 271
    assert reading["mark_numbers"] == {"bos_token": 270, "eos_token": byte_level().token_to_id("?")}
    card = (made.path / "README.md").read_text()
    assert 'Tokenizer.from_file("tokenizer.json")' in card and "sentencepiece" not in card


@torch.inference_mode()
def test_token_0_is_written_where_it_is_a_word(language: RunFolder, tmp_path: Path) -> None:
    made = export_to(language, "safetensors", tmp_path / "out")
    module = module_of(made.path)
    network = module.load_network()
    table = network.embedding.weight
    # Whatever stands before, the output layer likes 0 best.
    network.decoder.register_forward_hook(lambda *call: (call[2][0] * 0 + table[0], call[2][1]))
    table[1:] *= 0.1
    assert module.continue_text(network, [270], 3) == [0, 0, 0]
    network.padding = 0
    assert 0 not in module.continue_text(network, [270], 3)


def test_a_classifier(hub: Any, texts: RunFolder, tmp_path: Path) -> None:
    made = export_to(texts, "huggingface", tmp_path / "out")
    verify_export(made.path)
    expected = word_pieces().encode(LINES[0]).ids
    assert tokens_of(made, LINES[0]) == expected
    tokenizer = hub.AutoTokenizer.from_pretrained(made.path)
    assert tokenizer(LINES[0])["input_ids"] == expected and tokenizer.pad_token_id == 0
    code = {"trust_remote_code": True}
    model = hub.AutoModelForSequenceClassification.from_pretrained(made.path, **code).eval()
    both = tokenizer(list(LINES[:2]), padding=True, return_tensors="pt")
    alone = tokenizer(LINES[1], return_tensors="pt")
    with torch.inference_mode():
        apart = model(**both).logits[1] - model(**alone).logits[0]
    assert float(apart.abs().max()) < 1e-5
    assert not (made.path / "tokenization_nas.py").exists()


def test_transformers_reads_the_tokenizer_without_code(
    hub: Any, language: RunFolder, tmp_path: Path
) -> None:
    made = export_to(language, "huggingface", tmp_path / "out")
    verify_export(made.path)
    tokenizer = hub.AutoTokenizer.from_pretrained(made.path)
    inputs = tokenizer(LINES[0], return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == tokens_of(made, LINES[0])
    assert tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True) == LINES[0]
    code = {"trust_remote_code": True}
    model = hub.AutoModelForCausalLM.from_pretrained(made.path, **code).eval()
    settings = model.generation_config
    assert (settings.bos_token_id, settings.suppress_tokens) == (270, None)
    written = model.generate(**inputs, max_new_tokens=4, eos_token_id=None, pad_token_id=0)
    export_to(language, "safetensors", tmp_path / "plain")
    module = module_of(tmp_path / "plain")
    begun = inputs["input_ids"][0].tolist()
    expected = module.continue_text(module.load_network(), begun, 4)
    assert written[0, len(begun) :].tolist() == expected


class TestDriver:
    """`decode.py`, which lies beside ONNX graphs."""

    @pytest.fixture
    def driver(self) -> Any:
        return pytest.importorskip("supernet.export.onnx_driver", reason="the extra export")

    def vocabulary(self, driver: Any, folder: Path, tokenizer: Any, **facts: Any) -> Any:
        tokenizer.save(str(folder / "tokenizer.json"))
        known = {"kind": "tokenizer_json", "target": "tokenizer.json", "num_words": 271, **facts}
        (folder / "reading.json").write_text(json.dumps(known))
        return driver.Vocabulary(folder, "target")

    def test_words(self, driver: Any, tmp_path: Path) -> None:
        marked = byte_level(marked=True)
        words = self.vocabulary(driver, tmp_path, marked, begin=[270], padding=None)
        assert [*words.begin, *words.encode(LINES[0])] == marked.encode(LINES[0]).ids
        assert words.decode([270, *words.encode(LINES[0])]) == LINES[0]
        assert (words.first, words.size) == (0, 271)
        assert self.vocabulary(driver, tmp_path, marked, begin=[270], padding=0).first == 1

    def test_the_lowest_word(self, driver: Any) -> None:
        class Zeros:
            memory_length = 0

            def read(self, tokens: Any, state: None) -> Any:
                return -np.arange(5.0) * np.ones((1, tokens.shape[1], 1)), state

            step = read

        prompt = np.array([[3]])
        assert driver.write_on(Zeros(), prompt, None, 2, first=0).tolist() == [[0, 0]]
        assert driver.write_on(Zeros(), prompt, None, 2).tolist() == [[1, 1]]

    def test_an_empty_line_without_a_begin_mark(
        self, driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.vocabulary(driver, tmp_path, byte_level(), begin=[], padding=None)
        monkeypatch.setattr(driver, "Decoder", lambda folder: None)
        with pytest.raises(ValueError, match="line 1 is empty"):
            driver.go_on(tmp_path, [""], 3)

    @pytest.mark.slow
    def test_a_whole_folder(self, driver: Any, language: RunFolder, tmp_path: Path) -> None:
        made = export_to(language, "onnx", tmp_path / "out")
        file = made.path / "decode.py"
        module = as_module(file.read_text(encoding="utf-8"), file)
        plain = module_of(export_to(language, "safetensors", tmp_path / "plain").path)
        begun = tokens_of(made, LINES[0])
        expected = plain.continue_text(plain.load_network(), begun, 5)
        words = module.Vocabulary(made.path, "target")
        assert module.go_on(made.path, [LINES[0]], 5) == [words.decode([*begun, *expected])]

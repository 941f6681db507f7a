"""The driver that goes with ONNX exports chooses the tokens that our own beam search does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from search_spaces.loading import parse_space
from supernet.beam_search import MOST_PENALTY, BeamSettings
from supernet.building import build_network
from supernet.data.tokenizer import BOS, EOS, SentencePieceTokenizer, WordTokenizer, learn
from supernet.decoding_state import DecodingState
from supernet.export.template import translator
from supernet.extraction import StandAlone
from supernet.sequence_models import TranslationModel
from supernet.tasks.translating import StepwiseTranslator, translate_rows
from tests.support.trained_cases import TRANSLATION, networks

SPACE = parse_space(TRANSLATION, "space")

pytestmark = pytest.mark.export
driver: Any = pytest.importorskip("supernet.export.onnx_driver", reason="the extra export")


@dataclass(frozen=True)
class TorchState:
    """A `DecodingState` that is asked as the driver asks."""

    state: DecodingState
    beams: int

    def take(self, sentences: np.ndarray, beams: np.ndarray) -> TorchState:
        rows = torch.from_numpy(sentences[:, None] * self.beams + beams).flatten()
        kept = self.state.reorder(rows).keep_sources(torch.from_numpy(sentences))
        return replace(self, state=kept)


class TorchDecoder:
    """A network of torch that is called as the driver calls graphs."""

    max_length = SPACE.model.max_length
    memory_length = 0

    def __init__(self, network: StandAlone) -> None:
        self.network = network

    @torch.inference_mode()
    def start(self, source: np.ndarray, beams: int = 1) -> TorchState:
        return TorchState(self.network.start(torch.from_numpy(source)), beams)

    @torch.inference_mode()
    def step(self, tokens: np.ndarray, state: TorchState) -> tuple[np.ndarray, TorchState]:
        logits, after = self.network.step(torch.from_numpy(tokens).flatten(0, 1), state.state)
        shaped = logits.unflatten(0, tokens.shape[:2]).numpy()
        return shaped, replace(state, state=after)


@cache
def decoder(seed: int = 0) -> TorchDecoder:
    torch.manual_seed(seed)
    network = build_network(SPACE.model, "translation", networks(SPACE, seed + 1)[seed]).eval()
    assert isinstance(network.network, TranslationModel)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:  # at birth a network repeats the one word that it is given
            torch.nn.init.normal_(parameter, std=0.1 if "table" in name else 1.0)
    return TorchDecoder(network)


def rows_of(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 160, rng.integers(1, 15)).tolist() for _ in range(count)]


def written(one: TorchDecoder, rows: list[list[int]], search: Any) -> list[tuple[int, ...]]:
    source = driver.padded([[*row, EOS] for row in rows])
    return [texts[0].tokens for texts in driver.beam_search(one, source, search)]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.3])
@pytest.mark.parametrize("beam", [1, 2, 4, 7])
def test_the_same_tokens_as_our_search(beam: int, length_penalty: float) -> None:
    for seed in range(3):
        one, rows = decoder(seed), rows_of(9, seed)
        ours = translate_rows(
            StepwiseTranslator.of(one.network),
            rows,
            BeamSettings(beam, length_penalty),
            max_tokens=10_000,
            device="cpu",
        )
        assert written(one, rows, driver.Search(beam, length_penalty)) == ours
        assert len(set(ours)) > 3


def test_another_search_writes_other_tokens() -> None:
    one, rows = decoder(0), rows_of(9, 0)
    assert written(one, rows, driver.Search(1)) != written(one, rows, driver.Search(7, 0.0))


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_all_tokens_are_written_where_an_end_may_not_come(beam: int, length: int) -> None:
    search = driver.Search(beam, factor=0.0, offset=length, min_length=length)
    found = written(decoder(), rows_of(3, 0), search)
    assert {len(text) for text in found} <= {length - 1, length}


def test_only_words_that_there_are() -> None:
    source = driver.padded([[*row, EOS] for row in rows_of(5, 1)])
    found = driver.beam_search(decoder(), source, driver.Search(3), num_words=80)
    assert max(max(text.tokens, default=0) for texts in found for text in texts) < 80
    every = driver.beam_search(decoder(), source, driver.Search(3))
    assert max(max(text.tokens, default=0) for texts in every for text in texts) >= 80


def test_the_best_come_first() -> None:
    values = np.array([[3.0, -np.inf, 7.0, 5.0], [-np.inf] * 4])
    found, index = driver.top(values, 3)
    assert found[0].tolist() == [7.0, 5.0, 3.0] and index[0].tolist() == [2, 3, 0]
    assert driver.top(values, 9)[0].shape == (2, 4)


def test_log_probabilities_are_torchs() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)) * 100
    expected = torch.from_numpy(logits).log_softmax(dim=-1)
    np.testing.assert_allclose(driver.log_softmax(logits), expected, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite numbers"):
        driver.log_softmax(np.array([[0.0, value]]))


def test_a_beam_of_none_is_refused() -> None:
    assert driver.Search(1).beam == 1
    with pytest.raises(ValueError, match="the beam is 0"):
        driver.Search(0)


def test_penalties_end_where_ours_do() -> None:
    assert driver.MOST_PENALTY == translator.MOST_PENALTY == MOST_PENALTY
    assert driver.Search(1, MOST_PENALTY).length_penalty == MOST_PENALTY
    with pytest.raises(ValueError, match=r"\(--lenpen\) is 1000; give a number from 0 to 10"):
        driver.Search(1, 1000.0)
    with pytest.raises(ValueError, match="length_penalty is 1000; give a number from 0 to 10"):
        translator.translate(decoder().network, [4], 1, 1000.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, -3])
def test_no_tokens_to_write_are_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ValueError, match=f"--tokens must be at least 1; given {length}"):
        driver.go_on(tmp_path, ["a"], length)


class Reader(driver.Decoder):  # type: ignore[misc]
    """A language model of eight positions with a memory of three, which says what is read."""

    max_length, memory_length = 8, 3

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def start(self, source: np.ndarray, beams: int = 1) -> Any:
        return driver.State(0, {}, {})

    def step(self, tokens: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        new = tokens.shape[-1]
        self._check_length("text", state.position + new)
        self.seen.append((state.position, new))
        return np.zeros((*tokens.shape, 5), np.float32), replace(
            state, position=state.position + new
        )


@pytest.mark.parametrize("length", [1, 6, 7, 8, 20])
@pytest.mark.parametrize("prompt", [1, 2, 8, 30])
def test_with_a_memory_a_text_has_no_end(prompt: int, length: int) -> None:
    reader = Reader()
    written = driver.continue_text(reader, np.ones((2, prompt), np.int64), length)
    assert written.shape == (2, length)
    assert sum(new for _, new in reader.seen) == prompt + length - 1
    ends = [position + new for position, new in reader.seen]
    for end, (position, _) in zip(ends, reader.seen[1:], strict=False):
        assert position in (end, 0)


# -- text -----------------------------------------------------------------------------------------

LINES = ["a small test", "another one of these", "a test"] * 20


def vocabulary(folder: Path, kind: str) -> tuple[Any, Any]:
    """The driver's vocabulary and ours, of the same files."""
    words = sorted({word for line in LINES for word in line.split()})
    ours: Any = WordTokenizer(words)
    content = json.dumps(["<pad>", "<s>", "</s>", "<unk>", *words]).encode()
    if kind == "sentencepiece":
        content = learn(LINES, 30, "bpe", "the lines")
        ours = SentencePieceTokenizer(content)
    (folder / "v").write_bytes(content)
    facts = {"kind": kind, "source": "v", "target": "v"}
    (folder / "reading.json").write_text(json.dumps(facts))
    return driver.Vocabulary(folder, "target"), ours


@pytest.mark.parametrize("kind", ["words", "sentencepiece"])
def test_text_is_read_and_written_as_ours(kind: str, tmp_path: Path) -> None:
    mine, ours = vocabulary(tmp_path, kind)
    assert mine.size == ours.vocab_size
    for line in [*LINES[:3], "", "unknown words of a test"]:
        row = ours.encode([line])[0]
        assert mine.encode(line) == row
        assert mine.decode([BOS, *row, EOS, 0]) == ours.decode([row])[0]


def test_a_byte_order_mark_is_no_text(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = "\ufeffa small\r\n\ufefftest\n".encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(lines)))
    monkeypatch.setattr(driver, "go_on", lambda folder, lines, length: lines)
    driver.main([])
    assert capsysbinary.readouterr().out == "a small\n\ufefftest\n".encode()


def test_rows_are_filled_up() -> None:
    assert driver.padded([[5], [6, 7]]).tolist() == [[5, 0], [6, 7]]

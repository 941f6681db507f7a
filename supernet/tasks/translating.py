"""Translating text: sources of similar lengths together, beam search, then the given order again.

Shapes: B sources of a batch, S source tokens, R rows that are decoded (B times beams), N new target
positions, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, DivergedError, UsageError
from search_spaces.settings import TokenInput
from search_spaces.turns import give_way
from supernet.beam_search import BeamSettings, beam_search
from supernet.data.text_batches import source_batch
from supernet.data.tokenizer import BOS, EOS, PAD, Tokenizer
from supernet.decoding_state import DecodingState
from supernet.extraction import StandAlone
from supernet.precision import autocast, tf32
from supernet.sequence_models import TranslationModel
from supernet.slices import Casts

Rows = Sequence[Sequence[int]]

DECODING_TOKENS = 16_384  # of a batch, unless told otherwise


@dataclass(frozen=True, eq=False, slots=True)
class StepwiseTranslator:
    """One translation network, in a supernet or on its own.

    Attributes:
        model: the weights.
        architecture: the network in it.
        num_words: only the first so many tokens of the target vocabulary are written; None for
            all. A model's vocabulary may be larger than the tokenizer's, and a network that was
            trained little writes tokens that do not exist.
    """

    model: TranslationModel
    architecture: Architecture
    num_words: int | None = None

    @classmethod
    def of(cls, network: StandAlone) -> StepwiseTranslator:
        """A network on its own."""
        assert isinstance(network.network, TranslationModel)
        return cls(network.network, network.architecture)

    @property
    def max_length(self) -> int:
        """Most tokens of a source, and positions of a translation, end mark included."""
        return self.model.settings.max_length

    def start(self, source_BS: Tensor) -> DecodingState:
        """Encode sources ``(B, S)``: the state before the first target token."""
        return self.model.start(source_BS, self.architecture)

    def step(self, tokens_RN: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """New target tokens ``(R, N)`` → logits of what follows each, ``(R, N, V)``, and state."""
        give_way()
        logits_RNV, state = self.model.step(tokens_RN, state)
        return logits_RNV[..., : self.num_words], state


@torch.inference_mode()
def translate_rows(
    model: StepwiseTranslator,
    rows: Rows,
    settings: BeamSettings,
    *,
    max_tokens: int | None,
    device: str,
) -> list[tuple[int, ...]]:
    """The best translation of every row, in the order of the rows.

    The model is put in evaluation mode, and left in the mode it came in.

    Args:
        model: the network, on `device`.
        rows: source tokens, without marks; a row without tokens is translated by one.
        settings: how to search.
        max_tokens: sources of a batch, times beams, times the longest source or translation that
            there may be, are at most this. Beyond rounding it decides nothing but time and memory.
            None is as many as `DECODING_TOKENS`, or as the longest row takes with the usual beams.
        device: where to decode; in bfloat16 on cards that have it.

    Returns:
        Target tokens of each row, without marks.

    Raises:
        UsageError: for a row that is longer than the model reads, or that alone is more than
            `max_tokens`; before anything is translated.
        DivergedError: when the network's outputs are not finite numbers.
    """
    batches = _plan(model.max_length, rows, settings, max_tokens)
    texts: list[tuple[int, ...]] = [()] * len(rows)
    was_training = model.model.training
    model.model.eval()
    try:
        with Casts().held():
            for numbers in batches:
                found = _decode(model, [rows[number] for number in numbers], settings, device)
                for number, text in zip(numbers, found, strict=True):
                    texts[number] = text
    except FloatingPointError as error:
        raise DivergedError(
            f"the network {model.architecture.id} cannot translate: its outputs are not finite "
            "numbers; train it anew with a lower learning rate"
        ) from error
    finally:
        model.model.train(was_training)
    return texts


def translate_lines(
    model: StepwiseTranslator,
    lines: Sequence[str],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    settings: BeamSettings,
    *,
    max_tokens: int | None,
    device: str,
) -> list[str]:
    """The best translation of every line, in the order of the lines.

    Args:
        model: the network, on `device`.
        lines: text without line ends; an empty line, or one of spaces, is translated by an empty
            one.
        source_tokenizer: with which the network's sources were made.
        target_tokenizer: with which its targets were made; only tokens of it are written.
        settings: how to search.
        max_tokens: as for `translate_rows`.
        device: as for `translate_rows`.

    Raises:
        UsageError, DivergedError: as `translate_rows` does.
        DataError: when a tokenizer has more tokens than the network.
    """
    rows = source_tokenizer.encode(lines)
    tokenizers = source_tokenizer, target_tokenizer
    return translate_tokens(
        model, rows, *tokenizers, settings, max_tokens=max_tokens, device=device
    )


def translate_tokens(
    model: StepwiseTranslator,
    rows: Rows,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    settings: BeamSettings,
    *,
    max_tokens: int | None,
    device: str,
) -> list[str]:
    """As `translate_lines`, of lines that are tokens already, without marks."""
    _check_tokenizers(model, source_tokenizer, target_tokenizer)
    model = replace(model, num_words=target_tokenizer.vocab_size)
    texts = translate_rows(model, rows, settings, max_tokens=max_tokens, device=device)
    return target_tokenizer.decode(texts)


def _plan(
    limit: int, rows: Rows, settings: BeamSettings, max_tokens: int | None
) -> list[list[int]]:
    """Numbers of the rows of every batch.

    Longest first: what does not fit into memory shows at once.
    """
    sizes: dict[int, int] = {}
    for number, row in enumerate(rows):
        if not row:
            continue
        check_fits(f"line {number + 1}", row, limit)
        sizes[number] = _decoded_tokens(len(row) + 1, limit, settings)
    order = sorted(sizes, key=lambda number: (sizes[number], len(rows[number])), reverse=True)
    if max_tokens is None:
        longest = max((len(rows[number]) + 1 for number in order), default=1)
        max_tokens = max(DECODING_TOKENS, _decoded_tokens(longest, limit, BeamSettings()))
    if order and sizes[order[0]] > max_tokens:
        raise UsageError(
            f"batches of at most {max_tokens} tokens cannot hold line {order[0] + 1}, which takes "
            f"{sizes[order[0]]} with {settings.beam_size} beams; allow at least that many"
        )
    batches: list[list[int]] = []
    for number in order:
        if not batches or sizes[batches[-1][0]] * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches


def check_fits(name: str, row: Sequence[int], limit: int) -> None:
    """See that a network can read a source.

    Args:
        name: what the source is called.
        row: its tokens, without marks.
        limit: most tokens that the network reads, end mark included.

    Raises:
        UsageError: when it cannot.
    """
    if len(row) + 1 > limit:
        raise UsageError(
            f"{name} has {len(row) + 1} tokens with its end mark, but the network reads at most "
            f"{limit}: split it, or raise max_length in the space's [model] table and search anew"
        )


def _decoded_tokens(length: int, limit: int, settings: BeamSettings) -> int:
    """Most tokens that decoding a source of a length may hold at once, over its beams."""
    return settings.beam_size * max(length, settings.longest(length, limit))


def _decode(
    model: StepwiseTranslator, rows: Rows, settings: BeamSettings, device: str
) -> list[tuple[int, ...]]:
    """The best text of every row of a batch."""
    source_BS, _ = source_batch([list(row) for row in rows])
    with autocast(device), tf32(device):
        found = beam_search(
            model.step,
            model.start(source_BS.to(device)),
            [len(row) + 1 for row in rows],
            bos=BOS,
            eos=EOS,
            pad=PAD,
            max_length=model.max_length,
            settings=settings,
            device=device,
        )
    return [texts[0].tokens for texts in found]


def _check_tokenizers(model: StepwiseTranslator, source: Tokenizer, target: Tokenizer) -> None:
    shape = model.model.settings.input
    assert isinstance(shape, TokenInput)
    sizes = (shape.vocab_size, model.model.vocab_size)
    for side, tokenizer, size in zip(("source", "target"), (source, target), sizes, strict=True):
        if tokenizer.vocab_size > size:
            raise DataError(
                f"the {side} tokenizer has {tokenizer.vocab_size} tokens, but the network has "
                f"{size}; give the tokenizers of the data that the network was trained on"
            )

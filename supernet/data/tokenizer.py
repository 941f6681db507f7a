"""Token numbers for text: sentencepiece models, bytes, and words of a fixed list.

In every vocabulary for translation and language models 0 is padding, 1 begins a sequence, 2 ends
it and 3 stands for what the vocabulary cannot write.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark

PAD, BOS, EOS, UNKNOWN = range(4)
NUM_MARKS = 4
MARKS = ("<pad>", "<s>", "</s>", "<unk>")
BYTE_VOCAB_SIZE = 257  # padding and the 256 bytes; there is nothing to begin or to end

ModelType = Literal["bpe", "unigram"]
BYTES: Literal["bytes"] = "bytes"  # each of a labelled text is a token, and nothing is learnt
VOCABULARIES = (*get_args(ModelType), BYTES)  # that are no folder of a checkpoint
# How the words of a text were split before it came here, and are joined again.
PostProcess = Literal["subword_nmt", "sentencepiece", "none"]
JOINER, SPACE = "@@", "\u2581"  # of subword-nmt and of sentencepiece

# More lines change a vocabulary little and cost memory; larger corpora are sampled evenly.
MOST_TRAINING_LINES = 4_000_000
LONGEST_TRAINING_BYTES = 16_384
# Part of the result: unigram models add up in as many parts as there are threads.
TRAINING_THREADS = 4
TOO_LARGE = re.compile(r"too high \((\d+)\).*<= (\d+)")
NO_TEXT = re.compile(r"sentences_\.empty|all_chars_count")
TOO_SMALL = re.compile(r"required_chars\. (\d+) vs (\d+)")


class Tokenizer(Protocol):
    """Turns lines into token numbers and back; the marks are not among them."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, padding and the other marks included."""
        ...

    @property
    def symbols(self) -> tuple[str, ...]:
        """How each token is written, marks included, by number."""
        ...

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Token numbers of each line."""
        ...

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row; marks in it are left out."""
        ...


class SentencePieceTokenizer:
    """A sentencepiece model: subwords, and text that comes back with its spaces as they were.

    Args:
        model: the bytes of the model file.
        name: what to call it in messages.

    Raises:
        DataError: when the bytes are no such model, or one with other numbers for the marks.
    """

    def __init__(self, model: bytes, name: str = "the tokenizer") -> None:
        from sentencepiece import SentencePieceProcessor

        self._pieces: Any = SentencePieceProcessor()
        try:
            self._pieces.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise DataError(f"{name} is no sentencepiece model; prepare the data anew") from error
        found = [self._pieces.piece_to_id(mark) for mark in MARKS]
        if found != list(range(NUM_MARKS)):
            raise DataError(f"{name} numbers {', '.join(MARKS)} as {found}, not as 0 to 3")

    @classmethod
    def load(cls, path: Path) -> SentencePieceTokenizer:
        """Read a model file.

        Raises:
            DataError: when it is missing or damaged.
        """
        if not path.is_file():
            raise DataError(f"{path} is missing; prepare the data anew")
        return cls(path.read_bytes(), str(path))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, marks included."""
        return int(self._pieces.get_piece_size())

    @property
    def symbols(self) -> tuple[str, ...]:
        """The pieces, in which ▁ stands for a space."""
        return tuple(self._pieces.id_to_piece(list(range(self.vocab_size))))

    @property
    def model(self) -> bytes:
        """The bytes of the model file."""
        return bytes(self._pieces.serialized_model_proto())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Token numbers of each line."""
        rows: list[list[int]] = self._pieces.encode(list(lines), num_threads=TRAINING_THREADS)
        return rows

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row; marks in it are left out."""
        plain = [[int(token) for token in row if token not in (PAD, BOS, EOS)] for row in rows]
        return [str(text) for text in self._pieces.decode(plain)] if plain else []


class WordTokenizer:
    """One token a word, of a fixed list; words are split at spaces."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = (*MARKS, *words)
        self._numbers = {word: number for number, word in enumerate(self._words)}

    @property
    def vocab_size(self) -> int:
        """Number of words, marks included."""
        return len(self._words)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The marks and the words."""
        return self._words

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Token numbers of each line."""
        return [[self._numbers.get(word, UNKNOWN) for word in line.split()] for line in lines]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row; marks in it are left out."""
        unsaid = (PAD, BOS, EOS)
        return [
            " ".join(self._words[token] for token in row if token not in unsaid) for row in rows
        ]


def join_words(line: str, how: PostProcess) -> str:
    """A line of symbols with its words joined again, as fairseq's ``--post-process`` does."""
    match how:
        case "subword_nmt":
            return f"{line} ".replace(f"{JOINER} ", "").rstrip()
        case "sentencepiece":
            return line.replace(" ", "").replace(SPACE, " ").strip()
        case "none":
            return line


def learn(
    lines: Iterable[str], vocab_size: int, kind: ModelType, source: str, exact: bool = True
) -> bytes:
    """Learn a sentencepiece model.

    Every character of the lines gets a token of its own (coverage 1), and text is normalised by
    NFKC. Equal lines give equal models, on any number of cores.

    Args:
        lines: what to learn from; empty ones are skipped.
        vocab_size: number of tokens, marks included.
        kind: byte pairs, as in the papers, or the unigram model, which takes longer.
        source: where the lines come from, for messages.
        exact: whether a text that gives fewer tokens is refused.

    Returns:
        The bytes of a model file.

    Raises:
        UsageError: when the vocabulary is larger than the text can give, or smaller than its
            characters need.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    stopped: list[BaseException] = []
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_remembering(lines, stopped),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=kind,
            character_coverage=1.0,
            hard_vocab_limit=exact,
            max_sentence_length=LONGEST_TRAINING_BYTES,
            num_threads=TRAINING_THREADS,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNKNOWN,
            minloglevel=3,
        )
    except RuntimeError as error:
        if stopped:
            raise stopped[0] from None
        raise _explained(str(error), source) from error
    return model.getvalue()


def _remembering(lines: Iterable[str], stopped: list[BaseException]) -> Iterator[str]:
    """The lines in pieces; keeps what interrupts them, whose text alone sentencepiece passes on."""
    try:
        for line in lines:
            yield from _pieces(line)
    except BaseException as error:
        stopped.append(error)
        raise


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces of at most `LONGEST_TRAINING_BYTES`, cut at spaces where there are some.

    Of what is longer sentencepiece would learn nothing.
    """
    raw, start = line.encode(), 0
    while len(raw) - start > LONGEST_TRAINING_BYTES:
        end = raw.rfind(b" ", start + 1, start + LONGEST_TRAINING_BYTES + 1)
        if end < 0:
            end = start + LONGEST_TRAINING_BYTES
            while raw[end] & 0xC0 == 0x80:  # in the midst of a character
                end -= 1
        yield raw[start:end].decode()
        start = end
    yield raw[start:].decode() if start else line


def too_large(asked: int, source: str, most: int) -> UsageError:
    """What is said of a vocabulary that a text has too few pieces for."""
    return UsageError(
        f"a vocabulary of {asked} is larger than {source} can give; "
        f"pass {mark('vocab_size')} {most} or less"
    )


def _explained(message: str, source: str) -> Exception:
    if found := TOO_LARGE.search(message):
        asked, most = found.groups()
        return too_large(int(asked), source, int(most))
    if found := TOO_SMALL.search(message):
        asked, least = found.groups()
        return UsageError(
            f"a vocabulary of {asked} is too small: the characters of {source} alone need {least}; "
            f"pass {mark('vocab_size')} {least} or more"
        )
    if NO_TEXT.search(message):
        return DataError(f"no vocabulary can be learnt from {source}: every line of it is blank")
    return DataError(f"no vocabulary can be learnt from {source}: {message}")

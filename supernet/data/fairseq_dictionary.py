"""fairseq's dictionaries (``dict.LANG.txt``): a symbol and how often it occurs on each line.

fairseq numbers <s> 0, <pad> 1, </s> 2, <unk> 3 and the symbols of the file from 4 on. Here padding
is 0 and the begin mark 1; from 2 on the numbers are the same. No row of binarised text holds the
first two, so that rows need no translation, and only models that cross over swap two embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from search_spaces.errors import DataError
from supernet.data.text import read_lines
from supernet.data.tokenizer import BOS, EOS, MARKS, NUM_MARKS, PAD, UNKNOWN, WordTokenizer

PostProcess = Literal["subword_nmt", "sentencepiece", "none"]
POST_PROCESSES: tuple[PostProcess, ...] = get_args(PostProcess)

OVERWRITE = "#fairseq:overwrite"
JOINER, SPACE = "@@", "\u2581"  # of subword-nmt and of sentencepiece
LEAST_SHARE = 0.01  # of the symbols of a vocabulary that are marked in the manner of a splitter


class FairseqDictionary(WordTokenizer):
    """One token a symbol of the file; lines are split at spaces, as fairseq does.

    Marks among the words of a line are unknown words, but for <unk> itself.

    Args:
        words: the file's symbols, in its order.
        name: what to call it in messages.

    Raises:
        DataError: for a mark among the symbols.
    """

    def __init__(self, words: Iterable[str], name: str = "the dictionary") -> None:
        super().__init__(words)
        for number, mark in enumerate(MARKS):
            if self._numbers[mark] != number:
                raise DataError(f"{name} lists {mark}, which every dictionary has by itself")
            if number != UNKNOWN:
                del self._numbers[mark]

    @classmethod
    def load(cls, path: Path) -> FairseqDictionary:
        """Read ``dict.LANG.txt``.

        Raises:
            DataError: when it is missing, not UTF-8, has a line that is not ``SYMBOL COUNT``, or
                a symbol twice.
        """
        if not path.is_file():
            raise DataError(f"{path} is missing; fairseq-preprocess writes it")
        words: dict[str, None] = {}
        kept: list[str] = []
        for number, line in enumerate(read_lines(path), start=1):
            word, overwrites = _entry(line, f"{path}:{number}")
            if word in words and not overwrites:
                raise DataError(f"{path}:{number}: the symbol {word!r} is there twice")
            words[word] = None
            kept.append(word)
        if not kept:
            raise DataError(f"{path} is empty; it should have a symbol and its count on each line")
        return cls(kept, str(path))

    def references(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row for comparison with translations.

        An unknown word is written ``<<unk>>``, as fairseq writes it in references, so that a
        translation's ``<unk>`` is never counted as right.
        """
        escaped = f"<{self._words[UNKNOWN]}>"
        return [
            " ".join(
                escaped if token == UNKNOWN else self._words[token]
                for token in row
                if token not in (PAD, BOS, EOS)
            )
            for row in rows
        ]


def dictionary_text(symbols: Sequence[str], counts: Sequence[int]) -> str:
    """The content of ``dict.LANG.txt`` for a vocabulary.

    A symbol that holds white space, which such a file cannot say, is replaced by a name for its
    number: rows hold numbers, so nothing but the reading of new text with it changes.

    Args:
        symbols: of a tokenizer, the four marks first.
        counts: how often each occurs, by number.
    """
    known = set(symbols)
    lines = []
    for number in range(NUM_MARKS, len(symbols)):
        symbol = symbols[number]
        if symbol.split() != [symbol]:
            symbol = f"madeupsymbol{number:06d}"
            assert symbol not in known
        lines.append(f"{symbol} {int(counts[number])}\n")
    return "".join(lines)


def detect_post_process(symbols: Sequence[str]) -> PostProcess:
    """How words were split: a vocabulary tells by its symbols."""
    words = symbols[NUM_MARKS:]
    least = LEAST_SHARE * len(words)
    if sum(word.endswith(JOINER) for word in words) > least:
        return "subword_nmt"
    return "sentencepiece" if sum(word.startswith(SPACE) for word in words) > least else "none"


def readable(line: str, how: PostProcess) -> str:
    """A line of symbols with its words joined again, as fairseq's ``--post-process`` does."""
    match how:
        case "subword_nmt":
            return f"{line} ".replace(f"{JOINER} ", "").rstrip()
        case "sentencepiece":
            return line.replace(" ", "").replace(SPACE, " ").strip()
        case "none":
            return line


def _entry(line: str, where: str) -> tuple[str, bool]:
    """The symbol of a line, and whether it may stand there a second time."""
    word, space, count = line.rstrip().rpartition(" ")
    overwrites = count == OVERWRITE
    if overwrites:
        word, space, count = word.rpartition(" ")
    if not space or not word or not (count.isascii() and count.isdigit()):
        raise DataError(f"{where}: found {line[:60]!r}; a symbol, a space and its count are needed")
    return word, overwrites

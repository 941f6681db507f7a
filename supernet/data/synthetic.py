"""The generated corpus, so that every text space can be tried at once: ``--data synthetic``.

Sentences come from `grammar`. Both languages share one vocabulary of words split at spaces, so
that BLEU and perplexity need no tokenizer. For language models the text is the translations'
side, each line with its letters at both ends.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

from supernet.data.grammar import Sentence, generate, words
from supernet.data.prepared import PairSplit, PreparedData, StreamSplit
from supernet.data.token_files import TokenRows
from supernet.data.tokenizer import EOS, WordTokenizer

NAME = "synthetic"
TRAIN, VALID, TEST = 6000, 300, 100

S = TypeVar("S", PairSplit, StreamSplit)


def synthetic_translation(seed: int) -> PreparedData[PairSplit]:
    """Training and validation pairs, 6,000 and 300.

    Args:
        seed: of the draw, at least 0.

    Raises:
        UsageError: on a negative seed.
    """
    sentences = generate(TRAIN + VALID + TEST, seed)
    rest = sentences[TRAIN : TRAIN + VALID]
    train, valid = _pairs(sentences[:TRAIN], with_text=False), _pairs(rest)
    lengths = (int(side.lengths.max()) for s in (train, valid) for side in (s.source, s.target))
    return _data("translation", train, valid, sentences, max(lengths) + 1)


def synthetic_translation_test(seed: int) -> PairSplit:
    """The 100 test pairs; no sentence of them is in the other splits.

    Raises:
        UsageError: on a negative seed.
    """
    return _pairs(generate(TRAIN + VALID + TEST, seed)[TRAIN + VALID :])


def synthetic_language(seed: int) -> PreparedData[StreamSplit]:
    """Training and validation text, 6,000 and 300 lines.

    Args:
        seed: of the draw, at least 0.

    Raises:
        UsageError: on a negative seed.
    """
    sentences = generate(TRAIN + VALID + TEST, seed)
    train, valid = _stream(sentences[:TRAIN]), _stream(sentences[TRAIN : TRAIN + VALID])
    longest = max(int(split.rows.lengths.max()) for split in (train, valid))
    return _data("language_modelling", train, valid, sentences, longest)


def synthetic_language_test(seed: int) -> StreamSplit:
    """The 100 lines of test text.

    Raises:
        UsageError: on a negative seed.
    """
    return _stream(generate(TRAIN + VALID + TEST, seed)[TRAIN + VALID :])


def _data(
    task: str, train: S, valid: S, sentences: list[Sentence], longest: int
) -> PreparedData[S]:
    tokenizer = _tokenizer()
    return PreparedData(
        name=NAME,
        train=train,
        valid=valid,
        digest=_digest(task, sentences[: TRAIN + VALID]),
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        longest=longest,
    )


def _digest(task: str, sentences: list[Sentence]) -> str:
    lines = [f"{sentence.source} | {sentence.target}" for sentence in sentences]
    return hashlib.sha256("\n".join([task, *lines]).encode()).hexdigest()


def _tokenizer() -> WordTokenizer:
    return WordTokenizer(words())


def _pairs(sentences: list[Sentence], with_text: bool = True) -> PairSplit:
    tokenizer = _tokenizer()
    source = tuple(sentence.source for sentence in sentences)
    target = tuple(sentence.target for sentence in sentences)
    rows = (TokenRows.of(tokenizer.encode(source)), TokenRows.of(tokenizer.encode(target)))
    return PairSplit(*rows, source, target) if with_text else PairSplit(*rows)


def _stream(sentences: list[Sentence]) -> StreamSplit:
    lines = [sentence.text for sentence in sentences]
    rows = TokenRows.of([[*row, EOS] for row in _tokenizer().encode(lines)])
    num_words = sum(len(line.split()) for line in lines)
    return StreamSplit(rows, num_words, sum(map(len, lines)))

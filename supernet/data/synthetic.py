"""The generated corpus, so that every text space can be tried at once: ``--data synthetic``.

Sentences of a small grammar, in an English-like language, with their translation. What a network
has to learn from the pairs:

* words: each noun, adjective and verb has its own translation;
* reordering: subject, verb, object becomes object, subject, verb; adjectives move behind their
  noun, and a relative clause in front of it;
* agreement: nouns have a gender, which articles and adjectives show together with the number; a
  verb ends as its subject asks, over all that stands between them;
* copying: a sentence ends with a list of letters, with which the translation begins.

Both languages share one vocabulary of words split at spaces, so that BLEU and perplexity need no
tokenizer. For language models the text is the translations' side, each line with its letters at
both ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from search_spaces.errors import UsageError
from supernet.data.prepared import PairSplit, PreparedData, StreamSplit
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import EOS, WordTokenizer

# Singular, plural, translation, gender.
NOUNS = (
    *(("dog", "dogs", "mavu", 0), ("cat", "cats", "teli", 1), ("bird", "birds", "soru", 0)),
    *(
        ("fox", "foxes", "kena", 1),
        ("child", "children", "pilo", 0),
        ("queen", "queens", "rasi", 1),
    ),
    *(("farmer", "farmers", "dovo", 0), ("giant", "giants", "luma", 1)),
)
ADJECTIVES = (("small", "bik"), ("old", "trom"), ("red", "vel"), ("quiet", "hush"))
# Of a singular and of a plural subject, translation.
VERBS = (
    *(("sees", "see", "mir"), ("follows", "follow", "pod"), ("finds", "find", "lak")),
    *(("loves", "love", "zun"), ("carries", "carry", "fet")),
)
# Before singular and plural, translation.
ARTICLES = (("the", "the", "l"), ("a", "some", "un"))
ENDINGS = (("o", "oi"), ("a", "ai"))  # of articles and adjectives: by gender, then by number
PLURAL = "n"
VERB_ENDINGS = ("t", "nt")
LETTERS = tuple("bcdfghjk")
MOST_LETTERS = 4
ADJECTIVE, RELATIVE = 0.4, 0.25

MAX_DRAWS_WITHOUT_GAIN = 1000
T = TypeVar("T")

NAME = "synthetic"
TRAIN, VALID, TEST = 6000, 300, 100

S = TypeVar("S", PairSplit, StreamSplit)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence in both languages, words separated by spaces."""

    source: str
    target: str

    @property
    def text(self) -> str:
        """One line to model: the translation, and its letters once more, far from the first."""
        return f"{self.target} {self.target.partition(' :')[0]}"


@dataclass(frozen=True, slots=True)
class _Phrase:
    """A noun with what belongs to it; `number` is 0 for one and 1 for several."""

    source: list[str]
    target: list[str]
    number: int


def generate(count: int, seed: int) -> list[Sentence]:
    """Draw different sentences; a larger `count` only appends to what a smaller one gives.

    Raises:
        UsageError: on a negative seed, or when there are not so many sentences.
    """
    if seed < 0:
        raise UsageError(f"seed must be at least 0; given {seed}")
    rng = np.random.default_rng(seed)
    found: dict[str, Sentence] = {}
    in_vain = 0
    while len(found) < count:
        sentence = _sentence(rng)
        in_vain = in_vain + 1 if sentence.source in found else 0
        found.setdefault(sentence.source, sentence)
        if in_vain == MAX_DRAWS_WITHOUT_GAIN:
            raise UsageError(f"the grammar has fewer than {count} sentences; ask for fewer")
    return list(found.values())


def words() -> tuple[str, ...]:
    """Every word of both languages, sorted."""
    found = {*LETTERS, ".", ",", ":", "that", "ke"}
    for singular, plural, noun, _ in NOUNS:
        found |= {singular, plural, noun, noun + PLURAL}
    for word, stem in ADJECTIVES:
        found |= {word, *(stem + ending for endings in ENDINGS for ending in endings)}
    for one, many, stem in (*VERBS, *ARTICLES):
        found |= {one, many}
        is_article = (one, many, stem) in ARTICLES
        endings = [e for pair in ENDINGS for e in pair] if is_article else VERB_ENDINGS
        found |= {stem + ending for ending in endings}
    return tuple(sorted(found))


def _sentence(rng: np.random.Generator) -> Sentence:
    subject, object_ = _phrase(rng, RELATIVE), _phrase(rng, RELATIVE)
    source_verb, target_verb = _verb(rng, subject.number)
    letters = [_pick(rng, LETTERS) for _ in range(rng.integers(1, MOST_LETTERS + 1))]
    source = [*subject.source, source_verb, *object_.source, ",", *letters, "."]
    target = [*letters, ":", *object_.target, *subject.target, target_verb, "."]
    return Sentence(" ".join(source), " ".join(target))


def _phrase(rng: np.random.Generator, relative: float) -> _Phrase:
    number = int(rng.integers(2))
    singular, plural, stem, gender = _pick(rng, NOUNS)
    ending = ENDINGS[gender][number]
    *articles, article = _pick(rng, ARTICLES)
    source, target = [articles[number]], [article + ending, stem + PLURAL * number]
    if rng.random() < ADJECTIVE:
        word, adjective = _pick(rng, ADJECTIVES)
        source.append(word)
        target.append(adjective + ending)
    source.append((singular, plural)[number])
    if rng.random() < relative:
        inner = _phrase(rng, 0.0)
        source_verb, target_verb = _verb(rng, number)
        source += ["that", source_verb, *inner.source]
        target = [*inner.target, target_verb, "ke", *target]
    return _Phrase(source, target, number)


def _verb(rng: np.random.Generator, number: int) -> tuple[str, str]:
    *forms, stem = _pick(rng, VERBS)
    return forms[number], stem + VERB_ENDINGS[number]


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


@dataclass(frozen=True, slots=True)
class SyntheticForm(Generic[S]):
    """The generated corpus for a task: 6,000, 300 and 100 sentences.

    Attributes:
        task: what it is for; its data have a digest of their own.
        read: sentences as a split; False leaves their text out, as training has no use for it.
        longest: tokens of the longest row of a split, end mark included.
    """

    task: str
    read: Callable[[list[Sentence], bool], S]
    longest: Callable[[S], int]

    def open(self, seed: int) -> PreparedData[S]:
        """Training and validation split.

        Args:
            seed: of the draw, at least 0.

        Raises:
            UsageError: on a negative seed.
        """
        sentences = generate(TRAIN + VALID + TEST, seed)
        train = self.read(sentences[:TRAIN], False)
        valid = self.read(sentences[TRAIN : TRAIN + VALID], True)
        tokenizer = _tokenizer()
        return PreparedData(
            name=NAME,
            train=train,
            valid=valid,
            digest=_digest(self.task, sentences[: TRAIN + VALID]),
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            longest=max(self.longest(train), self.longest(valid)),
        )

    def open_test(self, seed: int) -> S:
        """The test split; no sentence of it is in the others.

        Raises:
            UsageError: on a negative seed.
        """
        return self.read(generate(TRAIN + VALID + TEST, seed)[TRAIN + VALID :], True)


def _digest(task: str, sentences: list[Sentence]) -> str:
    lines = [f"{sentence.source} | {sentence.target}" for sentence in sentences]
    return hashlib.sha256("\n".join([task, *lines]).encode()).hexdigest()


def _tokenizer() -> WordTokenizer:
    return WordTokenizer(words())


def _pairs(sentences: list[Sentence], with_text: bool) -> PairSplit:
    tokenizer = _tokenizer()
    source = tuple(sentence.source for sentence in sentences)
    target = tuple(sentence.target for sentence in sentences)
    rows = (TokenRows.of(tokenizer.encode(source)), TokenRows.of(tokenizer.encode(target)))
    return PairSplit(*rows, source, target) if with_text else PairSplit(*rows)


def _stream(sentences: list[Sentence], _: bool) -> StreamSplit:
    lines = [sentence.text for sentence in sentences]
    rows = TokenRows.of([[*row, EOS] for row in _tokenizer().encode(lines)])
    num_words = sum(len(line.split()) for line in lines)
    return StreamSplit(rows, num_words, sum(map(len, lines)))


def _longest_side(split: PairSplit) -> int:
    return 1 + max(int(side.lengths.max()) for side in (split.source, split.target))


def _longest_line(split: StreamSplit) -> int:
    return int(split.rows.lengths.max())


SYNTHETIC_PAIRS = SyntheticForm("translation", _pairs, _longest_side)
SYNTHETIC_STREAM = SyntheticForm("language_modelling", _stream, _longest_line)

"""Tiny tasks of every kind, with sentences of the grammar and images of stripes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from search_spaces.architecture import Architecture
from search_spaces.loading import parse_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct
from supernet.building import build_supernet
from supernet.data.examples import SearchData, Split
from supernet.data.prepared import PairSplit, PreparedData, StreamSplit
from supernet.data.synthetic import generate, words
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import EOS, WordTokenizer
from supernet.extraction import Supernet
from supernet.tasks.base import Task
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translation import TranslationTask
from supernet.training_settings import TrainingSettings
from tests.support.pipeline_cases import TINY
from tests.support.trained_cases import LANGUAGE, TRANSLATION

TRAIN, VALID, TEST = 40, 12, 8
SEGMENT = 16
SPACES = {
    "classification": parse_space(TINY, "space"),
    "translation": parse_space(TRANSLATION, "space"),
    "language_modelling": parse_space(LANGUAGE, "space"),
}
KINDS = tuple(SPACES)
TEXTS = ("translation", "language_modelling")
each_kind = pytest.mark.parametrize("kind", KINDS)
SETTINGS = TrainingSettings(batch_size=16, max_tokens=128, segment_length=SEGMENT)
TOKENIZER = WordTokenizer(words())
SENTENCES = generate(TRAIN + VALID + TEST, 3)
PARTS = (slice(TRAIN), slice(TRAIN, TRAIN + VALID), slice(TRAIN + VALID, None))


def task_of(kind: str, opened: list[str] | None = None) -> Task[Any, Any]:
    """The tiny task of a kind; opening its test split is noted in `opened`."""
    make = {
        "classification": classification,
        "translation": translation,
        "language_modelling": language_modelling,
    }[kind]
    return make([] if opened is None else opened)


def classification(opened: list[str]) -> ClassificationTask:
    """Images whose bright half tells the class."""

    def split(count: int, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(2, (count,), generator=generator)
        images = torch.randn(count, 1, 8, 8, generator=generator)
        images[labels == 1, :, :4] += 3.0
        return Split(images, labels)

    def test() -> Split:
        opened.append("test")
        return split(TEST, 2)

    names = tuple(map(str, range(10)))
    data = SearchData("halves", split(TRAIN, 0), split(VALID, 1), 10, names, "digest", (0.0,))
    return ClassificationTask(data, test)


def translation(opened: list[str]) -> TranslationTask:
    """Sentences of the grammar and their translations."""

    def split(part: slice) -> PairSplit:
        source, target = (
            tuple(getattr(sentence, side) for sentence in SENTENCES[part])
            for side in ("source", "target")
        )
        rows = (TokenRows.of(TOKENIZER.encode(lines)) for lines in (source, target))
        return PairSplit(*rows, source, target)

    def test() -> PairSplit:
        opened.append("test")
        return split(PARTS[2])

    data = PreparedData("pairs", split(PARTS[0]), split(PARTS[1]), "digest", TOKENIZER, TOKENIZER)
    return TranslationTask(data, SPACES["translation"].model, test)


def language_modelling(opened: list[str]) -> LanguageModellingTask:
    """The translations' side, with its letters at both ends."""

    def split(part: slice) -> StreamSplit:
        lines = [sentence.text for sentence in SENTENCES[part]]
        rows = TokenRows.of([[*row, EOS] for row in TOKENIZER.encode(lines)])
        return StreamSplit(rows, sum(len(line.split()) for line in lines), len("".join(lines)))

    def test() -> StreamSplit:
        opened.append("test")
        return split(PARTS[2])

    data = PreparedData("text", split(PARTS[0]), split(PARTS[1]), "digest", TOKENIZER, TOKENIZER)
    return LanguageModellingTask(
        data,
        SPACES["language_modelling"].model,
        segment_length=SEGMENT,
        memory_length=0,
        open_test=test,
    )


def with_memory(text: str) -> str:
    """The language space with networks that remember earlier segments, or none."""
    for old, new in (
        ("num_layers = [1, 2]", "num_layers = [1, 2]\nmemory_length = [0, 5]"),
        ("head_dim = 4", 'head_dim = 4\nrelative_positions = 3\npositions = "none"'),
        ('self_attention = ["softmax", "linear"]', 'self_attention = ["softmax"]'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def networks_of(space: SearchSpace, count: int) -> list[Architecture]:
    """Some networks of a space, always the same."""
    return space.decode(sample_distinct(space, np.random.default_rng(1), count))


def supernet_of(space: SearchSpace, dropout: float = 0.0) -> Supernet:
    """The supernet of a space, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_supernet(space, dropout)


def first_batch(task: Task[Any, Any], settings: TrainingSettings = SETTINGS) -> Any:
    """What the first update of a training sees."""
    return next(iter(task.batches(settings, seed=0, epoch=0, device="cpu")))

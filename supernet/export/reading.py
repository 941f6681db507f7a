"""The tokenizer or the label names of a task, as files of an export."""

from __future__ import annotations

import json
from typing import Any

from search_spaces.settings import ImageInput, ModelSettings
from supernet.data.tokenizer import SentencePieceTokenizer, Tokenizer, WordTokenizer
from supernet.export.base import Reading
from supernet.tasks.base import Task
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translation import TranslationTask

READING_FILE = "reading.json"


def reading_of(task: Task[Any, Any], settings: ModelSettings) -> Reading:
    """How text or images become what networks of a task read; see `Reading`."""
    if isinstance(task, ClassificationTask):
        size = settings.input.image_size if isinstance(settings.input, ImageInput) else None
        facts = dict(task.reading) | ({} if size is None else {"image_size": size})
        return Reading(facts, labels=task.label_names)
    if isinstance(task, LanguageModellingTask):
        return _text_reading(task.tokenizer, task.tokenizer)
    assert isinstance(task, TranslationTask)
    return _text_reading(task.source_tokenizer, task.target_tokenizer)


def _text_reading(source: Tokenizer, target: Tokenizer) -> Reading:
    words = isinstance(source, WordTokenizer)
    kind, ending = ("words", "words.json") if words else ("sentencepiece", "model")
    names = ("source", "target") if source is not target else ("vocabulary", "vocabulary")
    sides = [f"{name}.{ending}" for name in names]
    files = dict(zip(sides, (_content(source), _content(target)), strict=True))
    facts = {"kind": kind, "source": sides[0], "target": sides[1]}
    return Reading({**facts, "num_words": target.vocab_size}, files)


def _content(tokenizer: Tokenizer) -> bytes:
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    assert isinstance(tokenizer, WordTokenizer), "a tokenizer that no export knows"
    return (json.dumps(list(tokenizer.symbols), ensure_ascii=False) + "\n").encode()

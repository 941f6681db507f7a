"""From a space and the name of its data to a `Task`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from search_spaces.errors import DataError
from search_spaces.loading import space_names
from search_spaces.settings import TokenInput
from search_spaces.space import SearchSpace
from supernet.data import synthetic
from supernet.data.examples import load_search_data, load_test_split
from supernet.data.prepared import (
    check_fits,
    open_language,
    open_language_test,
    open_translation,
    open_translation_test,
    pair_format,
)
from supernet.tasks.base import Task
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translation import TranslationTask

SYNTHETIC_SEED = 0  # as other data sets', its splits are the same in every run
LONGEST_PAIR = 256  # tokens that nas data prepare keeps by itself
SEGMENT_LENGTH = 128  # of a space whose workload names no length


def open_task(space: SearchSpace, dataset: str, path: str | None, seed: int) -> Task[Any, Any]:
    """Open the training and validation data of a search.

    Args:
        space: its task decides what the data have to be, its model what has to fit.
        dataset: name of the data; ``synthetic`` is generated. Not looked at when `path` is a
            folder.
        path: a folder made by ``nas data prepare`` or, for translation, ``fairseq-preprocess``; or
            a file; None for data that are built in.
        seed: of data that are drawn.

    Raises:
        DataError: when the data are missing, damaged or do not fit; where a folder has to be
            prepared, with the commands that do it.
        UnknownNameError: for a data set that is not there (classification).
    """
    match space.task:
        case "classification":
            data = load_search_data(dataset, path, space.model, seed)
            return ClassificationTask(
                data, lambda: load_test_split(dataset, path, space.model, seed)
            )
        case "translation":
            return _translation(space, dataset, path)
        case "language_modelling":
            return _language(space, dataset, path)


def _translation(space: SearchSpace, dataset: str, path: str | None) -> TranslationTask:
    if path is None and dataset == synthetic.NAME:
        made = synthetic.synthetic_translation(SYNTHETIC_SEED)
        check_fits(made, space.model)
        return TranslationTask(
            made, space.model, lambda: synthetic.synthetic_translation_test(SYNTHETIC_SEED)
        )
    folder = _folder(space, dataset, path)
    if form := pair_format(folder):
        found = form.open(folder, space)
        return TranslationTask(found, space.model, lambda: form.open_test(folder, space))
    data = open_translation(folder)
    check_fits(data, space.model)
    return TranslationTask(data, space.model, lambda: open_translation_test(folder))


def _language(space: SearchSpace, dataset: str, path: str | None) -> LanguageModellingTask:
    length = min(int(space.workload.get("source", SEGMENT_LENGTH)), space.model.max_length)
    memory = max(
        (int(c) for s in space.slots if s.gene == "memory_length" for c in s.choices), default=0
    )
    if path is None and dataset == synthetic.NAME:
        made = synthetic.synthetic_language(SYNTHETIC_SEED)
        check_fits(made, space.model)
        return LanguageModellingTask(
            made,
            space.model,
            length,
            memory,
            lambda: synthetic.synthetic_language_test(SYNTHETIC_SEED),
        )
    folder = _folder(space, dataset, path)
    data = open_language(folder)
    check_fits(data, space.model)
    return LanguageModellingTask(
        data, space.model, length, memory, lambda: open_language_test(folder)
    )


def _folder(space: SearchSpace, dataset: str, path: str | None) -> Path:
    """The prepared folder.

    Raises:
        DataError: when none is named.
    """
    if path is None:
        raise DataError(how_to_prepare(space, dataset))
    return Path(path).expanduser()


def how_to_prepare(space: SearchSpace, dataset: str) -> str:
    """What to type to get data for a space, with the numbers it needs."""
    folder = f"data/{dataset}"
    name = shlex.quote(space.name if space.name in space_names() else f"./{space.name}.toml")
    source, target = space.data.get("languages", ("en", "de"))
    files = {
        "translation": f"--source train.{source} --target train.{target} --valid valid.{source} "
        f"--valid valid.{target} --test test.{source} --test test.{target}",
        "language_modelling": "--source train.txt --valid valid.txt --test test.txt",
    }[space.task]
    return (
        f"the space {space.name} needs data, which are prepared once and then searched with:\n"
        f"  nas data prepare --task {space.task} {files} {_vocabulary(space)} --out {folder}\n"
        f"  nas search --space {name} --data {folder}\n"
        f"To try the space at once, on a generated corpus:\n"
        f"  nas search --space {name} --data synthetic --preset smoke"
    )


def _vocabulary(space: SearchSpace) -> str:
    """The options that make a vocabulary and rows the networks can read."""
    model = space.model
    assert isinstance(model.input, TokenInput)
    source, target = model.input.vocab_size, model.input.target_vocab_size
    if space.task == "language_modelling":
        return f"--vocab-size {source}"
    separate = "" if target is None or model.input.share_embeddings else "--separate "
    size = min(source, target or source)
    return f"{separate}--vocab-size {size} --max-length {min(model.max_length, LONGEST_PAIR)}"

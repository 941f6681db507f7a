"""From a space and the name of its data to a `Task`."""

from __future__ import annotations

from typing import Any

from search_spaces.space import SearchSpace
from search_spaces.tasks import TaskName
from supernet.tasks.base import Task
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.embedding import EmbeddingTask
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translation import TranslationTask

TASKS: dict[TaskName, type[Task[Any, Any]]] = {
    "classification": ClassificationTask,
    "translation": TranslationTask,
    "language_modelling": LanguageModellingTask,
    "embedding": EmbeddingTask,
}


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
    return TASKS[space.task].open(space, dataset, path, seed)

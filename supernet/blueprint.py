"""What a network is, apart from its weights, and its JSON form ``architecture.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from search_spaces.architecture import Architecture
from search_spaces.costs import params
from search_spaces.errors import DataError, SpaceFileError, UsageError
from search_spaces.loading import model_table
from search_spaces.settings import ModelSettings
from search_spaces.space_form import MAX_LAYERS, MAX_SIZE, model_from_source
from search_spaces.tasks import TASKS, TaskName
from search_spaces.toml.source import TomlSource, shown

ARCHITECTURE_FILE = "architecture.json"
FORMAT = 1
LONGEST = 500  # characters of what is wrong with a description


@dataclass(frozen=True, slots=True)
class TaskForm:
    """What exports of a task's networks consist of.

    Attributes:
        inputs: names of what a network is given.
        parts: of the folder ``template``, behind those of attention.
        call: how ``modeling.py`` is used.
        graphs: names of the graphs of ONNX.
        model_class: for transformers.
        marked: which end of a text the tokenizer marks there.
    """

    inputs: tuple[str, ...]
    parts: tuple[str, ...]
    call: str
    graphs: tuple[str, ...]
    model_class: str
    marked: str = "none"


TASK_FORMS: dict[TaskName, TaskForm] = {
    "classification": TaskForm(
        ("inputs",),
        ("layers", "encoder", "pooled", "classifier"),
        "logits = network(inputs)  # see reading.json for what inputs are",
        ("classifier",),
        "NasForClassification",
    ),
    "translation": TaskForm(
        ("source", "target"),
        ("layers", "encoder", "decoder", "translator"),
        "tokens = translate(network, [5, 6, 7])  # token numbers of one sentence",
        ("source", "step"),
        "NasForSeq2SeqLM",
        "eos",
    ),
    "language_modelling": TaskForm(
        ("tokens",),
        ("layers", "decoder", "language_model"),
        "tokens = continue_text(network, [1], count=20)  # 1 is a begin mark",
        ("step",),
        "NasForCausalLM",
        "bos",
    ),
    "embedding": TaskForm(
        ("tokens",),
        ("layers", "encoder", "pooled", "embedder"),
        "states, embeddings = network(tokens)  # (B, N), 0 is padding; see reading.json",
        ("embedder",),
        "NasForEmbedding",
    ),
}


@dataclass(frozen=True)
class Blueprint:
    """A network without its weights.

    Attributes:
        task: what it does.
        settings: what all networks of its space share.
        architecture: the network.
    """

    task: TaskName
    settings: ModelSettings
    architecture: Architecture

    @property
    def params(self) -> int:
        """Number of parameters; shared weights count once."""
        return params(self.settings, self.task, self.architecture)

    @property
    def max_tokens(self) -> int:
        """The most tokens of an input: a class token stands at a position, too."""
        return self.settings.max_length - self.settings.class_token

    @property
    def form(self) -> TaskForm:
        """What its exports consist of."""
        return TASK_FORMS[self.task]

    def to_json(self) -> dict[str, Any]:
        """The content of ``architecture.json``, which names every setting there is."""
        return {
            "format": FORMAT,
            "id": self.architecture.id,
            "task": self.task,
            "params": self.params,
            "architecture": self.architecture.to_json(),
            "model": model_table(self.settings, every=True),
        }

    @classmethod
    def from_json(cls, data: object, name: str = ARCHITECTURE_FILE) -> Self:
        """Read what `to_json` wrote; settings that were not there yet are as they were then.

        Args:
            data: the parsed JSON.
            name: what to call it in messages.

        Raises:
            DataError: naming what is missing or wrong.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise DataError(f"{name} is no description of an exported network of format {FORMAT}")
        task = data.get("task")
        if not isinstance(task, str) or task not in TASKS:
            raise DataError(f"{name}: task is {shown(task)}; there are {', '.join(TASKS)}")
        _check_bounds(name, data.get("architecture"))
        try:
            settings = model_from_source(TomlSource(name, {"model": data.get("model")}, {}), task)
            found = cls(task, settings, Architecture.from_json(data.get("architecture")))
            counted = found.params
        except SpaceFileError as error:  # which begins with the name
            raise DataError(str(error)[:LONGEST]) from error
        except UsageError as error:
            raise DataError(f"{name} describes no network: {str(error)[:LONGEST]}") from error
        for key, value in (("id", found.architecture.id), ("params", counted)):
            if data.get(key) != value:
                given = shown(data.get(key))
                raise DataError(f"{name}: {key} is {given}, but the network's is {value}")
        return found

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read ``architecture.json`` of a folder.

        Raises:
            DataError: when it is missing, no JSON, or describes no network.
        """
        file = folder / ARCHITECTURE_FILE
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{folder} holds no export: it has no {ARCHITECTURE_FILE}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        return cls.from_json(data, str(file))


def _check_bounds(name: str, architecture: object) -> None:
    """Refuse a network larger than a space file may ask for, before anything is made of it."""
    for stack in architecture.values() if isinstance(architecture, Mapping) else ():
        layers = stack.get("layers") if isinstance(stack, Mapping) else None
        if not isinstance(layers, list):
            continue  # refused elsewhere
        if len(layers) > MAX_LAYERS:
            raise DataError(f"{name}: {len(layers):,} layers; allowed are up to {MAX_LAYERS:,}")
        tables = [stack, *(layer for layer in layers if isinstance(layer, Mapping))]
        for key, value in (pair for table in tables for pair in table.items()):
            if isinstance(value, int) and value > MAX_SIZE:
                raise DataError(f"{name}: {shown(key)} is larger than {MAX_SIZE:,}, the most")

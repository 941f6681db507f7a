"""Real inputs, and what the run's model says about them: made, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.errors import DataError
from search_spaces.tasks import TaskName
from supernet.data.examples import batches
from supernet.data.prepared import StreamSplit
from supernet.data.text_batches import collate_pairs, stream_batches
from supernet.data.tokenizer import PAD
from supernet.export.base import INPUT_NAMES, Record
from supernet.export.blueprint import Blueprint
from supernet.export.tensors import read_tensors, write_tensors
from supernet.extraction import Supernet
from supernet.plan import decoder_of
from supernet.tasks.base import Task
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translation import TranslationTask

EXAMPLES = 4
SEGMENT = 32
INPUT, OUTPUT = "input.", "output."


@torch.inference_mode()
def make_record(task: Task[Any, Any], model: Supernet, blueprint: Blueprint) -> Record:
    """The first validation examples, and a model's logits for them.

    Args:
        task: with the run's data.
        model: of the run, supernet or retrained, on the CPU and in evaluation mode.
        blueprint: the network of the model.

    Raises:
        DataError: when there is too little validation text for the network's memory.
    """
    inputs = real_inputs(task, blueprint)
    given: list[Any] = list(inputs.values())
    context = [given.pop()] if "context" in inputs else []
    logits = model(*given, blueprint.architecture, *context)
    return Record(inputs, {"logits": logits.float()})


def real_inputs(task: Task[Any, Any], blueprint: Blueprint) -> dict[str, Tensor]:
    """The first validation examples, as a network of the task takes them; see `Record.inputs`."""
    if isinstance(task, ClassificationTask):
        batch = next(iter(batches(task.valid, EXAMPLES, seed=0, epoch=0, shuffle=False)))
        return {"inputs": batch.inputs}
    if isinstance(task, TranslationTask):
        pairs = collate_pairs(task.valid, np.arange(min(EXAMPLES, len(task.valid))))
        return {"source": pairs.source, "target": pairs.inputs}
    assert isinstance(task, LanguageModellingTask)
    length = min(SEGMENT, blueprint.settings.max_length)
    return _segments(task.valid, length, decoder_of(blueprint.architecture).memory_length)


def _segments(text: StreamSplit, length: int, memory: int) -> dict[str, Tensor]:
    """The first segments of a text that fill the memory with what stands before them."""
    parts = stream_batches(text, EXAMPLES * length, length, shuffle=False, context=memory or None)
    for batch in parts:
        if batch.context is None:
            return {"tokens": batch.inputs}
        if bool((batch.context != PAD).all()):
            return {"tokens": batch.inputs, "context": batch.context}
    raise DataError(
        f"the validation text has {len(text)} tokens, too few to check a memory of {memory}"
    )


def write_record(file: Path, record: Record) -> None:
    """Write a record to a file of tensors."""
    inputs = {INPUT + name: tensor for name, tensor in record.inputs.items()}
    write_tensors(file, inputs | {OUTPUT + name: t for name, t in record.outputs.items()})


def read_record(file: Path) -> Record:
    """Read a record.

    Raises:
        DataError: when the file is missing, damaged or holds no record.
    """
    tensors = read_tensors(file)
    parts = [
        {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}
        for kind in (INPUT, OUTPUT)
    ]
    known = parts[0].keys() <= set(INPUT_NAMES)
    if not known or not all(parts) or len(parts[0]) + len(parts[1]) != len(tensors):
        raise DataError(f"{file} holds no recorded inputs and outputs; export the network anew")
    return Record(*parts)


def fits_task(record: Record, task: TaskName) -> bool:
    """Whether a record's inputs are those of a task, and of kinds that its networks read."""
    names = {"classification": "inputs", "translation": "source target"}.get(task, "tokens")
    wanted = set(names.split())
    tokens = all(
        tensor.dtype == torch.int64 and tensor.dim() == 2
        for name, tensor in record.inputs.items()
        if name != "inputs"
    )
    return tokens and wanted <= record.inputs.keys() <= wanted | {"context"}

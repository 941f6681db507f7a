"""What every export holds besides its network: preprocessing, and reference outputs of real inputs.

Shapes: B examples, C channels or context, H height, W width, M source positions, N positions,
K classes, V target vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.errors import DataError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TaskName
from supernet.blueprint import TASK_FORMS, Blueprint
from supernet.data.checkpoint_tokenizer import CheckpointTokenizer
from supernet.data.examples import batches
from supernet.data.prepared import StreamSplit
from supernet.data.text_batches import collate_pairs, padded_rows, stream_batches
from supernet.data.tokenizer import PAD, SentencePieceTokenizer, Tokenizer, WordTokenizer
from supernet.export.weights import read_tensors, write_tensors
from supernet.extraction import Supernet
from supernet.plan import decoder_of
from supernet.pretrained.folder_files import VOCABULARY
from supernet.pretrained.padding import TOKENIZER_FILE
from supernet.tasks.base import Task
from supernet.tasks.classification import ClassificationTask
from supernet.tasks.embedding import EmbeddingTask
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translation import TranslationTask

READING_FILE = "reading.json"
INPUT_NAMES = ("inputs", "source", "target", "tokens", "context")
EXAMPLES = 4
SEGMENT = 32
INPUT, OUTPUT = "input.", "output."


@dataclass(frozen=True, eq=False, slots=True)
class Preprocessing:
    """How what a user has becomes what a network reads, and what its answers mean.

    Attributes:
        facts: for ``reading.json``. ``kind`` is ``sentencepiece`` or ``words`` (with ``source`` and
            ``target``, names of files, and ``num_words``, the tokens that the target's knows),
            ``images`` (with ``black`` and ``white``, the normalised
            values of the bytes 0 and 255 per channel, ``side``, to which pictures are made smaller
            first, and ``image_size``, to which those are enlarged bilinearly), ``bytes`` (token =
            byte + 1), ``symbols`` (with the list of them), ``numbers``, or ``tokenizer_json``, see
            `CheckpointTokenizer.facts`; where texts are embedded, with what `EmbeddingTask.reading`
            says too. ``max_tokens`` is where the data's texts were cut. ``padding`` is the token
            that is never written, None where each may be; without it that is 0.
        files: name → content of the tokenizer files.
        labels: names of the classes; empty where there are none.
    """

    facts: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    def most_tokens(self, blueprint: Blueprint) -> int:
        """The most tokens of a text: as many as the data have and the network reads."""
        return int(min(self.facts.get("max_tokens", blueprint.max_tokens), blueprint.max_tokens))


def preprocessing_of(task: Task[Any, Any], settings: ModelSettings) -> Preprocessing:
    """How text or images become what networks of a task read; see `Preprocessing`."""
    if isinstance(task, ClassificationTask):
        size = settings.input.image_size if isinstance(settings.input, ImageInput) else None
        facts = dict(task.reading) | ({} if size is None else {"image_size": size})
        files = {} if task.tokenizer is None else {TOKENIZER_FILE: task.tokenizer.content}
        return Preprocessing(facts, files, labels=task.label_names)
    if isinstance(task, EmbeddingTask):
        assert isinstance(task.tokenizer, CheckpointTokenizer), "vectors are a checkpoint's"
        facts = {**task.tokenizer.facts, **task.reading}
        return Preprocessing(facts, {TOKENIZER_FILE: task.tokenizer.content})
    if isinstance(task, LanguageModellingTask):
        return _text_preprocessing(task.tokenizer, task.tokenizer)
    assert isinstance(task, TranslationTask)
    return _text_preprocessing(task.source_tokenizer, task.target_tokenizer)


def _text_preprocessing(source: Tokenizer, target: Tokenizer) -> Preprocessing:
    if isinstance(source, CheckpointTokenizer):
        facts = {**source.facts, "target": TOKENIZER_FILE, "num_words": source.vocab_size}
        return Preprocessing(facts, {TOKENIZER_FILE: source.content})
    words = isinstance(source, WordTokenizer)
    kind, ending = ("words", "words.json") if words else ("sentencepiece", "model")
    names = ("source", "target") if source is not target else (VOCABULARY, VOCABULARY)
    sides = [f"{name}.{ending}" for name in names]
    files = dict(zip(sides, (_content(source), _content(target)), strict=True))
    facts = {"kind": kind, "source": sides[0], "target": sides[1]}
    return Preprocessing({**facts, "num_words": target.vocab_size}, files)


def _content(tokenizer: Tokenizer) -> bytes:
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    assert isinstance(tokenizer, WordTokenizer), "a tokenizer that no export knows"
    return (json.dumps(list(tokenizer.symbols), ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True, eq=False, slots=True)
class ReferenceOutputs:
    """Real inputs, and what the run's model says about them.

    Attributes:
        inputs: by the task, tokens padded with 0: classification ``inputs`` ``(B, C, H, W)`` or
            ``(B, N)``; translation ``source`` ``(B, M)`` and ``target`` ``(B, N)``, from the begin
            mark on; embeddings ``tokens`` ``(B, N)``; language models ``tokens`` ``(B, N)``, and
            ``context`` ``(B, C)`` where the network has a memory.
        outputs: ``logits``: ``(B, K)`` for classes, else ``(B, N, V)`` for what follows each token.
            Of embeddings ``last_hidden_state`` ``(B, N, D)``, 0 at padding, and
            ``sentence_embedding`` ``(B, D)``.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The inputs in the order in which networks on their own take them."""
        return tuple(self.inputs[name] for name in INPUT_NAMES if name in self.inputs)

    def named(self, found: Tensor | tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """What a network answers to the inputs, by the names of `outputs`, in fp32."""
        if isinstance(found, Tensor):
            return {"logits": found.float()}
        padding_BN1 = (self.inputs["tokens"] == PAD).unsqueeze(-1)
        states = found[0].float().masked_fill(padding_BN1, 0.0)
        return {"last_hidden_state": states, "sentence_embedding": found[1].float()}

    def difference(self, found: Mapping[str, Tensor]) -> float:
        """The largest absolute difference of any number of the outputs; infinite if one is NaN.

        Raises:
            DataError: when an output is missing or of another shape.
        """
        largest = 0.0
        for name, expected in self.outputs.items():
            if name not in found or found[name].shape != expected.shape:
                shape = tuple(found[name].shape) if name in found else "nothing"
                raise DataError(
                    f"the check expects {name} of the shape {tuple(expected.shape)}, found {shape}"
                )
            if not expected.numel():
                continue
            apart = float((found[name].double() - expected.double()).abs().max())
            largest = max(largest, apart) if apart == apart else float("inf")
        return largest


@torch.inference_mode()
def reference_outputs(
    task: Task[Any, Any], model: Supernet, blueprint: Blueprint
) -> ReferenceOutputs:
    """The first validation examples, and a model's outputs for them.

    Args:
        task: with the run's data.
        model: of the run, supernet or retrained, on the CPU and in evaluation mode.
        blueprint: the network of the model.

    Raises:
        DataError: when there is too little validation text for the network's memory.
    """
    inputs = real_inputs(task, blueprint)
    recorded = ReferenceOutputs(inputs, {})
    given: list[Any] = list(inputs.values())
    context = [given.pop()] if "context" in inputs else []
    found = model(*given, blueprint.architecture, *context)
    return replace(recorded, outputs=recorded.named(found))


def real_inputs(task: Task[Any, Any], blueprint: Blueprint) -> dict[str, Tensor]:
    """The first validation examples, as a network of the task takes them; by name."""
    if isinstance(task, ClassificationTask):
        batch = next(iter(batches(task.valid, EXAMPLES, seed=0, epoch=0, shuffle=False)))
        return {"inputs": batch.inputs}
    if isinstance(task, EmbeddingTask):
        rows = np.arange(min(EXAMPLES, len(task.valid)))
        return {"tokens": padded_rows(task.valid.texts, rows)}
    if isinstance(task, TranslationTask):
        pairs = collate_pairs(task.valid, np.arange(min(EXAMPLES, len(task.valid))))
        return {"source": pairs.source, "target": pairs.inputs}
    assert isinstance(task, LanguageModellingTask)
    length = min(SEGMENT, blueprint.settings.max_length)
    return _segments(task.valid, length, decoder_of(blueprint.architecture).memory_length)


def _segments(text: StreamSplit, length: int, memory: int) -> dict[str, Tensor]:
    """The first segments of a text that fill the memory with what stands before them."""
    most = EXAMPLES * text.longest_segment(length)
    parts = stream_batches(text, most, length, shuffle=False, context=memory or None)
    for batch in parts:
        if batch.context is None:
            return {"tokens": batch.inputs}
        if bool((batch.context != PAD).all()):
            return {"tokens": batch.inputs, "context": batch.context}
    raise DataError(
        f"the validation text has {len(text)} tokens, too few to check a memory of {memory}"
    )


def write_reference(file: Path, reference: ReferenceOutputs) -> None:
    """Write a reference to a file of tensors."""
    inputs = {INPUT + name: tensor for name, tensor in reference.inputs.items()}
    write_tensors(file, inputs | {OUTPUT + name: t for name, t in reference.outputs.items()})


def read_reference(file: Path) -> ReferenceOutputs:
    """Read a reference.

    Raises:
        DataError: when the file is missing, damaged or holds no reference.
    """
    tensors = read_tensors(file)
    parts = [
        {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}
        for kind in (INPUT, OUTPUT)
    ]
    known = parts[0].keys() <= set(INPUT_NAMES)
    if not known or not all(parts) or len(parts[0]) + len(parts[1]) != len(tensors):
        raise DataError(f"{file} holds no recorded inputs and outputs; export the network anew")
    return ReferenceOutputs(*parts)


def fits_task(reference: ReferenceOutputs, task: TaskName) -> bool:
    """Whether a reference's inputs are those of a task, and of kinds that its networks read."""
    wanted = set(TASK_FORMS[task].inputs)
    tokens = all(
        tensor.dtype == torch.int64 and tensor.dim() == 2
        for name, tensor in reference.inputs.items()
        if name != "inputs"
    )
    return tokens and wanted <= reference.inputs.keys() <= wanted | {"context"}

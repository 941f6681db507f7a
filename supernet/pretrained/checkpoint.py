"""A checkpoint: what a folder of Hugging Face's form holds, as settings, architecture and weights.

`read_checkpoint` looks at everything but the numbers: settings, names, shapes and types of tensors,
tokenizer. `Checkpoint.network` reads those, `Checkpoint.check_weights` looks through them. Nothing
is written, and nothing in a folder is run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError, DataError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TaskName
from search_spaces.toml.source import shown
from supernet.blueprint import ARCHITECTURE_FILE
from supernet.extraction import StandAlone
from supernet.pretrained.config import Config
from supernet.pretrained.families import FAMILIES, KNOWN
from supernet.pretrained.families.base import Family
from supernet.pretrained.families.own import OWN_MODEL_TYPE
from supernet.pretrained.folder_files import (
    VOCABULARY_MODEL,
    says_how_to_write,
    tokenizer_files,
)
from supernet.pretrained.json_files import read_object, refuse_code
from supernet.pretrained.names import NamePair
from supernet.pretrained.padding import TOKENIZER_FILE, exchanged, padding_of
from supernet.pretrained.sentences import SentenceModules, read_sentence_modules
from supernet.pretrained.shapes import bare_network, parameter_shapes
from supernet.pretrained.tensors import (
    StoredTensor,
    check_numbers,
    check_types,
    equal_numbers,
    read_tensors,
    stored_tensors,
)

CONFIG_FILE = "config.json"
# Of tables of older writers, whose layer norms had a gamma and a beta.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
OUTPUT = "lm_head.weight"


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds, apart from the numbers of its weights.

    Attributes:
        folder: where it is.
        family: ``model_type``, for example ``llama``.
        task: what its network does; ``embedding`` is an encoder without a classifier.
        settings: of its network, and of a space around it.
        architecture: its network.
        config: the content of ``config.json``.
        tensors: those of the folder, by their names there.
        tokenizer_files: with which inputs are made, relative to the folder.
        sentence: how embeddings are made of states, in folders of sentence-transformers.
        padding: its number in the tokenizer of an encoder of texts, with which 0 changes places.
    """

    folder: Path
    family: str
    task: TaskName
    settings: ModelSettings
    architecture: Architecture
    config: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    tokenizer_files: tuple[str, ...]
    sentence: SentenceModules | None
    padding: int

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order; empty where there are none."""
        names = self.config.get("id2label")
        if self.task != "classification" or not isinstance(names, dict):
            return ()
        return tuple(str(names.get(str(n), f"class {n}")) for n in range(len(names)))

    def network(self) -> StandAlone:
        """The network with the checkpoint's weights, on the CPU, in fp32, in evaluation mode.

        Raises:
            DataError: for a damaged file, and for a weight that is no finite number.
        """
        network = bare_network(self.task, self.settings, self.architecture)
        network.network.load_state_dict(self.weights(), assign=True)
        return network.eval()

    def weights(self) -> dict[str, Tensor]:
        """The parameters of `network` by their names in ``network.network``, in fp32.

        Raises:
            DataError: as `network`.
        """
        family = KNOWN[self.family]
        pairs = {pair.theirs: pair for pair in family.pairs(self.settings, self.architecture)}
        shapes = parameter_shapes(self.task, self.settings, self.architecture)
        found: dict[str, Tensor] = {}
        for name, tensor in read_tensors(self._read(pairs)):
            found |= dict(pairs[name].to_ours(tensor, shapes))
        self.check_output()
        return exchanged(found, self.padding)

    def check_weights(self) -> None:
        """See that all weights are finite numbers, without holding them; and `check_output`.

        Raises:
            DataError: for a damaged file, and for a weight that is no finite number.
        """
        pairs = KNOWN[self.family].pairs(self.settings, self.architecture)
        check_numbers(self._read({pair.theirs for pair in pairs}))
        check_numbers(self.carried())
        self.check_output()

    def carried(self) -> dict[str, StoredTensor]:
        """Tensors that change no output, but that the family's library looks for."""
        family = KNOWN[self.family]
        named = {
            name.removeprefix(family.base): tensor
            for name, tensor in named_tensors(family, self.tensors).items()
        }
        return {n: t for n, t in named.items() if any(re.fullmatch(p, n) for p in family.carried)}

    def check_output(self) -> None:
        """See that an output layer which is tied to the embeddings, if stored as well, is they.

        Raises:
            DataError: when it is not, for then nobody knows which of the two is meant.
        """
        family = KNOWN[self.family]
        known = named_tensors(family, self.tensors)
        if not _has_tied_output(self.task, self.settings) or OUTPUT not in known:
            return
        pairs = family.pairs(self.settings, self.architecture)
        table = next(pair.theirs for pair in pairs if pair.ours == ("tables.0.weight",))
        if not equal_numbers(known[OUTPUT], known[table]):
            raise DataError(
                f"{self.folder} says tie_word_embeddings, but its {OUTPUT} differs from its "
                "embeddings: set tie_word_embeddings to what the network was trained with"
            )

    def _read(self, names: Collection[str]) -> dict[str, StoredTensor]:
        """The tensors of these names in the family's table."""
        known = named_tensors(KNOWN[self.family], self.tensors)
        return {name: known[name] for name in names}


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Look at a folder of Hugging Face's form.

    Args:
        folder: with ``config.json``, safetensors in one file or in shards with their index and,
            for texts, a tokenizer; a folder of sentence-transformers has ``modules.json`` too.

    Raises:
        DataError: when something is missing, damaged, asks for code, or is not known here; the
            sentence names it.
        UsageError: when safetensors is not installed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: give the folder that holds {CONFIG_FILE}")
    file = folder / CONFIG_FILE
    if not file.is_file() and (folder / ARCHITECTURE_FILE).is_file():
        raise DataError(
            f"{folder} is an export of another form: export the network again with --format "
            "huggingface, which a search begins with"
        )
    values = read_object(file)
    own = values.get("model_type") == OWN_MODEL_TYPE
    if not own:  # of which nothing is run, either
        refuse_code(file, values)
    family = _family(file, values)
    config = Config(file, values)
    try:
        settings, architecture = family.read(config)
    except ArchitectureError as error:
        raise DataError(f"{file} describes no network: {error}") from error
    config.finish()
    task = family.task_of(settings, architecture)
    sentence = read_sentence_modules(folder)
    if task == "embedding":
        settings = pooled_settings(settings, sentence)
    elif sentence is not None:
        raise DataError(
            f"{folder} makes embeddings of texts (modules.json) with a network of the family "
            f"{family.model_type}; known for that is bert"
        )
    if (problem := settings.problem()) is not None:
        raise DataError(f"{file} describes no network: {problem}")
    tensors = stored_tensors(folder)
    _check_tensors(folder, family, task, settings, architecture, tensors)
    rows = None if isinstance(settings.input, ImageInput) else settings.input.vocab_size
    if (
        own and not (folder / TOKENIZER_FILE).is_file()
    ):  # of transformers; its settings ask for code
        names = tuple(name for name in (VOCABULARY_MODEL,) if (folder / name).is_file())
    else:
        names = tokenizer_files(folder, rows)
    return Checkpoint(
        folder=folder,
        family=family.model_type,
        task=task,
        settings=settings,
        architecture=architecture,
        config=values,
        tensors=tensors,
        tokenizer_files=names,
        sentence=sentence,
        padding=padding_of(folder) if task == "embedding" else 0,
    )


def checkpoint_digest(checkpoint: Checkpoint) -> str:
    """sha256 of a checkpoint: configuration, weights, and how inputs are read and pooled.

    How a language model writes (``generation_config.json``, ``chat_template.jinja``) is no part.
    """
    digest = hashlib.sha256()
    weights = {tensor.file for tensor in checkpoint.tensors.values()}
    pooling = () if checkpoint.sentence is None else checkpoint.sentence.files
    names = {name for name in checkpoint.tokenizer_files if not says_how_to_write(name)}
    reading = [checkpoint.folder / name for name in sorted(names.union(pooling))]
    for file in (checkpoint.folder / CONFIG_FILE, *sorted(weights), *reading):
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def named_tensors(family: Family, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors under the names of the family's table, which a bare model's folder shortens."""
    whole = any(name.startswith(family.base) for name in tensors)
    named = {}
    for name, tensor in tensors.items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        head = whole or name == OUTPUT
        named[name if head else f"{family.base}{name}"] = tensor
    return named


def _family(file: Path, values: Mapping[str, Any]) -> Family:
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in KNOWN:
        raise DataError(
            f"{file}: model_type is {shown(kind)}; known families are {', '.join(FAMILIES)}, and "
            "exports of runs"
        )
    family, classes = KNOWN[kind], values.get("architectures")
    if classes:
        listed = isinstance(classes, list)
        if not listed or any(one not in family.classes for one in classes):
            raise DataError(
                f"{file}: architectures is {shown(classes)}; of the family {kind} known are "
                f"{', '.join(family.classes)}"
            )
    return family


def pooled_settings(settings: ModelSettings, sentence: SentenceModules | None) -> ModelSettings:
    """The settings of an encoder with the pooling of its folder; without one it is the mean."""
    if sentence is None:
        return settings
    return replace(settings, pooling=sentence.pooling, unit_length=sentence.unit_length)


def _check_tensors(
    folder: Path,
    family: Family,
    task: TaskName,
    settings: ModelSettings,
    architecture: Architecture,
    tensors: Mapping[str, StoredTensor],
) -> None:
    """See that all tensors are there, have their shapes, and that none is of no use known here."""
    depth = len((architecture.decoder or architecture.encoder).layers)  # type: ignore[union-attr]
    if depth > len(tensors):  # before anything is built: a layer has several
        raise DataError(f"{folder} has {len(tensors)} tensors, too few for {depth} layers")
    pairs: list[NamePair] = list(family.pairs(settings, architecture))
    try:
        shapes = parameter_shapes(task, settings, architecture)
    except DataError as error:
        raise DataError(f"{folder / CONFIG_FILE} describes no network: {error}") from error
    assert sorted(shapes) == sorted(name for pair in pairs for name in pair.ours)
    named = named_tensors(family, tensors)
    for pair in pairs:
        tensor = named.get(pair.theirs)
        if tensor is None:
            why = "it is not whole, or the two are of different networks"
            bare = all(name.startswith(family.base) for name in named)
            if bare and not pair.theirs.startswith(family.base):
                why = f"it was saved without its output layer; {family.classes[0]} has it"
            raise DataError(
                f"{folder} has no tensor {pair.theirs}, which its {CONFIG_FILE} asks for: {why}"
            )
        right = pair.their_shape(shapes)
        if tensor.shape != right:
            raise DataError(
                f"{tensor.file}: {tensor.name} is {tensor.shape}, but by {CONFIG_FILE} it is "
                f"{right}: the two are of different networks"
            )
    known = {pair.theirs for pair in pairs}
    check_types(named[name] for name in known)
    for name, tensor in named.items():
        tied = name == OUTPUT and _has_tied_output(task, settings)
        if name not in known and not tied and not _unused(family, name):
            raise DataError(
                f"{tensor.file} has the tensor {tensor.name}, which is not known of the family "
                f"{family.model_type}: outputs could depend on it"
            )


def _has_tied_output(task: TaskName, settings: ModelSettings) -> bool:
    return task == "language_modelling" and settings.tied_output


def _unused(family: Family, name: str) -> bool:
    return family.is_unused(name) or family.is_unused(name.removeprefix(family.base))

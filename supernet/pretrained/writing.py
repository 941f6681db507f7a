"""Networks that transformers has itself, as folders that it loads without any code of ours.

What a folder's configuration cannot say is refused: a configuration is written, read again, and has
to describe the same network.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError, DataError, UsageError
from search_spaces.files import building_folder, write_json
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName
from supernet.extraction import StandAlone
from supernet.pretrained.checkpoint import (
    CONFIG_FILE,
    Checkpoint,
    pooled_settings,
    read_checkpoint,
)
from supernet.pretrained.config import Config
from supernet.pretrained.families import FAMILIES
from supernet.pretrained.families.base import (
    Sizes,
    StockFamily,
    differing,
    network_task,
    sizes_of,
)
from supernet.pretrained.folder_files import WEIGHTS_FILE
from supernet.pretrained.json_files import read_object
from supernet.pretrained.padding import exchanged
from supernet.pretrained.sentences import LENGTH_FILE, TOKENIZER_SETTINGS
from supernet.pretrained.tensors import read_tensors

OWN = re.compile(r"projections\.[^.]+")
# Of older writers, whose facts stand in other keys now; and a list of the origin's layers, which a
# family that needs one writes anew.
REPLACED = (
    "torch_dtype",
    "rope_scaling",
    "auto_map",
    "num_labels",
    "_name_or_path",
    "layer_types",
)


def stock_problem(
    family: str,
    task: TaskName | None,
    settings: ModelSettings,
    architecture: Architecture,
    origin: Checkpoint | None = None,
) -> str | None:
    """Why a family has no such network, as half a sentence; None when it has.

    Args:
        family: ``model_type``.
        task: what the network does.
        settings: of its space.
        architecture: its sizes and kinds of attention.
        origin: the checkpoint that it comes from, whose other settings and pooling it keeps.
    """
    if family not in FAMILIES:
        return "the checkpoint is an export that brings its code itself"
    found = FAMILIES[family]
    if task != found.task:
        return f"{family} is of the task {found.task}, not {task}"
    sizes = sizes_of(architecture)
    if isinstance(sizes, str):
        return sizes
    if settings.head_dim is None:
        return "the width of its heads comes from their number (qkv_dim)"
    if (problem := found.problem(settings, sizes)) is not None:
        return problem
    config = Config(Path(CONFIG_FILE), _config(found, settings, sizes, origin))
    try:
        said, described = found.read(config)
    except (DataError, ArchitectureError) as error:
        return f"its configuration would be wrong: {error}"
    if found.task == "embedding":
        said = pooled_settings(said, None if origin is None else origin.sentence)
    if names := differing(settings, said):
        return f"{family} has other settings: {', '.join(names)}"
    return None if described == architecture else f"{family} has other layers"


def write_checkpoint(
    folder: str | Path,
    network: StandAlone,
    family: str,
    origin: Checkpoint | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Write a network as its family writes it, in fp32 and in one file of weights.

    Args:
        folder: new or empty; it is there in full or not at all.
        network: on its own; its layers may have softmax and, where the family knows them, windows.
        family: ``model_type``.
        origin: the checkpoint it comes from: its tokenizer, its pooling, names of its classes and
            those of its settings that do not depend on sizes go along.
        labels: names of the classes, in place of those of the origin.

    Raises:
        UsageError: when the family has no such network, or the folder holds something.
        DataError: when a file of the origin is gone.
    """
    folder = Path(folder)
    settings, architecture = network.network.settings, network.architecture
    if origin is not None and origin.family != family:
        raise UsageError(
            f"the checkpoint is of the family {origin.family}, not {family}: name that one"
        )
    problem = stock_problem(family, network_task(network), settings, architecture, origin)
    if problem is not None:
        raise UsageError(
            f"transformers has no such network without code of ours: {problem}; export it with "
            "--format huggingface, which brings the code along"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} holds something already: give a new folder")
    found, sizes = FAMILIES[family], sizes_of(architecture)
    assert isinstance(sizes, Sizes)
    with building_folder(folder) as place:
        write_json(place / CONFIG_FILE, _config(found, settings, sizes, origin, labels))
        tensors = their_tensors(found, network, 0 if origin is None else origin.padding)
        if origin is not None:
            tensors |= _carried(origin, sizes)
            copy_files(origin, origin.tokenizer_files, place)
            copy_pooling(origin, sizes.embed_dim, place)
            if settings.max_length < origin.settings.max_length:
                shorten(place, settings.max_length)
        _save(place / WEIGHTS_FILE, tensors)
        _check(place, network)


def shorten(place: Path, most: int) -> None:
    """Let nothing that was copied ask for longer texts than the network has positions for.

    Args:
        place: of the files.
        most: tokens.
    """
    lengths = ((LENGTH_FILE, "max_seq_length"), (TOKENIZER_SETTINGS, "model_max_length"))
    for file, key in ((place / name, key) for name, key in lengths):
        values = read_object(file) if file.is_file() else {}
        if isinstance(values.get(key), int) and values[key] > most:
            write_json(file, {**values, key: most})


def their_tensors(family: StockFamily, network: StandAlone, padding: int) -> dict[str, Tensor]:
    """The weights of a network by the names of the class that a family writes.

    Args:
        family: which writes.
        network: in our numbers of tokens.
        padding: its number in the family's, see `supernet.pretrained.padding`.
    """
    state = network.network.state_dict()
    parameters = exchanged({name: t.detach().cpu().float() for name, t in state.items()}, padding)
    pairs = family.pairs(network.network.settings, network.architecture)
    bare = family.classes[0].endswith("Model")
    return {
        pair.theirs.removeprefix(family.base) if bare else pair.theirs: pair.to_theirs(parameters)
        for pair in pairs
    }


def _config(
    family: StockFamily,
    settings: ModelSettings,
    sizes: Sizes,
    origin: Checkpoint | None,
    labels: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of ``config.json``."""
    marks = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    before = marks if origin is None else origin.config
    values = {key: value for key, value in before.items() if key not in REPLACED}
    values |= {
        "model_type": family.model_type,
        "architectures": [family.classes[0]],
        "dtype": "float32",
        **family.sized(settings, sizes),
    }
    count = settings.num_classes
    if labels or (count is not None and len(values.get("id2label") or ()) != count):
        names = labels or [f"class {number}" for number in range(count or 0)]
        values["id2label"] = {str(number): name for number, name in enumerate(names)}
        values["label2id"] = {name: number for number, name in enumerate(names)}
    return values


def _carried(origin: Checkpoint, sizes: Sizes) -> dict[str, Tensor]:
    """Tensors of the origin that change no output, where the network is as wide."""
    found = origin.carried().items()
    return dict(read_tensors({n: t for n, t in found if set(t.shape) == {sizes.embed_dim}}))


def copy_pooling(origin: Checkpoint, width: int, place: Path) -> None:
    """Copy what sentence-transformers reads, for embeddings of that width; nothing without it.

    Raises:
        DataError: when a file of the origin is gone.
    """
    names = origin.sentence.files if origin.sentence else ()
    copy_files(origin, names, place)
    for file in (place / name for name in names if "/" in name):
        values = json.loads(file.read_text(encoding="utf-8"))
        if "word_embedding_dimension" in values:
            write_json(file, {**values, "word_embedding_dimension": width})


def copy_files(origin: Checkpoint, names: Iterable[str], place: Path) -> None:
    """Copy files of a checkpoint, named relative to it.

    Raises:
        DataError: when one is gone.
    """
    for name in names:
        target = place / name
        target.parent.mkdir(exist_ok=True)
        try:
            shutil.copyfile(origin.folder / name, target)
        except FileNotFoundError:
            raise DataError(f"{origin.folder / name} is gone: give a whole checkpoint") from None


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, file, metadata={"format": "pt"})


def _check(place: Path, network: StandAlone) -> None:
    """See that what was written is the network, to the last bit."""
    again = read_checkpoint(place)
    weights = again.weights()  # whose names know nothing of weights that each kind has for itself
    own = {OWN.sub("projections.shared", n): t for n, t in network.network.state_dict().items()}
    same = again.architecture == network.architecture and weights.keys() == own.keys()
    if not same or not all(torch.equal(weights[n], own[n].cpu().float()) for n in own):
        raise DataError(f"{place} does not read as the network that was written: try another disk")

"""Networks of a checkpoint's own family: a folder that transformers loads without code of ours.

A search that began with a checkpoint often ends with a network that its family has itself, only
smaller. Such a network is written as the checkpoint was, with its tokenizer and its pooling.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from search_spaces.errors import DataError
from supernet.blueprint import Blueprint
from supernet.export.contents import ReferenceOutputs
from supernet.export.formats import ExportSource
from supernet.export.usage import CODE, answer_lines
from supernet.pretrained.checkpoint import CONFIG_FILE, Checkpoint, read_checkpoint
from supernet.pretrained.families import FAMILIES
from supernet.pretrained.json_files import read_object
from supernet.pretrained.writing import shorten, stock_problem, write_checkpoint


def missing_in_family(origin: Checkpoint, blueprint: Blueprint) -> str | None:
    """Why a checkpoint's family has no such network, as half a sentence; None when it has."""
    return stock_problem(
        origin.family, origin.task, blueprint.settings, blueprint.architecture, origin
    )


def write_stock(source: ExportSource, folder: Path) -> list[str]:
    """Write a network as its checkpoint was written, in place of what stands there by those names.

    Args:
        source: with an origin whose family has the network.
        folder: exists.

    Returns:
        Names of the files written, relative to the folder.

    Raises:
        DataError: when a file of the origin is gone.
    """
    origin, place = source.origin, folder / "checkpoint"
    assert origin is not None
    labels = source.preprocessing.labels
    write_checkpoint(place, source.network, origin.family, origin, labels)
    if origin.sentence is not None:  # which says where texts are cut
        shorten(place, source.preprocessing.most_tokens(source.blueprint))
    files = sorted(file.relative_to(place) for file in place.rglob("*") if file.is_file())
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (place / file).replace(folder / file)
    shutil.rmtree(place)
    return [file.as_posix() for file in files]


def is_stock(folder: Path) -> bool:
    """Whether a folder is of a family of transformers, and not of code that lies beside it.

    Raises:
        DataError: when its ``config.json`` is missing or damaged.
    """
    return read_object(folder / CONFIG_FILE).get("model_type") in FAMILIES


@torch.inference_mode()
def stock_difference(folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
    """How far the network of a folder of `write_stock` is from the reference.

    Raises:
        DataError: when the folder holds another network, or is damaged.
    """
    found = read_checkpoint(folder)
    if found.architecture != blueprint.architecture:
        raise DataError(
            f"{folder / CONFIG_FILE} describes another network than the export's; export the "
            "network anew"
        )
    return reference.difference(reference.named(found.network()(*reference.arguments)))


def stock_usage(source: ExportSource, auto: str) -> str:
    """How to use the folder, in Markdown, for the model card.

    Args:
        source: with an origin whose family has the network.
        auto: class of transformers that loads the folder.
    """
    assert source.origin is not None
    if source.origin.sentence is not None:
        lines = SENTENCES
        sentence = source.origin.sentence
        if sentence.by_role and sentence.prompt:  # others the library puts there by itself
            prompt = json.dumps(sentence.prompt, ensure_ascii=False)
            lines = lines.replace('["a text"]', f'["a text"], prompt={prompt}')
    elif source.blueprint.task == "embedding":
        lines = MEANS
    else:
        lines = answer_lines(source, "transformers", auto).replace(CODE, "")
    return f"{NEEDS}\n\n{lines}"


NEEDS = (
    "Needs torch, transformers and safetensors, and what else the lines import; no code comes with "
    "the folder. Tokenizer and settings are the checkpoint's own, and so is the pooling where it "
    "has one. From raw input to the answer, in this folder:"
)
MEANS = """\
```python
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

model, tokenizer = (one.from_pretrained(Path.cwd()) for one in (AutoModel, AutoTokenizer))
states = model(**tokenizer(["a text"], return_tensors="pt")).last_hidden_state
print(states[0].mean(dim=0).tolist())
```"""
SENTENCES = """\
```python
from pathlib import Path

from sentence_transformers import SentenceTransformer

model = SentenceTransformer(str(Path.cwd()))
print(model.encode(["a text"])[0].tolist())
```"""

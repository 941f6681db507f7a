"""A folder that ``AutoModel….from_pretrained`` loads: of the library's own kinds, or with code.

A network that the family of its checkpoint has itself is written as that family writes it, see
`supernet.export.stock`. Every other one is loaded with ``trust_remote_code=True``.

Beside the network there are three small files of Python: the model as transformers knows
models, its configuration, and a tokenizer. They import torch, transformers and, where the tokenizer
is one of sentencepiece, that. That of a checkpoint is its ``tokenizer.json``, without code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from search_spaces.errors import DataError
from search_spaces.files import write_atomically, write_json
from search_spaces.settings import ImageInput
from search_spaces.tasks import TASKS
from supernet.beam_search import BeamSettings
from supernet.blueprint import Blueprint
from supernet.data.checkpoint_tokenizer import KIND as CHECKPOINT
from supernet.data.tokenizer import BOS, EOS, PAD
from supernet.export.contents import Preprocessing, ReferenceOutputs
from supernet.export.formats import ExportFormat, ExportSource
from supernet.export.standalone import (
    TEMPLATE,
    generated_difference,
    is_as_written,
    joined_parts,
    network_source,
    weights_difference,
)
from supernet.export.stock import (
    is_stock,
    missing_in_family,
    stock_difference,
    stock_usage,
    write_stock,
)
from supernet.export.usage import answer_lines
from supernet.export.weights import plain_weights, read_tensors, write_tensors
from supernet.pretrained.checkpoint import Checkpoint
from supernet.pretrained.families.own import OWN_MODEL_TYPE, PREFIX
from supernet.pretrained.folder_files import WEIGHTS_FILE, says_how_to_write
from supernet.pretrained.json_files import read_object
from supernet.pretrained.sentences import TOKENIZER_SETTINGS
from supernet.pretrained.writing import copy_files, copy_pooling, shorten

NETWORK_FILE = "network.py"
GENERATION_FILE = "generation_config.json"
MODEL_PARTS = {
    "AutoModelForImageClassification": "hf_image_classifier",
    "AutoModelForSequenceClassification": "hf_token_classifier",
    "AutoModelForSeq2SeqLM": "hf_translator",
    "AutoModelForCausalLM": "hf_language_model",
    "AutoModel": "hf_embedder",
}
BARE, BARE_TASKS = "NasModel", ("classification", "language_modelling")
"""What ``AutoModel`` loads, and the tasks of networks that have more than that."""
VOCABULARY_PARTS = {
    "sentencepiece": "hf_pieces",
    "words": "hf_words",
    "symbols": "hf_words",
    "bytes": "hf_bytes",
}
# Where a part is in the folder, whose modules are neighbours.
NEIGHBOURS = (
    (re.compile(r"supernet\.export\.template\.hf_config"), ".configuration_nas"),
    (
        re.compile(
            r"supernet\.export\.template\.(classifier|decoder|embedder|language_model|translator)\b"
        ),
        ".network",
    ),
)
SYMBOLS_FILE = "symbols.json"
# What a checkpoint's settings of writing say of its own positions, caches and writer.
NOT_CARRIED = {
    "max_length",
    "max_new_tokens",
    "cache_implementation",
    "cache_config",
    "transformers_version",
    "_from_model_config",
}


class HuggingFaceExport(ExportFormat):
    """Weights, configuration, model and tokenizer for transformers."""

    name = "huggingface"
    uses_checkpoint = True

    def facts(self, source: ExportSource) -> dict[str, Any]:
        """Whether the folder needs no code, and why; nothing where there is no checkpoint."""
        if source.origin is None:
            return {}
        family = f"a stock {source.origin.family}"
        problem = missing_in_family(source.origin, source.blueprint)
        named = family if problem is None else f"not {family}: {problem}"
        return {"stock": problem is None, "family": named}

    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """See `ExportFormat.write`."""
        if self.facts(source).get("stock"):
            return write_stock(source, folder)
        blueprint, preprocessing = source.blueprint, source.preprocessing
        weights = {PREFIX + name: t for name, t in plain_weights(source.network).items()}
        write_tensors(folder / WEIGHTS_FILE, weights)
        texts = {
            NETWORK_FILE: network_source(blueprint),
            "modeling_nas.py": part_source(MODEL_PARTS[auto_class(blueprint)]),
            "configuration_nas.py": config_source(blueprint),
        }
        objects = {"config.json": config(blueprint, preprocessing)}
        if not TASKS[blueprint.task].classifies:
            objects[GENERATION_FILE] = generation_config(blueprint, preprocessing, source.origin)
        if preprocessing.facts["kind"] not in ("images", "numbers"):
            known = preprocessing.facts["kind"] == CHECKPOINT
            objects[TOKENIZER_SETTINGS] = (
                checkpoint_config(blueprint, preprocessing, source.origin)
                if known
                else tokenizer_config(blueprint, preprocessing)
            )
        if preprocessing.facts["kind"] in VOCABULARY_PARTS:
            texts["tokenization_nas.py"] = tokenizer_source(preprocessing)
        if preprocessing.facts["kind"] == "symbols":
            texts[SYMBOLS_FILE] = json.dumps(preprocessing.facts["symbols"]) + "\n"
        for name, text in texts.items():
            write_atomically(folder / name, text)
        for name, value in objects.items():
            write_json(folder / name, value)
        copied = (*_templates(source.origin, folder), *_pooling_files(source, folder))
        return [WEIGHTS_FILE, *texts, *objects, *copied]

    def parity(self, folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
        """See `ExportFormat.parity`; `SafetensorsExport.parity` tells what is run."""
        if is_stock(folder):
            return stock_difference(folder, blueprint, reference)
        file = folder / WEIGHTS_FILE
        tensors = read_tensors(file)
        foreign = min((name for name in tensors if not name.startswith(PREFIX)), default=None)
        if foreign is not None:
            raise DataError(f"{file} has a tensor too much, {foreign}")
        weights = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        difference = weights_difference(blueprint, weights, reference, str(file))
        text = network_source(blueprint)
        if not is_as_written(folder / NETWORK_FILE, text):
            return difference
        return max(difference, generated_difference(text, blueprint, weights, reference))

    def usage(self, source: ExportSource) -> str:
        """See `ExportFormat.usage`."""
        auto = auto_class(source.blueprint)
        if self.facts(source).get("stock"):
            return stock_usage(source, auto)
        return (
            "Needs torch, transformers and safetensors, and what else the lines and the tokenizer "
            "import. From raw input to the answer, in this folder:\n\n"
            f"{answer_lines(source, 'transformers', auto)}"
        )


def _templates(origin: Checkpoint | None, folder: Path) -> list[str]:
    """Copy the chat templates of a checkpoint."""
    if origin is None:
        return []
    names = [name for name in origin.tokenizer_files if says_how_to_write(name)]
    templates = [name for name in names if name != GENERATION_FILE]
    copy_files(origin, templates, folder)
    return templates


def _said(origin: Checkpoint | None, name: str) -> dict[str, Any]:
    """What a file of a checkpoint's tokenizer says; nothing where there is none."""
    known = origin is not None and name in origin.tokenizer_files
    return read_object(origin.folder / name) if origin is not None and known else {}


def _pooling_files(source: ExportSource, folder: Path) -> tuple[str, ...]:
    """Copy what makes a folder of sentence-transformers of it, where the checkpoint was one."""
    origin, encoder = source.origin, source.blueprint.architecture.encoder
    if origin is None or origin.sentence is None or encoder is None:
        return ()
    copy_pooling(origin, encoder.embed_dim, folder)
    shorten(folder, source.preprocessing.most_tokens(source.blueprint))
    return origin.sentence.files


def auto_class(blueprint: Blueprint) -> str:
    """The class of transformers that loads the folder."""
    if blueprint.task == "classification":
        images = isinstance(blueprint.settings.input, ImageInput)
        return f"AutoModelFor{'Image' if images else 'Sequence'}Classification"
    if blueprint.task == "embedding":
        return "AutoModel"
    translates = blueprint.task == "translation"
    return "AutoModelForSeq2SeqLM" if translates else "AutoModelForCausalLM"


def part_source(name: str) -> str:
    """A part as a file of the folder, whose other modules are its neighbours."""
    text = (TEMPLATE / f"{name}.py").read_text(encoding="utf-8")
    for pattern, replacement in NEIGHBOURS:
        text = pattern.sub(replacement, text)
    return text


def config_source(blueprint: Blueprint) -> str:
    """The text of ``configuration_nas.py``, which no two networks have in common.

    transformers knows code by the name of its folder and its text, and takes the first model that
    it has loaded for a class of configurations for all later ones of that class.
    """
    text, placeholder = part_source("hf_config"), "of the network."
    assert placeholder in text
    return text.replace(placeholder, f"of the network {blueprint.architecture.id}.", 1)


def config(blueprint: Blueprint, preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of ``config.json``."""
    auto, settings = auto_class(blueprint), blueprint.settings
    model = f"modeling_nas.{blueprint.form.model_class}"
    encoder, decoder = blueprint.architecture.encoder, blueprint.architecture.decoder
    stack = decoder or encoder
    assert stack is not None
    values: dict[str, Any] = {
        "model_type": OWN_MODEL_TYPE,
        "architectures": [blueprint.form.model_class],
        "auto_map": {
            "AutoConfig": "configuration_nas.NasConfig",
            "AutoModel": f"modeling_nas.{BARE}" if blueprint.task in BARE_TASKS else model,
            auto: model,
        },
        "network": blueprint.architecture.id,
        "description": {**blueprint.to_json(), **_written(preprocessing)},
        "dtype": "float32",
        "hidden_size": stack.embed_dim,
        "num_hidden_layers": len(stack.layers),
        "max_position_embeddings": settings.max_length,
        "is_encoder_decoder": blueprint.task == "translation",
        "tie_word_embeddings": False,  # the output layer reads the table of embeddings itself
    }
    if blueprint.task == "classification":
        return values | _classes(blueprint, preprocessing)
    assert not isinstance(settings.input, ImageInput)
    vocabulary = settings.input.target_vocab_size or settings.input.vocab_size
    start = {"decoder_start_token_id": 1} if blueprint.task == "translation" else {}
    return values | _mark_numbers(preprocessing) | {"vocab_size": vocabulary} | start


def _written(preprocessing: Preprocessing) -> dict[str, Any]:
    """What a network's description says of the tokens that it may write."""
    facts = preprocessing.facts
    padding = {"padding": facts["padding"]} if "padding" in facts else {}
    return {"num_words": facts.get("num_words"), **padding}


def _mark_numbers(preprocessing: Preprocessing) -> dict[str, int]:
    """The numbers of padding and of the begin and end mark; of a checkpoint those that it has."""
    if preprocessing.facts["kind"] != CHECKPOINT:
        return {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    numbers = preprocessing.facts["mark_numbers"]
    names = ("pad_token", "bos_token", "eos_token")
    return {f"{name}_id": numbers[name] for name in names if name in numbers}


def _classes(blueprint: Blueprint, preprocessing: Preprocessing) -> dict[str, Any]:
    count = blueprint.settings.num_classes or 0
    names = preprocessing.labels or tuple(f"class {number}" for number in range(count))
    values: dict[str, Any] = {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if preprocessing.facts["kind"] == "images":
        # Normalised = (x - mean) / std for x between 0 and 1.
        pairs = list(zip(preprocessing.facts["black"], preprocessing.facts["white"], strict=True))
        values["mean"] = [-black / (white - black) for black, white in pairs]
        values["std"] = [1.0 / (white - black) for black, white in pairs]
        values["image_size"] = preprocessing.facts["image_size"]
    else:
        values["pad_token_id"] = 0
    return values


def generation_config(
    blueprint: Blueprint, preprocessing: Preprocessing, origin: Checkpoint | None = None
) -> dict[str, Any]:
    """The content of ``generation_config.json``.

    It writes as `nas translate` does, or as the checkpoint says that a search began with.

    Raises:
        DataError: when the checkpoint's own is damaged.
    """
    said = _said(origin, GENERATION_FILE)
    decoder = blueprint.architecture.decoder
    # A language model has as many positions for a text and what follows it, unless it remembers.
    counts_all = blueprint.task == "language_modelling" and not (decoder and decoder.memory_length)
    values: dict[str, Any] = {
        **_mark_numbers(preprocessing),
        "do_sample": False,
        **{key: value for key, value in said.items() if key not in NOT_CARRIED},
        "max_length" if counts_all else "max_new_tokens": blueprint.settings.max_length,
    }
    ends = values.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if preprocessing.facts.get("padding", PAD) is not None and PAD not in ends:
        values["suppress_tokens"] = [PAD]
    if blueprint.task == "translation":
        usual = BeamSettings()
        values |= {
            "decoder_start_token_id": 1,
            "min_new_tokens": usual.min_length,
            "num_beams": usual.beam_size,
            "length_penalty": usual.length_penalty,
            "early_stopping": True,
        }
    return values


def checkpoint_config(
    blueprint: Blueprint, preprocessing: Preprocessing, origin: Checkpoint | None = None
) -> dict[str, Any]:
    """The content of ``tokenizer_config.json`` beside the ``tokenizer.json`` of a checkpoint.

    Raises:
        DataError: when the one of the checkpoint that a search began with is damaged.
    """
    said = _said(origin, TOKENIZER_SETTINGS)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": preprocessing.most_tokens(blueprint),
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        **preprocessing.facts["marks"],
        **{key: said[key] for key in ("chat_template",) if key in said},
    }


def tokenizer_config(blueprint: Blueprint, preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``."""
    marks = {"pad_token": "<pad>"}
    if not TASKS[blueprint.task].classifies:
        marks |= {"bos_token": "<s>", "eos_token": "</s>"}
    return {
        "tokenizer_class": "NasTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_nas.NasTokenizer", None]},
        "model_max_length": preprocessing.most_tokens(blueprint),
        "special_tokens_pattern": blueprint.form.marked,
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        **marks,
    }


def tokenizer_source(preprocessing: Preprocessing) -> str:
    """The text of ``tokenization_nas.py``."""
    kind = preprocessing.facts["kind"]
    vocabulary = VOCABULARY_PARTS[kind]
    text = joined_parts("The tokenizer of the network.", [vocabulary, "hf_tokenizer"])
    sides = [preprocessing.facts.get(side, SYMBOLS_FILE) for side in ("source", "target")]
    files = dict(zip(("source_file", "target_file"), dict.fromkeys(sides), strict=False))
    if kind == "bytes":
        return text
    return f"{text}\n\nNasTokenizer.vocab_files_names = {json.dumps(files)}\n"

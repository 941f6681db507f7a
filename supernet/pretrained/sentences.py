"""What sentence-transformers adds to an encoder: pooling, length of embeddings, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from search_spaces.errors import DataError
from search_spaces.toml.source import shown
from supernet.pretrained.json_files import read_json, read_object

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
UNBOUNDED = 10**9  # transformers writes a larger number where a tokenizer cuts nothing
POOLINGS: Mapping[str, Literal["mean", "first"]] = {"mean": "mean", "cls": "first"}
# What a vector of length 1 has the same neighbours by.
SIMILARITIES = ("cosine", "dot", "euclidean")
# Names of prompts that go by a text's role; of those of passages the first one counts.
QUERY, PASSAGES = "query", ("document", "passage", "corpus")
OLD_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """How a text becomes one vector.

    Attributes:
        pooling: over the real tokens, or the first token.
        unit_length: whether embeddings are scaled to length 1.
        max_tokens: where texts are cut; None where only the positions say it.
        lower_case: whether texts are written in lower case before they are split.
        prompt: what stands before each text, but for queries where they have their own.
        query_prompt: what stands before the queries of pairs.
        by_role: whether the two go by a text's role, in place of one for all texts.
        files: all that belongs to it, relative to the folder.
    """

    pooling: Literal["mean", "first"]
    unit_length: bool
    max_tokens: int | None
    lower_case: bool
    prompt: str
    query_prompt: str
    by_role: bool
    files: tuple[str, ...]


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """What a folder of sentence-transformers says; None for one of transformers alone.

    Raises:
        DataError: for a module, a way of pooling or of comparing that is not known, by name.
    """
    file = folder / MODULES_FILE
    if not file.is_file():
        return None
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise DataError(f"{file} holds no list of modules: fetch the checkpoint anew")
    kinds = [str(one.get("type")).rpartition(".")[2] for one in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise DataError(
            f"{file} lists the modules {', '.join(kinds)}; known are Transformer, Pooling and, "
            "where it is wanted, Normalize, in that order"
        )
    if modules[0].get("path"):
        raise DataError(
            f"{file} has its Transformer in {shown(modules[0]['path'])}, where it is known in the "
            "folder itself only"
        )
    pooling_file = folder / _plain(file, modules[1].get("path")) / "config.json"
    optional = {name: _optional(folder / name) for name in (PROMPTS_FILE, LENGTH_FILE)}
    prompts, lengths = optional[PROMPTS_FILE], optional[LENGTH_FILE]
    present = [name for name in optional if (folder / name).is_file()]
    unit_length = len(kinds) == 3
    _check_similarity(folder / PROMPTS_FILE, prompts.get("similarity_fn_name"), unit_length)
    prompt, query_prompt, by_role = _prompts(folder / PROMPTS_FILE, prompts)
    return SentenceModules(
        pooling=_pooling(pooling_file, bool(prompt or query_prompt)),
        unit_length=unit_length,
        max_tokens=_length(folder / LENGTH_FILE, lengths.get("max_seq_length"))
        or _tokenizers_length(folder / TOKENIZER_SETTINGS),
        lower_case=bool(lengths.get("do_lower_case", False)),
        prompt=prompt,
        query_prompt=query_prompt,
        by_role=by_role,
        files=(MODULES_FILE, *present, str(pooling_file.relative_to(folder))),
    )


def _optional(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def _plain(file: Path, name: object) -> str:
    if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
        raise DataError(f"{file} has Pooling in {shown(name)}; known is a folder beside it")
    return name


def _pooling(file: Path, prompted: bool) -> Literal["mean", "first"]:
    values = read_object(file)
    modes = values.get("pooling_mode")
    if modes is None:
        on = [key for key, value in values.items() if key.startswith("pooling_mode") and value]
        modes = [OLD_KEYS.get(key, key) for key in on]
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in POOLINGS:
        raise DataError(
            f"{file} asks for pooling by {' and '.join(map(str, modes)) or 'nothing'}; known is "
            "one of mean and cls"
        )
    if prompted and values.get("include_prompt") is False:
        raise DataError(
            f"{file} leaves the prompt out of the pooling (include_prompt), which is not known "
            "here: give a checkpoint without a prompt"
        )
    return POOLINGS[modes[0]]


def _tokenizers_length(file: Path) -> int | None:
    """Where texts are cut by the tokenizer, as newer folders have it; None where they are not."""
    value = _optional(file).get("model_max_length")
    return value if isinstance(value, int) and 0 < value < UNBOUNDED else None


def _length(file: Path, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"{file}: max_seq_length is {shown(value)}; right is a positive number")
    return value


def _check_similarity(file: Path, name: object, unit_length: bool) -> None:
    if name in (None, "cosine") or (unit_length and name in SIMILARITIES):
        return
    raise DataError(
        f"{file} compares embeddings by {shown(name)} (similarity_fn_name), and here only their "
        "cosines count: give a checkpoint for cosine, or for dot or euclidean with Normalize as "
        f"the last of its {MODULES_FILE}"
    )


def _prompts(file: Path, values: Mapping[str, Any]) -> tuple[str, str, bool]:
    """What stands before passages and before queries, and whether that goes by role.

    Without a default they are those of ``encode_document`` and ``encode_query``; prompts of other
    names stand before a text only where somebody asks for them by name.
    """
    name, prompts = values.get("default_prompt_name"), values.get("prompts")
    known = prompts if isinstance(prompts, Mapping) else {}
    if name is not None:
        if not isinstance(name, str) or not isinstance(known.get(name), str):
            raise DataError(
                f"{file}: default_prompt_name is {shown(name)}, which is none of prompts"
            )
        return str(known[name]), str(known[name]), False
    passage = next((one for one in PASSAGES if one in known), PASSAGES[0])
    found = {role: known.get(role, "") for role in (passage, QUERY)}
    for role, prompt in found.items():
        if not isinstance(prompt, str):
            raise DataError(f"{file}: the prompt {role} is {shown(prompt)}; right is a text")
    return found[passage], found[QUERY], any(found.values())

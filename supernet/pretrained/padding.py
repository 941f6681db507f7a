"""The padding of an encoder's tokenizer, where it has another number than 0.

Our encoders take token 0 for padding. XLM-R's tokenizer, which many a multilingual BERT comes with,
has `<s>` there and pads with 1. The two numbers change places then: in the tokenizer, and in the
rows of the embeddings, so that the network says the same of the same text. What is written in the
checkpoint's own form has the checkpoint's own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supernet.pretrained.json_files import read_object, refuse_code
from supernet.pretrained.sentences import TOKENIZER_SETTINGS

if TYPE_CHECKING:
    from torch import Tensor

TOKENIZER_FILE = "tokenizer.json"
MARK_NAMES = (
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "cls_token",
    "sep_token",
    "mask_token",
)
EMBEDDINGS = "embedding.tokens.weight"  # of an encoder of texts


def marks_of(folder: Path, values: Mapping[str, Any]) -> dict[str, str]:
    """What the marks of a tokenizer are called: of `MARK_NAMES` those that are told → tokens.

    Args:
        folder: with the files of settings, if any; the later one decides.
        values: the content of ``tokenizer.json``, which may name the padding.

    Raises:
        DataError: when a file is damaged or asks for code.
    """
    padding = values.get("padding")
    marks = _texts({"pad_token": padding.get("pad_token")} if isinstance(padding, dict) else {})
    for file in (folder / name for name in ("special_tokens_map.json", TOKENIZER_SETTINGS)):
        if file.is_file():
            settings = read_object(file)
            refuse_code(file, settings)
            marks |= _texts(settings)
    return marks


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """The marks that settings name, as text or as an object with text."""
    found = {}
    for name in MARK_NAMES:
        value = settings.get(name)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            found[name] = token
    return found


def padding_of(folder: Path) -> int:
    """The number of the padding in a folder's tokenizer; 0 where none is told.

    Raises:
        DataError: as `marks_of`.
    """
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        return 0
    values = read_object(file)
    return number_of(values, marks_of(folder, values).get("pad_token")) or 0


def number_of(values: Mapping[str, Any], token: str | None) -> int | None:
    """The number of a token in the content of a ``tokenizer.json``; None where it has none."""
    added = {one.get("content"): one.get("id") for one in _added(values)}
    found = (_numbers(_vocabulary(values)) | added).get(token)
    return found if isinstance(found, int) else None


def renumbered(values: Mapping[str, Any], token: str) -> dict[str, Any]:
    """The content of a ``tokenizer.json`` in which a token has 0, and token 0 has its number.

    Tokens that were added behind the vocabulary become a part of it: otherwise the package counts
    on from the size of the vocabulary, whatever numbers the file gives them.

    Args:
        values: of a tokenizer of any model; its rules for filling up are left out.
        token: one that it has.
    """
    number, model, added = number_of(values, token), dict(values["model"]), _added(values)
    assert number is not None
    places, vocabulary = {0: number, number: 0}, _vocabulary(values)
    if isinstance(vocabulary, list):
        known = {one[0] for one in vocabulary}
        behind = [[one["content"], 0.0] for one in added if one["content"] not in known]
        pieces = [*vocabulary, *behind]
        pieces[0], pieces[number] = pieces[number], pieces[0]
        model["vocab"] = pieces
        if "unk_id" in model:
            model["unk_id"] = places.get(model["unk_id"], model["unk_id"])
    else:
        numbers = vocabulary | {one["content"]: one["id"] for one in added}
        model["vocab"] = {word: places.get(place, place) for word, place in numbers.items()}
    moved = [one | {"id": places.get(one["id"], one["id"])} for one in added]
    return {
        **values,
        "padding": None,
        "added_tokens": sorted(moved, key=lambda one: int(one["id"])),
        "post_processor": _post_processor(values.get("post_processor"), places),
        "model": model,
    }


def exchanged(weights: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Weights of an encoder with the embeddings of a token and of token 0 in each other's place."""
    if not number:
        return dict(weights)
    rows_VD = weights[EMBEDDINGS].clone()
    rows_VD[[0, number]] = rows_VD[[number, 0]]
    return {**weights, EMBEDDINGS: rows_VD}


def _vocabulary(values: Mapping[str, Any]) -> Any:
    model = values.get("model")
    found = model.get("vocab") if isinstance(model, dict) else None
    return found if isinstance(found, dict | list) else {}


def _numbers(vocabulary: Any) -> dict[Any, Any]:
    """Token → number; of unigrams pieces and scores stand in the order of their numbers."""
    if isinstance(vocabulary, dict):
        return vocabulary
    pieces = (one[0] if isinstance(one, list) and one else None for one in vocabulary)
    return {piece: number for number, piece in enumerate(pieces) if isinstance(piece, str)}


def _added(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the list of added tokens those that have a text and a number."""
    found = values.get("added_tokens")
    kept = []
    for one in found if isinstance(found, list) else ():
        named = isinstance(one, dict) and isinstance(one.get("content"), str)
        if named and isinstance(one.get("id"), int):
            kept.append(one)
    return kept


def _post_processor(rules: Any, places: Mapping[int, int]) -> Any:
    """What puts marks around a text: a template, or a pair of marks as BERT and RoBERTa have."""
    if not isinstance(rules, dict):
        return rules
    found = dict(rules)
    for name in ("cls", "sep"):
        if isinstance(rules.get(name), list):
            token, place = rules[name]
            found[name] = [token, places.get(place, place)]
    if isinstance(rules.get("processors"), list):
        found["processors"] = [_post_processor(one, places) for one in rules["processors"]]
    if rules.get("type") == "TemplateProcessing":
        found["special_tokens"] = {
            name: mark | {"ids": [places.get(place, place) for place in mark["ids"]]}
            for name, mark in rules["special_tokens"].items()
        }
    return found

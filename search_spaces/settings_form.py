"""The ``[model]`` table of a space file: `ModelSettings`, each key checked against its type."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.tasks import TASKS, TaskName
from search_spaces.toml_source import KeyPath, TomlSource, shown

MAX_SIZE = 1_000_000

_INPUTS: Mapping[str, type[ImageInput | TokenInput]] = {"image": ImageInput, "tokens": TokenInput}
_MAY_BE_ZERO = ("relative_positions",)


def model_from_source(source: TomlSource, task: TaskName) -> ModelSettings:
    """Check ``[model]`` and ``[model.input]`` and build the settings.

    Raises:
        SpaceFileError: for the first mistake.
    """
    names = [field.name for field in fields(ModelSettings)]
    source.check_keys(("model",), names, ("input", "max_length"))
    values = _typed_values(source, ("model",), ModelSettings, skip="input")
    model = ModelSettings(input=_input(source), **values)
    problem = model.problem() or TASKS[task].problem(model)
    if problem is not None:
        raise source.error(("model",), problem)
    return model


def _input(source: TomlSource) -> ImageInput | TokenInput:
    path = ("model", "input")
    kind = source.table(path).get("kind")
    if not isinstance(kind, str) or kind not in _INPUTS:
        raise source.error((*path, "kind"), f"found {shown(kind)}, allowed are 'image', 'tokens'")
    cls = _INPUTS[kind]
    required = [field.name for field in fields(cls) if field.default is MISSING]
    source.check_keys(path, ["kind", *(field.name for field in fields(cls))], required)
    return cls(**_typed_values(source, path, cls, skip="kind"))


def _typed_values(source: TomlSource, path: KeyPath, cls: type, skip: str) -> dict[str, Any]:
    """The keys of a table, each checked against the type of the field of that name."""
    hints = get_type_hints(cls)
    table = source.table(path)
    for key, value in table.items():
        if key == skip:
            continue
        allowed = _not_allowed(key, value, hints[key])
        if allowed is not None:
            raise source.error((*path, key), f"found {shown(value)}, allowed {allowed}")
    return {key: value for key, value in table.items() if key != skip}


def _not_allowed(key: str, value: object, hint: Any) -> str | None:
    """None where the value fits the type, else what would."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    hint = next(option for option in options if option is not type(None))
    if get_origin(hint) is Literal:
        return None if value in get_args(hint) else "are " + ", ".join(map(repr, get_args(hint)))
    if hint is bool:
        return None if isinstance(value, bool) else "are true and false"
    lowest = 0 if key in _MAY_BE_ZERO else 1
    fits = is_int(value) and lowest <= value <= MAX_SIZE
    return None if fits else f"is a whole number from {lowest} to {MAX_SIZE}"


def is_int(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)

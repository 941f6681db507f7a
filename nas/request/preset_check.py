"""The ``[presets]`` tables of a space file: whether every preset can be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from nas.request.presets import PRESETS, preset_values
from nas.request.spec import Budget
from search_spaces.space import SearchSpace
from search_spaces.toml_source import TomlSource, shown, unknown_name

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_KINDS = {
    "boolean": "true or false",
    "string": "a text",
    "object": "a table of keys",
    "integer": "a whole number",
    "number": "a number",
}


def check_presets(source: TomlSource, space: SearchSpace) -> None:
    """Refuse presets that no search could use.

    Args:
        source: the file, which knows the line of each key.
        space: what was read from it.

    Raises:
        SpaceFileError: naming file, line, preset and key, what was found and what is allowed.
    """
    for preset in space.presets:
        if preset not in PRESETS:
            raise source.error(("presets", preset), unknown_name(preset, PRESETS))
    for preset in PRESETS:
        try:
            Budget.model_validate(preset_values(space, preset))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = tuple(map(str, problem["loc"]))
            unknown = problem["type"] in _UNKNOWN
            path = ("presets", preset, *key)
            raise source.error(
                path,
                unknown_name(key[-1], _form(key[:-1])["properties"])
                if unknown
                else f"found {shown(problem['input'])}, allowed is {allowed(key)}",
            ) from None


def allowed(key: Iterable[str]) -> str:
    """What a number of a budget may be, in words: ``a whole number from 1 to 1024``."""
    form = _form(key)
    if "enum" in form:
        return f"one of {', '.join(form['enum'])}"
    words = _KINDS[form["type"]]
    if "minimum" in form:
        words += f" from {form['minimum']:,}"
    if "exclusiveMinimum" in form:
        words += f" above {form['exclusiveMinimum']:,}"
    return words + (f" to {form['maximum']:,}" if "maximum" in form else "")


def _form(key: Iterable[str]) -> Mapping[str, Any]:
    """The part of the JSON schema of budgets that describes a key."""
    schema = Budget.model_json_schema()
    form: Mapping[str, Any] = schema
    for part in key:
        form = form["properties"][part]
        form = next((one for one in form.get("anyOf", ()) if one.get("type") != "null"), form)
        if "$ref" in form:
            form = schema["$defs"][form["$ref"].rpartition("/")[2]]
    return form

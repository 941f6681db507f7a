"""Architectures in every form that is read and written: JSON, HAT's YAML, one line of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError
from search_spaces.hat import from_hat, to_hat
from search_spaces.notation import EXAMPLE, from_text, looks_like_text, to_text
from search_spaces.settings import ModelSettings

ArchitectureForm = Literal["json", "hat", "text"]


def detect_form(text: str) -> ArchitectureForm:
    """The form that a text seems to have: what begins with ``{`` is JSON, with ``E512:`` a line.

    Raises:
        ArchitectureError: for an empty text.
    """
    if not text.strip():
        raise ArchitectureError(
            f"there is nothing; give an architecture as JSON, as HAT's YAML or as {EXAMPLE!r}"
        )
    if text.lstrip().startswith(("{", "[")):
        return "json"
    return "text" if looks_like_text(text) else "hat"


def parse_architecture(text: str, form: ArchitectureForm | None = None) -> Architecture:
    """Read an architecture.

    Args:
        text: its JSON, or any JSON object that holds it under ``architecture``; HAT's YAML; one
            line of `search_spaces.notation`.
        form: which of them; None looks at the text.

    Raises:
        ArchitectureError: for another form, or a network that cannot be.
    """
    match form or detect_form(text):
        case "hat":
            return from_hat(text)
        case "text":
            return from_text(text)
        case "json":
            return _from_json(text)


def parse_architectures(text: str, form: ArchitectureForm | None = None) -> list[Architecture]:
    """Read one architecture, or the JSON list of several that `write_architectures` writes.

    Raises:
        ArchitectureError: for another form, or a network that cannot be.
    """
    if (form or detect_form(text)) != "json" or not text.lstrip().startswith("["):
        return [parse_architecture(text, form)]
    items = _json(text)
    if not items:
        raise ArchitectureError("the list holds no architecture")
    found = []
    for number, item in enumerate(items, start=1):
        try:
            found.append(Architecture.from_json(_unwrapped(item)))
        except ArchitectureError as error:
            raise ArchitectureError(f"network {number} of {len(items)}: {error}") from None
    return found


def write_architectures(
    architectures: Sequence[Architecture],
    form: ArchitectureForm,
    settings: ModelSettings | None = None,
) -> str:
    """Several architectures: a line of text each, or a JSON list; one is written by itself.

    Raises:
        ArchitectureError: for what a form cannot say; HAT's holds one network.
    """
    if form == "json" and len(architectures) != 1:
        return json.dumps([one.to_json() for one in architectures], indent=2) + "\n"
    if form == "hat" and len(architectures) != 1:
        raise ArchitectureError(
            f"HAT's format holds one network, and there are {len(architectures)}"
        )
    return "".join(write_architecture(one, form, settings) for one in architectures)


def write_architecture(
    architecture: Architecture, form: ArchitectureForm, settings: ModelSettings | None = None
) -> str:
    """An architecture in a form, ended by a line feed.

    Args:
        architecture: the network.
        form: which.
        settings: of its space, where that is known.

    Raises:
        ArchitectureError: for what a form cannot say.
    """
    match form:
        case "hat":
            return to_hat(architecture, settings)
        case "text":
            return f"{to_text(architecture)}\n"
        case "json":
            return json.dumps(architecture.to_json(), indent=2) + "\n"


def _from_json(text: str) -> Architecture:
    data = _json(text)
    if isinstance(data, list) and len(data) > 1:
        raise ArchitectureError(
            f"a list of {len(data)} architectures, where one is needed: take one out of it, or "
            "export one with nas architectures export RUN --arch ID"
        )
    return Architecture.from_json(_unwrapped(data[0] if isinstance(data, list) and data else data))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArchitectureError(f"no JSON: {error}") from None


def _unwrapped(data: Any) -> Any:
    """What a JSON object holds under ``architecture``, or the object itself."""
    if isinstance(data, dict) and isinstance(data.get("architecture"), dict):
        return data["architecture"]
    return data

"""Architectures in every form that is read and written: JSON, HAT's YAML, one line of text."""

from __future__ import annotations

import json
from typing import Literal, get_args

from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError
from search_spaces.hat import from_hat, to_hat
from search_spaces.notation import EXAMPLE, from_text, looks_like_text, to_text
from search_spaces.settings import ModelSettings

ArchitectureForm = Literal["json", "hat", "text"]
FORMS: tuple[ArchitectureForm, ...] = get_args(ArchitectureForm)


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
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArchitectureError(f"no JSON: {error}") from None
    if isinstance(data, dict) and isinstance(data.get("architecture"), dict):
        data = data["architecture"]
    return Architecture.from_json(data)

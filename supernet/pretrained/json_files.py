"""JSON files of a folder that somebody else wrote, read with bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from search_spaces.errors import DataError
from search_spaces.json_text import parse_json

LARGEST_BYTES = 200_000_000  # a tokenizer's vocabulary; settings are some thousand


def read_json(file: Path) -> Any:
    """The content of a JSON file.

    Raises:
        DataError: when it is missing, larger than `LARGEST_BYTES`, or no JSON.
    """
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise DataError(f"{file} is larger than {LARGEST_BYTES:,} bytes: it is no such file")
        return parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{file} is missing: give a whole folder of a checkpoint") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{file} is no JSON ({error}): fetch the checkpoint anew") from error


def read_object(file: Path) -> dict[str, Any]:
    """The content of a JSON file that holds an object.

    Raises:
        DataError: as `read_json`, and when it holds anything else.
    """
    found = read_json(file)
    if not isinstance(found, dict):
        raise DataError(f"{file} holds {type(found).__name__}, where an object of JSON is right")
    return found


def refuse_code(file: Path, values: dict[str, Any]) -> None:
    """Refuse settings that ask for code of their own.

    Raises:
        DataError: naming the key.
    """
    for key in ("auto_map", "custom_pipelines", "trust_remote_code"):
        if values.get(key):
            raise DataError(
                f"{file} asks for code of its own ({key}), and no code of a checkpoint is run "
                "here: give one of a family that is known without it"
            )

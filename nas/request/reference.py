"""The reference page of a request, from its fields: ``python -m nas.request.reference``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from nas.request.fields import allowed, option_of, shown
from nas.request.presets import PRESETS, Budget, build_budget, flat
from nas.request.spec import SearchRequest

HEAD = """# The request of a search

Each field stands once, in `nas/request/spec.py`; this page is written by `python -m
nas.request.reference > docs/guide/request.md`. A field is called so in the body of `POST
/api/v1/jobs` and in the dashboard's form; the option is that of `nas search` and `nas submit`.

"""
NUMBERS = """
## Numbers of a preset

`settings` (`--set NAME=VALUE`) overrides these; a space's own `[presets]` tables come before the
presets, `nas search --space SPACE --list-settings` shows them.

"""


def page() -> str:
    """The page, as markdown."""
    return HEAD + _table(_fields()) + NUMBERS + _table(_numbers())


def _fields() -> Iterator[list[str]]:
    yield ["field", "option", "may be", "default", "example", "what it is"]
    described = SearchRequest.model_json_schema()["properties"]
    for name, field in SearchRequest.model_fields.items():
        option = option_of(SearchRequest, name)
        example = field.examples[0] if field.examples else None
        usual = shown(field).usual or _code(field.default)
        yield [
            f"`{name}`",
            f"`{option}`" if option else "",
            allowed(described[name]),
            usual,
            _code(example),
            str(field.description),
        ]


def _numbers() -> Iterator[list[str]]:
    presets = {name: dict(flat(build_budget(values))) for name, values in PRESETS.items()}
    yield ["setting", *presets]
    for name, _ in flat(Budget()):
        yield [f"`{name}`", *(_code(values[name]) for values in presets.values())]


def _code(value: Any) -> str:
    if value is None or value in ("", {}):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`"


def _table(rows: Iterator[list[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:]]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

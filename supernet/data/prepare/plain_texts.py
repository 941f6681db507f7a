"""Files of texts as people have them.

A text in each line, or in the ``text`` of a JSON object; or a ``query`` and the ``passage`` that
answers it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from search_spaces.errors import DataError
from supernet.data.text_files import read_lines

ENDINGS = (".txt", ".jsonl", ".gz")
JSON_ENDING = ".jsonl"
PAIR = ("query", "passage")


def text_files(given: Iterable[Path]) -> list[Path]:
    """The files that are named, with those of each folder in its place, sorted by their paths.

    Of a folder those count that end in one of `ENDINGS`, in folders in it too; hidden ones do not.

    Raises:
        DataError: for a folder without any.
    """
    found: list[Path] = []
    for path in given:
        inside = [path] if not path.is_dir() else _inside(path)
        if not inside:
            raise DataError(
                f"{path} has no texts: put files that end in {', '.join(ENDINGS[:-1])} or "
                f"{ENDINGS[-1]} there, with a text in each line, or name another folder"
            )
        found += inside
    return found


def is_text(file: Path) -> bool:
    """Whether a file is one of texts, by its name."""
    return file.name.lower().endswith(ENDINGS)


def _inside(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(
        file
        for file in files
        if is_text(file)
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def read_texts(path: Path) -> Iterator[str]:
    """The texts of a file, blank ones too.

    Args:
        path: plain or gzip; of a name that ends in ``.jsonl`` or ``.jsonl.gz`` each line is a JSON
            object with a ``text``, of others each line is a text.

    Raises:
        DataError: naming the line, where it is none.
    """
    for number, record in enumerate(read_records(path), start=1):
        if len(record) != 1:
            raise DataError(
                f"{path}:{number}: pairs of query and passage are for encoders of texts, and this "
                'is no data for one; a line is a JSON object with a text, {"text": "…"}'
            )
        yield record[0]


def read_records(path: Path) -> Iterator[tuple[str, ...]]:
    """What the lines of a file hold: a text, or a query and its passage.

    Args:
        path: as of `read_texts`; a JSON object may have a ``query`` and a ``passage`` in the place
            of a ``text``.

    Raises:
        DataError: naming the line, where it is neither.
    """
    if not path.name.lower().removesuffix(".gz").endswith(JSON_ENDING):
        for line in read_lines(path):
            yield (line,)
        return
    for number, line in enumerate(read_lines(path), start=1):
        try:
            found: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        values = found if isinstance(found, dict) else {}
        texts = [values.get(name) for name in (PAIR if "text" not in values else ("text",))]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f'{path}:{number}: a line is a JSON object with a text, {{"text": "…"}}, or, for '
                'encoders of texts, with a pair, {"query": "…", "passage": "…"}'
            )
        # A lone surrogate, which JSON can write, is no character.
        yield tuple(str(text).encode("utf-8", "replace").decode("utf-8") for text in texts)

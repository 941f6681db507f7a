"""Examples as people have them: lines of text, JSON lines, CSV, parquet, arrow, `datasets` folders.

Whatever the form, a file is a row of records: a text, a text with its label, a sentence with its
translation. What a record consists of are *roles* (text, label, …), which are found in columns by
their usual names, or by those that are given. A value inside another has a name with a dot, such as
``translation.en``. A file is read as a stream, and again when its records are written.

What is wrong with a record is told with it and ends nothing; what is wrong with a file is raised.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from search_spaces.errors import DataError, UsageError
from search_spaces.wording import mark
from supernet.data.manifest import file_sha256
from supernet.data.prepare.csv_records import Row, csv_columns, csv_rows
from supernet.data.text_files import numbered_lines

TABLE_ENDINGS = (".parquet", ".arrow", ".feather", ".csv", ".tsv")
JSON_ENDINGS = (".jsonl", ".ndjson")
# Of a folder that `datasets` saved, and of one with several splits.
STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"

# Role → columns that usually hold it, the likeliest first.
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "text": ("text", "sentence", "content", "review", "document", "body", "comment", "message"),
    "label": ("label", "labels", "class", "category", "sentiment", "target", "rating", "stars"),
    "image": ("image", "img", "picture", "file_name", "filename", "file", "path"),
    "source": ("source", "src"),
    "target": ("target", "tgt"),
    "query": ("query", "question", "anchor"),
    "passage": ("passage", "answer", "positive", "document"),
}
EXAMPLES = {"label": "0", "image": '"a.png"'}
ROWS_PER_BATCH = 256
LINES_LOOKED_AT = 100  # of JSON, for their columns
LONGEST_NAME = 40  # of a column that nobody has said to read
NO_NAMES = "; or if that is an example already, write a line above it that names the columns"


class Record(NamedTuple):
    """An example.

    Attributes:
        line: of the file, or row of a table, from 1.
        values: one for each role.
        group: of examples that belong together; empty where there are none.
        problem: why it cannot be used; empty if it can.
        side: of two files that go together the one with the problem.
    """

    line: int
    values: tuple[Any, ...]
    group: str = ""
    problem: str = ""
    side: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold what.

    Attributes:
        forms: the roles of a record; of several that are there the one with most of the roles that
            are given, then the longest.
        given: role → column, where it is told.
        group_by: column of groups that stay in one split.
        by_line: whether each line of a text is a record of its own.
        by_path: whether a picture may be named by the path of its file.
        pair: source and target → column, once `find` has met two that have no usual names: what
            comes later, also in other files, is read by these names, in whatever order they stand.
    """

    forms: tuple[tuple[str, ...], ...]
    given: Mapping[str, str] = field(default_factory=dict)
    group_by: str | None = None
    by_line: bool = False
    by_path: bool = True
    pair: dict[str, str] = field(default_factory=dict)

    def find(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """The columns of a form that some names have; None when they have none.

        Raises:
            UsageError: when one column would be two of the roles.
        """
        for form in sorted(self.forms, key=self._rank):
            found = [self._column(role, names) for role in form]
            if all(found):
                _check_different(form, found)
                return tuple(str(name) for name in found)
        if self.forms == (("source", "target"),) and not self.given:
            # Two columns of one value, as in {"translation": {"de": …, "en": …}}, or just two.
            inside = [name for name in names if "." in name]
            pairs = [pair for pair in (inside, names) if len(pair) == 2 and are_names(pair)]
            if pairs and not self.pair:
                self.pair.update(zip(self.forms[0], pairs[0], strict=True))
            if any({*pair} == {*self.pair.values()} for pair in pairs):
                return tuple(self.pair.values())
        if len(names) == 1 and [len(form) for form in self.forms] == [1] and not self.given:
            others = (usual for role, usual in USUAL_NAMES.items() if role != self.forms[0][0])
            usable = names[0] not in itertools.chain(*others) and are_names(names)
            return (names[0],) if usable else None
        return None

    def _rank(self, form: tuple[str, ...]) -> tuple[int, int]:
        return -len({*form} & {*self.given}), -len(form)

    def _column(self, role: str, names: Sequence[str]) -> str | None:
        if role in self.given:
            return self.given[role] if self.given[role] in names else None
        return next((name for name in USUAL_NAMES[role] if name in names), None)

    def wanted(self) -> str:
        """What a record is, for people, as JSON."""
        known = {**self.given, **self.pair}
        shown = (
            ", ".join(
                f'"{known.get(role, role)}": {EXAMPLES.get(role, chr(34) + "…" + chr(34))}'
                for role in form
            )
            for form in self.forms
        )
        return " or ".join(f"{{{one}}}" for one in shown)

    @property
    def guess(self) -> str:
        """Which columns were taken for a pair though no name says so; empty where none were."""
        return ", ".join(f"{name} as {role}" for role, name in self.pair.items())

    def lacks(self, names: Sequence[str]) -> str:
        """What to say of a record in which no form was found."""
        told = {**self.given, **self.pair}
        absent = [
            told.get(role, role)
            for role in self.forms[0]
            if (told[role] not in names if role in told else self._column(role, names) is None)
        ]
        if not names or not absent:
            return f"a line is a JSON object such as {self.wanted()}"
        return f"has no {' and no '.join(absent)}, only {_listed(names)}"

    def problem(self, names: Sequence[str]) -> str:
        """What to say when no form was found."""
        missing = [name for name in self.given.values() if name not in names]
        if missing:
            return f"has no column {missing[0]!r}, only {_listed(names)}"
        if self.pair:
            source, target = map(repr, self.pair.values())
            return (
                f"has the columns {_listed(names)}, but source and target were {source} and "
                f"{target} in what was read before it: name them so here too"
            )
        roles = self.forms[0]
        absent = [role for role in roles if self._column(role, names) is None]
        say = " and ".join(mark(f"columns.{role}") for role in absent)
        return (
            f"has the columns {_listed(names)}: which holds the {' and the '.join(absent)}? "
            f"Say so with {say}{'' if are_names(names) else NO_NAMES}"
        )


def _check_different(form: Sequence[str], found: Sequence[str | None]) -> None:
    for (role, name), (other, same) in itertools.combinations(zip(form, found, strict=True), 2):
        if name == same:
            say = " and ".join(mark(f"columns.{one}") for one in (role, other))
            raise UsageError(
                f"the column {name!r} would be the {role} and the {other}: name one for each with "
                f"{say}"
            )


def by_side() -> str:
    """How the two sides of pairs are given as files."""
    return f"{mark('source')} FILE {mark('target')} FILE"


def are_names(names: Sequence[str]) -> bool:
    """Whether columns can be called so: what is long or ends like a sentence is an example."""
    return all(
        len(name) <= LONGEST_NAME and len(name.split()) <= 4 and name[-1:] not in ".?!…"
        for name in names
    )


def is_json(path: Path) -> bool:
    """Whether a file is JSON lines, by its name."""
    return _plain_name(path).endswith(JSON_ENDINGS)


def has_columns(path: Path) -> bool:
    """Whether a file or folder holds named columns, JSON lines included."""
    return is_json(path) or is_table(path)


def is_table(path: Path) -> bool:
    """Whether a file or folder is a table of columns that are named once."""
    return _plain_name(path).endswith(TABLE_ENDINGS) or (path / STATE_FILE).is_file()


def column_names(path: Path) -> list[str]:
    """The columns of a file; of JSON lines those of the first object.

    Raises:
        DataError: when it cannot be read.
    """
    if is_json(path):
        found = (row for _, row in _json_rows(path) if not isinstance(row, str))
        return _flat_names(next(found, {}))
    if _delimiter(path):
        return csv_columns(path, _delimiter(path))[0]
    names: list[str] = []
    for column in _schema(_parts(path)[0]):
        kind = str(column.type)
        inside = [part.name for part in column.type] if kind.startswith("struct") else []
        names += [f"{column.name}.{part}" for part in inside] or [column.name]
        names += [column.name] if inside else []
    return names


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Names of the classes that a file of `datasets` gives numbers for; empty if it has none."""
    if not is_table(path) or _delimiter(path):
        return ()
    told = (_schema(_parts(path)[0]).metadata or {}).get(b"huggingface", b"{}")
    try:
        feature = json.loads(told).get("info", {}).get("features", {}).get(column, {})
        return tuple(map(str, feature.get("names") or ()))
    except (ValueError, AttributeError):
        return ()


def read_records(paths: Sequence[Path], columns: Columns) -> Iterator[Record]:
    """The records of a file, also those with a problem; blank lines of JSON and CSV are none.

    Args:
        paths: one file or folder; or two of plain text, whose lines go together.
        columns: what to look for.

    Raises:
        DataError: when a file cannot be read, has not the columns that are wanted, or has another
            number of lines than its partner.
    """
    for record in _read(paths, columns):
        if columns.by_line and not record.problem and "\n" in record.values[0]:
            for text in record.values[0].split("\n"):
                yield record._replace(values=(text,))
        else:
            yield record


def _read(paths: Sequence[Path], columns: Columns) -> Iterator[Record]:
    if len(paths) == 2:
        yield from _partners(*paths)
    elif is_json(paths[0]):
        _check_keys(paths[0], columns)
        yield from _found_by_line(paths[0], _json_rows(paths[0]), columns)
    elif is_table(paths[0]):
        yield from _found_by_header(paths[0], columns)
    else:
        if not columns.by_line and all(len(form) > 1 for form in columns.forms):
            pairs = ("source", "target") in columns.forms
            files = f", or each side as a file, {by_side()}" if pairs else ""
            raise DataError(
                f"{paths[0]} has no columns, and what is wanted has several: {columns.wanted()}; "
                f"give a table (.csv, .tsv, .jsonl, .parquet, .arrow){files}"
            )
        for number, (line, problem) in enumerate(numbered_lines(paths[0]), start=1):
            yield Record(number, (line,), "", problem)


def place_of(paths: Sequence[Path], record: Record) -> str:
    """Where a record stands, for people."""
    path = paths[record.side]
    rows = is_table(path) and not _delimiter(path)
    return f"{path}, row {record.line}" if rows else f"{path}:{record.line}"


def input_sha256(path: Path) -> str:
    """sha256 of a file, or over those of a folder that `datasets` saved."""
    if path.is_file():
        return file_sha256(path)
    total = hashlib.sha256()
    for part in _parts(path):
        total.update(file_sha256(part).encode())
    return total.hexdigest()


def unused_columns(path: Path, columns: Columns) -> list[str]:
    """The columns of a file that nothing is read from."""
    names = column_names(path)
    used = {*(columns.find(names) or ()), columns.group_by}
    outer = {str(name).partition(".")[0] for name in used}
    return [name for name in names if name not in used and name.partition(".")[0] not in outer]


# -- records of rows ------------------------------------------------------------------------------


def _partners(first: Path, second: Path) -> Iterator[Record]:
    counts = [0, 0]
    both = itertools.zip_longest(numbered_lines(first), numbered_lines(second))
    for number, (one, other) in enumerate(both, start=1):
        counts = [counts[0] + (one is not None), counts[1] + (other is not None)]
        if one is None or other is None:
            continue
        side = 0 if one[1] else 1
        yield Record(number, (one[0], other[0]), "", one[1] or other[1], side)
    if not all(counts):
        empty = first if not counts[0] else second
        raise DataError(f"{empty} is empty; it should have one sentence a line")
    if counts[0] != counts[1]:
        (more, longer), (less, shorter) = sorted(
            zip(counts, (first, second), strict=True), key=lambda pair: pair[0], reverse=True
        )
        raise DataError(
            f"{longer}:{less + 1}: no partner: the file has {more} lines, but {shorter} only "
            f"{less}; line by line they should be translations"
        )


def read_lines_as(lines: Iterable[str], columns: Columns) -> Iterator[Record]:
    """The records of JSON lines that are in no file; paths in them are of this folder."""
    numbered = ((line, "") for line in lines)
    return _found_by_line(Path("-"), _objects(numbered), columns)


def _found_by_line(path: Path, rows: Iterable[Row], columns: Columns) -> Iterator[Record]:
    """Of JSON lines each says by itself what it holds."""
    known: dict[tuple[str, ...], tuple[str, ...] | None] = {}
    for line, row in rows:
        if isinstance(row, str):
            yield Record(line, (), "", row)
            continue
        keys = tuple(_flat_names(row))
        if keys not in known:
            known[keys] = columns.find(keys)
        found = known[keys]
        if found is None:
            yield Record(line, (), "", columns.lacks(keys))
            continue
        yield _record(path, line, row, found, columns, ())


def _check_keys(path: Path, columns: Columns) -> None:
    """See that one of the first lines of a JSON file holds what is wanted.

    Raises:
        DataError: when none does, for then it is the columns that are called otherwise.
    """
    rows = itertools.islice(_json_rows(path), LINES_LOOKED_AT)
    keys = [_flat_names(row) for _, row in rows if not isinstance(row, str)]
    if keys and not any(columns.find(names) for names in keys):
        raise DataError(f"{path} {columns.problem(keys[0])}")


def _found_by_header(path: Path, columns: Columns) -> Iterator[Record]:
    names = column_names(path)
    found = columns.find(names)
    if found is None:
        raise DataError(f"{path} {columns.problem(names)}")
    if columns.group_by is not None and columns.group_by not in names:
        raise DataError(
            f"{path} has no column {columns.group_by!r} to group by, only {_listed(names)}"
        )
    wanted = [*found, *([columns.group_by] if columns.group_by else [])]
    classes = class_names(path, found[-1]) if _form(columns, found)[-1] == "label" else ()
    between = _delimiter(path)
    rows = csv_rows(path, between) if between else _arrow_rows(path, wanted)
    for line, row in rows:
        if isinstance(row, str):
            yield Record(line, (), "", row)
        else:
            yield _record(path, line, row, found, columns, classes)


def _form(columns: Columns, found: Sequence[str]) -> tuple[str, ...]:
    return next(form for form in columns.forms if len(form) == len(found))


def _record(
    path: Path,
    line: int,
    row: Mapping[str, Any],
    found: Sequence[str],
    columns: Columns,
    classes: Sequence[str],
) -> Record:
    values, problem = [], ""
    for role, name in zip(_form(columns, found), found, strict=True):
        value = _value(row, name)
        try:
            picture_path = path if columns.by_path else None
            values.append(_checked(role, name, value, picture_path, classes))
        except ValueError as error:
            problem = problem or str(error)
    group = ""
    if columns.group_by is not None:
        value = _value(row, columns.group_by)
        absent = value is None or not str(value).strip()  # as an empty cell of CSV is
        problem = problem or (f"has no {columns.group_by}" if absent else "")
        group = _whole(str(value))
    return Record(line, tuple(values), group, problem)


def _value(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    outer, _, inner = name.partition(".")
    inside = row.get(outer)
    return inside.get(inner) if isinstance(inside, Mapping) else None


def _checked(role: str, name: str, value: Any, path: Path | None, classes: Sequence[str]) -> Any:
    """A value as it is used.

    Args:
        role: what it is.
        name: of its column.
        value: as it was read.
        path: of the table that pictures are named by paths from; None where none may be.
        classes: names of labels that are numbers.

    Raises:
        ValueError: saying why it cannot be.
    """
    if value is None:
        raise ValueError(f"has no {name}")
    if role == "label":
        label = _label(name, value, classes)
        return _whole(label) if isinstance(label, str) else label
    if role == "image":
        return _picture(name, value, path)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_shown(value)}, and no text")
    if "\0" in value:
        raise ValueError(f"{name} holds the character NUL")
    return _whole(value)


def _whole(text: str) -> str:
    """A text without lone surrogates, which JSON can write and which are no characters."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _label(name: str, value: Any, classes: Sequence[str]) -> str | int:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.strip():
        digits = value.strip()
        plain = digits.isascii() and digits.isdigit() and str(int(digits)) == digits
        return int(digits) if plain and len(digits) < 19 else digits
    if not isinstance(value, int):
        raise ValueError(f"{name} is {_shown(value)}; a label is a word or a whole number")
    if not classes:
        return value
    if not 0 <= value < len(classes):
        raise ValueError(f"{name} is {value}, and there are {len(classes)} classes from 0 on")
    return classes[value]


def _picture(name: str, value: Any, path: Path | None) -> bytes | Path:
    if isinstance(value, Mapping):  # of `datasets`: the file itself, or where it is
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return value
    if path is None:
        raise ValueError(f"{name} is {_shown(value)}; here a picture is the bytes of its file")
    if isinstance(value, str) and value.strip() and value.isprintable():
        return path.parent / value
    raise ValueError(f"{name} is {_shown(value)}; a picture is a file's bytes or its path")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _listed(names: Sequence[str]) -> str:
    short = (n if len(n) <= LONGEST_NAME else f"{n[: LONGEST_NAME - 1]}…" for n in names)
    return ", ".join(map(repr, short)) or "none"


# -- rows of files --------------------------------------------------------------------------------


def _json_rows(path: Path) -> Iterator[Row]:
    return _objects(numbered_lines(path))


def _objects(lines: Iterable[tuple[str, str]]) -> Iterator[Row]:
    for number, (line, problem) in enumerate(lines, start=1):
        if not problem and not line.strip():
            continue
        try:
            found: Any = problem or json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits
            found = f"not JSON: {error}"
        else:
            if not problem and not isinstance(found, Mapping):
                found = f"a line is a JSON object, and this is {_shown(found)}"
        yield number, found


def _flat_names(row: Mapping[str, Any]) -> list[str]:
    """The keys of an object, those of objects in it with a dot."""
    names: list[str] = []
    for name, value in row.items():
        inside = value if isinstance(value, Mapping) else {}
        names += [f"{name}.{inner}" for inner in inside] or [name]
    return names


def _arrow_rows(path: Path, wanted: Iterable[str]) -> Iterator[Row]:
    number = 0
    for part in _parts(path):
        schema = _schema(part)
        top = [name if name in schema.names else name.partition(".")[0] for name in wanted]
        absent = next((name for name in top if name not in schema.names), None)
        if absent is not None:
            raise DataError(f"{part} has no column {absent!r}, unlike the files before it")
        with _readable(part):
            for batch in _batches(part, list(dict.fromkeys(top))):
                for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                    for row in batch.slice(start, ROWS_PER_BATCH).to_pylist():
                        number += 1
                        yield number, row


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{path} has a text that is not UTF-8 (byte 0x{byte:02x}): write it anew in UTF-8"
        ) from error
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {reason}") from error


def _parts(path: Path) -> list[Path]:
    """The files of a folder that `datasets` saved; a file is its only one."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise DataError(f"there is no file {path}")
    try:
        told = json.loads((path / STATE_FILE).read_text("utf-8"))
        return [path / str(one["filename"]) for one in told["_data_files"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path / STATE_FILE} does not name the files of the data") from error


def _schema(path: Path) -> Any:
    with _readable(path), ExitStack() as stack:
        if _plain_name(path).endswith(".parquet"):
            import pyarrow.parquet as parquet

            return stack.enter_context(parquet.ParquetFile(path)).schema_arrow
        return _arrow_file(path, stack).schema


def _batches(path: Path, columns: list[str]) -> Iterator[Any]:
    """Parts of a table with the columns that are wanted."""
    with ExitStack() as stack:
        if _plain_name(path).endswith(".parquet"):
            import pyarrow.parquet as parquet

            file = stack.enter_context(parquet.ParquetFile(path))
            yield from file.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns)
            return
        opened = _arrow_file(path, stack)
        parts = getattr(opened, "num_record_batches", None)
        batches = opened if parts is None else map(opened.get_batch, range(parts))
        for batch in batches:
            yield batch.select(columns)


def _arrow_file(path: Path, stack: ExitStack) -> Any:
    """A file of arrow's in either of its two forms: with an index at its end, or a stream."""
    import pyarrow as pa

    with path.open("rb") as file:
        indexed = file.read(6) == b"ARROW1"
    mapped = stack.enter_context(pa.memory_map(str(path)))
    opened = pa.ipc.open_file(mapped) if indexed else pa.ipc.open_stream(mapped)
    return stack.enter_context(opened)


def _delimiter(path: Path) -> str:
    """What stands between the cells of a file, by its name; empty if it is no CSV."""
    name = _plain_name(path)
    return "\t" if name.endswith(".tsv") else "," if name.endswith(".csv") else ""


def _plain_name(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")

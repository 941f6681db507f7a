"""`nas predict`: pictures or texts in, the answers of a network trained from scratch out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nas.console import options
from nas.console.commands.data import columns_of
from nas.console.commands.translate import ARCH, DATA, DEVICE, read_lines, write_lines
from nas.console.output import tell
from nas.request.spec import Device
from nas.results import networks
from nas.results.export import FACTS_FILE
from nas.results.predictions import (
    USUAL_TOKENS,
    Asked,
    Exported,
    Prediction,
    Reading,
    cut_words,
    open_exported,
    predict,
    reading_of,
)
from nas.results.state import open_run
from nas.run.threads import use_threads
from search_spaces.errors import DataError, UsageError

if TYPE_CHECKING:
    from nas.results.asked_columns import AskedColumns
    from supernet.data.prepare.records import Record

SHOWN = 3  # classes
STDIN = "standard input"


def predict_inputs(
    run: str = typer.Argument(
        ..., metavar="RUN|EXPORT", help="A run, or a folder that nas export made."
    ),
    files: list[Path] = typer.Argument(
        None,
        metavar="[FILE]...",
        help="Pictures (PNG, JPEG); texts, one a line; or the data as they were given, in .jsonl, "
        ".csv, .tsv, .parquet or .arrow, labels not needed. Without one, texts are read from "
        "standard input.",
    ),
    arch: str = ARCH,
    tokens: int = typer.Option(
        USUAL_TOKENS, min=1, help="That a language model writes behind a text."
    ),
    column: list[str] = typer.Option(
        [],
        metavar="ROLE=NAME",
        help="The column with the text, source or image; without, the one "
        "that the data were prepared with, or one with a usual name.",
    ),
    jsonl: bool = typer.Option(False, "--jsonl", help="Standard input is JSON lines."),
    data: str = DATA,
    device: Device = DEVICE,
    as_json: bool = options.JSON,
) -> None:
    """Tell what a network trained from scratch says: a class, a translation, how a text goes on.

    One answer for each picture or line, in their order, line feeds in it escaped; with --json one
    object a line. Of the run's data only vocabularies, names of classes and the scale of pixels are
    used; an export brings them along.
    """
    from nas.results.asked_columns import asked_columns

    network: networks.TrainedNetwork | Exported
    if (Path(run) / FACTS_FILE).is_file():
        if arch or data:
            raise UsageError(f"{run} is an export of one network: leave out --arch and --data")
        network, reading = open_exported(Path(run), device if device else "cpu")
    else:
        network, reading = _of_run(run, arch, data, device)
    if reading.pictures and not files:
        raise UsageError(f"the networks of {run} read pictures: give their files")
    given = dict(columns_of(column))
    wanted = asked_columns(reading.task, reading.pictures, given, reading.columns)
    inputs = _inputs(files or [], reading, wanted, jsonl)
    # Texts are all read before the first is answered; pictures may be too large for that.
    answers = predict(network, reading, inputs if reading.pictures else list(inputs), tokens)
    cut = Counter[int]()
    write_lines(_line(answer, as_json) for answer in _counted(answers, cut))
    if wanted.guess:
        tell(f"read {wanted.guess}; --column source=NAME names another column")
    if not as_json:
        for length, count in cut.items():
            tell(_cut_note(reading, count, length), "yellow")


def _of_run(
    run: str, arch: str, data: str, device: Device
) -> tuple[networks.TrainedNetwork | Exported, Reading]:
    folder = open_run(run)
    space = folder.spec.space
    chosen = networks.choose_trained(folder, arch)
    use_threads(folder.spec.budget.threads)
    network = networks.open_network(folder, chosen, device if device else folder.spec.device)
    opened = networks.open_data(folder, data)
    if space.task == "translation":
        networks.check_vocabularies(folder, opened)
    if not opened.same:
        tell(
            f"warning: {opened.name} does not hold the data that {chosen} learnt from; if these "
            "are read in another way, the answers mean nothing",
            "yellow",
        )
    return network, replace(reading_of(opened, space.model), columns=opened.columns)


def _line(prediction: Prediction, as_json: bool) -> str:
    if as_json:
        return json.dumps(prediction.to_json(), ensure_ascii=False)
    if not prediction.chances:
        return _one_line(prediction.answer)
    likely = list(prediction.chances.items())[:SHOWN]
    shown = ", ".join(f"{name} {chance:.1%}" for name, chance in likely)
    return _one_line(f"{prediction.given}\t{shown}" if len(prediction.given) <= 200 else shown)


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")


def _counted(answers: Iterable[Prediction], cut: Counter[int]) -> Iterator[Prediction]:
    """Answers, of which those to texts that were cut are counted by the length that was left."""
    for answer in answers:
        if answer.cut_at is not None:
            cut[answer.cut_at] += 1
        yield answer


def _cut_note(reading: Reading, count: int, length: int) -> str:
    texts = "1 text was" if count == 1 else f"{count:,} texts were"
    return f"note: {texts} {cut_words(reading, length)}"


def _inputs(
    files: list[Path], reading: Reading, wanted: AskedColumns, jsonl: bool
) -> Iterator[Asked]:
    """The pictures and texts of files, or of standard input where there are none.

    Raises:
        DataError: for a file that cannot be read, and a line without what is wanted.
        UsageError: for columns of what has none, and --jsonl with files.
    """
    from supernet.data.prepare.records import has_columns, read_records

    if files and jsonl:
        raise UsageError(
            "--jsonl is for standard input; leave it out: JSON lines in files are told by their "
            "ending, .jsonl or .ndjson"
        )
    if not files:
        yield from _from_stdin(wanted, jsonl)
        return
    if wanted.given and not any(map(has_columns, files)):
        raise UsageError(
            f"--column is for data with columns, which {files[0]} has not by its ending; leave it "
            "out, or rename the file (.jsonl, .ndjson, .csv, .tsv, .parquet, .arrow)"
        )
    for file in files:
        if not has_columns(file):
            _check_kind(file, reading)
        if reading.pictures and not has_columns(file):
            yield Asked(str(file))
            continue
        for record in read_records([file], wanted):
            yield _of_record(record, file)


def _from_stdin(wanted: AskedColumns, jsonl: bool) -> Iterator[Asked]:
    from supernet.data.prepare.records import read_lines_as

    if wanted.given and not jsonl:
        raise UsageError(
            "--column is for data with columns, and lines of text have none; leave it out, or "
            "say with --jsonl that they are JSON lines"
        )
    if jsonl:
        yield from (_of_record(one, None) for one in read_lines_as(read_lines(), wanted))
        return
    for number, line in enumerate(read_lines(), start=1):
        if "\0" in line:
            raise DataError(
                f"{STDIN}:{number}: holds the character NUL, which no text does; if it is UTF-16, "
                "convert it with iconv -f UTF-16 -t UTF-8"
            )
        yield Asked(line, f"{STDIN}:{number}")


def _check_kind(file: Path, reading: Reading) -> None:
    from supernet.data.prepare.image_files import is_picture

    if file.is_dir():
        raise DataError(f"{file} is a folder: give the files in it, such as {file}/*")
    if is_picture(file) and not reading.pictures:
        raise UsageError(
            f"{file} is a picture by its name, and this network reads texts: give files of text, "
            "one a line, or data with columns"
        )


def _of_record(record: Record, file: Path | None) -> Asked:
    """What a record asks.

    Args:
        record: of one value.
        file: that it stands in; None for standard input.

    Raises:
        DataError: when it cannot be used.
    """
    from supernet.data.prepare.records import place_of
    from supernet.data.text_files import WrongEncoding

    place = f"{STDIN}:{record.line}" if file is None else place_of([file], record)
    if file is not None and isinstance(record.problem, WrongEncoding):
        raise DataError(record.problem.of_file(file, record.line, 1))
    if record.problem:
        raise DataError(f"{place}: {record.problem}")
    (value,) = record.values
    if isinstance(value, bytes):
        return Asked(place, picture=value)
    return Asked(str(value), "" if isinstance(value, Path) else place)

"""`nas predict`: pictures or texts in, the answers of a network trained from scratch out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from nas.console import options
from nas.console.commands.data import columns_of
from nas.console.commands.translate import ARCH, DATA, DEVICE, read_lines, write_lines
from nas.console.output import tell
from nas.request.spec import Device
from nas.results import networks
from nas.results.export import FACTS_FILE
from nas.results.predictions import (
    Exported,
    Prediction,
    Reading,
    open_exported,
    predict,
    reading_of,
)
from nas.results.state import open_run
from nas.run.threads import use_threads
from search_spaces.errors import DataError, UsageError
from search_spaces.tasks import TaskName

if TYPE_CHECKING:
    from supernet.data.prepare.records import Record

SHOWN = 3  # classes
STDIN = "standard input"
# What of the data a network is given, by its task.
READS: dict[TaskName, str] = {
    "classification": "text",
    "language_modelling": "text",
    "translation": "source",
}


class _Input(NamedTuple):
    """A picture's path or a text, and where the text stands."""

    text: str
    place: str = ""


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
    tokens: int = typer.Option(50, min=1, help="That a language model writes behind a text."),
    column: list[str] = typer.Option(
        [], metavar="ROLE=NAME", help="The column with the text, source or image, as in prepare."
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
    network: networks.TrainedNetwork | Exported
    if (Path(run) / FACTS_FILE).is_file():
        if arch or data:
            raise UsageError(f"{run} is an export of one network: leave out --arch and --data")
        network, reading = open_exported(Path(run), device if device else "cpu")
    else:
        network, reading = _of_run(run, arch, data, device)
    if reading.pictures and not files:
        raise UsageError(f"the networks of {run} read pictures: give their files")
    inputs = list(_inputs(files or [], reading, dict(columns_of(column)), jsonl))
    answers = predict(
        network, reading, [one.text for one in inputs], tokens, [one.place for one in inputs]
    )
    write_lines(_line(answer, as_json) for answer in answers)


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
    return network, reading_of(opened, space.model)


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


def _inputs(
    files: list[Path], reading: Reading, columns: dict[str, str], jsonl: bool
) -> Iterator[_Input]:
    """The pictures and texts of files, or of standard input where there are none.

    Raises:
        DataError: for a file that cannot be read, and a line without what is wanted.
        UsageError: for columns of what has none, and --jsonl with files.
    """
    from supernet.data.prepare.records import Columns, has_columns, read_lines_as, read_records

    role = "image" if reading.pictures else READS[reading.task]
    wanted = Columns(((role,),), columns)
    if files and jsonl:
        raise UsageError(
            "--jsonl is for standard input; leave it out: JSON lines in files are told by their "
            "ending, .jsonl or .ndjson"
        )
    if not files:
        if columns and not jsonl:
            raise UsageError(
                "--column is for data with columns, and lines of text have none; leave it out, or "
                "say with --jsonl that they are JSON lines"
            )
        lines = read_lines()
        if not jsonl:
            yield from (_Input(line, f"{STDIN}:{n}") for n, line in enumerate(lines, start=1))
            return
        yield from (_value(one, STDIN) for one in read_lines_as(lines, wanted))
    if columns and not any(map(has_columns, files)):
        raise UsageError(
            f"--column is for data with columns, which {files[0]} has not by its ending; leave it "
            "out, or rename the file (.jsonl, .ndjson, .csv, .tsv, .parquet, .arrow)"
        )
    for file in files:
        if file.is_dir() and not has_columns(file):
            raise DataError(f"{file} is a folder: give the files in it, such as {file}/*")
        if reading.pictures and not has_columns(file):
            yield _Input(str(file))
            continue
        for record in read_records([file], wanted):
            yield _value(record, str(file))


def _value(record: Record, name: str) -> _Input:
    value: Any = record.values[0] if record.values else None
    if record.problem or isinstance(value, bytes):
        reason = record.problem or "a picture is a file here: give its path"
        raise DataError(f"{name}:{record.line}: {reason}")
    return _Input(str(value), "" if isinstance(value, Path) else f"{name}:{record.line}")

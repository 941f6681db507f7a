"""`nas predict`: pictures or texts in, the answers of a network trained from scratch out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from nas.console import options
from nas.console.commands.translate import ARCH, DATA, DEVICE, read_lines, write_lines
from nas.console.output import tell
from nas.request.spec import Device
from nas.results import networks
from nas.results.predictions import Prediction, predict, reads_pictures
from nas.results.state import open_run
from nas.run.threads import use_threads
from search_spaces.errors import DataError, UsageError
from search_spaces.json_text import parse_json

SHOWN = 3  # classes


def predict_inputs(
    run: str = options.RUN,
    files: list[Path] = typer.Argument(
        None,
        metavar="[FILE]...",
        help="Pictures (PNG, JPEG); or texts, one a line, or .jsonl with a text in each line. "
        "Without one, texts are read from standard input.",
    ),
    arch: str = ARCH,
    tokens: int = typer.Option(50, min=1, help="That a language model writes behind a text."),
    data: str = DATA,
    device: Device = DEVICE,
    as_json: bool = options.JSON,
) -> None:
    """Tell what a network trained from scratch says: a class, a translation, how a text goes on.

    One answer for each picture or line, in their order; with --json one object a line. Of the run's
    data only vocabularies, names of classes and the scale of pixels are used.
    """
    folder = open_run(run)
    settings = folder.spec.space.model
    pictures = reads_pictures(settings)
    if pictures and not files:
        raise UsageError(f"the networks of {folder.path} read pictures: give their files")
    inputs = [str(file) for file in files] if pictures else list(_texts(files or []))
    chosen = networks.choose_trained(folder, arch)
    use_threads(folder.spec.budget.threads)
    network = networks.open_network(folder, chosen, device if device else folder.spec.device)
    opened = networks.open_data(folder, data)
    if folder.spec.space.task == "translation":
        networks.check_vocabularies(folder, opened)
    if not opened.same:
        tell(
            f"warning: {opened.name} does not hold the data that {chosen} learnt from; if these "
            "are read in another way, the answers mean nothing",
            "yellow",
        )
    answers = predict(network, opened, settings, inputs, tokens)
    write_lines(_line(answer, as_json) for answer in answers)


def _line(prediction: Prediction, as_json: bool) -> str:
    if as_json:
        return json.dumps(prediction.to_json(), ensure_ascii=False)
    if not prediction.chances:
        return prediction.answer
    likely = list(prediction.chances.items())[:SHOWN]
    shown = ", ".join(f"{name} {chance:.1%}" for name, chance in likely)
    return f"{prediction.given}\t{shown}" if len(prediction.given) <= 200 else shown


def _texts(files: list[Path]) -> Iterator[str]:
    """The texts of files, or of standard input where there are none.

    Raises:
        DataError: for a file that cannot be read, and a line of ``.jsonl`` without a text.
    """
    if not files:
        yield from read_lines()
    for file in files:
        try:
            lines = file.read_text("utf-8").split("\n")
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is no text in UTF-8: convert it with iconv") from error
        if lines[-1] == "":
            del lines[-1]
        for number, line in enumerate(lines, start=1):
            yield _text(line, file, number) if file.suffix == ".jsonl" else line.removesuffix("\r")


def _text(line: str, file: Path, number: int) -> str:
    """The text of a line of JSON; a label beside it is not looked at."""
    found: Any = None
    with suppress(ValueError):
        found = parse_json(line)
    text = found.get("text") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise DataError(f'{file}, line {number}: give an object with a text, {{"text": "…"}}')
    return text

"""`nas translate`: lines on standard input, their translations on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from nas.console import options
from nas.console.output import tell
from nas.request.spec import Device
from nas.results import networks
from nas.results.state import open_run
from nas.run.threads import use_threads
from search_spaces.errors import DataError, UsageError
from supernet.data.text_files import BYTE_ORDER_MARK

if TYPE_CHECKING:
    from supernet.beam_search import BeamSettings

ARCH: Any = typer.Option(
    None,
    "--arch",
    metavar="ID",
    help="A network that was trained from scratch; the first letters of its id are enough.",
    show_default="the winner, or the only one there is",
)
BEAM: Any = typer.Option(
    None, "--beam", min=1, help="Translations followed at once; 1 is greedy.", show_default="4"
)
LENPEN: Any = typer.Option(
    None,
    "--lenpen",
    min=0,
    help="Log-probabilities are divided by length to this power: 0 favours short translations.",
    show_default="0.6",
)
BATCH_TOKENS: Any = typer.Option(
    None,
    min=1,
    help="Tokens decoded at once, over all beams; less needs less memory.",
    show_default="16384, or what the longest line takes",
)
DATA: Any = typer.Option(
    None,
    "--data",
    metavar="DIR|FILE|synthetic",
    help="Where the run's data are on this machine.",
    show_default="where they were",
    autocompletion=options.complete_data,
)
DEVICE: Any = typer.Option(None, help="Where to compute.", show_default="the run's own")


def translate(
    run: str = options.RUN,
    arch: str = ARCH,
    beam: int | None = BEAM,
    lenpen: float | None = LENPEN,
    batch_tokens: int | None = BATCH_TOKENS,
    data: str = DATA,
    device: Device = DEVICE,
) -> None:
    """Translate standard input, one sentence a line, with a network trained from scratch.

    Prints one line for each line, in the same order, once all of them are translated.

    Of the run's data only the vocabularies are used.
    """
    folder = open_run(run)
    space = folder.spec.space
    if space.task != "translation":
        raise UsageError(
            f"the networks of {folder.path} are for {space.task.replace('_', ' ')}; "
            "nas translate needs a run for translation"
        )
    chosen = networks.choose_trained(folder, arch)
    use_threads(folder.spec.budget.threads)
    settings = beam_settings(beam, lenpen)
    network = networks.open_network(folder, chosen, device if device else folder.spec.device)
    opened = networks.open_data(folder, data)
    networks.check_vocabularies(folder, opened)
    if not opened.same:
        tell(
            f"warning: {opened.name} does not hold the data that {chosen} learnt from; if its "
            "vocabulary is another one, the translations mean nothing",
            "yellow",
        )
    lines = list(read_lines())
    write_lines(networks.translate_text(network, opened, lines, settings, batch_tokens))


def beam_settings(beam: int | None, lenpen: float | None) -> BeamSettings:
    """How to search; what is not given is as usual.

    Raises:
        UsageError: for a length penalty that is too large.
    """
    from supernet.beam_search import BeamSettings

    usual = BeamSettings()
    return BeamSettings(
        beam_size=usual.beam_size if beam is None else beam,
        length_penalty=usual.length_penalty if lenpen is None else lenpen,
    )


def read_lines() -> Iterator[str]:
    """The lines of standard input, which only line feeds end, without their ends.

    Raises:
        DataError: for what is not UTF-8, naming the line.
    """
    if sys.stdin is None:
        raise UsageError("standard input is closed; text is read there, line by line")
    if sys.stdin.isatty():
        tell("reading lines from the terminal; Ctrl-D ends them")
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        line = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            byte, column = line[error.start], error.start + 1
            raise DataError(
                f"standard input, line {number}: not UTF-8 (byte 0x{byte:02x} at column {column}); "
                "if it is Latin-1, convert it with iconv -f LATIN1 -t UTF-8"
            ) from error


def write_lines(lines: Iterable[str]) -> None:
    """Print lines as UTF-8, whatever the terminal's encoding, and with nothing around them.

    What of a path is not UTF-8 is escaped as in JSON.
    """
    sys.stdout.flush()
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()

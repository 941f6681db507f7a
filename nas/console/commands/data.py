"""`nas data prepare`: files of the user → a folder of data with a manifest."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nas.console import options
from nas.console.output import out, print_json, say
from nas.console.progress import ProgressReporter, choose_reporter
from nas.console.tables import table
from nas.run import events
from nas.run.termination import terminable
from search_spaces.errors import UsageError
from search_spaces.tasks import TaskName
from supernet.data.manifest import ROLES
from supernet.data.manifest_tables import (
    Sheet,
    class_sheet,
    shared_examples,
    split_sheet,
    untold_classes,
)
from supernet.data.tokenizer import VOCABULARIES

if TYPE_CHECKING:
    from supernet.data.prepare import Prepared

Report = Callable[[str, int, int], None]
SHOWN = 10  # files that are ignored, examples that were left out


def prepare(
    task: TaskName = typer.Option(..., help="What the data are for."),
    source: list[Path] = typer.Option(
        ...,
        metavar="PATH",
        help="The training data (repeat it for several files): text, plain or .gz, one sentence a "
        "line; named columns in .csv, .tsv, .jsonl, .parquet or .arrow, or a folder that "
        "`datasets` saved; a folder of such files, called train, valid and test if it holds "
        "these. Pictures: a folder with one folder for each class, an .npz file, the folder of "
        "CIFAR-10's python batches, or columns.",
    ),
    target: list[Path] = typer.Option(
        [], metavar="FILE", help="Translation: the translations of --source, line by line."
    ),
    valid: list[Path] = typer.Option(
        [],
        metavar="PATH",
        help="The validation data; held out of the training data if not given. Translation: "
        "twice, source and target, or the prefix of both (val for val.en and val.de).",
    ),
    test: list[Path] = typer.Option([], metavar="PATH", help="The test data, in the same form."),
    out_folder: Path = typer.Option(..., "--out", metavar="DIR", help="The folder to make."),
    vocab_size: int = typer.Option(
        None,
        min=5,
        show_default="one for a thousand characters, 500 to 32000",
        help="Tokens, marks included.",
    ),
    joint: bool = typer.Option(
        True, "--joint/--separate", help="One vocabulary for both sides, or one for each."
    ),
    tokenizer: str = typer.Option(
        "bpe",
        metavar="bpe|unigram|bytes|DIR",
        help="Byte pairs; sentencepiece's unigram model (translation, language modelling); each "
        "byte a token (texts with labels); or the folder of a checkpoint whose tokenizer.json is "
        "taken as it is (language modelling and texts with labels), and for embedding its network "
        "too.",
    ),
    max_length: int = typer.Option(
        None,
        min=1,
        show_default="256 for translation, 512 for labelled texts or 4000 bytes, the checkpoint's "
        "for embedding, none for language modelling",
        help="Tokens of a row at most. Longer pairs, and lines for "
        "language models, are left out of training (as blank lines are); in other splits pairs are "
        "cut and lines stay whole. Labelled texts, and texts to embed, are cut everywhere.",
    ),
    max_ratio: float = typer.Option(
        3.0, min=0, help="Translation: leave out pairs of more unequal lengths; 0 for none."
    ),
    image_size: int = typer.Option(None, min=1, help="Cut and scale images to this side."),
    column: list[str] = typer.Option(
        [],
        metavar="ROLE=NAME",
        help="The column that holds the text, label, image, source, target, query or passage, "
        "where it has no usual name (repeat it); translation.en names a value inside another.",
    ),
    group_by: str = typer.Option(
        None,
        metavar="NAME",
        help="A column of groups, such as authors or documents, that are held out whole.",
    ),
    skip_bad: bool = typer.Option(
        False, "--skip-bad", help="Leave out examples that cannot be used, and count them."
    ),
    allow_overlap: bool = typer.Option(
        False, "--allow-overlap", help="Take a file that is given for two splits."
    ),
    bfloat16: bool = typer.Option(
        False,
        "--bfloat16",
        help="Embedding: what networks learn from, and nothing that they are judged by, is "
        "computed by the checkpoint in products of bfloat16, which is faster on processors that "
        "have them.",
    ),
    quiet: bool = options.QUIET,
    as_json: bool = typer.Option(False, "--json", help="Print the manifest as JSON."),
) -> None:
    """Prepare data: learn a vocabulary, filter, and write memory-mapped files with a manifest."""
    from supernet.data.prepare import prepare as run
    from supernet.data.prepare.plan import PrepareRequest

    request = PrepareRequest(
        task=task,
        source=tuple(source),
        out=out_folder,
        target=tuple(target),
        valid=tuple(valid),
        test=tuple(test),
        joint=joint,
        **vocabulary_of(tokenizer, vocab_size),
        max_length=max_length,
        max_ratio=max_ratio,
        image_size=image_size,
        allow_overlap=allow_overlap,
        columns=columns_of(column),
        group_by=group_by,
        skip_bad=skip_bad,
        bfloat16=bfloat16,
    )
    with terminable(), choose_reporter(quiet or as_json, json_lines=False) as screen:
        prepared = run(request, shown_on(screen))
    if as_json:
        print_json(prepared.manifest.model_dump(mode="json"))
        return
    if not quiet:
        out().print(_shown(split_sheet(prepared.manifest)))
        if any(split.classes for split in prepared.manifest.splits.values()):
            out().print(_shown(class_sheet(prepared.manifest)))
    say(f"{'already prepared' if prepared.found else 'prepared'}: {out_folder}")
    if not quiet:
        for line in notes_of(prepared):
            say(line)
        say(what_next(out_folder, None if tokenizer in VOCABULARIES else tokenizer))


def columns_of(given: list[str]) -> tuple[tuple[str, str], ...]:
    """Roles and the columns that hold them.

    Raises:
        UsageError: for what names no role and no column.
    """
    found = dict[str, str]()
    for one in given:
        role, _, name = one.partition("=")
        if role not in ROLES or not name:
            raise UsageError(
                f"--column {one}: give one of {', '.join(ROLES)}, = and the name of a column, such "
                "as --column text=review"
            )
        found[role] = name
    return tuple(sorted(found.items()))


def vocabulary_of(tokenizer: str, vocab_size: int | None) -> dict[str, Any]:
    """The fields of a request that say how text becomes tokens; what is not given is as usual.

    Raises:
        UsageError: for the size of a vocabulary that is there already.
    """
    size = {} if vocab_size is None else {"vocab_size": vocab_size}
    if tokenizer in VOCABULARIES:
        return {"tokenizer": tokenizer, **size}
    if size:
        raise UsageError(
            f"--vocab-size is for vocabularies that are learnt, and that of {tokenizer} is taken "
            "as it is: leave it out"
        )
    return {"tokenizer": Path(tokenizer).expanduser()}


def notes_of(prepared: Prepared) -> list[str]:
    """What else there is to know: what was guessed, ignored, left out, or is in two splits."""
    notes = [f"{'read':<9}{prepared.guessed}"] if prepared.guessed else []
    notes += [*_first("ignored", prepared.ignored), *_first("left out", prepared.bad)]
    told = [*untold_classes(prepared.manifest), *shared_examples(prepared.manifest)]
    return [*notes, *(f"note     {one}" for one in told)]


def _first(what: str, found: Sequence[str]) -> list[str]:
    more = [f"{what:<9}and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else []
    return [f"{what:<9}{line}" for line in found[:SHOWN]] + more


def what_next(folder: Path, checkpoint: str | None) -> str:
    """What can be done with a folder, whose tokens may be those of a checkpoint."""
    begun = "" if checkpoint is None else f"--from {shlex.quote(checkpoint)} "
    return f"Next    nas search {begun}--data {shlex.quote(str(folder))}"


def shown_on(screen: ProgressReporter) -> Report:
    """A report of progress that a screen shows: each new label is a stage."""
    begun: dict[str, float] = {}

    def report(label: str, done: int, total: int) -> None:
        if label not in begun:
            begun[label] = time.monotonic()
            screen.show(events.StageStarted(label, label, total or None))
        screen.show(events.Progress(label, done, total))
        if total and done == total:  # a total of 0 is not known yet
            seconds = time.monotonic() - begun[label]
            screen.show(events.StageFinished(label, seconds))

    return report


def _shown(sheet: Sheet) -> Any:
    made = table(sheet.title, sheet.heads, right=sheet.heads[1:])
    for row in sheet.rows:
        made.add_row(*row)
    return made

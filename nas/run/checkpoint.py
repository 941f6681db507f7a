"""The checkpoint that a search begins with, and the network that it teaches with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from latency.locking import file_lock
from nas.request.resolve import TEXT_TASKS, StartingPoint
from nas.request.spec import Start
from nas.run.prepared_texts import prepared_texts_dir, texts_lock
from search_spaces.errors import DataError
from search_spaces.settings import ImageInput
from search_spaces.space import SearchSpace
from search_spaces.tasks import TaskName
from search_spaces.wording import OWN_CHECKPOINT, mark, names_option
from supernet.data.manifest import FILE_NAME, file_sha256, read_manifest, tokenizer_file
from supernet.data.prepare.checkpoint_folder import input_file, read_folder
from supernet.data.prepare.folder import TextFolder
from supernet.data.prepare.splits import is_text
from supernet.data.text_files import Report
from supernet.pretrained.checkpoint import Checkpoint, checkpoint_digest, read_checkpoint
from supernet.pretrained.folder_files import VOCABULARY_MODEL
from supernet.pretrained.padding import TOKENIZER_FILE
from supernet.pretrained.space import space_around, space_problem


def starting_point(folder: Path) -> StartingPoint:
    """What a request has to know of a checkpoint.

    Raises:
        DataError: when it cannot be read, holds a weight that is no finite number, or says of its
            output what its weights do not.
    """
    checkpoint = read_checkpoint(folder.resolve())
    checkpoint.check_weights()

    def problem(space: SearchSpace) -> str | None:
        return space_problem(space, checkpoint)

    start = Start(folder=str(checkpoint.folder), digest=checkpoint_digest(checkpoint))
    return StartingPoint(start, space_around(checkpoint), problem)


def prepared_texts(path: Path, begun: StartingPoint, report: Report) -> Path:
    """Data made of a folder or file of texts, for a checkpoint that embeds texts or writes them.

    Args:
        path: of data.
        begun: the checkpoint.
        report: what is done, how much of it is done and how much there is.

    Returns:
        A folder in the cache, which equal texts and checkpoints share; the path itself where it
        is prepared already or no text, or the checkpoint is for something else.

    Raises:
        DataError: when the folder has no texts, or one cannot be read.
    """
    prepared = (path / FILE_NAME).is_file() if path.is_dir() else not is_text(path)
    if prepared or begun.space.task not in TEXT_TASKS:
        return path
    try:
        found = TextFolder.read(path, read_checkpoint(begun.start.folder))
        with file_lock(texts_lock(found.name)):
            return found.prepare(prepared_texts_dir(), report)
    except DataError as error:
        if not names_option(error.marked):
            raise
        raise DataError(
            f"{error.marked} (so nas data prepare is told, whose folder {mark('data')} takes)"
        ) from error


def check_tokenizer(data: Path, start: Start, task: TaskName) -> None:
    """See that texts were prepared with the tokenizer of the checkpoint that a search begins with.

    Data without a manifest or for another task have nothing to compare, and checkpoints without a
    tokenizer only the number of tokens. Worth asking before whether vocabularies fit: no size makes
    tokens mean the same.

    Args:
        data: file or folder.
        start: the checkpoint.
        task: of its network.

    Raises:
        DataError: when they were prepared with another, whose tokens mean other things.
    """
    folder = Path(start.folder)
    if not (data / FILE_NAME).is_file():
        return
    manifest = read_manifest(data)
    if manifest.tokenizer is None or manifest.task != task:
        return
    if not (folder / TOKENIZER_FILE).is_file():
        _check_vocabulary(data, manifest.tokenizer.vocab_size, folder)
        return
    read = {one.sha256 for one in manifest.inputs if one.role == "tokenizer"}
    whole_texts = manifest.task != "language_modelling"
    if input_file(read_folder(folder, whole_texts)).sha256 not in read:
        raise DataError(
            f"{data.name} was prepared with another tokenizer than that of the checkpoint "
            f"{folder.name}: prepare it anew with "
            f"{mark('tokenizer', 'nas data prepare --tokenizer')} "
            f"{mark(OWN_CHECKPOINT, shlex.quote(str(folder)))}"
        )


def _check_vocabulary(data: Path, tokens: int, folder: Path) -> None:
    """Refuse data of more or other tokens than a checkpoint without a `TOKENIZER_FILE` reads."""
    ours, theirs = folder / VOCABULARY_MODEL, data / tokenizer_file(None)
    if ours.is_file():
        if not theirs.is_file() or file_sha256(ours) != file_sha256(theirs):
            raise DataError(
                f"{data.name} was prepared with another vocabulary than that of the export "
                f"{folder.name}: give the prepared folder that the export's own search was given"
            )
        return
    shape = read_checkpoint(folder).settings.input
    if not isinstance(shape, ImageInput) and tokens > shape.vocab_size:
        raise DataError(
            f"{data.name} has {tokens:,} tokens, but the checkpoint {folder.name} reads "
            f"{shape.vocab_size:,}, and has no {TOKENIZER_FILE} to prepare data with: fetch that "
            "from where the checkpoint comes from, and prepare the data anew with "
            f"{mark('tokenizer', 'nas data prepare --tokenizer')} "
            f"{mark(OWN_CHECKPOINT, shlex.quote(str(folder)))}"
        )


def check_classes(names: Sequence[str], start: Start) -> None:
    """See that data number their classes as the checkpoint does that a search begins with.

    Names that the checkpoint does not have say nothing about its numbers.

    Args:
        names: of the data's classes, in order.
        start: the checkpoint.

    Raises:
        DataError: when both have the same names in another order.
    """
    ours = [name.casefold() for name in names]
    theirs = [name.casefold() for name in read_checkpoint(start.folder).labels]
    if ours == theirs or sorted(ours) != sorted(theirs):
        return
    number = next(n for n, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) == 2)
    raise DataError(
        f"class {number} is {names[number]!r} in the data and {theirs[number]!r} in the checkpoint "
        f"{Path(start.folder).name}: classes are numbered in the order of their names, so name "
        "them in the checkpoint's order, for example 00-cat, 01-ant, and prepare the data anew"
    )


def open_checkpoint(start: Start) -> Checkpoint:
    """The checkpoint that a run began with.

    Raises:
        DataError: when it is gone, damaged, or another one.
    """
    if not Path(start.folder).is_dir():
        raise DataError(
            f"the run began with the checkpoint in {start.folder}, which is gone: put it back there"
        )
    checkpoint = read_checkpoint(start.folder)
    if checkpoint_digest(checkpoint) != start.digest:
        raise DataError(
            f"the checkpoint in {start.folder} has changed since this run began; put the old one "
            "back, or start a new run in another folder"
        )
    return checkpoint

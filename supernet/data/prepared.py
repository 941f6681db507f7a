"""Opening what `nas data prepare` made.

A search opens the training and validation splits, and reads no byte of the test split, which has a
function of its own (`open_test`) that only retraining and evaluation call. Files are compared with
the manifest's checksums when they are opened; tokens are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.space import SearchSpace
from search_spaces.tasks import TaskName
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.images import Labels
from supernet.data.manifest import Manifest, check_files, is_test, read_manifest, tokenizer_file
from supernet.data.text_files import TokenRows, map_array, read_lines, read_rows
from supernet.data.tokenizer import (
    BOS,
    BYTE_VOCAB_SIZE,
    PAD,
    PostProcess,
    SentencePieceTokenizer,
    Tokenizer,
)


@dataclass(frozen=True, eq=False, slots=True)
class PairSplit:
    """Pairs of token rows, neither begun nor ended by a mark; batches add those.

    Attributes:
        source: rows to translate.
        target: their translations.
        source_lines: the text, whole; empty for the training split.
        target_lines: the translations' text: the references of BLEU; empty for training.
    """

    source: TokenRows
    target: TokenRows
    source_lines: tuple[str, ...] = ()
    target_lines: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False, slots=True)
class StreamSplit:
    """A text to model.

    Attributes:
        rows: its lines, each ended by the end mark; `rows.tokens` is the whole stream. A blank
            line is an end mark alone. With the tokenizer of a checkpoint each line has the marks
            of that around it, or else a line feed at its end.
        num_words: words, as separated by spaces, without the end marks, which perplexity per word
            counts as words.
        num_characters: characters, line ends not counted.
        scored: which tokens are to be predicted, bool ``(tokens,)``; None for all.
        recalled: which of those only recall can tell, see `supernet.data.repeated_bigrams`, bool
            ``(tokens,)``; None where that is not known.
        alone: whether each line is a text of its own, of which networks see no other line: it is a
            segment whatever length is asked for, and a begin mark stands before it.
        begin: the mark that networks read before the first token; None where nothing stands there,
            so that the first token is read and not predicted.
    """

    rows: TokenRows
    num_words: int
    num_characters: int
    scored: NDArray[np.bool_] | None = None
    recalled: NDArray[np.bool_] | None = None
    alone: bool = False
    begin: int | None = BOS

    def __len__(self) -> int:
        return len(self.rows.tokens)

    def longest_segment(self, length: int) -> int:
        """Tokens of the longest segment where `length` are asked for, see `alone`."""
        return int(self.rows.lengths.max(initial=1)) if self.alone else length


@dataclass(frozen=True, eq=False, slots=True)
class ExampleSplit:
    """Labelled examples.

    Attributes:
        inputs: images, uint8 ``(N, H, W, C)``, memory-mapped; or rows of bytes, counted from 1, or
            of the tokens of `PreparedData.source_tokenizer`.
        labels: int64 ``(N,)``.
    """

    inputs: NDArray[np.uint8] | TokenRows
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, slots=True)
class EmbeddingSplit:
    """Texts and the vectors that their embeddings should be.

    Attributes:
        texts: rows of tokens, with the marks around them.
        targets: float32 ``(N, D)``, memory-mapped.
        pairs: rows of a query and of the passage that answers it, int64 ``(Q, 2)``; None where
            texts stand alone.
        states: what the checkpoint says of every token of the texts, one after the other, at
            length 1: float16 ``(tokens, D)``, memory-mapped; None where it is not kept.
    """

    texts: TokenRows
    targets: NDArray[np.float32]
    pairs: NDArray[np.int64] | None = None
    states: NDArray[np.float16] | None = None

    def __len__(self) -> int:
        return len(self.texts)


S = TypeVar("S", PairSplit, StreamSplit, ExampleSplit, EmbeddingSplit)


@dataclass(frozen=True, eq=False, slots=True)
class PreparedData(Generic[S]):
    """What a search may see of prepared data.

    Attributes:
        name: of the data, for people.
        train: to learn from.
        valid: to compare networks by.
        digest: sha256 of everything here, as hexadecimal digits.
        source_tokenizer: of the source, or of the only text; None for images and bytes.
        target_tokenizer: of the target; the same object where the vocabulary is joint.
        label_names: classification only.
        longest: tokens of the longest row of either split by side, end mark included.
        settings: the options that decided the content; none where another program wrote it.
        post_process: how words of the target have to be joined before they are read; ``none``
            where the tokenizer does it.
    """

    name: str
    train: S
    valid: S
    digest: str
    source_tokenizer: Tokenizer | None = None
    target_tokenizer: Tokenizer | None = None
    label_names: tuple[str, ...] = ()
    longest: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    post_process: PostProcess = "none"


class PairFormat(Protocol):
    """Folders of pairs that another program wrote, as they are.

    An entry point of the group ``nas.data_formats`` names a class of this kind; it is called
    without arguments.
    """

    def recognises(self, folder: Path) -> bool:
        """Whether a folder is of this form; it may be missing."""
        ...

    def open(self, folder: Path, space: SearchSpace) -> PreparedData[PairSplit]:
        """The training and validation pairs.

        Raises:
            DataError: when a file is missing or damaged, or networks of the space cannot read it.
        """
        ...

    def open_test(self, folder: Path, space: SearchSpace) -> PairSplit:
        """The test pairs: for the last step of retraining and for evaluation only."""
        ...


def pair_format(folder: Path) -> PairFormat | None:
    """The format of another program's folder; None for those that are ours."""
    for point in entry_points(group="nas.data_formats"):
        found: PairFormat = point.load()()
        if found.recognises(folder):
            return found
    return None


@dataclass(frozen=True, slots=True)
class PreparedForm(Generic[S]):
    """The folders that `nas data prepare` makes for a task.

    Attributes:
        task: whose data they hold.
        read: a split of a folder, by its name.
    """

    task: TaskName
    read: Callable[[Path, Manifest, str], S]

    def open(self, folder: Path) -> PreparedData[S]:
        """Open the training and validation splits.

        Raises:
            DataError: when the folder is missing, damaged, or holds data of another task.
        """
        manifest = self._manifest(folder, test=False)
        train, valid = (self.read(folder, manifest, split) for split in ("train", "valid"))
        source, target = _tokenizers(folder, manifest)
        return PreparedData(
            name=folder.name,
            train=train,
            valid=valid,
            digest=manifest.search_digest,
            source_tokenizer=source,
            target_tokenizer=target,
            label_names=tuple(manifest.label_names),
            longest=_longest(manifest),
            settings=manifest.settings,
        )

    def open_test(self, folder: Path) -> S:
        """Open the test split: for the last step of retraining and for evaluation only.

        Raises:
            DataError: as `open`.
        """
        return self.read(folder, self._manifest(folder, test=True), "test")

    def _manifest(self, folder: Path, test: bool) -> Manifest:
        """The manifest, when the folder is of the task and its files are as they were written."""
        manifest = read_manifest(folder)
        if manifest.task != self.task:
            raise DataError(
                f"{folder} holds data for {manifest.task}, but {self.task} is needed; "
                f"prepare a folder with nas data prepare --task {self.task}"
            )
        check_files(folder, manifest, [name for name in manifest.files if is_test(name) == test])
        return manifest


@dataclass(frozen=True, slots=True)
class Rows:
    """What decides whether networks can read rows of tokens.

    Attributes:
        name: of the data, for people.
        vocab_sizes: tokens of source and target.
        joint: whether both sides have one vocabulary.
        fixed: whether it is that of a checkpoint, which no preparation makes smaller.
        longest: tokens of the longest row, end mark included; 0 where rows are cut to what networks
            read.
    """

    name: str
    vocab_sizes: tuple[int, int]
    joint: bool
    fixed: bool
    longest: int


def check_fits(data: PreparedData[Any], model: ModelSettings) -> None:
    """See that networks of these settings can read pairs, or a stream.

    Raises:
        DataError: when a vocabulary is larger than the networks', a row is longer than they allow,
            or they share embeddings between vocabularies that are not joint.
    """
    source, target = data.source_tokenizer, data.target_tokenizer
    if source is None or target is None:
        raise _other_kind(data.name)
    sizes, fixed = (source.vocab_size, target.vocab_size), isinstance(source, CheckpointTokenizer)
    longest = 0 if isinstance(data.train, StreamSplit) else data.longest
    _check_rows(Rows(data.name, sizes, source is target, fixed, longest), model)


def _rows_of(name: str, manifest: Manifest) -> Rows:
    record = manifest.tokenizer
    if record is None or record.kind == "bytes":
        raise _other_kind(name)
    sizes = (record.vocab_size, record.target_vocab_size or record.vocab_size)
    longest = 0 if manifest.content == "stream" else _longest(manifest)
    return Rows(name, sizes, record.joint, record.kind == KIND, longest)


def _check_rows(rows: Rows, model: ModelSettings) -> None:
    shape = model.input
    if not isinstance(shape, TokenInput):
        raise _other_kind(rows.name)
    sizes = (shape.vocab_size, shape.target_vocab_size or shape.vocab_size)
    for side, needed, size in zip(("source", "target"), rows.vocab_sizes, sizes, strict=True):
        if needed > size:
            if rows.fixed:
                raise _small_vocabulary(rows.name, needed, size)
            raise DataError(
                f"the {side} vocabulary of {rows.name} has {needed} tokens, but the networks of "
                f"this space have {size}; prepare the data with {mark('vocab_size')} {size}"
            )
    if shape.share_embeddings and not rows.joint:
        raise DataError(
            f"the networks of this space share one table of embeddings, but {rows.name} has a "
            f"vocabulary for each side; prepare the data with {mark('joint')}"
        )
    if rows.longest > model.max_length:
        raise DataError(
            f"the longest row of {rows.name} has {rows.longest} tokens, but max_length of this "
            f"space is {model.max_length}; prepare the data with {mark('max_length')} "
            f"{model.max_length}"
        )


def _other_kind(name: str) -> DataError:
    return DataError(f"the data {name} and the networks of this space read different kinds")


def _small_vocabulary(name: str, needed: int, size: int) -> DataError:
    """What fits the tokenizer of a checkpoint, or one that is there already."""
    return DataError(
        f"the tokenizer of {name} has token numbers up to {needed - 1}, but the networks of this "
        f"space have {size} tokens: set vocab_size of the space to {needed} or more"
    )


def _longest(manifest: Manifest) -> int:
    """Of all splits: a network that is searched has to read the test split in the end."""
    return max((n for split in manifest.splits.values() for n in split.longest.values()), default=0)


def _tokenizers(folder: Path, manifest: Manifest) -> tuple[Tokenizer | None, Tokenizer | None]:
    """Of source and target: one object where the vocabulary is joint; None where text is bytes."""
    record = manifest.tokenizer
    if record is None or record.kind == "bytes":
        return None, None
    if record.kind == KIND:
        one = CheckpointTokenizer.load(folder)
        return one, one
    sides = (None,) if record.joint else ("source", "target")
    found = [SentencePieceTokenizer.load(folder / tokenizer_file(side)) for side in sides]
    return found[0], found[-1]


def _pairs(folder: Path, manifest: Manifest, split: str) -> PairSplit:
    record = manifest.tokenizer
    dtype = manifest.token_dtype
    if record is None or dtype is None:
        raise _contradiction(folder)
    sizes = (record.vocab_size, record.target_vocab_size or record.vocab_size)
    sides = ("source", "target")
    source, target = (
        read_rows(folder, f"{split}.{side}", dtype, size)
        for side, size in zip(sides, sizes, strict=True)
    )
    texts = [()] * 2 if split == "train" else [_text(folder, split, side) for side in sides]
    lengths = {len(source), len(target), *(len(text) for text in texts if split != "train")}
    if lengths != {manifest.splits[split].examples}:
        raise _contradiction(folder)
    return PairSplit(source, target, *texts)


def _text(folder: Path, split: str, side: str) -> tuple[str, ...]:
    return tuple(read_lines(folder / f"{split}.{side}.txt"))


def _stream(folder: Path, manifest: Manifest, split: str) -> StreamSplit:
    record = manifest.tokenizer
    if record is None or manifest.token_dtype is None:
        raise _contradiction(folder)
    counts = manifest.splits[split].counts
    # Of a checkpoint every number may be a word, and what begins a text stands in the text.
    least, begin = (PAD, None) if record.kind == KIND else (PAD + 1, BOS)
    rows = read_rows(folder, split, manifest.token_dtype, record.vocab_size, least)
    return StreamSplit(rows, counts.get("words", 0), counts.get("characters", 0), begin=begin)


def _examples(folder: Path, manifest: Manifest, split: str) -> ExampleSplit:
    inputs: NDArray[np.uint8] | TokenRows
    labels = map_array(folder / f"{split}.labels.bin", "<i8").astype(np.int64)
    if manifest.content == "images" and manifest.image_shape is not None:
        inputs = map_array(folder / f"{split}.images.bin", "u1", (-1, *manifest.image_shape))
    elif manifest.tokenizer is not None and manifest.token_dtype is not None:
        least = PAD if manifest.tokenizer.kind == KIND else PAD + 1
        inputs = read_rows(
            folder, split, manifest.token_dtype, manifest.tokenizer.vocab_size, least
        )
    else:
        raise _contradiction(folder)
    if len(inputs) != len(labels):
        raise _contradiction(folder)
    return ExampleSplit(inputs, labels)


def targets_file(split: str) -> str:
    """Name of the file with the vectors of a split, in numpy's format."""
    return f"{split}.targets.npy"


def pairs_file(split: str) -> str:
    """Name of the file with the pairs of a split, in numpy's format; there where it has some."""
    return f"{split}.pairs.npy"


def states_file(split: str) -> str:
    """Name of the file with the states of a split's tokens, in numpy's format; where it is kept."""
    return f"{split}.states.npy"


def _embeddings(folder: Path, manifest: Manifest, split: str) -> EmbeddingSplit:
    if manifest.tokenizer is None or manifest.token_dtype is None:
        raise _contradiction(folder)
    texts = read_rows(folder, split, manifest.token_dtype, manifest.tokenizer.vocab_size, least=PAD)
    targets = np.load(folder / targets_file(split), mmap_mode="r", allow_pickle=False)
    if targets.shape != (len(texts), manifest.width) or targets.dtype != np.float32:
        raise _contradiction(folder)
    states = None
    if (name := states_file(split)) in manifest.files:
        states = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        if states.shape != (texts.num_tokens, manifest.width) or states.dtype != np.float16:
            raise _contradiction(folder)
    num_pairs = manifest.splits[split].counts.get("pairs", 0)
    if not num_pairs:
        return EmbeddingSplit(texts, targets, states=states)
    pairs = np.load(folder / pairs_file(split), allow_pickle=False)
    if pairs.shape != (num_pairs, 2) or pairs.dtype != np.int64:
        raise _contradiction(folder)
    if pairs.min() < 0 or pairs.max() >= len(texts):
        raise _contradiction(folder)
    return EmbeddingSplit(texts, targets, pairs, states)


def _contradiction(folder: Path) -> DataError:
    return DataError(f"the manifest of {folder} contradicts its files; prepare the data anew")


PAIRS = PreparedForm("translation", _pairs)
STREAM = PreparedForm("language_modelling", _stream)
EXAMPLES = PreparedForm("classification", _examples)
EMBEDDINGS = PreparedForm("embedding", _embeddings)


def check_task(name: str, task: TaskName, space: SearchSpace) -> None:
    """See that data are for the task of a space.

    Raises:
        DataError: when they are for another one.
    """
    if task != space.task:
        given, needed = (one.replace("_", " ") for one in (task, space.task))
        raise DataError(
            f"the data set {name} is for {given}, but the networks of the space {space.name} "
            f"are for {needed}: choose a space for {given}, or data for {needed}"
        )


def check_manifest_fits(name: str, manifest: Manifest, space: SearchSpace) -> None:
    """See that networks of a space can read prepared data; nothing but the manifest is looked at.

    Args:
        name: of the data, for people.
        manifest: theirs.
        space: the networks.

    Raises:
        DataError: when the data are for another task, and as `check_examples_fit`,
            `check_embeddings_fit` and `check_fits`.
    """
    check_task(name, manifest.task, space)
    if manifest.task == "classification":
        check_examples_fit(name, manifest, space.model)
    elif manifest.task == "embedding":
        check_embeddings_fit(name, manifest, space)
    else:
        _check_rows(_rows_of(name, manifest), space.model)


def check_examples_fit(name: str, manifest: Manifest, model: ModelSettings) -> None:
    """See that networks of these settings can read examples, those of the test split included.

    Args:
        name: of the data, for people.
        manifest: theirs.
        model: the settings.

    Raises:
        DataError: when the kind of input, the image size, the channels, the vocabulary, the length
            or the number of classes differ.
    """
    pictures = manifest.image_shape if manifest.content == "images" else None
    shape, classes = model.input, len(manifest.label_names)
    if (pictures is not None) != isinstance(shape, ImageInput):
        held, read = ("texts", "images") if pictures is None else ("images", "tokens")
        raise DataError(
            f"the data {name} hold {held}, but the networks of this space read {read}; choose "
            "data or a space of the other kind"
        )
    if classes != model.num_classes:
        raise DataError(
            f"the data {name} have {classes} classes, but the space has "
            f"num_classes = {model.num_classes}; set it to {classes}"
        )
    if isinstance(shape, ImageInput):
        assert pictures is not None, "the kind was checked above"
        _check_images(name, pictures, shape)
    else:
        _check_texts(name, manifest, shape, model.max_length - model.class_token)


def check_embeddings_fit(name: str, manifest: Manifest, space: SearchSpace) -> None:
    """See that networks of a space can read the texts, and make vectors of their width.

    Args:
        name: of the data, for people.
        manifest: theirs.
        space: the networks.

    Raises:
        DataError: when the vocabulary, the longest text or the width do not fit.
    """
    model, record, shape = space.model, manifest.tokenizer, space.model.input
    assert isinstance(shape, TokenInput) and record is not None
    if record.vocab_size > shape.vocab_size:
        raise _small_vocabulary(name, record.vocab_size, shape.vocab_size)
    room, longest = model.max_length - model.class_token, _longest(manifest)
    if longest > room:
        raise DataError(
            f"the longest text of {name} has {longest} tokens, but the networks of this "
            f"space read {room}; prepare the data with {mark('max_length')} {room}"
        )
    (widths,) = (slot.choices for slot in space.slots if slot.gene == "embed_dim")
    if other := [one for one in widths if one != manifest.width]:
        raise DataError(
            f"the embeddings in {name} have {manifest.width} numbers, but networks of this space "
            f"have embed_dim = {other[0]}; set embed_dim of the space to [{manifest.width}], or "
            "prepare the data with a checkpoint of the other width"
        )


def _check_images(name: str, pictures: tuple[int, int, int], shape: ImageInput) -> None:
    side, _, channels = pictures
    if channels != shape.channels:
        raise DataError(
            f"the images of {name} have {channels} colour channels, but the networks of this space "
            f"read {shape.channels}; set model.input.channels of the space to {channels}"
        )
    if side > shape.image_size:
        raise DataError(
            f"the images of {name} have {side} x {side} pixels, but the networks of this space "
            f"read {shape.image_size} x {shape.image_size}; images are enlarged to fit, never made "
            f"smaller: prepare the data with {mark('image_size')} {shape.image_size}, or set "
            f"model.input.image_size of the space to at least {side}"
        )


def _check_texts(name: str, manifest: Manifest, shape: TokenInput, room: int) -> None:
    record, longest = manifest.tokenizer, _longest(manifest)
    bytewise = record is None or record.kind == "bytes"
    if record is not None and not bytewise and record.vocab_size > shape.vocab_size:
        raise _small_vocabulary(name, record.vocab_size, shape.vocab_size)
    if bytewise and shape.vocab_size < BYTE_VOCAB_SIZE:
        raise DataError(
            f"the texts of {name} are bytes, {BYTE_VOCAB_SIZE} tokens with padding, but the "
            f"space has vocab_size = {shape.vocab_size}; set it to {BYTE_VOCAB_SIZE}"
        )
    what = "bytes" if bytewise else "tokens"
    if longest > room:
        raise DataError(
            f"the longest text of {name} has {longest} {what}, but the networks of this "
            f"space read {room}; prepare the data with {mark('max_length')} {room}, or raise "
            f"max_length of the space by {longest - room}"
        )

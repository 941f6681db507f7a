"""Where each data set comes from and how it is split. Plain arrays, no torch.

To add a data set, write a function that opens it and list it in `SOURCES`. `PREPARED` stands for
the folders that `nas data prepare` makes, which need no code of their own.

Generated examples are of whatever shape a space reads (``--data synthetic``). Images: a class is a
pattern of a few coarse blocks, under noise and moved about. Token rows: a class is the token, out
of one a class, that comes up most often among others that mean nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.data_keys import RECALL
from search_spaces.errors import DataError
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.space import SearchSpace
from supernet.data import listops
from supernet.data.checkpoint_tokenizer import CheckpointTokenizer
from supernet.data.images import (
    WHITE,
    Labels,
    Normaliser,
    Pixels,
    check_examples,
    read_arrays,
)
from supernet.data.manifest import read_manifest
from supernet.data.prepared import EXAMPLES, ExampleSplit, check_examples_fit, check_task
from supernet.data.synthetic import NAME as SYNTHETIC

DIGITS_SIDE, DIGITS_TEST, DIGITS_VALID = 8, 360, 287
DIGITS_WHITE = 16  # of the shades in which they are stored
LISTOPS_TRAIN, LISTOPS_VALID, LISTOPS_TEST = 10_000, 500, 1000
SYNTHETIC_SIDE = 32  # in pixels, before images are enlarged to what networks read
LISTOPS_LONGEST = 2000  # the Long Range Arena's; longer trees are too rare to draw
VALID_SHARE, VALID_MOST = 10, 5000  # of a file's training images: one in ten, at most 5,000
CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
DIGIT_NAMES = tuple("0123456789")
SPLIT_SEED = 20  # of the fixed hold-outs; any number, but another one makes other splits

TRAIN, VALID, TEST = 1200, 300, 300  # generated examples
BLOCKS = 4
LONGEST_ROW = 128


class Arrays(NamedTuple):
    """Inputs, ready for a network but for their size, and labels."""

    inputs: NDArray[Any]
    labels: Labels


Background = tuple[float, ...]
Reading = Mapping[str, Any]

BYTES: Reading = {"kind": "bytes"}
NUMBERS: Reading = {"kind": "numbers"}
LISTOPS_SYMBOLS: Reading = {"kind": "symbols", "symbols": list(listops.SYMBOLS)}


class Scale(NamedTuple):
    """What images are normalised by: of each channel, of values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, table: Mapping[str, Any], shape: ImageInput | TokenInput) -> Scale | None:
        """``mean`` and ``std`` of a space's [data] table.

        Args:
            table: the table.
            shape: what the networks read.

        Returns:
            None where neither is given, or networks read no images.

        Raises:
            DataError: for what is none.
        """
        if not isinstance(shape, ImageInput) or ("mean" not in table and "std" not in table):
            return None
        mean, std = (table.get(name) for name in ("mean", "std"))
        given = [
            isinstance(one, list)
            and len(one) == shape.channels
            and all(isinstance(x, int | float) and math.isfinite(x) for x in one)
            for one in (mean, std)
        ]
        if not all(given) or not all(x > 0 for x in std):  # type: ignore[union-attr]
            raise DataError(
                "[data] of the space takes mean and std together, a number for each channel that "
                f"the networks read, which are {shape.channels}, std above 0; given {mean!r} and "
                f"{std!r}"
            )
        return cls(tuple(map(float, mean)), tuple(map(float, std)))  # type: ignore[arg-type]


class SearchArrays(NamedTuple):
    """The two splits of a search; `reading` and what follows as in `SearchData`."""

    train: Arrays
    valid: Arrays
    label_names: tuple[str, ...]
    reading: Reading
    background: Background = ()
    tokenizer: CheckpointTokenizer | None = None


@dataclass(frozen=True, slots=True)
class Examples:
    """A data set as it is stored: images are bytes ``(N, H, W, C)``, tokens are rows.

    Attributes:
        search: reads the training and the validation split.
        test: reads the test split.
        label_names: one name for each class.
        reading: how tokens come about; None for images, which are normalised by the training split.
        tokenizer: see `SearchData`.
        white: images only: the byte that stands for it.
    """

    search: Callable[[], tuple[Arrays, Arrays]]
    test: Callable[[], Arrays]
    label_names: tuple[str, ...]
    reading: Reading | None = None
    tokenizer: CheckpointTokenizer | None = None
    white: int = WHITE

    def search_arrays(self, scale: Scale | None = None) -> SearchArrays:
        """What a search may see, ready for networks; images by `scale`, or the training split."""
        train, valid = self.search()
        if self.reading is not None:
            return SearchArrays(
                train, valid, self.label_names, self.reading, tokenizer=self.tokenizer
            )
        normaliser = self._normaliser(train, scale)
        black, white = normaliser.background, normaliser.white
        reading = {
            "kind": "images",
            "black": list(black),
            "white": list(white),
            "side": train.inputs.shape[1],
        }
        train, valid = (
            Arrays(normaliser.apply(part.inputs), part.labels) for part in (train, valid)
        )
        return SearchArrays(train, valid, self.label_names, reading, black)

    def test_arrays(self, scale: Scale | None = None) -> Arrays:
        """The test split, ready for networks, as `search_arrays` makes the others."""
        if self.reading is not None:
            return self.test()
        normaliser, test = self._normaliser(self.search()[0], scale), self.test()
        return Arrays(normaliser.apply(test.inputs), test.labels)

    def _normaliser(self, train: Arrays, scale: Scale | None) -> Normaliser:
        if scale is None:
            return Normaliser.fit(train.inputs, self.white)
        return Normaliser.of(scale.mean, scale.std, self.white)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, checked as far as it is the same for every data set.

    Attributes:
        dataset: name of the data set.
        path: the file or folder; empty for a data set that needs none.
        model: the settings of the networks; the kind of input is the data set's.
        num_classes: of the networks.
        seed: of data that are drawn.
    """

    dataset: str
    path: str
    model: ModelSettings
    num_classes: int
    seed: int


class Source(NamedTuple):
    """A data set: what it holds and its classes (None where only files tell), how it is opened."""

    kind: Literal["images", "tokens"] | None
    needs_path: bool
    open: Callable[[Request], Examples]
    classes: int | None = None

    def check_reads(self, dataset: str, model: ModelSettings) -> None:
        """See that networks of these settings can read the data set, before it is opened.

        Args:
            dataset: its name.
            model: the settings.

        Raises:
            DataError: when the kind of input or the number of classes differ.
        """
        given = "images" if isinstance(model.input, ImageInput) else "tokens"
        if self.kind not in (None, given):
            raise DataError(
                f"the data set {dataset} holds {self.kind}, but the networks of this space read "
                f"{given}; choose a data set or a space of the other kind"
            )
        if model.num_classes is None:
            raise DataError(
                f"the data set {dataset} is for classification, but the space has no num_classes"
            )
        if self.classes not in (None, model.num_classes):
            raise DataError(
                f"the data set {dataset} has {self.classes} classes, but the space has "
                f"num_classes = {model.num_classes}; set it to {self.classes}"
            )


def class_quotas(labels: Labels, count: int, left: int = 1) -> NDArray[np.int64]:
    """How many of `count` examples each class gets, by its share.

    A class gets the whole part of its share; those with the largest fractions get one more.

    Args:
        labels: class numbers ``(N,)``.
        count: less than N; in all there are fewer where classes have none to spare.
        left: examples that each class keeps; 0 or 1.
    """
    counts = np.bincount(labels)
    shares = counts * count / len(labels)
    quotas = np.floor(shares).astype(np.int64)
    order = np.argsort(quotas - shares, kind="stable")
    spare = order[(quotas < counts - left)[order]]
    quotas[spare[: count - quotas.sum()]] += 1
    return quotas


def holdout(labels: Labels, count: int, left: int = 1) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Hold out `count` examples, the same in every run, with each class in its share.

    Arguments as for `class_quotas`.

    Returns:
        Indices kept and indices held out, both ascending.
    """
    rng = np.random.default_rng(SPLIT_SEED)
    held = np.zeros(len(labels), dtype=np.bool_)
    for label, quota in enumerate(class_quotas(labels, count, left)):
        held[rng.permutation(np.flatnonzero(labels == label))[:quota]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _held_out(examples: Arrays, count: int) -> tuple[Arrays, Arrays]:
    """What is kept, and what is held out."""
    kept, held = (
        Arrays(examples.inputs[part], examples.labels[part])
        for part in holdout(examples.labels, count)
    )
    return kept, held


def _image_input(request: Request) -> ImageInput:
    assert isinstance(request.model.input, ImageInput), "the kind of input was checked before"
    return request.model.input


def _check_side(side: int, request: Request) -> None:
    image_size = _image_input(request).image_size
    if side > image_size:
        raise DataError(
            f"the images of {request.dataset} have {side} x {side} pixels, but the networks of "
            f"this space read {image_size} x {image_size}; images are enlarged to fit, never "
            f"made smaller: set model.input.image_size of the space to at least {side}"
        )


def _digits(request: Request) -> Examples:
    # A slow import, and needed for this data set alone.
    from sklearn.datasets import load_digits

    _check_side(DIGITS_SIDE, request)
    channels = _image_input(request).channels
    if channels != 1:
        raise DataError(
            "the images of digits have 1 colour channel, but the networks of this space read "
            f"{channels}; set model.input.channels of the space to 1"
        )
    values, labels = load_digits(return_X_y=True)
    images = values.reshape(-1, DIGITS_SIDE, DIGITS_SIDE, 1).astype(np.uint8)
    kept, test = _held_out(Arrays(images, labels.astype(np.int64)), DIGITS_TEST)
    return Examples(
        lambda: _held_out(kept, DIGITS_VALID), lambda: test, DIGIT_NAMES, white=DIGITS_WHITE
    )


def _file_split(request: Request, split: str) -> tuple[Pixels, Labels, tuple[str, ...]]:
    names = (f"x_{split}", f"y_{split}")
    arrays = read_arrays(request.path, names)
    channels = _image_input(request).channels
    pixels, labels = check_examples(
        arrays[names[0]], arrays[names[1]], split, request.num_classes, channels
    )
    _check_side(pixels.shape[1], request)
    return pixels, labels, _label_names(arrays.get("class_names"), request.num_classes)


def _label_names(given: NDArray[Any] | None, num_classes: int) -> tuple[str, ...]:
    if given is not None and given.dtype.kind == "U" and given.shape == (num_classes,):
        return tuple(str(name) for name in given)
    if num_classes == len(CIFAR10_NAMES):
        return CIFAR10_NAMES
    return tuple(str(number) for number in range(num_classes))


def _file(request: Request) -> Examples:
    pixels, labels, names = _file_split(request, "train")
    valid_count = min(VALID_MOST, len(labels) // VALID_SHARE)
    if valid_count == 0:
        raise DataError(
            f"x_train of {request.path} holds {len(labels)} images; one in {VALID_SHARE} is held "
            f"out for validation, so at least {VALID_SHARE} are needed"
        )

    def test() -> Arrays:
        test_pixels, test_labels, _ = _file_split(request, "test")
        if test_pixels.shape[1:] != pixels.shape[1:]:
            raise DataError(
                f"the images of x_test have the shape {test_pixels.shape[1:]}, those of x_train "
                f"{pixels.shape[1:]}; both should be of one size"
            )
        return Arrays(test_pixels, test_labels)

    return Examples(lambda: _held_out(Arrays(pixels, labels), valid_count), test, names)


def _listops_bounds(request: Request) -> listops.LengthBounds:
    """As long as the networks allow, down to a quarter of it: 512 gives 128 to 512."""
    source = request.model.input
    assert isinstance(source, TokenInput), "the kind of input was checked before"
    if source.vocab_size < listops.VOCAB_SIZE:
        raise DataError(
            f"listops has {listops.VOCAB_SIZE} symbols, padding included, but the space has "
            f"vocab_size = {source.vocab_size}; set it to {listops.VOCAB_SIZE}"
        )
    below = min(request.model.max_length - request.model.class_token, LISTOPS_LONGEST)
    if below < 16:
        raise DataError(
            f"max_length = {request.model.max_length} is too short for listops; set it to 512, "
            "or to at least 17"
        )
    return listops.LengthBounds(below // 4, below)


def _listops_arrays(rows: list[listops.Tokens]) -> Arrays:
    labels = [listops.evaluate(row.tolist()) for row in rows]
    return Arrays(listops.pad(rows), np.asarray(labels, dtype=np.int64))


def _listops(request: Request) -> Examples:
    bounds, drawn = _listops_bounds(request), LISTOPS_TRAIN + LISTOPS_VALID

    def search() -> tuple[Arrays, Arrays]:
        rows = listops.generate(drawn, bounds, request.seed)
        return _listops_arrays(rows[:LISTOPS_TRAIN]), _listops_arrays(rows[LISTOPS_TRAIN:])

    def test() -> Arrays:
        # A longer draw begins with the shorter one: new lists, different from all of a search.
        rows = listops.generate(drawn + LISTOPS_TEST, bounds, request.seed)
        return _listops_arrays(rows[drawn:])

    return Examples(search, test, DIGIT_NAMES, LISTOPS_SYMBOLS)


def _synthetic_splits(request: Request) -> tuple[NDArray[Any], Labels]:
    """The examples of all splits; images are smaller than networks read them, rows not padded on.

    Raises:
        DataError: when the vocabulary is too small to tell the classes apart.
    """
    shape, classes = request.model.input, request.num_classes
    if isinstance(shape, ImageInput):
        side = min(shape.image_size, SYNTHETIC_SIDE)
        return synthetic_images(shape, classes, side, SPLIT_SEED)
    if shape.vocab_size < 2 * classes + 1:
        raise DataError(
            f"the synthetic data of {classes} classes need a vocabulary of {2 * classes + 1}, but "
            f"the space has vocab_size = {shape.vocab_size}; set it to that"
        )
    longest = min(request.model.max_length - request.model.class_token, LONGEST_ROW)
    return synthetic_rows(shape, classes, longest, SPLIT_SEED)


def _synthetic(request: Request) -> Examples:
    inputs, labels = _synthetic_splits(request)
    edges = (0, TRAIN, TRAIN + VALID, len(labels))
    train, valid, test = (
        Arrays(inputs[start:stop], labels[start:stop]) for start, stop in itertools.pairwise(edges)
    )
    names = tuple(str(number) for number in range(request.num_classes))
    reading = NUMBERS if isinstance(request.model.input, TokenInput) else None
    return Examples(lambda: (train, valid), lambda: test, names, reading)


def _prepared(request: Request) -> Examples:
    data, folder = EXAMPLES.open(Path(request.path)), Path(request.path)
    check_examples_fit(data.name, read_manifest(folder), request.model)

    def arrays(split: ExampleSplit) -> Arrays:
        rows = split.inputs
        return Arrays(rows if isinstance(rows, np.ndarray) else rows.padded(), split.labels)

    tokenizer = data.source_tokenizer
    assert tokenizer is None or isinstance(tokenizer, CheckpointTokenizer), "texts learn none"
    longest = data.settings.get("max_length")  # pictures have none
    cut = {} if longest is None else {"max_tokens": longest}
    reading = {**(BYTES if tokenizer is None else tokenizer.facts), **cut}
    return Examples(
        lambda: (arrays(data.train), arrays(data.valid)),
        lambda: arrays(EXAMPLES.open_test(folder)),
        data.label_names,
        None if isinstance(data.train.inputs, np.ndarray) else reading,
        tokenizer,
    )


PREPARED = Source(None, True, _prepared)
SOURCES: dict[str, Source] = {
    "cifar10": Source("images", True, _file),
    "digits": Source("images", False, _digits, len(DIGIT_NAMES)),
    "listops": Source("tokens", False, _listops, len(DIGIT_NAMES)),
    "synthetic": Source(None, False, _synthetic),
}


def check_built_in_fits(dataset: str, space: SearchSpace) -> None:
    """See that networks of a space can read a data set that needs no file, before it is opened.

    Args:
        dataset: one of `SOURCES`, or ``recall``; ``synthetic`` is drawn for whatever is asked.
        space: the networks.

    Raises:
        DataError: when it is for another task, or as `Source.check_reads`.
    """
    if dataset == SYNTHETIC:
        return
    check_task(dataset, "language_modelling" if dataset == RECALL else "classification", space)
    if dataset != RECALL:
        SOURCES[dataset].check_reads(dataset, space.model)


def synthetic_images(
    shape: ImageInput, num_classes: int, side: int, seed: int
) -> tuple[Pixels, Labels]:
    """All images, uint8 ``(N, side, side, C)``, and labels ``(N,)``, splits one after the other.

    Args:
        shape: for its number of channels.
        num_classes: number of classes.
        side: height and width in pixels.
        seed: of the draw.
    """
    rng = np.random.default_rng((seed, 1))
    labels = rng.integers(num_classes, size=TRAIN + VALID + TEST)
    patterns = rng.integers(60, 196, size=(num_classes, BLOCKS, BLOCKS, shape.channels))
    places = np.arange(side) * BLOCKS // side
    images = patterns[:, places][:, :, places][labels].astype(np.float64)
    moves = rng.integers(-side // 8, side // 8 + 1, size=(len(labels), 2))
    for image, (down, right) in zip(images, moves, strict=True):
        image[:] = np.roll(image, (down, right), axis=(0, 1))
    images += rng.normal(0.0, 40.0, size=images.shape)
    return images.clip(0, 255).astype(np.uint8), labels


def synthetic_rows(
    shape: TokenInput, num_classes: int, longest: int, seed: int
) -> tuple[NDArray[np.int64], Labels]:
    """All rows, int64 ``(N, T)`` filled up with 0, and labels ``(N,)``.

    Args:
        shape: for its vocabulary, of at least ``2 * num_classes + 1`` tokens.
        num_classes: number of classes; token c + 1 speaks for class c.
        longest: most tokens of a row.
        seed: of the draw.
    """
    rng = np.random.default_rng((seed, 2))
    labels = rng.integers(num_classes, size=TRAIN + VALID + TEST)
    rows = np.zeros((len(labels), longest), dtype=np.int64)
    for row, label in zip(rows, labels.tolist(), strict=True):
        length = int(rng.integers(longest // 2, longest + 1))
        row[:length] = rng.integers(1, shape.vocab_size, size=length)
        votes = row[:length] <= num_classes
        row[:length][votes] = rng.integers(num_classes + 1, shape.vocab_size, size=votes.sum())
        others = rng.integers(num_classes, size=length // 8) + 1
        spoken = np.concatenate([np.full(length // 4, label + 1), others])
        row[rng.permutation(length)[: len(spoken)]] = spoken
    return rows, labels

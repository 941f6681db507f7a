"""Labelled examples for a search, and the only door to their test splits.

A search sees `SearchData`: a training part and a validation part held out from it. The test split
comes from `load_test_split` alone, which only retraining calls. Splits are fixed, so that runs
with different seeds compare on the same examples; of the data sets only `listops`, which is drawn
rather than stored, depends on the seed. The order of batches depends on (seed, epoch) alone.

Shapes: N examples, B batch, C channels, H height, W width, T tokens.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import CheckpointTokenizer
from supernet.data.sources import PREPARED, SOURCES, Arrays, Request, Scale, Source
from supernet.data.tokenizer import PAD


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Examples and their labels.

    Attributes:
        inputs: images, float32 ``(N, C, H, W)``, normalised; or tokens, int64 ``(N, T)``, filled
            up with 0 at the end.
        labels: class numbers, int64 ``(N,)``.
        image_size: side in pixels to which `batches` enlarges images, so that small images are
            stored small; None to leave them as they are.
    """

    inputs: Tensor
    labels: Tensor
    image_size: int | None = None

    def __post_init__(self) -> None:
        assert len(self.inputs) == len(self.labels), "an example has no label"

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Split:
        """The same split on another device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False, slots=True)
class SearchData:
    """What a search may see of a data set: no example of the test split is in it.

    Attributes:
        name: of the data set; for a prepared folder, the folder's.
        train: the examples to learn from.
        valid: examples held out from training, to compare networks by.
        num_classes: number of classes.
        label_names: one name for each class.
        digest: sha256 over all arrays of both splits, as hexadecimal digits.
        background: images only: the value of a black pixel after normalisation, per channel.
        reading: how an example becomes an input, plain values by name. ``kind`` is ``images`` (with
            ``black`` and ``white``, the normalised values of these shades, per channel, and
            ``side``, of the data's pictures in pixels),
            ``bytes`` (token = byte + 1), ``symbols`` (with the list of them), ``numbers``, or
            that of a `CheckpointTokenizer`; ``max_tokens`` is where prepared texts were cut.
        tokenizer: of a checkpoint, where texts were prepared with it.
    """

    name: str
    train: Split
    valid: Split
    num_classes: int
    label_names: tuple[str, ...]
    digest: str
    background: tuple[float, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=lambda: {"kind": "numbers"})
    tokenizer: CheckpointTokenizer | None = None


def load_search_data(
    dataset: str, path: str | None, model: ModelSettings, seed: int, scale: Scale | None = None
) -> SearchData:
    """Load the training and validation splits of a data set, and nothing of its test split.

    Args:
        dataset: one of `SOURCES`; not looked at when `path` is a folder.
        path: a folder made by ``nas data prepare --task classification``, which takes the place of
            any data set; or the file, for a data set that needs one; otherwise None.
        model: the settings of the networks, which the data must fit.
        seed: of the draw of `listops`, at least 0; the others do not depend on it.
        scale: what images are normalised by; by the training split if not given.

    Raises:
        UnknownNameError: for a data set that is not there.
        UsageError: on a negative seed.
        DataError: when the file is missing, damaged or of another form, or the data do not fit the
            model's input.
    """
    source, request = _prepare(dataset, path, model, seed)
    arrays = source.open(request).search_arrays(scale)
    train, valid = _split(arrays.train, model), _split(arrays.valid, model)
    return SearchData(
        name=request.dataset,
        train=train,
        valid=valid,
        num_classes=request.num_classes,
        label_names=unique_names(arrays.label_names),
        digest=digest_of(train, valid),
        reading=arrays.reading,
        background=arrays.background,
        tokenizer=arrays.tokenizer,
    )


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of classes, in their order; one that is there already gets its class's number.

    Data that are prepared now have no such names; older ones, exports and files of arrays may.
    """
    found = dict[str, None]()
    for number, name in enumerate(names):
        while name in found:
            name = f"{name} ({number})"
        found[name] = None
    return tuple(found)


def load_test_split(
    dataset: str, path: str | None, model: ModelSettings, seed: int, scale: Scale | None = None
) -> Split:
    """Load the test split, normalised as the training split is: for retraining's last step only.

    Arguments and errors are those of `load_search_data`.
    """
    source, request = _prepare(dataset, path, model, seed)
    return _split(source.open(request).test_arrays(scale), model)


def digest_of(*splits: Split) -> str:
    """sha256 over types, shapes and contents of the arrays, as hexadecimal digits."""
    total = hashlib.sha256()
    for tensor in (tensor for split in splits for tensor in (split.inputs, split.labels)):
        array = np.ascontiguousarray(tensor.cpu().numpy())
        total.update(f"{array.dtype}{array.shape};".encode())
        total.update(array.data)
    return total.hexdigest()


def _source(dataset: str) -> Source:
    if dataset not in SOURCES:
        near = difflib.get_close_matches(dataset, SOURCES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownNameError(
            f"there is no data set {dataset!r}; {hint}there are {', '.join(sorted(SOURCES))}"
        )
    return SOURCES[dataset]


def _prepare(
    dataset: str, path: str | None, model: ModelSettings, seed: int
) -> tuple[Source, Request]:
    folder = _folder(path)
    source = _source(dataset) if folder is None else PREPARED
    name = dataset if folder is None else folder.resolve().name
    if seed < 0:
        raise UsageError(f"seed must be at least 0; given {seed}")
    source.check_reads(name, model)
    assert model.num_classes is not None, "this was checked"
    if source.needs_path and not path:
        raise DataError(
            f"the data set {dataset} is read from a file; pass it with {mark('data')} FILE.npz, "
            f"with the arrays x_train, y_train, x_test and y_test, or with {mark('data')} DIR a "
            "folder made by nas data prepare --task classification --source IMAGES --out DIR; "
            f"{mark('data')} synthetic tries the space on generated examples"
        )
    if path and not source.needs_path:
        raise DataError(f"the data set {dataset} needs no file; leave out {mark('data')} {path}")
    where = path or "" if folder is None else str(folder)
    return source, Request(name, where, model, model.num_classes, seed)


def _folder(path: str | None) -> Path | None:
    """The prepared folder that a path means, also when it is not there any more."""
    if not path:
        return None
    found = Path(path).expanduser()
    return found if found.is_dir() or not (found.exists() or found.suffix == ".npz") else None


def _split(arrays: Arrays, model: ModelSettings) -> Split:
    image_size = model.input.image_size if isinstance(model.input, ImageInput) else None
    return Split(torch.from_numpy(arrays.inputs), torch.from_numpy(arrays.labels), image_size)


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Some examples of a split.

    Attributes:
        inputs: images ``(B, C, H, W)``, or tokens ``(B, T)`` cut to the longest of the batch.
        labels: int64 ``(B,)``.
        key_mask: tokens only: bool ``(B, T)``, True where there is a token and no padding.
    """

    inputs: Tensor
    labels: Tensor
    key_mask: Tensor | None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_labels(self) -> int:
        """One label for each example."""
        return len(self.labels)

    def part(self, rows: slice) -> Batch:
        """Some of the examples, padded as they are here."""
        mask = None if self.key_mask is None else self.key_mask[rows]
        return Batch(self.inputs[rows], self.labels[rows], mask)


def num_batches(split: Split, batch_size: int) -> int:
    """Batches in one pass; the last may be smaller than `batch_size`."""
    return -(-len(split) // batch_size)


def batches(
    split: Split,
    batch_size: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    device: torch.device | str | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Batch]:
    """One pass over a split; the order depends on (`seed`, `epoch`) and on nothing else.

    Args:
        split: what to go through. Move a small one to the device once, with `Split.to`.
        batch_size: examples per batch, at least 1; the last batch keeps what is left.
        seed: of the order, at least 0.
        epoch: number of the pass, at least 0; each has an order of its own.
        shuffle: False keeps the order of the split.
        device: where batches go; None leaves them on the split's device.
        transform: applied to the inputs of each batch on the device, before images are enlarged:
            the place for `augment`, which is cheaper on the small images.

    Returns:
        An iterator of batches.

    Raises:
        UsageError: on a batch size below 1, or a negative seed or epoch.
    """
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("epoch", epoch, 0),
    ):
        if value < least:
            raise UsageError(f"{name} must be at least {least}; given {value}")
    order = np.arange(len(split))
    if shuffle:
        order = np.random.default_rng((seed, epoch)).permutation(order)
    chunks = torch.from_numpy(order).to(split.inputs.device).split(batch_size)
    # An inner generator, so that wrong arguments are refused here and not at the first batch.
    return (_batch(split, chunk, device, transform) for chunk in chunks if len(chunk))


def enlarge(images: Tensor, image_size: int | None) -> Tensor:
    """Images ``(B, C, H, W)`` scaled bilinearly to squares of `image_size` pixels."""
    if image_size is None or images.shape[2:] == (image_size, image_size):
        return images
    size = (image_size, image_size)
    return functional.interpolate(images, size, mode="bilinear", align_corners=False)


def _batch(
    split: Split,
    chosen: Tensor,
    device: torch.device | str | None,
    transform: Callable[[Tensor], Tensor] | None,
) -> Batch:
    inputs, labels = split.inputs[chosen], split.labels[chosen]
    is_tokens = inputs.ndim == 2
    if is_tokens:
        inputs = _cut(inputs)
    if device is not None:
        inputs, labels = inputs.to(device), labels.to(device)
    if transform is not None:
        inputs = transform(inputs)
    if is_tokens:
        return Batch(inputs, labels, inputs != PAD)
    return Batch(enlarge(inputs, split.image_size), labels, None)


def _cut(tokens: Tensor) -> Tensor:
    """Drop the columns at the end that are padding in every row, but never all of them."""
    used = (tokens != PAD).any(dim=0).nonzero()
    longest = int(used[-1]) + 1 if len(used) else 1
    return tokens[:, :longest]

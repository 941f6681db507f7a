"""Labelled images of a user: CIFAR-10 batches, ``.npz`` files, or a folder for each class.

CIFAR-10's "python version" is pickles, and unpickling a file lets the file run any code. Here its
instructions are only listed, and the two things wanted are picked out of the list: the longest byte
string, which is the pixels, and the numbers that follow the key ``labels``.

Shapes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import pickletools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from supernet.data.images import Labels, Pixels, read_arrays
from supernet.data.manifest import file_sha256
from supernet.data.sources import CIFAR10_NAMES

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg")
IMAGES_PER_CHUNK = 1024
GREY_MODES = ("1", "L")

SIDE, CHANNELS, CLASSES = 32, 3, 10
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"

_INTEGERS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1"}
_RECALLS = {"GET", "BINGET", "LONG_BINGET"}


class ImageSource(Protocol):
    """Labelled images, decoded in parts when they are wanted."""

    @property
    def labels(self) -> Labels:
        """Class numbers, int64 ``(N,)``."""
        ...

    @property
    def label_names(self) -> tuple[str, ...]:
        """One name for each class."""
        ...

    @property
    def digest(self) -> str:
        """sha256 over all that is read."""
        ...

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen images in parts uint8 ``(n, H, W, C)``, cut and scaled to `size` if given."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class ArrayImages:
    """Images that are in memory, uint8 ``(N, H, W, C)``."""

    pixels: Pixels
    labels: Labels
    label_names: tuple[str, ...]
    digest: str

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen images, in parts."""
        for part in _parts(chosen):
            if size is None or self.pixels.shape[1:3] == (size, size):
                yield self.pixels[part]
            else:
                yield np.stack([_scaled(self.pixels[index], size) for index in part])


@dataclass(frozen=True, eq=False, slots=True)
class PackedImages:
    """JPEG files one behind the other; image i lies between `offsets` i and i + 1."""

    data: Pixels
    offsets: NDArray[np.int64]
    labels: Labels
    label_names: tuple[str, ...]
    digest: str
    name: str

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen images, in parts."""
        for part in _parts(chosen):
            yield _stacked([(self._image(index, size), f"{self.name}[{index}]") for index in part])

    def _image(self, index: int, size: int | None) -> Pixels:
        packed = self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()
        return _decoded(packed, f"{self.name}[{index}]", 3, size)


@dataclass(frozen=True, eq=False, slots=True)
class FolderImages:
    """Picture files in one folder for each class."""

    paths: tuple[Path, ...]
    labels: Labels
    label_names: tuple[str, ...]
    digest: str

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen images, in parts; grey if the first image of all is."""
        channels = _channels(self.paths[0])
        for part in _parts(chosen):
            paths = [self.paths[index] for index in part]
            images = [_decoded(_bytes(path), str(path), channels, size) for path in paths]
            yield _stacked(list(zip(images, map(str, paths), strict=True)))


def open_images(path: Path) -> tuple[ImageSource, ImageSource | None]:
    """The training images of a file or folder, and its test images if it has a part of its own.

    Raises:
        DataError: when there is no such thing, or it is none of the known forms.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if path.is_dir():
        return _batches(path) if is_batch_folder(path) else (_folder(path), None)
    if path.suffix != ".npz":
        raise DataError(
            f"{path} is of no known form; images are read from an .npz file, the folder of "
            "CIFAR-10's python batches, or a folder with one folder of PNG or JPEG files a class"
        )
    arrays = _npz_names(path)
    if "train_jpeg" in arrays:
        test = _packed(path, "test") if "test_jpeg" in arrays else None
        return _packed(path, "train"), test
    return _arrays(path, "train"), _arrays(path, "test") if "x_test" in arrays else None


def _batches(path: Path) -> tuple[ImageSource, ImageSource]:
    made = []
    for names in (TRAIN_FILES, (TEST_FILE,)):
        files = [path / name for name in names]
        pixels, labels = read_batches(files)
        made.append(ArrayImages(pixels, labels, CIFAR10_NAMES, _digest_of(files, path)))
    return made[0], made[1]


def _npz_names(path: Path) -> set[str]:
    read_arrays(str(path), ())  # the errors of a file that is none
    with np.load(path, allow_pickle=False) as archive:
        return set(archive.files)


def _arrays(path: Path, part: str) -> ArrayImages:
    names = (f"x_{part}", f"y_{part}")
    found = read_arrays(str(path), names)
    pixels = found[names[0]]
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or not len(pixels):
        raise DataError(
            f"x_{part} of {path} is {pixels.dtype} of shape {pixels.shape}; it should be uint8 of "
            "shape (images, height, width, channels), channels last"
        )
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    labels = _labels(found[names[1]], len(pixels), f"y_{part} of {path}")
    return ArrayImages(pixels, labels, _names(found, labels), file_sha256(path))


def _packed(path: Path, part: str) -> PackedImages:
    names = (f"{part}_jpeg", f"{part}_offset", f"{part}_label")
    found = read_arrays(str(path), names)
    data, offsets = found[names[0]], found[names[1]]
    fits = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
    if data.dtype != np.uint8 or not fits or offsets[0] != 0 or offsets[-1] != len(data):
        raise DataError(
            f"{names[0]} of {path} should be bytes, and {names[1]} say where each image begins"
        )
    labels = _labels(found[names[2]], len(offsets) - 1, f"{names[2]} of {path}")
    digest = file_sha256(path)
    named = f"{path}:{names[0]}"
    return PackedImages(
        data, offsets.astype(np.int64), labels, _names(found, labels), digest, named
    )


def _labels(labels: NDArray[Any], count: int, name: str) -> Labels:
    if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
        raise DataError(
            f"{name} is {labels.dtype} of shape {labels.shape}; it should be one integer for each "
            f"of the {count} images"
        )
    if labels.min() < 0:
        raise DataError(f"{name} holds the label {labels.min()}; labels count from 0")
    return labels.reshape(-1).astype(np.int64)


def _names(arrays: dict[str, NDArray[Any]], labels: Labels) -> tuple[str, ...]:
    """The names in the file if there are enough, else the numbers."""
    given = arrays.get("class_names")
    names = () if given is None else tuple(str(name) for name in given.reshape(-1))
    count = int(labels.max()) + 1
    return names if len(names) >= count else tuple(map(str, range(count)))


def _folder(path: Path) -> FolderImages:
    classes = sorted(
        child for child in path.iterdir() if child.is_dir() and not child.name.startswith(".")
    )
    files = [
        sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURE_ENDINGS)
        for folder in classes
    ]
    empty = next((str(c) for c, inside in zip(classes, files, strict=True) if not inside), None)
    if len(classes) < 2 or empty:
        raise DataError(
            f"{empty or path} holds no {'PNG or JPEG files' if empty else 'folders'}; a folder of "
            "images has one folder for each of at least two classes, with PNG or JPEG files in it"
        )
    paths = tuple(file for inside in files for file in inside)
    labels = np.repeat(np.arange(len(classes)), [len(inside) for inside in files])
    names = tuple(folder.name for folder in classes)
    return FolderImages(paths, labels.astype(np.int64), names, _digest_of(paths, path))


def _digest_of(files: list[Path] | tuple[Path, ...], root: Path) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(root).as_posix()} {file_sha256(file)}\n".encode())
    return total.hexdigest()


def _parts(chosen: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    for start in range(0, len(chosen), IMAGES_PER_CHUNK):
        yield chosen[start : start + IMAGES_PER_CHUNK]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _channels(path: Path) -> int:
    """1 for a grey picture, 3 for any other."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(_bytes(path))) as image:
            return 1 if image.mode in GREY_MODES else 3
    except OSError as error:
        raise DataError(f"{path} is no PNG or JPEG image, or is damaged: {error}") from error


def read_picture(path: Path, channels: int, size: int) -> Pixels:
    """One picture as data are prepared: its middle square, scaled, ``(size, size, C)``.

    Raises:
        DataError: for what is no PNG or JPEG image.
    """
    return _decoded(_bytes(path), str(path), channels, size)


def _decoded(data: bytes, name: str, channels: int, size: int | None) -> Pixels:
    """One picture ``(H, W, C)``."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                plain = image.convert("L" if channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Warning, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is no PNG or JPEG image, or is damaged: {error}") from error
    pixels = np.asarray(plain, dtype=np.uint8).reshape(plain.height, plain.width, channels)
    return pixels if size is None else _scaled(pixels, size)


def _scaled(pixels: Pixels, size: int) -> Pixels:
    """The middle square of a picture ``(H, W, C)``, scaled to `size`."""
    from PIL import Image

    height, width, channels = pixels.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pixels[top : top + side, left : left + side]
    image = Image.fromarray(square[..., 0] if channels == 1 else square)
    scaled = image.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(scaled, dtype=np.uint8).reshape(size, size, channels)


def _stacked(images: list[tuple[Pixels, str]]) -> Pixels:
    first, first_name = images[0]
    for image, name in images:
        if image.shape != first.shape:
            raise DataError(
                f"{name} has {image.shape[1]} x {image.shape[0]} pixels, but {first_name} "
                f"{first.shape[1]} x {first.shape[0]}; give --image-size to make them equal"
            )
    return np.stack([image for image, _ in images])


def read_batches(paths: list[Path]) -> tuple[Pixels, Labels]:
    """Images uint8 ``(N, 32, 32, 3)`` and labels of some batch files.

    Raises:
        DataError: when a file is missing or not of the published form.
    """
    parts = [_read(path) for path in paths]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _read(path: Path) -> tuple[Pixels, Labels]:
    if not path.is_file():
        raise DataError(
            f"{path} is missing; CIFAR-10's python version has {', '.join(TRAIN_FILES)} and "
            f"{TEST_FILE} in one folder"
        )
    pixels, labels = _contents(path)
    if not labels or len(pixels) != len(labels) * CHANNELS * SIDE * SIDE:
        raise _not_published(path, f"{len(pixels)} bytes of pixels for {len(labels)} labels")
    if not 0 <= min(labels) <= max(labels) < CLASSES:
        raise _not_published(path, f"labels from {min(labels)} to {max(labels)}")
    planes = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, CHANNELS, SIDE, SIDE)
    return planes.transpose(0, 2, 3, 1), np.asarray(labels, dtype=np.int64)


def _contents(path: Path) -> tuple[bytes, list[int]]:
    """The longest byte string, and the numbers behind the key ``labels``."""
    pixels, labels, in_labels = b"", list[int](), False
    try:
        for operation, argument, _ in pickletools.genops(path.read_bytes()):
            if operation.name in _INTEGERS:
                if in_labels:
                    labels.append(int(argument or 0))
            elif isinstance(argument, str | bytes):
                # pickletools reads Python 2's byte strings as latin-1.
                raw = (
                    argument.encode("latin-1", "ignore") if isinstance(argument, str) else argument
                )
                in_labels = raw == b"labels"
                pixels = max(pixels, raw, key=len)
            elif operation.name in _RECALLS:
                in_labels = False  # a value met before: a key, or some other object
    except (ValueError, OSError) as error:
        raise _not_published(path, str(error)) from error
    return pixels, labels


def _not_published(path: Path, found: str) -> DataError:
    return DataError(
        f"{path} is no batch of CIFAR-10's python version as published ({found}). It is a pickle, "
        "which could run any code, so it is not unpickled; convert it yourself to an .npz file "
        "with numpy.savez_compressed(FILE, x_train=…, y_train=…, x_test=…, y_test=…)"
    )


def is_batch_folder(path: Path) -> bool:
    """Whether a folder looks like CIFAR-10's python version."""
    return any((path / name).is_file() for name in itertools.chain(TRAIN_FILES, (TEST_FILE,)))

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
import os
import pickletools
import re
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from search_spaces.wording import mark
from supernet.data.images import Labels, Pixels, read_arrays
from supernet.data.manifest import file_sha256, written_name
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.plan import HASH_BYTES, SPLITS, Hashes
from supernet.data.prepare.splits import check_one_split, is_text, split_called, splits_of
from supernet.data.sources import CIFAR10_NAMES
from supernet.data.text_files import Report

if TYPE_CHECKING:
    from PIL import Image

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg")
OTHER_PICTURES = (".avif", ".bmp", ".gif", ".heic", ".tif", ".tiff", ".webp")
MAC_FOLDER = "__MACOSX"  # what macOS puts into an archive beside its content
IMAGES_PER_CHUNK = 1024
PICTURES_PER_REPORT = 256
# What arrays of images are called → those of their labels; a split may stand before or behind.
PARTNERS = {"x": "y", "images": "labels"}
GREY_MODES = ("1", "L", "LA", "La")

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
    def groups(self) -> Hashes:
        """Hash of what each image is grouped by, ``(N,)``; empty where there are no groups."""
        ...

    @property
    def digest(self) -> str:
        """sha256 over all that is read."""
        ...

    def hashes(self) -> Hashes:
        """A hash of each image, ``(N,)``."""
        ...

    def check_sizes(self) -> None:
        """See that all images are square and of one size.

        Raises:
            DataError: naming one or two that are not.
        """
        ...

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen images in parts uint8 ``(n, H, W, C)``, cut and scaled to `size` if given.

        Args:
            chosen: ascending.
            size: of a side.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class ArrayImages:
    """Images that are in memory, uint8 ``(N, H, W, C)``."""

    name: str
    pixels: Pixels
    labels: Labels
    label_names: tuple[str, ...]
    digest: str
    groups: Hashes = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    def hashes(self) -> Hashes:
        """A hash of each image's pixels."""
        return np.array([_hashed(image.tobytes()) for image in self.pixels], dtype=np.uint64)

    def check_sizes(self) -> None:
        """See that they are square.

        Raises:
            DataError: when they are not.
        """
        _check_square(self.name, self.pixels.shape[2], self.pixels.shape[1])

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen images, in parts."""
        for part in _parts(chosen):
            if size is None or self.pixels.shape[1:3] == (size, size):
                yield self.pixels[part]
            else:
                yield np.stack([_scaled(self.pixels[index], size) for index in part])


@dataclass(frozen=True, eq=False, slots=True)
class EncodedImages:
    """PNG and JPEG files, wherever they lie, each of which was decoded once.

    Attributes:
        pictures: gives the name of every picture, and its bytes or its path.
        usable: numbers of those that are used, ascending.
        labels: of these.
        label_names: one for each class.
        digest: sha256 over all that is read.
        channels: 1 if all are grey, otherwise 3.
        seen: a hash of each, which was made of its pixels.
        sizes: width and height → name of the first picture of that size, and their number.
        groups: hashes of what they are grouped by; empty where there are no groups.
    """

    pictures: Callable[[], Iterator[tuple[str, bytes | Path]]]
    usable: NDArray[np.intp]
    labels: Labels
    label_names: tuple[str, ...]
    digest: str
    channels: int
    seen: Hashes
    sizes: dict[tuple[int, int], tuple[str, int]]
    groups: Hashes

    @classmethod
    def examined(
        cls,
        pictures: Callable[[], Iterator[tuple[str, bytes | Path]]],
        labels: Labels,
        label_names: tuple[str, ...],
        digest: str,
        split: str,
        doctor: Doctor,
        report: Report,
        groups: Hashes | None = None,
    ) -> EncodedImages:
        """Decode every picture once, to find those that cannot be used, their sizes and colours."""
        usable, seen, grey = list[int](), list[int](), True
        sizes: dict[tuple[int, int], tuple[str, int]] = {}
        label = f"Reading pictures for {split}"
        for number, (name, picture) in enumerate(pictures()):
            try:
                plain = _opened(picture, name)
            except DataError as error:
                doctor.leave_out(split, name, str(error).removeprefix(f"{name} "))
            else:
                grey = grey and plain.mode == "L"
                first, count = sizes.get(plain.size, (name, 0))
                sizes[plain.size] = (first, count + 1)
                usable.append(number)
                seen.append(_hashed(plain.tobytes()))
            if (number + 1) % PICTURES_PER_REPORT == 0:
                report(label, number + 1, len(labels))
        report(label, len(labels), len(labels))
        chosen = np.array(usable, dtype=np.intp)
        return cls(
            pictures,
            chosen,
            labels[chosen],
            label_names,
            digest,
            1 if grey else 3,
            np.array(seen, dtype=np.uint64),
            sizes,
            groups[chosen] if groups is not None and len(groups) else np.zeros(0, dtype=np.uint64),
        )

    def hashes(self) -> Hashes:
        """A hash of each picture's pixels."""
        return self.seen

    def check_sizes(self) -> None:
        """See that all pictures are square and of one size.

        Raises:
            DataError: naming one or two that are not.
        """
        if len(self.sizes) < 2:
            for (width, height), (name, _) in self.sizes.items():
                _check_square(name, width, height)
            return
        (first, (first_name, _)), (other, (name, _)) = list(self.sizes.items())[:2]
        least = min(min(size) for size in self.sizes)
        raise DataError(
            f"{name} has {other[0]} x {other[1]} pixels, but {first_name} {first[0]} x {first[1]} "
            f"({len(self.sizes):,} sizes in all, the shortest side has {least}); give "
            f"{mark('image_size')} to make them equal"
        )

    def read(self, chosen: NDArray[np.intp], size: int | None) -> Iterator[Pixels]:
        """The chosen pictures, in parts."""
        wanted, part = set(self.usable[chosen].tolist()), list[Pixels]()
        for number, (name, picture) in enumerate(self.pictures()):
            if number not in wanted:
                continue
            part.append(_decoded(picture, name, self.channels, size))
            if len(part) == IMAGES_PER_CHUNK:
                yield np.stack(part)
                part = []
        if part:
            yield np.stack(part)


def open_images(path: Path, split: str, doctor: Doctor, report: Report) -> dict[str, ImageSource]:
    """The training images of a file or folder, and those that it holds of other splits.

    Args:
        path: an ``.npz`` file, a folder of CIFAR-10's batches, a folder with one folder for each
            class, or one with such folders for each split.
        split: that it was given for.
        doctor: learns of pictures that cannot be used, and of what is ignored.
        report: is told how many pictures were read.

    Raises:
        DataError: when there is no such thing, it is none of the known forms, or it holds several
            splits and was not given for training.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if path.is_dir():
        if is_batch_folder(path):
            check_one_split(path, split, (*TRAIN_FILES, TEST_FILE))
            return _batches(path)
        inside = _splits_in(path)
        if inside:
            check_one_split(path, split, inside)
            _check_once(path, inside)
            return {
                found: _folder(path / name, found, doctor, report) for name, found in inside.items()
            }
        return {"train": _folder(path, split, doctor, report)}
    if path.suffix != ".npz":
        raise DataError(
            f"{path} is of no known form; images are read from an .npz file, the folder of "
            "CIFAR-10's python batches, a folder with one folder of PNG or JPEG files a class, or "
            "a table with the columns image and label; texts from a table with text and label "
            "(.csv, .tsv, .jsonl, .parquet, .arrow, or a folder that datasets saved)"
        )
    return _open_npz(path, split, doctor, report)


def _open_npz(path: Path, split: str, doctor: Doctor, report: Report) -> dict[str, ImageSource]:
    arrays = _npz_names(path)
    read: Callable[[Path, str], ImageSource]
    if "train_jpeg" in arrays:
        known = {f"{part}_{what}" for part in SPLITS for what in ("jpeg", "offset", "label")}
        has = [part for part in SPLITS if f"{part}_jpeg" in arrays]

        def read(file: Path, part: str) -> ImageSource:
            role = split if part == "train" else part
            return _packed(file, part, role, doctor, report)
    else:
        pairs = _pairs(arrays)
        if split == "train" or not pairs:
            pairs.setdefault("train", ("x_train", "y_train"))
        known = {*itertools.chain(*pairs.values())}
        has = [part for part in SPLITS if part in pairs]

        def read(file: Path, part: str) -> ImageSource:
            return _arrays(file, *pairs[part])

    check_one_split(path, split, has)
    unread = sorted(arrays - known - {"class_names"})
    if unread:
        doctor.ignored.append(f"{path}: the arrays {', '.join(unread)}")
    return {part: read(path, part) for part in has}


def _batches(path: Path) -> dict[str, ImageSource]:
    made: dict[str, ImageSource] = {}
    for split, names in (("train", TRAIN_FILES), ("test", (TEST_FILE,))):
        files = [path / name for name in names]
        pixels, labels = read_batches(files)
        made[split] = ArrayImages(str(path), pixels, labels, CIFAR10_NAMES, _digest_of(files, path))
    return made


def _npz_names(path: Path) -> set[str]:
    read_arrays(str(path), ())  # the errors of a file that is none
    with np.load(path, allow_pickle=False) as archive:
        return set(archive.files)


def _pairs(arrays: set[str]) -> dict[str, tuple[str, str]]:
    """Split → its images and labels: ``x_train``, ``val_images``, and ``images`` for training."""
    by_name, pairs = {name.lower(): name for name in arrays}, dict[str, tuple[str, str]]()
    for low, name in sorted(by_name.items()):
        words = low.split("_")
        kind = next((word for word in words if word in PARTNERS), "")
        rest = [word for word in words if word != kind]
        split = split_called(rest[0]) if rest else "train"
        if kind and split and len(rest) < 2:
            labels = "_".join(PARTNERS[kind] if word == kind else word for word in words)
            pairs.setdefault(split, (name, by_name.get(labels, labels)))
    return pairs


def _arrays(path: Path, images: str, answers: str) -> ArrayImages:
    found = read_arrays(str(path), (images, answers))
    pixels = found[images]
    first = pixels.ndim == 4 and pixels.shape[1] in (1, 3) and pixels.shape[-1] not in (1, 3)
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or first or not len(pixels):
        raise DataError(
            f"{images} of {path} is {pixels.dtype} of shape {pixels.shape}; it should be uint8 of "
            "shape (images, height, width, channels), channels last"
        )
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    labels = _labels(found[answers], len(pixels), f"{answers} of {path}")
    return ArrayImages(
        f"{images} of {path}", pixels, labels, _names(path, found, labels), file_sha256(path)
    )


def _packed(path: Path, part: str, split: str, doctor: Doctor, report: Report) -> EncodedImages:
    names = (f"{part}_jpeg", f"{part}_offset", f"{part}_label")
    found = read_arrays(str(path), names)
    data, offsets = found[names[0]], found[names[1]]
    fits = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
    if data.dtype != np.uint8 or not fits or offsets[0] != 0 or offsets[-1] != len(data):
        raise DataError(
            f"{names[0]} of {path} should be bytes, and {names[1]} say where each image begins"
        )
    labels = _labels(found[names[2]], len(offsets) - 1, f"{names[2]} of {path}")

    def pictures() -> Iterator[tuple[str, bytes | Path]]:
        for number, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
            yield f"{path}:{names[0]}[{number}]", data[start:end].tobytes()

    return EncodedImages.examined(
        pictures, labels, _names(path, found, labels), file_sha256(path), split, doctor, report
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


def _names(path: Path, arrays: dict[str, NDArray[Any]], labels: Labels) -> tuple[str, ...]:
    """The names in the file if there are enough, else the numbers.

    Raises:
        DataError: for two classes of one name.
    """
    given = arrays.get("class_names")
    names = () if given is None else tuple(str(name) for name in given.reshape(-1))
    count = int(labels.max()) + 1
    if len(names) < count:
        return tuple(map(str, range(count)))
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise DataError(
            f"class_names of {path} names {twice!r} more than once: name the classes differently, "
            f"such as {twice} 1 and {twice} 2"
        )
    return names


def is_picture(file: Path) -> bool:
    """Whether a file is a PNG or JPEG image, by its name; hidden files are none."""
    return file.suffix.lower() in PICTURE_ENDINGS and not file.name.startswith(".")


def _splits_in(path: Path) -> dict[str, str]:
    """Folder of classes → the split it is called by; empty where the folders are classes.

    Raises:
        DataError: where it cannot be known what one of them is for.
    """
    folders = _folders(path)
    named = any(split_called(folder.name) == "train" for folder in folders)
    if not named or not any(map(_folders, folders)):
        return {}
    found = zip(folders, splits_of(folders, path), strict=True)
    return {folder.name: split for folder, split in found if split is not None}


def _check_once(path: Path, inside: Mapping[str, str]) -> None:
    for one in set(inside.values()):
        names = [name for name, split in inside.items() if split == one]
        if len(names) > 1:
            raise DataError(
                f"{path} holds {' and '.join(names)}, which are both {one}: put their pictures "
                "into one folder"
            )


def _folders(path: Path) -> list[Path]:
    return sorted(
        child
        for child in path.iterdir()
        if child.is_dir() and not child.name.startswith(".") and child.name != MAC_FOLDER
    )


def _folder(path: Path, split: str, doctor: Doctor, report: Report) -> EncodedImages:
    classes = _folders(path)
    doctor.ignored += [
        f"{file}: no PNG or JPEG file in a folder of a class"
        for file in sorted(path.rglob("*"))
        if file.is_file() and not (is_picture(file) and file.parent in classes)
    ]
    files = [sorted(file for file in folder.iterdir() if is_picture(file)) for folder in classes]
    empty = next((c for c, inside in zip(classes, files, strict=True) if not inside), None)
    if len(classes) < 2 or empty:
        raise _no_classes(path, classes, empty)
    paths = [file for inside in files for file in inside]
    labels = np.repeat(np.arange(len(classes)), [len(inside) for inside in files])

    def pictures() -> Iterator[tuple[str, bytes | Path]]:
        return ((str(file), file) for file in paths)

    names = tuple(map(written_name, classes))
    digest = _digest_of(paths, path)
    return EncodedImages.examined(
        pictures, labels.astype(np.int64), names, digest, split, doctor, report
    )


def _no_classes(path: Path, classes: list[Path], empty: Path | None) -> DataError:
    """What is wrong with a folder of images.

    Args:
        path: the folder.
        classes: the folders in it.
        empty: the first of them without a picture.
    """
    inside = [file for file in (empty or path).iterdir() if not file.name.startswith(".")]
    other = next((e for e in OTHER_PICTURES if any(f.suffix.lower() == e for f in inside)), None)
    if other is not None and not any(map(is_picture, inside)):
        return DataError(
            f"{empty or path} holds pictures of the form {other}, and only PNG and JPEG files are "
            "read: convert them"
        )
    if (empty or not classes) and any(map(is_text, inside)):
        return DataError(
            f"{empty or path} holds texts, and no PNG or JPEG files: texts with labels are read "
            "from a table, such as a .csv or .jsonl file with the columns text and label"
        )
    holds = f"one folder alone, {classes[0].name}" if classes else "no folders"
    return DataError(
        f"{empty or path} holds {'no PNG or JPEG files' if empty else holds}; a folder of "
        "images has one folder for each of at least two classes, with PNG or JPEG files in it"
    )


def _digest_of(files: list[Path] | tuple[Path, ...], root: Path) -> str:
    total = hashlib.sha256()
    for file in filter(Path.is_file, files):  # a pipe would be waited for
        with suppress(OSError):  # what cannot be read is told when it is decoded
            line = f"{file.relative_to(root).as_posix()} {file_sha256(file)}\n"
            total.update(os.fsencode(line))
    return total.hexdigest()


def _parts(chosen: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    for start in range(0, len(chosen), IMAGES_PER_CHUNK):
        yield chosen[start : start + IMAGES_PER_CHUNK]


def _check_square(name: str, width: int, height: int) -> None:
    if width != height:
        raise DataError(
            f"the images of {name} have {width} x {height} pixels; they should be square and of "
            f"one size: give {mark('image_size')} to cut and scale them"
        )


def _hashed(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=HASH_BYTES).digest())


def _bytes(path: Path, name: str) -> bytes:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{name} is a pipe or a device, and no file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from error


def read_picture(path: Path, channels: int, size: int) -> Pixels:
    """One picture as data are prepared: its middle square, scaled, ``(size, size, C)``.

    Raises:
        DataError: for what is no PNG or JPEG image, or too large.
    """
    return _decoded(path, str(path), channels, size)


def _opened(picture: bytes | Path, name: str) -> Image.Image:
    """A decoded picture, upright, grey or RGB; what is transparent shows what lies below."""
    from PIL import Image, UnidentifiedImageError

    data = picture if isinstance(picture, bytes) else _bytes(picture, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                return _plain(_upright(image))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        pixels = int(re.findall(r"\d+", str(error))[0])
        raise DataError(
            f"{name} is too large: it has {pixels:,} pixels, and {Image.MAX_IMAGE_PIXELS:,} are "
            "the most; scale it down"
        ) from error
    except (OSError, SyntaxError, ValueError, Warning) as error:
        why = "" if isinstance(error, UnidentifiedImageError) else f", or is damaged: {error}"
        raise DataError(f"{name} is no PNG or JPEG image{why}") from error


def _plain(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey, of which the upper 8 are kept
        wide = np.asarray(image).astype(np.int64).clip(0, 2**16 - 1)
        return Image.fromarray((wide >> 8).astype(np.uint8))
    plain = image.convert("RGBA") if image.mode == "P" else image
    return plain.convert("L" if image.mode in GREY_MODES else "RGB")


def _upright(image: Image.Image) -> Image.Image:
    """A picture, turned as the camera says that made the file."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, TypeError, struct.error):  # what is no EXIF says nothing
        return image


def _decoded(picture: bytes | Path, name: str, channels: int, size: int | None) -> Pixels:
    """One picture ``(H, W, C)``."""
    plain = _opened(picture, name).convert("L" if channels == 1 else "RGB")
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

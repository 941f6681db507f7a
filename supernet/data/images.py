"""Images as bytes: reading them from a file, checking them, and normalising them.

Shapes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

ARRAYS = "x_train, y_train, x_test and y_test"
WHITE = 255


@dataclass(frozen=True, eq=False, slots=True)
class Normaliser:
    """Takes every channel to mean 0 and variance 1 over the images it was fitted to.

    Mean and variance come from a count of the 256 byte values, in exact arithmetic, so that the
    normalised images are the same to the last bit on every machine.

    Attributes:
        table: float32 ``(C, 256)``, what becomes of each byte value of a channel.
        full: the byte that stands for white; 255 but where images are stored in fewer shades.
    """

    table: NDArray[np.float32]
    full: int = WHITE

    @classmethod
    def fit(cls, pixels: Pixels, full: int = WHITE) -> Self:
        """Fit to images ``(N, H, W, C)``; a constant channel becomes 0."""
        values = np.arange(256)
        rows = []
        for channel in range(pixels.shape[-1]):
            counts = _count_values(pixels[..., channel])
            total, weighted = int(counts.sum()), int(counts @ values)
            # Integers up to here: n² var = n Σx² - (Σx)², which nothing can round.
            spread = total * int(counts @ values**2) - weighted**2
            deviation = np.sqrt(np.float64(spread)) / total if spread else 1.0
            rows.append((values - weighted / total) / deviation)
        return cls(np.stack(rows).astype(np.float32), full)

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], full: int = WHITE) -> Self:
        """With the mean and the deviation of each channel, of values from 0 (black) to 1."""
        values = np.arange(256) / full
        rows = [(values - m) / s for m, s in zip(mean, std, strict=True)]
        return cls(np.stack(rows).astype(np.float32), full)

    def apply(self, pixels: Pixels) -> NDArray[np.float32]:
        """Images ``(N, H, W, C)`` → normalised ``(N, C, H, W)``."""
        count, height, width, channels = pixels.shape
        images = np.empty((count, channels, height, width), dtype=np.float32)
        for channel in range(channels):
            images[:, channel] = self.table[channel][pixels[..., channel]]
        return images

    @property
    def background(self) -> tuple[float, ...]:
        """What becomes of black, per channel."""
        return tuple(float(value) for value in self.table[:, 0])

    @property
    def white(self) -> tuple[float, ...]:
        """What becomes of white, per channel; the other shades lie evenly between."""
        return tuple(float(value) for value in self.table[:, self.full])


def read_arrays(path: str, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read some arrays of an .npz file, and ``class_names`` if it is there; no others.

    Raises:
        DataError: when there is no such file, it is no .npz file, or an array is missing,
            damaged or pickled.
    """
    file = Path(path).expanduser()
    if not file.exists():
        raise DataError(f"there is no data file {path}; pass an .npz file with {ARRAYS}")
    if file.is_dir():
        raise DataError(f"{path} is a folder; pass the .npz file itself, with {ARRAYS}")
    try:
        if not zipfile.is_zipfile(file):
            raise DataError(
                f"{path} is no .npz file ({file.stat().st_size} bytes); write one with "
                "numpy.savez_compressed(FILE, x_train=…, y_train=…, x_test=…, y_test=…)"
            )
        with np.load(file, allow_pickle=False) as archive:
            missing = [name for name in needed if name not in archive.files]
            if missing:
                raise DataError(
                    f"{path} lacks the array {missing[0]}; it needs {' and '.join(needed)}, "
                    f"and has {', '.join(archive.files) or 'none'}"
                )
            optional = [name for name in ("class_names",) if name in archive.files]
            return {name: _read(archive, name, path) for name in (*needed, *optional)}
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"the data file {path} cannot be read: {error}") from error


def check_examples(
    pixels: NDArray[Any], labels: NDArray[Any], split: str, num_classes: int, channels: int
) -> tuple[Pixels, Labels]:
    """The images and labels of a file, if they are what they should be.

    Args:
        pixels: should be uint8 ``(N, H, H, C)``.
        labels: should be integers ``(N,)`` or ``(N, 1)``, from 0 to `num_classes` - 1.
        split: ``train`` or ``test``, for messages.
        num_classes: number of classes of the networks.
        channels: colour channels of the networks.

    Raises:
        DataError: naming the array, what it is and what it should be.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != pixels.shape[2]:
        raise DataError(
            f"x_{split} is {pixels.dtype} of shape {pixels.shape}; it should be uint8 of shape "
            "(images, side, side, channels), channels last"
        )
    if pixels.size == 0:
        raise DataError(f"x_{split} holds no images: its shape is {pixels.shape}")
    if pixels.shape[3] != channels:
        raise DataError(
            f"x_{split} has {pixels.shape[3]} colour channels, but the networks of this space "
            f"read {channels}; set model.input.channels of the space, or take other images"
        )
    if labels.dtype.kind not in "iu" or labels.shape not in ((len(pixels),), (len(pixels), 1)):
        raise DataError(
            f"y_{split} is {labels.dtype} of shape {labels.shape}; it should be one integer for "
            f"each of the {len(pixels)} images of x_{split}"
        )
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if wrong.size:
        raise DataError(
            f"y_{split} holds the label {wrong[0]}; with num_classes = {num_classes} labels are "
            f"0 to {num_classes - 1}"
        )
    return pixels, labels.reshape(-1).astype(np.int64)


def _read(archive: Any, name: str, path: str) -> NDArray[Any]:
    try:
        return np.asarray(archive[name])
    except ValueError as error:
        pickled = "pickle" in str(error)
        reason = (
            "is pickled (it holds Python objects), which is unsafe to read"
            if pickled
            else (f"is damaged ({error})")
        )
        raise DataError(
            f"the array {name} of {path} {reason}; save it as plain numbers with "
            "numpy.savez_compressed"
        ) from error
    except (OSError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"the array {name} of {path} is damaged ({error}); prepare the file anew"
        ) from error


def _count_values(channel: Pixels) -> NDArray[np.int64]:
    """How often each byte value occurs; in parts, as counting widens bytes to 64 bits."""
    counts = np.zeros(256, dtype=np.int64)
    for part in np.array_split(channel, -(-channel.size // 2**22)):
        counts += np.bincount(part.ravel(), minlength=256)
    return counts

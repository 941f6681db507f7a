"""Generated examples to classify, of whatever shape a space reads: ``--data synthetic``.

Images: a class is a pattern of a few coarse blocks, under noise and moved about. Token rows: a
class is the token, out of one a class, that comes up most often among others that mean nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search_spaces.settings import ImageInput, TokenInput
from supernet.data.images import Labels, Pixels

TRAIN, VALID, TEST = 1200, 300, 300
BLOCKS = 4
LONGEST_ROW = 128


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

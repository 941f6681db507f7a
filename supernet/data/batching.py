"""The batches of a split, in an order that (seed, epoch) alone decides.

Shapes: N examples, B batch, C channels, H height, W width, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.errors import UsageError
from supernet.data.datasets import Split

PAD = 0


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

"""Batches of texts and the vectors that their embeddings should be.

Shapes: B texts of a batch, T tokens of its longest, D width of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supernet.data.prepared import EmbeddingSplit
from supernet.data.text_batches import Indices, check_order, padded_rows
from supernet.data.text_files import TokenRows


@dataclass(frozen=True, eq=False, slots=True)
class EmbeddingBatch:
    """Some texts.

    Attributes:
        tokens: int64 ``(B, T)``; padding is 0, at the end of rows.
        targets: fp32 ``(B, D)``.
        states: what the checkpoint says of the tokens, at length 1, fp16 ``(B, T, D)``; 0 at
            padding. None where it was not asked for, or is not kept.
    """

    tokens: Tensor
    targets: Tensor
    states: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_labels(self) -> int:
        """One vector for each text."""
        return len(self.targets)

    def part(self, rows: slice) -> EmbeddingBatch:
        """Some of the texts, padded as they are here."""
        states = None if self.states is None else self.states[rows]
        return EmbeddingBatch(self.tokens[rows], self.targets[rows], states)


def embedding_batches(
    split: EmbeddingSplit,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    device: torch.device | str | None = None,
    states: bool = False,
) -> Iterator[EmbeddingBatch]:
    """One pass over a split, in batches of texts of similar lengths.

    Args:
        split: what to go through.
        batch_size: texts of a batch, at least 1; one batch keeps what is left.
        seed: of the order, at least 0.
        epoch: number of the pass, at least 0; each has batches of its own.
        shuffle: False is for evaluation: always the same batches, shortest first.
        device: where batches go.
        states: whether they have those of their tokens, where the split has them.

    Raises:
        UsageError: on negative numbers.
    """
    check_order(seed, epoch)
    if not shuffle:
        parts = _parts(evaluation_order(split), batch_size)
    else:
        lengths = split.texts.lengths
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(split))
        order = order[np.argsort(lengths[order], kind="stable")]
        parts = _parts(order, batch_size)
        parts = [parts[number] for number in rng.permutation(len(parts))]
    # An inner generator, so that wrong arguments are refused here and not at the first batch.
    return (_batch(split, rows, device, states) for rows in parts)


def evaluation_order(split: EmbeddingSplit) -> Indices:
    """The rows of a split as evaluation goes through them, shortest first."""
    return np.argsort(split.texts.lengths, kind="stable")


def _parts(order: Indices, size: int) -> list[Indices]:
    return [order[at : at + size] for at in range(0, len(order), size)]


def _batch(
    split: EmbeddingSplit, rows: Indices, device: torch.device | str | None, with_states: bool
) -> EmbeddingBatch:
    tokens = padded_rows(split.texts, rows)
    targets = torch.from_numpy(np.array(split.targets[rows]))
    states = None
    if with_states and split.states is not None:
        states = _padded_states(split.states, split.texts, rows, tokens.shape[1]).to(device)
    return EmbeddingBatch(tokens.to(device), targets.to(device), states)


def _padded_states(
    states: NDArray[np.float16], texts: TokenRows, rows: Indices, longest: int
) -> Tensor:
    """Those of some rows, ``(B, longest, D)``, filled up with 0 at the end."""
    padded_BTD = np.zeros((len(rows), longest, states.shape[1]), dtype=np.float16)
    for place, row in enumerate(rows):
        found_TD = states[texts.offsets[row] : texts.offsets[row + 1]]
        padded_BTD[place, : len(found_TD)] = found_TD
    return torch.from_numpy(padded_BTD)

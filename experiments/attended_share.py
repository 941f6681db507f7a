"""How much of the source cross-attention looks at: its dilution, in numbers.

Shapes: B batch, H heads, N queries, M keys, D width of one head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from supernet.attention.base import State, state_positions
from supernet.attention.linear import MeanLinearKernel
from supernet.attention.softmax import SoftmaxKernel, unpacked
from supernet.data.text_batches import PairBatch
from supernet.sequence_models import FixedTranslation


@torch.inference_mode()
def attended_share(network: FixedTranslation, batches: Iterable[PairBatch]) -> float:
    """Mean over layers, heads and target tokens of ``exp(entropy of the weights) / source length``.

    1 is a plain mean over the source, and 1 / length a look at one token.

    Args:
        network: with softmax or cosFormer cross-attention.
        batches: what it reads.
    """
    shares: list[Tensor] = []
    with _watched(shares):
        network.eval()
        for batch in batches:
            network(batch.source, batch.inputs)
    return float(torch.cat(shares).mean())


def share_of(weights_BHNM: Tensor, mask_BM: Tensor) -> Tensor:
    """``exp(entropy) / length`` of every row of weights, flat."""
    entropy_BHN = torch.special.entr(weights_BHNM).sum(dim=-1)
    shares_BHN: Tensor = entropy_BHN.exp() / mask_BM.sum(dim=1)[:, None, None]
    return shares_BHN.flatten()


@contextmanager
def _watched(shares: list[Tensor]) -> Iterator[None]:
    """Note the weights of every cross-attention, which no kernel keeps by itself."""
    keys: dict[int, tuple[Tensor, Tensor]] = {}
    softmax_read, linear_read = SoftmaxKernel.read, MeanLinearKernel.read
    linear_memory = MeanLinearKernel.memory

    def read_softmax(self: SoftmaxKernel, q: Tensor, memory: State, places: Tensor) -> Tensor:
        k_BHMD, _, mask = unpacked(memory)
        mask_BM = _mask(mask, k_BHMD)
        logits = (q @ k_BHMD.mT / math.sqrt(q.shape[-1])).masked_fill(
            ~mask_BM[:, None, None], -torch.inf
        )
        shares.append(share_of(logits.softmax(dim=-1), mask_BM))
        return softmax_read(self, q, memory, places)

    def remember(self: MeanLinearKernel, k: Tensor, v: Tensor, **options: Any) -> State:
        mask_BM = _mask(options["key_mask_BM"], k)
        places = state_positions(mask_BM, k.shape[2], 1, k.device)
        keys[id(self)] = self.features(k, places) * mask_BM[:, None, :, None], mask_BM
        return linear_memory(self, k, v, **options)

    def read_linear(self: MeanLinearKernel, q: Tensor, memory: State, places: Tensor) -> Tensor:
        k_BHMC, mask_BM = keys[id(self)]
        weights = self.features(q, places) @ k_BHMC.mT
        shares.append(share_of(weights / weights.sum(dim=-1, keepdim=True), mask_BM))
        return linear_read(self, q, memory, places)

    with ExitStack() as stack:
        stack.enter_context(patch.object(SoftmaxKernel, "read", read_softmax))
        stack.enter_context(patch.object(MeanLinearKernel, "memory", remember))
        stack.enter_context(patch.object(MeanLinearKernel, "read", read_linear))
        yield


def _mask(mask_BM: Tensor | None, k_BHMD: Tensor) -> Tensor:
    if mask_BM is not None:
        return mask_BM
    return torch.ones(k_BHMD.shape[0], k_BHMD.shape[2], dtype=torch.bool)

"""Attention over the states of several layers that leaves most of them out: mixtures, blocks."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.attention import (
    KERNELS,
    Attention,
    Carried,
    Settings,
    Sizes,
    past_mask,
    with_past,
)


class LinformerAttention(Attention):
    """Scaled dot products with a few learned mixtures of all states (Linformer, 2020)."""

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        rank, length = model["linformer_rank"], model["max_length"]
        self.projection = nn.Parameter(torch.zeros(rank, length, self.span))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all states seeing the mixtures; padding is behind."""
        q, k, v = self.project(x)
        mix = self.projection[:, : x.shape[1] // self.span].flatten(1)[None, None]
        if real is not None:
            mix = mix.masked_fill(~real[:, None, None, :], 0.0)
        return self.merge(F.scaled_dot_product_attention(q, mix @ k, mix @ v))


@cache
def block_wishes(blocks: int) -> Tensor:
    """How much each block of queries wants each block of keys; integers, none twice in a row."""
    generator = torch.Generator().manual_seed(20200728)  # as when the network was trained
    chance = torch.rand(blocks, blocks, generator=generator, dtype=torch.float64)
    block = torch.arange(blocks)
    always = ((block[:, None] - block).abs() <= 1) | (block < 2)  # neighbours, global blocks
    return chance.argsort(dim=1) + blocks * always


def eight_largest(wishes: Tensor) -> Tensor:
    """True at the eight largest numbers of each row that are not negative."""
    top = wishes.topk(min(8, wishes.shape[-1]), dim=-1)
    seen = torch.zeros_like(wishes, dtype=torch.bool)
    return seen.scatter(-1, top.indices, top.values >= 0)


class BigBirdAttention(Attention):
    """Scaled dot products between blocks: neighbours, two global ones, some random (BigBird, 2020).

    What is not seen is masked here, not left out, so this is exact but saves no time.
    """

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.block = model["bigbird_block"]
        self.blocks = -(-model["max_length"] // self.block)

    def seen_blocks(self, block: Tensor, there: Tensor) -> Tensor:
        """Blocks that each block of queries sees: real ones only, ``(B, blocks, blocks)``."""
        wishes = block_wishes(self.blocks).to(there.device)
        count = there.new_zeros(len(there), len(wishes), dtype=torch.int64)
        count = count.index_add(1, block, there.long())
        seen = eight_largest(wishes[None].masked_fill(count[:, None, :] == 0, -1))
        seen[:, :2] = True
        return seen

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, states seeing blocks of states; padding is behind."""
        q, k, v = self.project(x)
        there = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
        block = torch.arange(x.shape[1], device=x.device) // (self.span * self.block)
        mask = self.seen_blocks(block, there)[:, block][:, :, block] & there[:, None, :]
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask[:, None]))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing blocks of the past."""
        q, k, v = self.project(x)
        k, v = with_past(past, k, v)
        wishes = block_wishes(self.blocks).to(x.device)
        key = torch.arange(len(wishes), device=x.device)
        seen = eight_largest(wishes.masked_fill(key[None, :] > key[:, None], -1))
        block = torch.arange(k.shape[2], device=x.device) // (self.span * self.block)
        mask = past_mask(q, k, self.span) & seen[block[k.shape[2] - q.shape[2] :]][:, block]
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask)), (k, v)

    def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
        """Keys and values of a source ``(B, M, D)``, and the block of each, -1 at padding."""
        block = (positions // self.block).where(real, -1)
        return self.split(self.key(x)), self.split(self.value(x)), block

    def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing what a query there would see of its own."""
        k, v, blocks = memory
        block = blocks.amax(dim=0).clamp(min=0)  # the same of all samples but at padding
        seen = self.seen_blocks(block, blocks >= 0)[:, positions // self.block]
        mask = (seen[:, :, block] & (blocks >= 0)[:, None, :])[:, None]
        return self.merge(F.scaled_dot_product_attention(self.split(self.query(x)), k, v, mask))


KERNELS |= {"linformer": LinformerAttention, "bigbird": BigBirdAttention}

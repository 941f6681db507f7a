"""Attention: projections, and what happens between them."""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.sizes import (
    BIGBIRD_BLOCK,
    BIGBIRD_CROSS,
    BIGBIRD_DECODER,
    BIGBIRD_ENCODER,
    DECODER_SPANS,
    LINEAR_CROSS,
    LINEAR_DECODER,
    LINEAR_ENCODER,
    LINFORMER_RANK,
    MAX_LENGTH,
    NORM_CROSS,
    NORM_DECODER,
    NORM_ENCODER,
    OMNI,
    PADDING,
    POSITIONS,
    RELATIVE_DECODER,
    RELATIVE_ENCODER,
    RELATIVE_POSITIONS,
    SOFTMAX_CROSS,
    SOFTMAX_DECODER,
    SOFTMAX_ENCODER,
)

Carried = tuple[Tensor, ...]  # what attention remembers of earlier positions, or of a source


class Attention(nn.Module):
    """Queries, keys, values and output of all heads; subclasses attend."""

    def __init__(
        self, width: int, key_width: int, heads: int, head_width: int, span: int = 1
    ) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        if OMNI:
            self.span = span  # states that stand at one position
        self.query = nn.Linear(width, heads * head_width)
        self.key = nn.Linear(key_width, heads * head_width)
        self.value = nn.Linear(key_width, heads * head_width)
        self.output = nn.Linear(heads * head_width, width)

    def split(self, x: Tensor) -> Tensor:
        """``(B, N, H * W)`` -> ``(B, H, N, W)``."""
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """``(B, H, N, W)`` -> ``(B, N, D)``."""
        return self.output(x.transpose(1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of ``(B, N, D)``, each ``(B, H, N, W)``."""
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))


def with_past(past: Carried | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the past, and the new ones behind them."""
    if past is None:
        return k, v
    return torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)


def past_mask(q: Tensor, k: Tensor, together: int = 1) -> Tensor:
    """True where a key stands no later than a query, ``(N, M)``; queries are the last keys."""
    position = torch.arange(k.shape[2], device=k.device)
    if DECODER_SPANS:
        position = position // together
    return position[None, :] <= position[k.shape[2] - q.shape[2] :, None]


class SoftmaxAttention(Attention):
    """Scaled dot products."""

    if SOFTMAX_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all."""
            q, k, v = self.project(x)
            if PADDING:
                mask = real[:, None, None, :]
                return self.merge(F.scaled_dot_product_attention(q, k, v, mask))
            else:
                return self.merge(F.scaled_dot_product_attention(q, k, v))

    if SOFTMAX_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
            q, k, v = self.project(x)
            k, v = with_past(past, k, v)
            mask = past_mask(q, k, self.span) if DECODER_SPANS else past_mask(q, k)
            return self.merge(F.scaled_dot_product_attention(q, k, v, mask)), (k, v)

    if SOFTMAX_CROSS:

        def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
            """Keys and values of a source ``(B, M, D)``."""
            return self.split(self.key(x)), self.split(self.value(x)), real

        def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
            k, v, real = memory
            q, mask = self.split(self.query(x)), real[:, None, None, :]
            return self.merge(F.scaled_dot_product_attention(q, k, v, mask))


class RelativeAttention(Attention):
    """Scaled dot products with a learned key for each distance (Shaw et al., 2018)."""

    def __init__(self, width: int, key_width: int, heads: int, head_width: int) -> None:
        super().__init__(width, key_width, heads, head_width)
        rows = 2 * RELATIVE_POSITIONS + 1
        self.relative_keys = nn.Parameter(torch.zeros(rows, heads * head_width))

    def distance_logits(self, q: Tensor, keys: int) -> Tensor:
        """``(B, H, N, M)``: what each query says to the distance of each key."""
        table = self.relative_keys.view(-1, self.heads, self.head_width).permute(1, 2, 0)
        logits = (q * self.head_width**-0.5) @ table  # (B, H, N, rows of the table)
        position = torch.arange(keys, device=q.device)
        distance = position[None, :] - position[keys - q.shape[2] :, None]  # (N, M)
        row = distance.clamp(-RELATIVE_POSITIONS, RELATIVE_POSITIONS) + RELATIVE_POSITIONS
        return logits.gather(-1, row.expand(*logits.shape[:2], -1, -1))

    if RELATIVE_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all."""
            q, k, v = self.project(x)
            bias = self.distance_logits(q, k.shape[2])
            if PADDING:
                bias = bias.masked_fill(~real[:, None, None, :], -torch.inf)
            return self.merge(F.scaled_dot_product_attention(q, k, v, bias))

    if RELATIVE_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing the past: all keys and values are carried."""
            q, k, v = self.project(x)
            k, v = with_past(past, k, v)
            bias = self.distance_logits(q, k.shape[2]).masked_fill(~past_mask(q, k), -torch.inf)
            return self.merge(F.scaled_dot_product_attention(q, k, v, bias)), (k, v)


def causal_sums(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor | None, together: int = 1
) -> tuple[Tensor, Tensor]:
    """Products of queries with the sum of ``k v^T`` over their past, and that sum at the end.

    Features q and k are ``(B, H, N, C)``, values v ``(B, H, N, V)``. Inside of a chunk queries meet
    keys; all chunks before it are one matrix, so the cost grows with the length alone.
    """
    if DECODER_SPANS:
        chunk = max(1, 64 // together) * together
    else:
        chunk = 64
    sums = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if past is None else past
    parts = []
    for qs, ks, vs in zip(q.split(chunk, 2), k.split(chunk, 2), v.split(chunk, 2), strict=True):
        weights = (qs @ ks.mT).masked_fill(~past_mask(qs, ks, together), 0.0)
        parts.append(weights @ vs + qs @ sums)
        sums = sums + ks.mT @ vs
    return torch.cat(parts, dim=2), sums


def with_ones(v: Tensor) -> Tensor:
    """Values with a last column of ones, in which the sum of the weights comes out."""
    return F.pad(v, (0, 1), value=1.0)


def divided(sums: Tensor) -> Tensor:
    """Sums of weighted values, divided by the sum of the weights."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=1e-6)


class LinearAttention(Attention):
    """Weights are products of features, so that sums over the keys serve all queries."""

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """``ReLU + 1e-3``: never zero throughout."""
        return x.relu() + 1e-3

    if LINEAR_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all."""
            if POSITIONS:
                positions = torch.arange(x.shape[1], device=x.device)
            q, k, v = self.project(x)
            q, k = self.features(q, positions), self.features(k, positions)
            if PADDING:
                k = k.masked_fill(~real[:, None, :, None], 0.0)
            return self.merge(divided(q @ (k.mT @ with_ones(v))))

    if LINEAR_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing the past, of which one sum is carried."""
            q, k, v = self.project(x)
            q, k = self.features(q, positions), self.features(k, positions)
            before = None if past is None else past[0]
            if DECODER_SPANS:
                sums, after = causal_sums(q, k, with_ones(v), before, self.span)
            else:
                sums, after = causal_sums(q, k, with_ones(v), before)
            return self.merge(divided(sums)), (after,)

    if LINEAR_CROSS:

        def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
            """The sum over a source ``(B, M, D)``, whose size does not depend on its length."""
            k, v = self.split(self.key(x)), self.split(self.value(x))
            k = self.features(k, positions).masked_fill(~real[:, None, :, None], 0.0)
            return (k.mT @ with_ones(v),)

        def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
            q = self.features(self.split(self.query(x)), positions)
            return self.merge(divided(q @ memory[0]))


class CosformerAttention(LinearAttention):
    """Linear attention whose weights fall off with the distance like a cosine (cosFormer, 2022)."""

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """Times sine, then times cosine of the position's angle: ``(B, H, N, 2 * W)``."""
        angle = ((positions + 1) * (math.pi / 2 / MAX_LENGTH))[:, None]
        x = x.relu() + 1e-3
        return torch.cat((x * angle.sin(), x * angle.cos()), dim=-1)


class NormLinearAttention(Attention):
    """Linear attention with a norm in place of the denominator (TransNormer, 2022)."""

    def __init__(self, width: int, key_width: int, heads: int, head_width: int) -> None:
        super().__init__(width, key_width, heads, head_width)
        self.gain = nn.Parameter(torch.ones(heads * head_width))

    def normed(self, x: Tensor) -> Tensor:
        """Each head ``(B, H, N, W)`` by itself."""
        gain = self.gain.view(self.heads, 1, self.head_width)
        return F.rms_norm(x, (self.head_width,), eps=1e-6) * gain

    if NORM_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all."""
            q, k, v = self.project(x)
            q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
            if PADDING:
                count = real.sum(dim=1).clamp(min=1)[:, None, None, None]
                k = k.masked_fill(~real[:, None, :, None], 0.0) / count
            else:
                k = k / k.shape[2]
            return self.merge(self.normed(q @ (k.mT @ v)))

    if NORM_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing the past, of which one sum is carried."""
            q, k, v = self.project(x)
            before = None if past is None else past[0]
            sums, after = causal_sums(F.elu(q) + 1.0, F.elu(k) + 1.0, v, before)
            return self.merge(self.normed(sums / (positions + 1)[:, None])), (after,)

    if NORM_CROSS:

        def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
            """The mean over a source ``(B, M, D)``."""
            k, v = F.elu(self.split(self.key(x))) + 1.0, self.split(self.value(x))
            count = real.sum(dim=1).clamp(min=1)[:, None, None, None]
            return ((k.masked_fill(~real[:, None, :, None], 0.0) / count).mT @ v,)

        def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing a source."""
            q = F.elu(self.split(self.query(x))) + 1.0
            return self.merge(self.normed(q @ memory[0]))


class LinformerAttention(Attention):
    """Scaled dot products with a few learned mixtures of all states (Linformer, 2020)."""

    def __init__(
        self, width: int, key_width: int, heads: int, head_width: int, span: int = 1
    ) -> None:
        super().__init__(width, key_width, heads, head_width, span)
        if OMNI:
            self.projection = nn.Parameter(torch.zeros(LINFORMER_RANK, MAX_LENGTH, span))
        else:
            self.projection = nn.Parameter(torch.zeros(LINFORMER_RANK, MAX_LENGTH, 1))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all states seeing the mixtures."""
        q, k, v = self.project(x)
        length = x.shape[1] // self.span if OMNI else x.shape[1]
        mix = self.projection[:, :length].flatten(1)[None, None]
        if PADDING:
            mix = mix.masked_fill(~real[:, None, None, :], 0.0)
        return self.merge(F.scaled_dot_product_attention(q, mix @ k, mix @ v))


@cache
def block_wishes() -> Tensor:
    """How much each block of queries wants each block of keys; integers, none twice in a row."""
    blocks = -(-MAX_LENGTH // BIGBIRD_BLOCK)
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

    if BIGBIRD_ENCODER or BIGBIRD_CROSS:

        def seen_blocks(self, block: Tensor, there: Tensor) -> Tensor:
            """Blocks that each block of queries sees: real ones only, ``(B, blocks, blocks)``."""
            wishes = block_wishes().to(there.device)
            count = there.new_zeros(len(there), len(wishes), dtype=torch.int64)
            count = count.index_add(1, block, there.long())
            seen = eight_largest(wishes[None].masked_fill(count[:, None, :] == 0, -1))
            seen[:, :2] = True
            return seen

    if BIGBIRD_ENCODER:

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, states seeing blocks of states."""
            q, k, v = self.project(x)
            size = self.span * BIGBIRD_BLOCK if OMNI else BIGBIRD_BLOCK
            block = torch.arange(x.shape[1], device=x.device) // size
            if PADDING:
                there = real
            else:
                there = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            mask = self.seen_blocks(block, there)[:, block][:, :, block] & there[:, None, :]
            return self.merge(F.scaled_dot_product_attention(q, k, v, mask[:, None]))

    if BIGBIRD_DECODER:

        def causal(
            self, x: Tensor, past: Carried | None, positions: Tensor
        ) -> tuple[Tensor, Carried]:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing blocks of the past."""
            q, k, v = self.project(x)
            k, v = with_past(past, k, v)
            wishes = block_wishes().to(x.device)
            key = torch.arange(len(wishes), device=x.device)
            seen = eight_largest(wishes.masked_fill(key[None, :] > key[:, None], -1))
            size = self.span * BIGBIRD_BLOCK if OMNI else BIGBIRD_BLOCK
            block = torch.arange(k.shape[2], device=x.device) // size
            mask = past_mask(q, k, self.span) if DECODER_SPANS else past_mask(q, k)
            mask = mask & seen[block[k.shape[2] - q.shape[2] :]][:, block]
            return self.merge(F.scaled_dot_product_attention(q, k, v, mask)), (k, v)

    if BIGBIRD_CROSS:

        def memory(self, x: Tensor, real: Tensor, positions: Tensor) -> Carried:
            """Keys and values of a source ``(B, M, D)``, and their blocks."""
            block = positions // BIGBIRD_BLOCK
            seen = self.seen_blocks(block, real)[:, :, block] & real[:, None, :]
            return self.split(self.key(x)), self.split(self.value(x)), seen

        def read(self, x: Tensor, memory: Carried, positions: Tensor) -> Tensor:
            """``(B, N, D)`` -> ``(B, N, D)``, seeing what a query there would see of its own."""
            k, v, seen = memory
            mask = seen[:, positions // BIGBIRD_BLOCK][:, None]
            return self.merge(F.scaled_dot_product_attention(self.split(self.query(x)), k, v, mask))

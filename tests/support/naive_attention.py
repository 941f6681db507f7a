"""The obvious slow twins of the attention kernels: one query at a time, over the real keys only.

They share no code with the kernels. Padding is not masked but left out, so that agreeing with a
twin includes being right about padding. Shapes as in `supernet.attention`.

Every twin takes `Seen`: by default all real keys; `causal(span)` leaves those up to the query's
position, and with `positions` the queries stand in another sequence than the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

# (batch, head, query, numbers of the real keys) -> the output for that query, (D,)
OneQuery = Callable[[int, int, int, list[int]], Tensor]
# (query, numbers of the real keys) -> those that it sees
Seen = Callable[[int, list[int]], list[int]]


def everything(_: int, keys: list[int]) -> list[int]:
    """An encoder's query sees every real key."""
    return keys


def causal(span: int) -> Seen:
    """A decoder's query sees keys up to its own position, at any layer."""
    return lambda i, keys: [j for j in keys if j // span <= i // span]


def in_window(before: int, after: int, span: int, first: bool = False) -> Seen:
    """A query sees so many positions before and after its own; with `first` the first one too.

    The first one then sees everything.
    """

    def seen(i: int, keys: list[int]) -> list[int]:
        start = keys[0] // span if keys else 0
        if first and i // span == start:
            return keys
        near = range(i // span - before, i // span + after + 1)
        return [j for j in keys if j // span in near or (first and j // span == start)]

    return seen


def softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    table: Tensor | None = None,
    seen: Seen = everything,
    span: int = 1,
) -> Tensor:
    """Scaled dot products; with a table ``(2R+1, W)`` also relative keys."""

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        looked_at = k[b, h, keys]
        if table is not None:
            far, head_dim = len(table) // 2, q.shape[-1]
            rows = [max(-far, min(far, j // span - i // span)) + far for j in keys]
            looked_at = looked_at + table[rows, h * head_dim : (h + 1) * head_dim]
        return (looked_at @ q[b, h, i] / math.sqrt(q.shape[-1])).softmax(dim=0) @ v[b, h, keys]

    return _every_query(q, v, mask, one, seen)


def cosformer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    max_length: int,
    span: int = 1,
    seen: Seen = everything,
    positions: Sequence[int] | None = None,
) -> Tensor:
    """Quadratic form with the cosine of the difference, not its doubled features."""

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        def angle(position: int) -> float:
            return math.pi / 2 * max(1, min(max_length, position + 1)) / max_length

        start = keys[0] // span
        mine = i // span - start if positions is None else positions[i]
        cosines = [math.cos(angle(mine) - angle(j // span - start)) for j in keys]
        weights = (k[b, h, keys].relu() + 1e-3) @ (q[b, h, i].relu() + 1e-3)
        weights = weights * torch.tensor(cosines, dtype=q.dtype)
        return weights @ v[b, h, keys] / weights.sum().clamp(min=1e-12)

    return _every_query(q, v, mask, one, seen)


def norm_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    gain: Tensor,
    seen: Seen = everything,
) -> Tensor:
    """Unnormalised weights, and the root mean square of the result divided out."""

    def phi(x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        head_dim = q.shape[-1]
        weights = phi(k[b, h, keys]) @ phi(q[b, h, i])
        out = weights @ v[b, h, keys] / len(keys)
        return out / (out.square().mean() + 1e-6).sqrt() * gain[h * head_dim : (h + 1) * head_dim]

    return _every_query(q, v, mask, one, seen)


def performer(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seen: Seen = everything
) -> Tensor:
    """Products of ``ReLU + 1e-3``, normalised."""

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        weights = (k[b, h, keys].relu() + 1e-3) @ (q[b, h, i].relu() + 1e-3)
        return weights @ v[b, h, keys] / weights.sum()

    return _every_query(q, v, mask, one, seen)


def elu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seen: Seen = everything) -> Tensor:
    """Products of ``1 + elu``, normalised."""

    def phi(x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        weights = phi(k[b, h, keys]) @ phi(q[b, h, i])
        return weights @ v[b, h, keys] / weights.sum()

    return _every_query(q, v, mask, one, seen)


def hedgehog(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, step: Tensor, seen: Seen = everything
) -> Tensor:
    """Products of softmaxes over ``[y, -y]`` with ``y = x + x M``, normalised."""
    head_dim = q.shape[-1]

    def phi(x: Tensor, h: int) -> Tensor:
        y = x + x @ step[h * head_dim : (h + 1) * head_dim, :head_dim]
        spikes = torch.cat((y.exp(), (-y).exp()), dim=-1)
        return spikes / spikes.sum(dim=-1, keepdim=True) + 1e-6

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        weights = phi(k[b, h, keys], h) @ phi(q[b, h, i], h)
        return weights @ v[b, h, keys] / weights.sum()

    return _every_query(q, v, mask, one, seen)


def linformer(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, projection: Tensor, span: int
) -> Tensor:
    """Mixtures with the columns ``projection[:, position, layer]``, then softmax over them."""

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        start = keys[0] // span
        mix = projection[:, [j // span - start for j in keys], [j % span for j in keys]]
        logits = (mix @ k[b, h, keys]) @ q[b, h, i] / math.sqrt(q.shape[-1])
        return logits.softmax(dim=0) @ (mix @ v[b, h, keys])

    return _every_query(q, v, mask, one)


def bigbird(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    priority: Tensor,
    block: int,
    span: int,
    seen: Seen = everything,
    positions: Sequence[int] | None = None,
) -> Tensor:
    """Softmax over the keys whose block is among those that the query's block sees."""

    def one(b: int, h: int, i: int, keys: list[int]) -> Tensor:
        start = keys[0] // span

        def block_of(state: int) -> int:
            return (state // span - start) // block

        there = sorted({block_of(j) for j in keys})
        if positions is None and i not in keys:
            return torch.zeros_like(v[b, h, 0])
        mine = block_of(i) if positions is None else positions[i] // block
        blocks = blocks_seen(mine, there, priority)
        chosen = [j for j in keys if block_of(j) in blocks]
        logits = k[b, h, chosen] @ q[b, h, i] / math.sqrt(q.shape[-1])
        return logits.softmax(dim=0) @ v[b, h, chosen]

    return _every_query(q, v, mask, one, seen)


def blocks_seen(query_block: int, there: Sequence[int], priority: Tensor) -> set[int]:
    """The rule in words: global and near blocks, then random ones by priority up to 8."""
    if query_block < 2:
        return set(there)
    seen = {c for c in there if c < 2 or abs(c - query_block) <= 1}
    others = [c for c in there if c not in seen]
    others.sort(key=lambda c: -int(priority[query_block, c]))
    return seen | set(others[: max(0, 8 - len(seen))])


def _every_query(
    q: Tensor, v: Tensor, mask: Tensor | None, one: OneQuery, seen: Seen = everything
) -> Tensor:
    batch, heads, queries, _ = q.shape
    keys = v.shape[2]
    real = [
        list(range(keys)) if mask is None else mask[b].nonzero().flatten().tolist()
        for b in range(batch)
    ]
    nothing = torch.zeros_like(v[0, 0, 0])
    rows = []
    for b, h, i in product(range(batch), range(heads), range(queries)):
        keys = seen(i, real[b])
        rows.append(one(b, h, i, keys) if keys else nothing)
    return torch.stack(rows).view(batch, heads, queries, -1)

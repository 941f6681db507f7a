"""Attention over the positions nearby, at a cost that grows with the length times the window."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.export.template.attention import (
    KERNELS,
    Attention,
    Carried,
    Settings,
    Sizes,
    attended,
    with_past,
)


def near(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    before: int,
    after: int,
    seen: Tensor | None = None,
) -> Tensor:
    """Scaled dot products of the last N of M states with those so many before and behind each.

    Queries are cut into blocks, and each block meets only the keys that one of its queries sees,
    and that at the place `seen` ``(B)``, which all see. Keys beyond either end are zeros that
    nothing sees.
    """
    batch, length, past = len(q), q.shape[2], k.shape[2] - q.shape[2]
    block = min(length, max(32, (before + after) // 4))
    count, reach = -(-length // block), before + block + after
    ends = before - past, count * block - length + after
    whole = k, v
    q = F.pad(q, (0, 0, 0, count * block - length)).unflatten(2, (count, block))
    k, v = (F.pad(x, (0, 0, *ends)).unfold(2, reach, block).mT for x in (k, v))
    there = q.new_ones(1, past + length, dtype=torch.bool) if real is None else real
    there = F.pad(there, ends).unfold(1, reach, block)[:, :, None]  # (B, blocks, 1, reach)
    query = torch.arange(block, device=q.device)[:, None]
    key = torch.arange(reach, device=q.device) - before
    # A query at padding may see nothing real; that each sees itself keeps it finite.
    mask = (key >= query - before) & (key <= query + after) & there | (key == query)
    mask = mask.expand(batch, -1, -1, -1)
    if seen is not None:
        ones = (at(x, seen)[:, :, None].expand(-1, -1, count, -1, -1) for x in whole)
        k, v = (torch.cat(pair, dim=3) for pair in zip((k, v), ones, strict=True))
        position = torch.arange(count * block, device=q.device).view(1, count, block, 1)
        far = (position - seen[:, None, None, None]).abs() > before
        mask = torch.cat((mask, far), dim=3)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # blocks as samples of a batch
    out = attended(q, k, v, mask.flatten(0, 1)[:, None])
    return out.unflatten(0, (batch, count)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def at(x: Tensor, places: Tensor) -> Tensor:
    """One position of each sample: ``(B, H, N, W)``, places ``(B)`` -> ``(B, H, 1, W)``."""
    return x.gather(2, places[:, None, None, None].expand(-1, x.shape[1], 1, x.shape[3]))


class WindowAttention(Attention):
    """Scaled dot products with the positions nearby (Longformer, 2020)."""

    rotates = True
    takes_groups = True

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.window = sizes.window
        self.first_sees_all = model["class_token"] or model["window_first"]

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, each seeing so many on either side and itself.

        What stands first, behind padding, may be seen by all and see all, as a class token does.
        """
        q, k, v = self.project(x)
        if not self.first_sees_all:
            return self.merge(near(q, k, v, real, self.window, self.window))
        first = q.new_zeros(len(q), dtype=torch.long) if real is None else real.int().argmax(dim=1)
        out = near(q, k, v, real, self.window, self.window, first)
        everything = None if real is None else real[:, None, None, :]
        mixed = attended(at(q, first), k, v, everything)
        out = out.scatter(2, first[:, None, None, None].expand_as(mixed), mixed)
        return self.merge(out)

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, each seeing itself and those before it in the window.

        Keys and values of the last positions are carried, no more than the window has.
        """
        q, k, v = self.project(x, positions)
        if past is not None and self.window > 1:
            k, v = with_past(tuple(part[:, :, 1 - self.window :] for part in past), k, v)
        if q.shape[2] == 1:
            out = attended(q, k, v)
        else:
            out = near(q, k, v, None, self.window - 1, 0)
        # Copies, or all that they are cut from would be kept alive.
        return self.merge(out), tuple(part[:, :, -self.window :].clone() for part in (k, v))


KERNELS |= {"window": WindowAttention}

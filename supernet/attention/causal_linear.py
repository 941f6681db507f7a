"""Causal linear attention in chunks: products of features and values, summed over the past.

The past of a chunk is one matrix of features by values. Inside of a chunk queries meet keys as in
quadratic attention. So N positions need N/L such matrices instead of N, and memory and time grow
with N alone. A single position is a step of the recurrent form.

Source: Katharopoulos et al., Transformers are RNNs (2020), eq. 18 to 20; the chunked form is that
of Hua et al., Transformer Quality in Linear Time (2022), section 3.3.

Shapes: B batch, H heads, N states, C features, V value columns, L states of a chunk, b batch
times heads, c chunks of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.flash_linear import flash_causal_sums, flash_takes
from supernet.attention.in_place import plus_product
from supernet.attention.linear_features import DENOMINATOR_FLOOR
from supernet.shared import shared

CHUNK_STATES = 64
"""States of a chunk, about. Longer chunks have fewer matrices of the past to keep, but more weights
inside of them; measured forward and backward on a CPU, 64 is best for heads of 32 to 128."""


def causal_sums(
    q_BHNC: Tensor, k_BHNC: Tensor, v_BHNV: Tensor, past_BHCV: Tensor | None, span: int
) -> tuple[Tensor, Tensor]:
    """``q_i · Σ k_j v_jᵀ`` over the states j whose position is not after that of i.

    Args:
        q_BHNC: features of the queries.
        k_BHNC: features of the keys, zero at padding.
        v_BHNV: values.
        past_BHCV: the sum over all states before these; None when there are none.
        span: states per position; those of one position see each other.

    Returns:
        ``(B, H, N, V)``, and the sum over all states up to the last of these.
    """
    states = q_BHNC.shape[2]
    if states == span:
        sums_BHCV = k_BHNC.mT @ v_BHNV
        sums_BHCV = sums_BHCV if past_BHCV is None else past_BHCV + sums_BHCV
        return q_BHNC @ sums_BHCV, sums_BHCV
    if flash_takes(q_BHNC.device, q_BHNC.dtype, states, span):
        return flash_causal_sums(q_BHNC, k_BHNC, v_BHNV, past_BHCV)
    batch, heads = q_BHNC.shape[:2]
    length = min(max(1, CHUNK_STATES // span) * span, states)
    q, k, v = (in_chunks(x, length) for x in (q_BHNC, k_BHNC, v_BHNV))
    own_cCV = k.mT @ v
    weights_cLL = _past_only(q @ k.mT, span)
    past_bCV = None if past_BHCV is None else past_BHCV.flatten(0, 1)
    if len(q) == batch * heads and past_bCV is None:
        out_cLV, sums_bCV = weights_cLL @ v, own_cCV
    else:
        own_bnCV = own_cCV.unflatten(0, (batch * heads, -1))
        chunks = own_bnCV.unbind(1)
        before_cCV, sums_bCV = states_before(
            own_bnCV,
            torch.zeros_like(chunks[0]) if past_bCV is None else past_bCV,
            lambda sums_bCV, number, out: torch.add(sums_bCV, chunks[number], out=out),
        )
        out_cLV = plus_product(q @ before_cCV, weights_cLL, v)
    return from_chunks(out_cLV, batch, heads, states), sums_bCV.unflatten(0, (batch, heads))


def states_before(
    own_bnCV: Tensor, state_bCV: Tensor, onward: Callable[[Tensor, int, Tensor | None], Tensor]
) -> tuple[Tensor, Tensor]:
    """The state before each chunk, ``(c, C, V)``, and after the last one.

    In a loop, for torch's cumulative sum along this dimension takes longer.

    Args:
        own_bnCV: what each chunk adds, of which the shape is read alone.
        state_bCV: before the first chunk.
        onward: the state before a chunk, the chunk's number, and where to write the state behind
            it, or None for new memory.
    """
    if torch.is_grad_enabled():
        before = []
        for number in range(own_bnCV.shape[1]):
            before.append(state_bCV)
            state_bCV = onward(state_bCV, number, None)
        return torch.stack(before, dim=1).flatten(0, 1), state_bCV
    before_bnCV = torch.empty_like(own_bnCV)
    before = [*before_bnCV.unbind(1), torch.empty_like(state_bCV)]
    before[0].copy_(state_bCV)
    for number, (state_bCV, behind_bCV) in enumerate(pairwise(before)):
        onward(state_bCV, number, behind_bCV)
    return before_bnCV.flatten(0, 1), before[-1]


def with_ones(v_BHND: Tensor) -> Tensor:
    """Values with a last column of 1: the denominator then comes out of the same products."""
    return F.pad(v_BHND, (0, 1), value=1.0)


def divided(out_BHNV: Tensor) -> Tensor:
    """All columns but the last, divided by the last, the sum of the weights.

    It is kept above `DENOMINATOR_FLOOR`, which with `relu_features` only samples without any real
    key (and rows of padding) are below.
    """
    values_BHND, weights_BHN1 = out_BHNV.split((out_BHNV.shape[-1] - 1, 1), dim=-1)
    mean_BHND: Tensor = values_BHND / F.threshold(
        weights_BHN1, DENOMINATOR_FLOOR, DENOMINATOR_FLOOR
    )
    return mean_BHND


def in_chunks(x_BHNC: Tensor, length: int) -> Tensor:
    """``(B, H, N, C)`` → ``(c, L, C)`` in one piece of memory, filled up with zeros."""
    missing = -x_BHNC.shape[2] % length
    x_BHNC = F.pad(x_BHNC, (0, 0, 0, missing)) if missing else x_BHNC
    return x_BHNC.reshape(-1, length, x_BHNC.shape[-1])


def from_chunks(x_cLC: Tensor, batch: int, heads: int, states: int) -> Tensor:
    """What `in_chunks` was given, ``(B, H, N, C)``."""
    return x_cLC.reshape(batch, heads, -1, x_cLC.shape[-1])[:, :, :states]


def _past_only(weights_cLL: Tensor, span: int) -> Tensor:
    """The weights, in place, without those of keys at a later position than the query's."""
    if span == 1:
        return weights_cLL.tril_()
    later_LL = shared(later_states, weights_cLL.shape[-1], span, weights_cLL.device)
    return weights_cLL.masked_fill_(later_LL, 0.0)


def later_states(states: int, span: int, device: torch.device) -> Tensor:
    """Which states, in the second dimension, are at a later position than others."""
    position_L = torch.arange(states, device=device) // span
    return position_L[:, None] < position_L[None, :]

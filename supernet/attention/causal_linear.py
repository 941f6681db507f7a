"""Causal linear attention in chunks: products of features and values, summed over the past.

The past of a chunk is one matrix of features by values. Inside of a chunk queries meet keys as in
quadratic attention. So N positions need N/L such matrices instead of N, and memory and time grow
with N alone. A single position is a step of the recurrent form.

Source: Katharopoulos et al., Transformers are RNNs (2020), eq. 18 to 20; the chunked form is that
of Hua et al., Transformer Quality in Linear Time (2022), section 3.3.

Shapes: B batch, H heads, N states, C features, V value columns, G chunks, L states of a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.flash_linear import flash_causal_sums, flash_takes
from supernet.attention.linear_features import DENOMINATOR_FLOOR

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
    if flash_takes(q_BHNC.device, q_BHNC.dtype, span):
        return flash_causal_sums(q_BHNC, k_BHNC, v_BHNV, past_BHCV)
    length = min(max(1, CHUNK_STATES // span) * span, states)
    q, k, v = (_in_chunks(x, length) for x in (q_BHNC, k_BHNC, v_BHNV))
    own_BHGCV = k.mT @ v
    first = torch.zeros_like(own_BHGCV[:, :, :1]) if past_BHCV is None else past_BHCV[:, :, None]
    before_BHGCV = torch.cat((first, own_BHGCV[:, :, :-1]), dim=2).cumsum(dim=2)
    weights_BHGLL = _past_only(q @ k.mT, span)
    out_BHNV = (weights_BHGLL @ v + q @ before_BHGCV).flatten(2, 3)[:, :, :states]
    return out_BHNV, before_BHGCV[:, :, -1] + own_BHGCV[:, :, -1]


def causal_mean(
    q_BHNC: Tensor, k_BHNC: Tensor, v_BHND: Tensor, past_BHCV: Tensor | None, span: int
) -> tuple[Tensor, Tensor]:
    """`causal_sums`, divided by the sum of the weights: a weighted mean of past values.

    Returns:
        ``(B, H, N, D)``, and sums to carry on, whose last column belongs to the denominator.
    """
    out_BHNV, sums_BHCV = causal_sums(q_BHNC, k_BHNC, with_ones(v_BHND), past_BHCV, span)
    return divided(out_BHNV), sums_BHCV


def with_ones(v_BHND: Tensor) -> Tensor:
    """Values with a last column of 1: the denominator then comes out of the same products."""
    return F.pad(v_BHND, (0, 1), value=1.0)


def divided(out_BHNV: Tensor) -> Tensor:
    """All columns but the last, divided by the last, the sum of the weights.

    It is kept above `DENOMINATOR_FLOOR`, which with `relu_features` only samples without any real
    key (and rows of padding) are below.
    """
    return out_BHNV[..., :-1] / out_BHNV[..., -1:].clamp(min=DENOMINATOR_FLOOR)


def _in_chunks(x_BHNC: Tensor, length: int) -> Tensor:
    """``(B, H, N, C)`` → ``(B, H, G, L, C)``, the last chunk filled up with zeros."""
    missing = -x_BHNC.shape[2] % length
    x_BHNC = F.pad(x_BHNC, (0, 0, 0, missing)) if missing else x_BHNC
    chunks: Tensor = x_BHNC.unflatten(2, (-1, length))
    return chunks


def _past_only(weights_BHGLL: Tensor, span: int) -> Tensor:
    """The weights, in place, without those of keys at a later position than the query's."""
    if span == 1:
        return weights_BHGLL.tril_()
    position_L = torch.arange(weights_BHGLL.shape[-1], device=weights_BHGLL.device) // span
    return weights_BHGLL.masked_fill_(position_L[:, None] < position_L[None, :], 0.0)

"""The weights that a kernel gives to keys, and the share of features that pooling keeps.

Shapes: B batch, H heads, N states (positions times P), M keys, P layers looked at, n positions,
D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.base import AttentionKernel
from supernet.attention.omni import LinformerKernel


def source_weights(
    kernel: AttentionKernel, q_BHND: Tensor, k_BHMD: Tensor, mask_BM: Tensor | None, span: int
) -> Tensor:
    """How much of its attention each query pays to each of the `span` sources, ``(B, H, N, P)``.

    Every kernel is linear in its values, so handing it the number of a key's source in place of
    its value gives the weights that it really uses, whatever it computes them by. Linformer's
    weights may be negative: there their absolute values are added.
    """
    if isinstance(kernel, LinformerKernel):
        weights_BHNM = key_weights(kernel, q_BHND, k_BHMD, mask_BM, span).abs()
        by_source = weights_BHNM.unflatten(-1, (-1, span)).sum(dim=-2)
        shares: Tensor = by_source / by_source.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        return shares
    probe_BHMP = source_of(k_BHMD, span)
    return kernel(q_BHND, k_BHMD, probe_BHMP, key_mask_BM=mask_BM, span=span)  # type: ignore[no-any-return]


def key_weights(
    kernel: AttentionKernel, q_BHND: Tensor, k_BHMD: Tensor, mask_BM: Tensor | None, span: int
) -> Tensor:
    """The weights of all keys, ``(B, H, N, M)``: what the kernel makes of the identity."""
    batch, heads, keys, _ = k_BHMD.shape
    identity_BHMM = torch.eye(keys, dtype=k_BHMD.dtype).expand(batch, heads, keys, keys)
    return kernel(q_BHND, k_BHMD, identity_BHMM, key_mask_BM=mask_BM, span=span)  # type: ignore[no-any-return]


def pooled_shares(states_BND: Tensor, span: int) -> Tensor:
    """Share of the features that max-pooling keeps from each source, ``(B, n, P)``.

    Equal values share a feature.
    """
    states_BnPD = states_BND.unflatten(1, (-1, span))
    kept_BnPD = (states_BnPD == states_BnPD.amax(dim=2, keepdim=True)).to(torch.float64)
    shares: Tensor = (kept_BnPD / kept_BnPD.sum(dim=2, keepdim=True)).mean(dim=-1)
    return shares


def source_of(k_BHMD: Tensor, span: int) -> Tensor:
    """Which source each key belongs to, as one of `span` unit vectors, ``(B, H, M, P)``."""
    batch, heads, keys, _ = k_BHMD.shape
    number_M = torch.arange(keys, device=k_BHMD.device) % span
    return F.one_hot(number_M, span).to(k_BHMD.dtype).expand(batch, heads, keys, span)

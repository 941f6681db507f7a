"""Kernels of omnidirectional attention: all states of several layers see each other.

The P states of a position, one for each layer, stand next to each other (IndexSort of the paper:
state ``position * P + layer``). The others are `BigBirdKernel` and full attention, which is
`SoftmaxKernel`.

Source: Tay et al., OmniNet: Omnidirectional Representations from Transformers (2021).

Shapes: B batch, H heads, N queries, M keys, D width of one head, P span, T positions of the model,
K rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from supernet.attention.base import AttentionKernel, check_length, state_positions
from supernet.attention.linear import ReluLinearKernel
from supernet.attention.softmax import masked_attention


class PerformerKernel(ReluLinearKernel):
    """Generalised linear attention: ``φ = ReLU + 1e-3``, no random features, no scale, normalised.

    Source: Choromanski et al., Rethinking Attention with Performers (2021), section 2.2, in the
    form that OmniNet uses (its appendix A.2). Causal attention sums over positions only: the states
    of a position all see each other, where OmniNet's printed mask would show the future.
    """

    def __init__(self) -> None:
        super().__init__(max_length=None)


class LinformerKernel(AttentionKernel):
    """Softmax over K learned mixtures of the states instead of the states themselves.

    One projection serves keys, values and all heads. Its columns belong to (position, layer) pairs;
    positions count from the first real token and columns of padding are zero.

    Source: Wang et al., Linformer (2020), eq. 7, with the projection shared between keys, values
    and heads. It mixes positions before attending, so it cannot be made causal.
    """

    def __init__(self, rank: int, max_length: int, max_span: int) -> None:
        """Build the kernel with a projection of ``rank * max_length * max_span`` numbers."""
        super().__init__()
        self.max_length = max_length
        self.projection_KTP = nn.Parameter(torch.empty(rank, max_length, max_span))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the projection; a mixture of a full input then is as large as one state."""
        _, positions, span = self.projection_KTP.shape
        nn.init.normal_(self.projection_KTP, std=(positions * span) ** -0.5, generator=generator)

    def forward(
        self,
        q_BHND: Tensor,
        k_BHMD: Tensor,
        v_BHMD: Tensor,
        *,
        key_mask_BM: Tensor | None,
        span: int = 1,
    ) -> Tensor:
        """Attend; see `AttentionKernel.forward`."""
        mix_B1KM = self._projection(key_mask_BM, k_BHMD.shape[2], span)[:, None]
        return masked_attention(q_BHND, mix_B1KM @ k_BHMD, mix_B1KM @ v_BHMD, None)

    def _projection(self, key_mask_BM: Tensor | None, keys: int, span: int) -> Tensor:
        """The columns for these states, zero at padding: ``(B, K, M)`` or ``(1, K, M)``."""
        projection_KTP = self.projection_KTP[:, :, :span]
        if key_mask_BM is None:
            check_length(keys, span, self.max_length)
            return projection_KTP[:, : keys // span].flatten(1)[None]
        positions_BM = state_positions(key_mask_BM, keys, span, key_mask_BM.device)
        positions_Bn = positions_BM[:, ::span].clamp(0, self.max_length - 1)
        mix_BKM = projection_KTP[:, positions_Bn].transpose(0, 1).flatten(2)
        return mix_BKM.masked_fill(~key_mask_BM[:, None, :], 0.0)

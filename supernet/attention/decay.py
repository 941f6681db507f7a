"""Linear attention with a decay that follows the input.

Shapes: B batch, H heads, N states, E width of the layer's input, D width of one head, G gates of a
state, R rank of the gates, C features and V value columns (both D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.attention import GATE_RANK
from supernet.attention.base import State, in_full_precision
from supernet.attention.gated import GatedKernel, normed
from supernet.attention.gated_chunks import LEAST_LOG_GATE


class DecayKernel(GatedKernel):
    """Linear attention whose past fades: ``S_t = diag(α_t) S_(t-1) + k_t v_tᵀ``, ``o = S_tᵀ q_t``.

    The gate is ``α = σ(x w + b)^(1/16)``, one for each head, or one for each feature of the keys
    with weights of rank 16; queries are scaled by ``D^-½`` and each head's output is normalised.

    Source: Yang et al., Gated Linear Attention Transformers (2024), section 4.4, without its output
    gate; a gate per head is that of Mamba-2 (Dao and Gu 2024) in its form. Biases start where the
    gates are the constants of RetNet (Sun et al. 2023), ``1 - 2^(-5 - h)`` for head h, or feature
    h, which is counted modulo 8. A gate is kept above ``e^-4``, see `LEAST_LOG_GATE`; before the
    power that is ``e^-64``.
    """

    POWER = 16
    RANK = GATE_RANK
    PACES = 8

    def __init__(
        self, embed_dim: int, width: int, num_heads: int, per_channel: bool = False
    ) -> None:
        """Build the kernel.

        Args:
            embed_dim: largest width E of the layer's input.
            width: largest H * D.
            num_heads: most heads.
            per_channel: a gate for each feature of a key in place of one for each head.
        """
        super().__init__()
        rows = width if per_channel else num_heads
        self.per_channel = per_channel
        self.gain_W = nn.Parameter(torch.ones(width))
        self.bias_G = nn.Parameter(torch.empty(rows))
        self.weight_GE: nn.Parameter | None = None
        self.gate_down_RE: nn.Parameter | None = None
        self.gate_up_GR: nn.Parameter | None = None
        if per_channel:
            self.gate_down_RE = nn.Parameter(torch.empty(self.RANK, embed_dim))
            self.gate_up_GR = nn.Parameter(torch.empty(rows, self.RANK))
        else:
            self.weight_GE = nn.Parameter(torch.empty(rows, embed_dim))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of the gates; the biases are RetNet's paces, the gain is 1."""
        nn.init.ones_(self.gain_W)
        for weight in (self.weight_GE, self.gate_down_RE, self.gate_up_GR):
            if weight is not None:
                bound = weight.shape[1] ** -0.5
                nn.init.uniform_(weight, -bound, bound, generator=generator)
        pace_G = torch.arange(len(self.bias_G), device=self.bias_G.device) % self.PACES
        kept_G = (1.0 - 2.0 ** (-5.0 - pace_G.double())) ** self.POWER
        with torch.no_grad():
            self.bias_G.copy_(kept_G.logit())

    def gates(self, x_BNE: Tensor, heads: int, head_dim: int) -> tuple[Tensor, ...]:
        """``log α``, ``(B, H, N, 1)`` or ``(B, H, N, D)``."""
        rows = heads * head_dim if self.per_channel else heads
        width, bias_G = x_BNE.shape[-1], self.bias_G[:rows]
        if self.weight_GE is not None:
            logit_BNG = F.linear(x_BNE, self.weight_GE[:rows, :width], bias_G)
        else:
            assert self.gate_down_RE is not None and self.gate_up_GR is not None
            low_BNR = F.linear(x_BNE, self.gate_down_RE[:, :width])
            logit_BNG = F.linear(low_BNR, self.gate_up_GR[:rows], bias_G)
        log_gate_BNG = (F.logsigmoid(logit_BNG) / self.POWER).clamp(min=LEAST_LOG_GATE)
        return (log_gate_BNG.unflatten(-1, (heads, -1)).transpose(1, 2),)

    def run(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, gates: tuple[Tensor, ...], past: State
    ) -> tuple[Tensor, Tensor | float, State]:
        """See `GatedKernel.run`; what is carried is S."""
        q, k, v = in_full_precision(q_BHND, k_BHND, v_BHND)
        past_BHCV = past[0] if past else None
        out_BHND, past_BHCV = self.sums(q, k, v, gates[0], None, past_BHCV)
        return out_BHND, float(q.shape[-1]), (past_BHCV,)

    def finished(self, out_BHND: Tensor, shrunk: Tensor | float, x_BNE: Tensor) -> Tensor:
        """See `GatedKernel.finished`."""
        _, heads, _, head_dim = out_BHND.shape
        gain_HD = self.gain_W[: heads * head_dim].view(heads, 1, head_dim)
        return normed(out_BHND, shrunk, gain_HD)

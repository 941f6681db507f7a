"""The gated delta rule: a memory that is corrected where a key is written again.

Shapes: B batch, H heads, N states, E width of the layer's input, D width of one head, W = H * D, T
taps, F channels of the convolution in heads (3 H), C features and V value columns (both D).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.attention.base import State, in_full_precision
from supernet.attention.gated import GatedKernel, normed
from supernet.attention.in_place import silu, times

KEY_EPSILON = 1e-6
"""Of the squared length that queries and keys are divided by."""


class GatedDeltaKernel(GatedKernel):
    """The gated delta rule: what a key held fades, is taken out, and the new value is written.

    ``S' = α_t S_(t-1)``, ``S_t = S' + β_t k_t (v_t - S'ᵀ k_t)ᵀ``, ``o_t = S_tᵀ q_t D^-½`` with
    ``α = exp(-exp(a) softplus(x w_a + d))`` and ``β = σ(x w_b)`` for each head. Queries, keys and
    values first go through a causal convolution of 4 taps, each channel by itself, and SiLU; then
    queries and keys are brought to length 1. Each head's output is normalised and multiplied by
    ``SiLU(x w_z)``. What is carried is S and the last 3 inputs of the convolutions.

    Source: Yang et al., Gated Delta Networks (2025), section 3, in the form of
    Qwen3-Next. Rates and steps begin where Mamba-2's do: ``exp(a)`` even in 1 to 16,
    ``softplus(d)`` log-even in .001 to .1.
    """

    TAPS = 4

    def __init__(self, embed_dim: int, width: int, num_heads: int, head_dim: int) -> None:
        """Build the kernel.

        Args:
            embed_dim: largest width E of the layer's input.
            width: largest H * D.
            num_heads: most heads.
            head_dim: largest D.
        """
        super().__init__()
        self.gain_D = nn.Parameter(torch.ones(head_dim))
        self.taps_3WT = nn.Parameter(torch.empty(3, width, self.TAPS))
        self.gates_2HE = nn.Parameter(torch.empty(2, num_heads, embed_dim))
        self.log_rate_H = nn.Parameter(torch.empty(num_heads))
        self.step_bias_H = nn.Parameter(torch.empty(num_heads))
        self.output_WE = nn.Parameter(torch.empty(width, embed_dim))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw taps, weights, rates and steps; the gain is 1."""
        nn.init.ones_(self.gain_D)
        for weight in (self.taps_3WT, self.gates_2HE, self.output_WE):
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound, generator=generator)
        nn.init.uniform_(self.log_rate_H, 1.0, 16.0, generator=generator)
        low, high = math.log(1e-3), math.log(1e-1)
        nn.init.uniform_(self.step_bias_H, low, high, generator=generator)
        with torch.no_grad():
            self.log_rate_H.log_()
            # The inverse of softplus at the step that was drawn.
            self.step_bias_H.copy_(self.step_bias_H.exp().expm1().log())

    def gates(self, x_BNE: Tensor, heads: int, head_dim: int) -> tuple[Tensor, ...]:
        """``log α`` and ``β``, each ``(B, H, N, 1)``."""
        weight_FE = self.gates_2HE[:, :heads, : x_BNE.shape[-1]].flatten(0, 1)
        # Heads first, as they are needed: few rows take two thirds of the time of few columns.
        step_BHN, write_BHN = (weight_FE @ x_BNE.mT).split(heads, dim=1)
        steps_BHN = F.softplus(step_BHN + self.step_bias_H[:heads, None])
        log_gate_BHN = steps_BHN * -self.log_rate_H[:heads, None].exp()
        return log_gate_BHN[..., None], write_BHN.sigmoid()[..., None]

    def run(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, gates: tuple[Tensor, ...], past: State
    ) -> tuple[Tensor, Tensor | float, State]:
        """See `GatedKernel.run`; what is carried is S and the convolutions' last inputs."""
        log_gate_BHN1, beta_BHN1 = gates
        past_BHCV, inputs_BFTD = past if past else (None, None)
        heads = q_BHND.shape[1]
        mixed_BFND, inputs_BFTD = self._convolved(q_BHND, k_BHND, v_BHND, inputs_BFTD)
        qk_BFND, v = mixed_BFND.split((2 * heads, heads), dim=1)
        lengths_BFN1 = torch.linalg.vector_norm(qk_BFND, dim=-1, keepdim=True)
        q_square, k_square = (lengths_BFN1.square() + KEY_EPSILON).chunk(2, dim=1)
        q, k = qk_BFND.chunk(2, dim=1)
        k = times(k, k_square.rsqrt())
        out_BHND, past_BHCV = self.sums(q, k, v, log_gate_BHN1, beta_BHN1[..., 0], past_BHCV)
        return out_BHND, q_square * q.shape[-1], (past_BHCV, inputs_BFTD)

    def finished(self, out_BHND: Tensor, shrunk: Tensor | float, x_BNE: Tensor) -> Tensor:
        """See `GatedKernel.finished`; times the output gate."""
        _, heads, _, head_dim = out_BHND.shape
        gate_BNW = F.linear(x_BNE, self.output_WE[: heads * head_dim, : x_BNE.shape[-1]])
        gate_BNHD: Tensor = silu(gate_BNW).unflatten(-1, (heads, head_dim))
        return times(normed(out_BHND, shrunk, self.gain_D[:head_dim]), gate_BNHD.transpose(1, 2))

    def _convolved(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, past_BFTD: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Convolved queries, keys and values, one behind the other, and the last inputs."""
        _, heads, states, head_dim = q_BHND.shape
        given_BFND = torch.cat((q_BHND, k_BHND, v_BHND), dim=1)
        if past_BFTD is not None:
            given_BFND = torch.cat((past_BFTD, given_BFND), dim=2)
        # Carried as they came, for that is exact.
        last_BFTD = given_BFND[:, :, 1 - self.TAPS :]
        last_BFTD = F.pad(last_BFTD, (0, 0, self.TAPS - 1 - last_BFTD.shape[2], 0))
        (inputs_BFND,) = in_full_precision(given_BFND)
        taps_3WT = self.taps_3WT[:, : heads * head_dim]
        # A tap's channels next to each other in memory: three times as fast as every fourth number.
        taps_TF1D = taps_3WT.movedim(-1, 0).contiguous().view(-1, 3 * heads, 1, head_dim)
        before = inputs_BFND.shape[2] - states
        sums_BFND = inputs_BFND[:, :, before:] * taps_TF1D[-1]
        for back in range(1, self.TAPS):
            # Of states with nothing so far back there is no term; padding would copy all others.
            first = max(0, back - before)
            earlier_BFND = inputs_BFND[:, :, before + first - back : max(0, before + states - back)]
            sums_BFND[:, :, first:].addcmul_(earlier_BFND, taps_TF1D[-1 - back])
        return silu(sums_BFND), last_BFTD

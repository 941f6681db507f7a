"""What recurrent kernels share whose gates are read from the layer's input.

Shapes: B batch, H heads, N states, E width of the layer's input, D width of one head, W = H * D.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise

import torch
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.attention import gated_chunks
from supernet.attention.base import (
    AttentionKernel,
    State,
    in_full_precision,
    without_autocast,
)
from supernet.attention.gated_chunks import gated_sums
from supernet.attention.in_place import times
from supernet.attention.linear_features import mask_features

BLOCK_STATES = 512
"""States that are read at once where no gradient is asked for, whole chunks. Measured on a CPU with
four heads of 64, sequences of 4,096 and 16,384 take .77 of the time with gates alone, and .96 and
.89 with the delta rule; neither 256 nor 1,024 are better for both."""
EPSILON = 1e-6
"""Of the norm of a head's output."""


class GatedKernel(AttentionKernel):
    """Linear attention over time with gates: what decay and the gated delta rule share.

    A decoder runs forward through the sequence. An encoder runs forward and backward with the same
    parameters and adds the two, each of which includes the position itself. Padding changes no
    state. The order of states is all that there is of positions: with several states at a position
    there is none, and these kernels refuse them.
    """

    reads_input = True

    @abstractmethod
    def gates(self, x_BNE: Tensor, heads: int, head_dim: int) -> tuple[Tensor, ...]:
        """Gates of every state, each ``(B, H, N, …)``, the logarithm of the decay first.

        All of them are to be 0 at padding, which the caller sees to.
        """

    @abstractmethod
    def run(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, gates: tuple[Tensor, ...], past: State
    ) -> tuple[Tensor, Tensor | float, State]:
        """Outputs before the norm, what the norm is to know of them, and what is carried on.

        Queries need not be scaled: as an output is a multiple of its query and is normalised, a
        scale would matter to nothing but the norm's epsilon.

        Args:
            q_BHND: queries, zero at padding as are keys and values, in the precision they came in.
            k_BHND: keys.
            v_BHND: values.
            gates: see `gates`.
            past: what is carried; empty at the start.

        Returns:
            ``(B, H, N, D)``; the mean square of an output as it would be scaled is its own divided
            by this number, or by each state's ``(B, H, N, 1)``; and the state.
        """

    def sums(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        log_gate_BHNG: Tensor,
        beta_BHN: Tensor | None,
        past_BHCV: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """`gated_sums`, or another way to the same sums."""
        return gated_sums(q_BHND, k_BHND, v_BHND, log_gate_BHNG, beta_BHN, past_BHCV)

    @abstractmethod
    def finished(self, out_BHND: Tensor, shrunk: Tensor | float, x_BNE: Tensor) -> Tensor:
        """The output, each head divided by its root mean square, times a gain.

        Args:
            out_BHND: sums over the past.
            shrunk: what `run` returned with them.
            x_BNE: the layer's input.
        """

    def forward(
        self,
        q_BHND: Tensor,
        k_BHMD: Tensor,
        v_BHMD: Tensor,
        *,
        key_mask_BM: Tensor | None,
        span: int = 1,
        x_BND: Tensor | None = None,
    ) -> Tensor:
        """Attend in both directions; see `AttentionKernel.forward`.

        Args:
            q_BHND: queries.
            k_BHMD: keys.
            v_BHMD: values.
            key_mask_BM: see `AttentionKernel.forward`.
            span: 1.
            x_BND: the layer's input, which queries, keys and values were projected from.

        Raises:
            UsageError: for several states at a position.
        """
        self._check(span)
        with without_autocast(q_BHND.device):
            x_BNE = _in_full(x_BND)
            gates = self.gates(x_BNE, q_BHND.shape[1], q_BHND.shape[3])
            given = q_BHND, k_BHMD, v_BHMD, *gates
            parts = [mask_features(part, key_mask_BM) for part in given]
            # Both directions at once, as samples of one batch.
            q, k, v, *both = (torch.cat((part, part.flip(2))) for part in parts)
            out, shrunk, _ = self.run(q, k, v, tuple(both), ())
            if isinstance(shrunk, Tensor):  # each direction has queries of its own
                out, shrunk = times(out, shrunk.rsqrt()), 1.0
            # Not `chunk`, which would fix the batch in an exported graph.
            onward_BHND, back_BHND = out.unflatten(0, (2, -1)).unbind(0)
            out_BHND = self.finished(onward_BHND + back_BHND.flip(2), shrunk, x_BNE)
            return out_BHND.to(v_BHMD.dtype)

    def causal(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        *,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        state: State | None = None,
        x_BND: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Attend to the past; see `AttentionKernel.causal`, and `forward` for `x_BND`."""
        self._check(span)
        # Not in a trace, whose length would be fixed by what is asked of it.
        free = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        if free and q_BHND.device.type == "cpu" and q_BHND.shape[2] >= 2 * BLOCK_STATES:
            return self._in_blocks((q_BHND, k_BHND, v_BHND), key_mask_BN, state, x_BND)
        with without_autocast(q_BHND.device):
            x_BNE = _in_full(x_BND)
            gates = self.gates(x_BNE, q_BHND.shape[1], q_BHND.shape[3])
            given = q_BHND, k_BHND, v_BHND, *gates
            q, k, v, *real = (mask_features(part, key_mask_BN) for part in given)
            out_BHND, shrunk, carried = self.run(q, k, v, tuple(real), state or ())
            return self.finished(out_BHND, shrunk, x_BNE).to(v_BHND.dtype), carried

    def _in_blocks(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        key_mask_BN: Tensor | None,
        state: State | None,
        x_BND: Tensor | None,
    ) -> tuple[Tensor, State]:
        """`causal` of a long sequence, in blocks of whole chunks that the cache holds."""
        states, found = qkv[0].shape[2], []
        # A rest that is no whole chunk goes with the block before it.
        ends = [*range(BLOCK_STATES, states - gated_chunks.CHUNK_STATES + 1, BLOCK_STATES), states]
        for block in (slice(*ends_of) for ends_of in pairwise([0, *ends])):
            out_BHND, state = self.causal(
                *(part[:, :, block] for part in qkv),
                key_mask_BN=None if key_mask_BN is None else key_mask_BN[:, block],
                state=state,
                x_BND=None if x_BND is None else x_BND[:, block],
            )
            found.append(out_BHND)
        assert state is not None
        return torch.cat(found, dim=2), state

    def _check(self, span: int) -> None:
        if span != 1:
            raise UsageError(
                f"{type(self).__name__} reads one state after the other, but there are {span} at "
                "each position: choose another kernel for omnidirectional attention"
            )

    def _no_decoder(self) -> str:
        return (
            f"{type(self).__name__} cannot attend to another sequence, for its gates follow the "
            "order of one's own: choose softmax, or another linear_kernel, for cross-attention"
        )


def _in_full(x_BND: Tensor | None) -> Tensor:
    assert x_BND is not None, "a kernel that reads the layer's input was not given it"
    return in_full_precision(x_BND)[0]


def normed(out_BHND: Tensor, shrunk: Tensor | float, gain: Tensor) -> Tensor:
    """Each head's output divided by its root mean square, times a gain, in memory as `times`.

    By hand, for torch's `rms_norm` is five passes on a CPU.

    Args:
        out_BHND: the outputs, of any scale.
        shrunk: by what their mean squares would have to be divided, see `GatedKernel.run`.
        gain: of each column.
    """
    length_BHN1 = torch.linalg.vector_norm(out_BHND, dim=-1, keepdim=True)
    mean_BHN1 = length_BHN1.square() / out_BHND.shape[-1]
    return times(times(out_BHND, (mean_BHN1 + EPSILON * shrunk).rsqrt()), gain)

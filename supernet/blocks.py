"""One encoder layer, and the attention that encoder and decoder layers have in common.

Shapes: B batch, N positions (times layers for an omni layer), D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from search_spaces.architecture import SKIP, AttentionKind, EncoderLayer, base_kind
from search_spaces.attention import Place, operator_of
from search_spaces.settings import ModelSettings
from supernet.attention.base import (
    AttentionKernel,
    State,
    in_full_precision,
    in_product_precision,
    repeated_heads,
)
from supernet.attention.kernels import build_kernel
from supernet.attention.linear import ReluLinearKernel
from supernet.layers import (
    ElasticFeedForward,
    ElasticLinear,
    ElasticRMSNorm,
    ScaledDropout,
    build_norm,
    own_output,
    side_by_side,
)
from supernet.plan import AttentionPlan, LayerPlan
from supernet.rotary import Rotation
from supernet.shared import shared


class Projections(nn.Module):
    """Queries, keys, values and output of one attention block.

    With ``qk_norm`` self-attention has norms of queries and keys besides. Numbers of heads that the
    plan names have an output of their own (`ModelSettings.own_outputs`).
    """

    def __init__(
        self,
        settings: ModelSettings,
        max_dim: int,
        plan: AttentionPlan,
        place: Place,
        max_key_dim: int,
    ) -> None:
        super().__init__()
        bias = settings.qkv_bias
        self.query = ElasticLinear(max_dim, plan.width, bias)
        self.key = ElasticLinear(max_key_dim, plan.key_width, bias)
        self.value = ElasticLinear(max_key_dim, plan.key_width, bias)
        self.output = ElasticLinear(plan.width, max_dim, settings.output_bias)
        self.outputs = nn.ModuleDict(
            {
                str(n): ElasticLinear(settings.attention_dim(n), max_dim, settings.output_bias)
                for n in plan.own_outputs
            }
        )
        self.query_norm: ElasticRMSNorm | None = None
        self.key_norm: ElasticRMSNorm | None = None
        if settings.qk_norm and place != "cross":
            self.query_norm = ElasticRMSNorm(plan.head_dim, settings.norm_eps)
            self.key_norm = ElasticRMSNorm(plan.head_dim, settings.norm_eps)


def projections_of(kind: AttentionKind) -> str:
    """The name of a kind's projections, where kinds do not share them; windows of any size do."""
    return "window" if base_kind(kind) == "window" else kind


class Undivided(NamedTuple):
    """What a kernel takes in one piece.

    Attributes:
        kernel: that takes it.
        projected: by P layers, ``(B, N, P, H, width of a head)``.
    """

    kernel: ReluLinearKernel
    projected: Tensor


class ElasticAttention(nn.Module):
    """Multi-head attention whose kind, heads and width come with the call.

    What asks and what is looked at may have different widths (cross-attention).
    """

    def __init__(
        self,
        settings: ModelSettings,
        max_dim: int,
        plan: AttentionPlan,
        place: Place = "encoder",
        max_key_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.place: Place = place
        kinds = [kind for kind in plan.kinds if kind != SKIP]  # which blocks leave out
        names = dict.fromkeys(self._projections(kind) for kind in kinds)
        self.projections = nn.ModuleDict(
            {
                name: Projections(settings, max_dim, plan, place, max_key_dim or max_dim)
                for name in names
            }
        )
        sizes = plan.width, plan.span, place, max_dim, plan.num_heads, plan.head_dim
        self.kernels = nn.ModuleDict({kind: build_kernel(kind, settings, *sizes) for kind in kinds})

    def forward(
        self,
        x_BND: Tensor,
        kind: AttentionKind,
        num_heads: int,
        key_mask_BN: Tensor | None,
        span: int,
        num_kv_heads: int | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``, every position seeing every real one."""
        own, kernel = self._parts(kind)
        parts = own.query, own.key, own.value
        if num_kv_heads is None and (whole := self._undivided(kind, parts, x_BND, num_heads)):
            out_BHND = whole.kernel.attended(whole.projected, key_mask_BN=key_mask_BN, span=span)
            return self._output(own, out_BHND, x_BND)
        q, k, v = self._asked(kind, x_BND, num_heads, num_kv_heads, rotation, span)
        read = {"x_BND": x_BND} if kernel.reads_input else {}
        out_BHND = kernel(q, k, v, key_mask_BM=key_mask_BN, span=span, **read)
        return self._output(own, out_BHND, x_BND)

    def causal(
        self,
        x_BND: Tensor,
        kind: AttentionKind,
        num_heads: int,
        state: State | None,
        span: int,
        key_mask_BN: Tensor | None = None,
        num_kv_heads: int | None = None,
        rotation: Rotation | None = None,
        positions_1N: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """``(B, N, D)`` → ``(B, N, D)``, seeing the real past, and the state to go on from.

        Positions of the states count padding; None at the start of a sequence counts them from 0.
        """
        own, kernel = self._parts(kind)
        parts = own.query, own.key, own.value
        if num_kv_heads is None and (whole := self._undivided(kind, parts, x_BND, num_heads)):
            out_BHND, state = whole.kernel.attended_past(
                whole.projected,
                key_mask_BN=key_mask_BN,
                span=span,
                state=state,
                positions_1N=positions_1N,
            )
            return self._output(own, out_BHND, x_BND), state
        q, k, v = self._asked(kind, x_BND, num_heads, num_kv_heads, rotation, span)
        read: dict[str, Tensor | None] = {"x_BND": x_BND} if kernel.reads_input else {}
        if kernel.reads_positions:
            read["positions_1N"] = positions_1N
        out_BHND, state = kernel.causal(
            q, k, v, key_mask_BN=key_mask_BN, span=span, state=state, **read
        )
        return self._output(own, out_BHND, x_BND), state

    def memory(
        self,
        encoded_BMD: Tensor,
        kind: AttentionKind,
        num_heads: int,
        key_mask_BM: Tensor | None,
        span: int,
    ) -> State:
        """What `read` needs of an encoder's states ``(B, M, D)``, `span` for each position."""
        own, kernel = self._parts(kind)
        if whole := self._undivided(kind, (own.key, own.value), encoded_BMD, num_heads):
            return whole.kernel.kept(whole.projected, key_mask_BM=key_mask_BM, span=span)
        k_BHMD, v_BHMD = self.heads(kernel, (own.key, own.value), encoded_BMD, num_heads)
        return kernel.memory(k_BHMD, v_BHMD, key_mask_BM=key_mask_BM, span=span)

    def read(
        self,
        x_BND: Tensor,
        kind: AttentionKind,
        num_heads: int,
        memory: State,
        positions_1N: Tensor,
    ) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``, seeing a memory.

        B may be a multiple of the memory's batch, neighbouring rows sharing one source (beams):
        they are then queries of one sample, and the memory is read once for all of them.
        """
        own, kernel = self._parts(kind)
        # Sizes are asked of `shape`, not of `len`, which would fix them in an exported graph.
        sources = memory[0].shape[0]
        folded_bND = x_BND.reshape(sources, -1, x_BND.shape[-1])
        beams = x_BND.shape[0] // sources
        if not isinstance(beams, int) or beams != 1:  # in a graph it is no number
            positions_1N = shared(_of_beams, positions_1N, beams)
        if whole := self._undivided(kind, (own.query,), folded_bND, num_heads):
            out_bHND = whole.kernel.asked(whole.projected, memory, positions_1N)
            return self._output(own, out_bHND, x_BND).view_as(x_BND)
        (q_bHND,) = self.heads(kernel, (own.query,), folded_bND, num_heads)
        out_bHND = kernel.read(q_bHND, memory, positions_1N)
        return self._output(own, out_bHND, x_BND).view_as(x_BND)

    def heads(
        self,
        kernel: AttentionKernel,
        layers: Sequence[ElasticLinear],
        x_BND: Tensor,
        num_heads: int,
        num_kv_heads: int | None = None,
    ) -> tuple[Tensor, ...]:
        """``(B, N, D)`` → ``(B, H, N, width of a head)`` of each layer, for a kernel.

        H is `num_kv_heads` where given.
        """
        width = self.settings.key_dim(num_heads, num_kv_heads)
        split = num_kv_heads or num_heads, -1
        together = side_by_side(layers, x_BND, width) if len(layers) > 1 else None
        if together is None:
            each = [layer(x_BND, width).unflatten(-1, split) for layer in layers]
        else:
            if kernel.in_full:
                (together,) = in_full_precision(together)
            each = together.unflatten(-1, (len(layers), *split)).unbind(2)
        return tuple(x_BNHD.transpose(1, 2) for x_BNHD in each)

    def _undivided(
        self, kind: AttentionKind, layers: Sequence[ElasticLinear], x_BND: Tensor, num_heads: int
    ) -> Undivided | None:
        """As `heads`, but in one piece, for a gradient.

        None where there is none, for kernels that take none, where projections lie apart, and where
        something is done to them.
        """
        kernel = self.kernels[kind]
        if not isinstance(kernel, ReluLinearKernel) or not torch.is_grad_enabled():
            return None
        if self.projections_for(kind).query_norm is not None or self._rotates(kind):
            return None
        together = side_by_side(layers, x_BND, self.settings.attention_dim(num_heads))
        if together is None:
            return None
        return Undivided(kernel, together.unflatten(-1, (len(layers), num_heads, -1)))

    def _asked(
        self,
        kind: AttentionKind,
        x_BND: Tensor,
        num_heads: int,
        num_kv_heads: int | None,
        rotation: Rotation | None,
        span: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self-attention, as the kernel takes them."""
        own, kernel = self._parts(kind)
        if num_kv_heads is None:
            q_BHND, k_BHND, v_BHND = self.heads(
                kernel, (own.query, own.key, own.value), x_BND, num_heads
            )
        else:
            (q_BHND,) = self.heads(kernel, (own.query,), x_BND, num_heads)
            k_BHND, v_BHND = self.heads(
                kernel, (own.key, own.value), x_BND, num_heads, num_kv_heads
            )
        if own.query_norm is not None and own.key_norm is not None:
            q_BHND, k_BHND = own.query_norm(q_BHND), own.key_norm(k_BHND)
        if rotation is not None and self._rotates(kind):
            q_BHND, k_BHND = rotation(q_BHND, span), rotation(k_BHND, span)
        if num_kv_heads is not None and not kernel.takes_groups:
            k_BHND, v_BHND = (repeated_heads(x, num_heads) for x in (k_BHND, v_BHND))
        return q_BHND, k_BHND, v_BHND

    def _rotates(self, kind: AttentionKind) -> bool:
        return operator_of(self.settings, kind, self.place).rotates

    def projections_for(self, kind: AttentionKind) -> Projections:
        """The projections that a kind uses; of kinds that share them, the same."""
        own = self.projections[self._projections(kind)]
        assert isinstance(own, Projections)
        return own

    def _projections(self, kind: AttentionKind) -> str:
        return "shared" if self.settings.share_attention_weights else projections_of(kind)

    def _parts(self, kind: AttentionKind) -> tuple[Projections, AttentionKernel]:
        return self.projections_for(kind), self.kernels[kind]  # type: ignore[return-value]

    def _output(self, own: Projections, out_BHND: Tensor, x_BND: Tensor) -> Tensor:
        merged = in_product_precision(out_BHND.transpose(1, 2)).flatten(2)
        output = own_output(own.output, own.outputs, out_BHND.shape[1])
        return output(merged, x_BND.shape[-1])  # type: ignore[no-any-return]


def _of_beams(positions_1N: Tensor, beams: int) -> Tensor:
    """The positions of neighbouring rows that share a source, one row after the other."""
    return positions_1N.expand(beams, -1).reshape(1, -1)


def attention_norm(settings: ModelSettings, max_dim: int, plan: AttentionPlan) -> nn.Module:
    """The norm of a block of self-attention; none in front of one that is always left out."""
    if settings.norm == "pre" and set(plan.kinds) == {SKIP}:
        return nn.Identity()
    return build_norm(settings, max_dim)


class ElasticEncoderBlock(nn.Module):
    """Attention and feed-forward of one encoder layer.

    With ``norm="pre"`` a block is ``x + f(norm(x))``; with ``"post"`` it is ``norm(x + f(x))``.
    Without attention (`SKIP`) f is 0 there.
    """

    def __init__(
        self, settings: ModelSettings, max_dim: int, plan: LayerPlan, dropout: float
    ) -> None:
        super().__init__()
        self.pre_norm = settings.norm == "pre"
        self.attention_norm = attention_norm(settings, max_dim, plan.attention)
        self.attention = ElasticAttention(settings, max_dim, plan.attention)
        self.ffn_norm = build_norm(settings, max_dim)
        self.ffn = ElasticFeedForward(settings, max_dim, plan.ffn_dim, dropout, plan.own_outputs)
        self.dropout = ScaledDropout(dropout, max_dim)

    def forward(
        self,
        x_BND: Tensor,
        layer: EncoderLayer,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``; with `span` P, N is P states for each position."""
        own = layer.attention, layer.num_heads, key_mask_BN, span, layer.num_kv_heads, rotation
        skips = layer.attention == SKIP
        if self.pre_norm:
            if not skips:
                attended = self.attention(self.attention_norm(x_BND), *own)
                x_BND = x_BND + self.dropout(attended)
            transformed: Tensor = self.dropout(self.ffn(self.ffn_norm(x_BND), layer.ffn_dim))
            return x_BND + transformed
        if not skips:
            x_BND = x_BND + self.dropout(self.attention(x_BND, *own))
        x_BND = self.attention_norm(x_BND)
        return self.ffn_norm(x_BND + self.dropout(self.ffn(x_BND, layer.ffn_dim)))  # type: ignore[no-any-return]

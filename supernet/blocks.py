"""One encoder layer, and the attention that encoder and decoder layers have in common.

Shapes: B batch, N positions (times layers for an omni layer), D width, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn

from search_spaces.architecture import AttentionKind, EncoderLayer
from search_spaces.attention import Place
from search_spaces.settings import ModelSettings
from supernet.attention.base import AttentionKernel, State
from supernet.attention.kernels import build_kernel
from supernet.layers import ElasticFeedForward, ElasticLayerNorm, ElasticLinear, ScaledDropout
from supernet.plan import AttentionPlan, LayerPlan


class Projections(nn.Module):
    """Queries, keys, values and output of one attention block."""

    def __init__(self, max_dim: int, max_attention_dim: int, max_key_dim: int) -> None:
        super().__init__()
        self.query = ElasticLinear(max_dim, max_attention_dim)
        self.key = ElasticLinear(max_key_dim, max_attention_dim)
        self.value = ElasticLinear(max_key_dim, max_attention_dim)
        self.output = ElasticLinear(max_attention_dim, max_dim)


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
        names = ("shared",) if settings.share_attention_weights else plan.kinds
        self.projections = nn.ModuleDict(
            {name: Projections(max_dim, plan.width, max_key_dim or max_dim) for name in names}
        )
        self.kernels = nn.ModuleDict(
            {
                kind: build_kernel(kind, settings, plan.width, plan.span, place)
                for kind in plan.kinds
            }
        )

    def forward(
        self,
        x_BND: Tensor,
        kind: AttentionKind,
        num_heads: int,
        key_mask_BN: Tensor | None,
        span: int,
    ) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``, every position seeing every real one."""
        own, kernel = self._parts(kind)
        q, k, v = (self.heads(part, x_BND, num_heads) for part in (own.query, own.key, own.value))
        out_BHND = kernel(q, k, v, key_mask_BM=key_mask_BN, span=span)
        return self._output(own, out_BHND, x_BND)

    def causal(
        self,
        x_BND: Tensor,
        kind: AttentionKind,
        num_heads: int,
        state: State | None,
        span: int,
        key_mask_BN: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """``(B, N, D)`` → ``(B, N, D)``, seeing the real past, and the state to go on from."""
        own, kernel = self._parts(kind)
        q, k, v = (self.heads(part, x_BND, num_heads) for part in (own.query, own.key, own.value))
        out_BHND, state = kernel.causal(q, k, v, key_mask_BN=key_mask_BN, span=span, state=state)
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
        k_BHMD, v_BHMD = (self.heads(p, encoded_BMD, num_heads) for p in (own.key, own.value))
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
        q_bHND = self.heads(own.query, folded_bND, num_heads)
        beams = x_BND.shape[0] // sources
        positions_1N = positions_1N.expand(beams, -1).reshape(1, -1)
        out_bHND = kernel.read(q_bHND, memory, positions_1N)
        return self._output(own, out_bHND, x_BND).view_as(x_BND)

    def heads(self, linear: ElasticLinear, x_BND: Tensor, num_heads: int) -> Tensor:
        """``(B, N, D)`` → ``(B, H, N, width of a head)``."""
        projected: Tensor = linear(x_BND, self.settings.attention_dim(num_heads))
        split: Tensor = projected.unflatten(-1, (num_heads, -1))
        return split.transpose(1, 2)

    def _parts(self, kind: AttentionKind) -> tuple[Projections, AttentionKernel]:
        shared = self.settings.share_attention_weights
        own, kernel = self.projections["shared" if shared else kind], self.kernels[kind]
        return own, kernel  # type: ignore[return-value]

    def _output(self, own: Projections, out_BHND: Tensor, x_BND: Tensor) -> Tensor:
        merged = out_BHND.transpose(1, 2).flatten(2)
        return own.output(merged, x_BND.shape[-1])  # type: ignore[no-any-return]


class ElasticEncoderBlock(nn.Module):
    """Attention and feed-forward of one encoder layer.

    With ``norm="pre"`` a block is ``x + f(norm(x))``; with ``"post"`` it is ``norm(x + f(x))``.
    """

    def __init__(
        self, settings: ModelSettings, max_dim: int, plan: LayerPlan, dropout: float
    ) -> None:
        super().__init__()
        self.pre_norm = settings.norm == "pre"
        self.attention_norm = ElasticLayerNorm(max_dim)
        self.attention = ElasticAttention(settings, max_dim, plan.attention)
        self.ffn_norm = ElasticLayerNorm(max_dim)
        self.ffn = ElasticFeedForward(max_dim, plan.ffn_dim, settings.activation, dropout)
        self.dropout = ScaledDropout(dropout, max_dim)

    def forward(
        self, x_BND: Tensor, layer: EncoderLayer, key_mask_BN: Tensor | None = None, span: int = 1
    ) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``; with `span` P, N is P states for each position."""
        if self.pre_norm:
            attended = self.attention(
                self.attention_norm(x_BND), layer.attention, layer.num_heads, key_mask_BN, span
            )
            x_BND = x_BND + self.dropout(attended)
            transformed: Tensor = self.dropout(self.ffn(self.ffn_norm(x_BND), layer.ffn_dim))
            return x_BND + transformed
        attended = self.attention(x_BND, layer.attention, layer.num_heads, key_mask_BN, span)
        x_BND = self.attention_norm(x_BND + self.dropout(attended))
        return self.ffn_norm(x_BND + self.dropout(self.ffn(x_BND, layer.ffn_dim)))  # type: ignore[no-any-return]

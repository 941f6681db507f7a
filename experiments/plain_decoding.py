"""A translation network out of the layers of `torch.nn.Transformer`, which decodes with a cache.

`torch.nn.TransformerDecoderLayer` looks at a whole target each time; here its own weights are
applied to one new token, and the keys and values of the tokens before it are kept, as ours are.
Those of a source are kept too, either once for all beams of the sentence, as ours are, or once for
each beam, which is how torch's layers take them.

Shapes: S sources, or rows of them with copies, M source positions, R rows (sentences times beams),
T tokens written so far, D width, H heads, d width of a head, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.plain_network import PlainBlock
from experiments.plain_translation import (
    PlainAttention,
    PlainDecoderBlock,
    PlainTranslation,
    scaled_with_positions,
)
from search_spaces.errors import UsageError

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class PlainState:
    """What is remembered between two tokens.

    Attributes:
        position: how many tokens were decoded.
        past: keys and values ``(R, H, T, d)`` of each layer's self-attention; None at the start.
        memories: keys and values ``(S, H, M, d)`` of each layer's cross-attention.
        mask: True at real source tokens, ``(S, 1, 1, M)``.
        copies: of each source among the S rows.
    """

    position: int
    past: tuple[Pair, ...] | None
    memories: tuple[Pair, ...]
    mask: Tensor
    copies: int

    def reorder(self, rows: Tensor) -> Self:
        """The state of these rows."""
        return self if self.past is None else replace(self, past=_taken(self.past, rows))

    def keep_sources(self, sources: Tensor) -> Self:
        """The state with these sources only."""
        copy = torch.arange(self.copies, device=sources.device)
        rows = (sources[:, None] * self.copies + copy).flatten()
        mask_S11M = self.mask.index_select(0, rows)
        return replace(self, memories=_taken(self.memories, rows), mask=mask_S11M)


def _taken(pairs: tuple[Pair, ...], rows: Tensor) -> tuple[Pair, ...]:
    return tuple((k.index_select(0, rows), v.index_select(0, rows)) for k, v in pairs)


class CachedDecoderLayer(nn.TransformerDecoderLayer):
    """Torch's pre-norm decoder layer, for one token at a time as well."""

    def memory(self, encoded_SMD: Tensor) -> Pair:
        """Keys and values of the encoder's states."""
        own, dim = self.multihead_attn, encoded_SMD.shape[-1]
        joined = F.linear(encoded_SMD, own.in_proj_weight[dim:], own.in_proj_bias[dim:])
        k_SMD, v_SMD = joined.chunk(2, dim=-1)
        return self._heads(k_SMD), self._heads(v_SMD)

    def step(
        self, x_R1D: Tensor, past: Pair | None, memory: Pair, mask_S11M: Tensor
    ) -> tuple[Tensor, Pair]:
        """One new token a row: its states after this layer, and keys and values with it."""
        own, cross, dim = self.self_attn, self.multihead_attn, x_R1D.shape[-1]
        joined = F.linear(self.norm1(x_R1D), own.in_proj_weight, own.in_proj_bias)
        q, k, v = (self._heads(part) for part in joined.chunk(3, dim=-1))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        seen_RHTd = F.scaled_dot_product_attention(q, k, v)
        x_R1D = x_R1D + own.out_proj(seen_RHTd.transpose(1, 2).flatten(2))
        q_R1D = F.linear(self.norm2(x_R1D), cross.in_proj_weight[:dim], cross.in_proj_bias[:dim])
        q_SHKd = self._heads(q_R1D.view(len(mask_S11M), -1, dim))  # the beams K as positions
        read_SHKd = F.scaled_dot_product_attention(q_SHKd, *memory, attn_mask=mask_S11M)
        x_R1D = x_R1D + cross.out_proj(read_SHKd.transpose(1, 2).reshape(x_R1D.shape))
        hidden_R1F = F.relu(self.linear1(self.norm3(x_R1D)))
        return x_R1D + self.linear2(hidden_R1F), (k, v)

    def _heads(self, x_BND: Tensor) -> Tensor:
        heads = self.self_attn.num_heads
        split: Tensor = x_BND.unflatten(-1, (heads, -1))
        return split.transpose(1, 2)


class PlainDecoding(nn.Module):
    """Torch's encoder and decoder layers with the weights of a plain network."""

    def __init__(self, fixed: PlainTranslation) -> None:
        """Build it.

        Args:
            fixed: the network to be, with one number of heads and attention as wide as the
                embeddings.

        Raises:
            UsageError: for other networks, which torch's layers cannot be.
        """
        super().__init__()
        dim, num_heads = _shape(fixed)
        self.source, self.target = fixed.source, fixed.target
        self.encoder_norm, self.decoder_norm = fixed.encoder_norm, fixed.decoder_norm
        self.encoder = nn.ModuleList(_encoder_layer(dim, num_heads, own) for own in fixed.encoder)
        self.decoder = nn.ModuleList(_decoder_layer(dim, num_heads, own) for own in fixed.decoder)
        self.to(fixed.target.weight).eval()

    def start(self, source_SM: Tensor, copies: int = 1) -> PlainState:
        """Encode padded sources: the state before the first target token.

        Args:
            source_SM: tokens.
            copies: how often the keys and values of each source are kept.
        """
        padding_SM = source_SM == 0
        x_SMD = scaled_with_positions(self.source(source_SM))
        for layer in self.encoder:
            x_SMD = layer(x_SMD, src_key_padding_mask=padding_SM)
        encoded_SMD = self.encoder_norm(x_SMD).repeat_interleave(copies, dim=0)
        memories = tuple(layer.memory(encoded_SMD) for layer in self.decoder)  # type: ignore[operator]
        mask_S11M = ~padding_SM.repeat_interleave(copies, dim=0)[:, None, None, :]
        return PlainState(0, None, memories, mask_S11M, copies)

    def step(self, tokens_R1: Tensor, state: PlainState) -> tuple[Tensor, PlainState]:
        """One new token a row → logits ``(R, 1, V)`` of the token after it, and the state."""
        x_R1D = scaled_with_positions(self.target(tokens_R1), state.position)
        past = []
        for number, layer in enumerate(self.decoder):
            assert isinstance(layer, CachedDecoderLayer)
            before = None if state.past is None else state.past[number]
            x_R1D, pair = layer.step(x_R1D, before, state.memories[number], state.mask)
            past.append(pair)
        logits_R1V = F.linear(self.decoder_norm(x_R1D), self.target.weight)
        return logits_R1V, replace(state, position=state.position + 1, past=tuple(past))


def _shape(fixed: PlainTranslation) -> tuple[int, int]:
    """Width and number of heads, the same in all layers."""
    attentions = [*fixed.encoder]
    for block in fixed.decoder:
        assert isinstance(block, PlainDecoderBlock)
        attentions += [block.self_attention, block.cross_attention]
    shapes = {(a.num_heads, a.query.weight.shape, a.key.weight.shape) for a in attentions}
    num_heads, (width, dim), (_, key_dim) = shapes.pop()
    if shapes or not width == dim == key_dim:
        raise UsageError(
            "torch.nn.Transformer has one width and one number of heads in all layers, and "
            "attention as wide as the embeddings; choose an architecture that has these"
        )
    return dim, num_heads


def _encoder_layer(dim: int, num_heads: int, own: nn.Module) -> nn.TransformerEncoderLayer:
    assert isinstance(own, PlainBlock)
    layer = nn.TransformerEncoderLayer(
        dim, num_heads, own.inner.out_features, dropout=0.0, batch_first=True, norm_first=True
    )
    _copy_attention(layer.self_attn, own)
    layer.norm1, layer.norm2 = own.attention_norm, own.ffn_norm
    layer.linear1, layer.linear2 = own.inner, own.outer
    return layer


def _decoder_layer(dim: int, num_heads: int, own: nn.Module) -> CachedDecoderLayer:
    assert isinstance(own, PlainDecoderBlock)
    layer = CachedDecoderLayer(
        dim, num_heads, own.inner.out_features, dropout=0.0, batch_first=True, norm_first=True
    )
    _copy_attention(layer.self_attn, own.self_attention)
    _copy_attention(layer.multihead_attn, own.cross_attention)
    layer.norm1, layer.norm2, layer.norm3 = own.self_norm, own.cross_norm, own.ffn_norm
    layer.linear1, layer.linear2 = own.inner, own.outer
    return layer


def _copy_attention(attention: nn.MultiheadAttention, own: PlainBlock | PlainAttention) -> None:
    parts = (own.query, own.key, own.value)
    attention.in_proj_weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
    attention.in_proj_bias = nn.Parameter(torch.cat([part.bias.detach() for part in parts]))
    attention.out_proj = own.output  # type: ignore[assignment]

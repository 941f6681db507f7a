"""Networks written from torch's own layers, nothing elastic, to hold supernets against.

The translation network has softmax attention only. `torch.nn.TransformerDecoderLayer` looks at a
whole target each time; in `PlainDecoding` its own weights are applied to one new token, and the
keys and values of the tokens before it are kept, as ours are. Those of a source are kept too,
either once for all beams of the sentence, as ours are, or once for each beam, which is how torch's
layers take them.

Shapes: B batch, N (target) positions, M source positions, D width, H heads, d width of a head,
C classes, V target vocabulary, S sources, or rows of them with copies, R rows (sentences times
beams), T tokens written so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.architecture import Architecture, DecoderLayer, EncoderLayer
from search_spaces.errors import UsageError
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from supernet.attention import build_kernel
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import extract
from supernet.layers import sinusoidal_positions
from supernet.plan import decoder_of, encoder_of
from supernet.sequence_models import TranslationModel


class PlainBlock(nn.Module):
    """Attention and feed-forward of one layer, of one size."""

    def __init__(self, settings: ModelSettings, dim: int, layer: EncoderLayer) -> None:
        super().__init__()
        width = settings.attention_dim(layer.num_heads)
        self.num_heads = layer.num_heads
        self.pre_norm = settings.norm == "pre"
        self.attention_norm = nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, width) for _ in range(3))
        self.output = nn.Linear(width, dim)
        # Torch has no relative keys, linear or omnidirectional attention: those are our kernels.
        fused = layer.attention == "softmax" and not settings.relative_positions
        self.kernel = None if fused else build_kernel(layer.attention, settings, width, 1)
        self.ffn_norm = nn.LayerNorm(dim)
        self.inner, self.outer = nn.Linear(dim, layer.ffn_dim), nn.Linear(layer.ffn_dim, dim)
        self.activation = F.relu if settings.activation == "relu" else F.gelu

    def forward(self, x_BND: Tensor, mask_BN: Tensor | None) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``."""
        if self.pre_norm:
            x_BND = x_BND + self._attend(self.attention_norm(x_BND), mask_BN)
            return x_BND + self._feed_forward(self.ffn_norm(x_BND))
        x_BND = self.attention_norm(x_BND + self._attend(x_BND, mask_BN))
        return self.ffn_norm(x_BND + self._feed_forward(x_BND))  # type: ignore[no-any-return]

    def _attend(self, x_BND: Tensor, mask_BN: Tensor | None) -> Tensor:
        batch, length, _ = x_BND.shape
        q, k, v = (
            linear(x_BND).view(batch, length, self.num_heads, -1).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        if self.kernel is None:
            mask = None if mask_BN is None else mask_BN[:, None, None, :]
            out_BHND = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            out_BHND = self.kernel(q, k, v, key_mask_BM=mask_BN)
        merged = out_BHND.transpose(1, 2).reshape(batch, length, -1)
        return self.output(merged)  # type: ignore[no-any-return]

    def _feed_forward(self, x_BND: Tensor) -> Tensor:
        return self.outer(self.activation(self.inner(x_BND)))  # type: ignore[no-any-return]


class PlainNetwork(nn.Module):
    """One classifier of one size, whose parameters stand in the order of an extracted network's.

    Omni layers are ordinary layers here: each sees the layer below it only.
    """

    def __init__(self, settings: ModelSettings, architecture: Architecture) -> None:
        super().__init__()
        encoder, source = encoder_of(architecture), settings.input
        dim = encoder.embed_dim
        self.settings = settings
        self.class_token = nn.Parameter(torch.zeros(dim)) if settings.class_token else None
        learned = settings.positions == "learned"
        self.positions = nn.Parameter(torch.zeros(settings.max_length, dim)) if learned else None
        self.tokens: nn.Module
        if isinstance(source, ImageInput):
            patch = source.patch_size
            self.tokens = nn.Conv2d(source.channels, dim, kernel_size=patch, stride=patch)
        else:
            self.tokens = nn.Embedding(source.vocab_size, dim)
        self.blocks = nn.ModuleList(PlainBlock(settings, dim, layer) for layer in encoder.layers)
        self.final_norm = nn.LayerNorm(dim) if settings.norm == "pre" else None
        self.classifier = nn.Linear(dim, settings.num_classes or 0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` or padded tokens ``(B, N)`` → logits ``(B, C)``."""
        x_BND = self.tokens(inputs)
        mask_BN = None if x_BND.ndim == 4 else inputs != 0
        if x_BND.ndim == 4:
            x_BND = x_BND.flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x_BND = torch.cat((self.class_token.expand(len(x_BND), 1, -1), x_BND), dim=1)
            mask_BN = None if mask_BN is None else F.pad(mask_BN, (1, 0), value=True)
        x_BND = self._positioned(x_BND)
        for block in self.blocks:
            x_BND = block(x_BND, mask_BN)
        if self.final_norm is not None:
            x_BND = self.final_norm(x_BND)
        return self.classifier(self._pool(x_BND, mask_BN))  # type: ignore[no-any-return]

    def _positioned(self, x_BND: Tensor) -> Tensor:
        _, length, dim = x_BND.shape
        if self.positions is not None:
            return x_BND + self.positions[:length]
        if self.settings.positions == "sinusoidal":
            return x_BND + sinusoidal_positions(length, dim, x_BND.device).to(x_BND.dtype)
        return x_BND

    def _pool(self, x_BND: Tensor, mask_BN: Tensor | None) -> Tensor:
        if self.settings.pooling == "class":
            return x_BND[:, 0]
        first = int(self.settings.class_token)
        if mask_BN is None:
            return x_BND[:, first:].mean(dim=1)
        real_BN1 = mask_BN[:, first:, None].to(x_BND.dtype)
        return (x_BND[:, first:] * real_BN1).sum(dim=1) / real_BN1.sum(dim=1).clamp(min=1.0)


def plain_twin(supernet: EncoderClassifier, architecture: Architecture) -> PlainNetwork:
    """A fixed network that computes what the supernet does with that architecture."""
    plain = PlainNetwork(supernet.settings, architecture).to(next(supernet.parameters()))
    copy_weights(plain, extract(supernet, architecture))
    return plain


@torch.no_grad()
def copy_weights(plain: nn.Module, cut: nn.Module) -> None:
    """Give a plain network the weights of a cut-out one, its parameters in the same order."""
    for mine, theirs in zip(plain.parameters(), cut.parameters(), strict=True):
        assert mine.shape == theirs.shape, "the plain network has another shape"
        mine.copy_(theirs)


# -- translation --------------------------------------------------------------------------------


class PlainAttention(nn.Module):
    """Multi-head softmax attention of one size."""

    def __init__(self, width: int, dim: int, key_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key = nn.Linear(dim, width), nn.Linear(key_dim, width)
        self.value, self.output = nn.Linear(key_dim, width), nn.Linear(width, dim)

    def forward(self, x_BND: Tensor, keys_BMD: Tensor, mask_BM: Tensor | None) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``, seeing the real keys; without a mask those of the past."""
        q, k, v = self._heads(self.query(x_BND)), self.key(keys_BMD), self.value(keys_BMD)
        mask = None if mask_BM is None else mask_BM[:, None, None, :]
        out_BHND = F.scaled_dot_product_attention(
            q, self._heads(k), self._heads(v), attn_mask=mask, is_causal=mask is None
        )
        return self.output(out_BHND.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x_BNW: Tensor) -> Tensor:
        batch, length, _ = x_BNW.shape
        return x_BNW.view(batch, length, self.num_heads, -1).transpose(1, 2)


class PlainDecoderBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward of one pre-norm layer, of one size."""

    def __init__(
        self, settings: ModelSettings, dim: int, encoder_dim: int, layer: DecoderLayer
    ) -> None:
        super().__init__()
        own, cross = layer.self_num_heads, layer.cross_num_heads or 0
        self.self_norm = nn.LayerNorm(dim)
        self.self_attention = PlainAttention(settings.attention_dim(own), dim, dim, own)
        self.cross_norm = nn.LayerNorm(dim)
        self.cross_attention = PlainAttention(
            settings.attention_dim(cross), dim, encoder_dim, cross
        )
        self.ffn_norm = nn.LayerNorm(dim)
        self.inner, self.outer = nn.Linear(dim, layer.ffn_dim), nn.Linear(layer.ffn_dim, dim)

    def forward(self, x_BND: Tensor, encoded_BMD: Tensor, mask_BM: Tensor) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``."""
        normed = self.self_norm(x_BND)
        x_BND = x_BND + self.self_attention(normed, normed, None)
        x_BND = x_BND + self.cross_attention(self.cross_norm(x_BND), encoded_BMD, mask_BM)
        hidden_BNF = F.relu(self.inner(self.ffn_norm(x_BND)))
        return x_BND + self.outer(hidden_BNF)  # type: ignore[no-any-return]


class PlainTranslation(nn.Module):
    """One translation network of one size: pre-norm, ReLU, sinusoidal positions, tied output.

    Its parameters stand in the order of an extracted network's.

    Raises:
        UsageError: for an architecture or settings that it cannot be.
    """

    def __init__(self, settings: ModelSettings, architecture: Architecture) -> None:
        super().__init__()
        _check(settings, architecture)
        encoder, decoder, source = (
            encoder_of(architecture),
            decoder_of(architecture),
            settings.input,
        )
        assert isinstance(source, TokenInput)
        dim, encoder_dim = decoder.embed_dim, encoder.embed_dim
        self.source = nn.Embedding(source.vocab_size, encoder_dim)
        self.target = self.source  # one table, in one place among the parameters
        if not source.share_embeddings:
            self.target = nn.Embedding(source.target_vocab_size or source.vocab_size, dim)
        self.decoder = nn.ModuleList(
            PlainDecoderBlock(settings, dim, encoder_dim, layer) for layer in decoder.layers
        )
        self.decoder_norm = nn.LayerNorm(dim)
        self.encoder = nn.ModuleList(
            PlainBlock(settings, encoder_dim, layer) for layer in encoder.layers
        )
        self.encoder_norm = nn.LayerNorm(encoder_dim)

    def forward(self, source_BM: Tensor, target_BN: Tensor) -> Tensor:
        """Padded source and target tokens → logits ``(B, N, V)``."""
        mask_BM = source_BM != 0
        encoded_BMD = scaled_with_positions(self.source(source_BM))
        for block in self.encoder:
            encoded_BMD = block(encoded_BMD, mask_BM)
        encoded_BMD = self.encoder_norm(encoded_BMD)
        x_BND = scaled_with_positions(self.target(target_BN))
        for block in self.decoder:
            x_BND = block(x_BND, encoded_BMD, mask_BM)
        return F.linear(self.decoder_norm(x_BND), self.target.weight)


def scaled_with_positions(x_BND: Tensor, start: int = 0) -> Tensor:
    """Embeddings times sqrt(D), plus sinusoidal positions from `start` on."""
    _, length, dim = x_BND.shape
    table_ND = sinusoidal_positions(length, dim, x_BND.device, start)
    scaled_BND: Tensor = x_BND * dim**0.5
    return scaled_BND + table_ND.to(x_BND.dtype)


def _check(settings: ModelSettings, architecture: Architecture) -> None:
    encoder, decoder, source = encoder_of(architecture), decoder_of(architecture), settings.input
    assert isinstance(source, TokenInput)
    kinds: set[str | None] = {layer.attention for layer in encoder.layers}
    kinds |= {layer.self_attention for layer in decoder.layers}
    kinds |= {layer.cross_attention for layer in decoder.layers}
    joined = {layer.ende_connect for layer in decoder.layers}
    usual = settings.norm == "pre" and settings.positions == "sinusoidal"
    usual = usual and settings.activation == "relu" and not settings.relative_positions
    one = encoder.embed_dim == decoder.embed_dim
    one = one and source.target_vocab_size in (None, source.vocab_size)
    tables = one or not source.share_embeddings
    if kinds != {"softmax"} or joined != {1} or not usual or not tables:
        raise UsageError(
            "the plain translation network has softmax attention to the last encoder layer, norm "
            "'pre', positions 'sinusoidal' and activation 'relu', and shares only a table of one "
            "width and vocabulary; choose an architecture that has these, for example of 'multi30k'"
        )


def plain_translation(supernet: TranslationModel, architecture: Architecture) -> PlainTranslation:
    """A fixed network that computes what the supernet does with that architecture."""
    plain = PlainTranslation(supernet.settings, architecture).to(next(supernet.parameters()))
    copy_weights(plain, extract(supernet, architecture))
    return plain


# -- translation token by token -----------------------------------------------------------------

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

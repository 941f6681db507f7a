"""An encoder-decoder written from torch's own layers, nothing elastic, to hold supernets against.

It has softmax attention only, and trains on whole sentences; `experiments.plain_decoding` has the
plain network that writes token after token.

Shapes: B batch, N target positions, M source positions, D width, H heads, V target vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from experiments.plain_network import PlainBlock, copy_weights
from search_spaces.architecture import Architecture, DecoderLayer
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings, TokenInput
from supernet.extraction import extract
from supernet.layers import sinusoidal_positions
from supernet.plan import decoder_of, encoder_of
from supernet.sequence_models import TranslationModel


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

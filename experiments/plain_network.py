"""A classifier written from torch's own layers, nothing elastic, to hold supernets against.

Shapes: B batch, N positions, D width, H heads, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.architecture import Architecture, EncoderLayer
from search_spaces.settings import ImageInput, ModelSettings
from supernet.attention import build_kernel
from supernet.extraction import extract
from supernet.layers import sinusoidal_positions
from supernet.models import EncoderClassifier
from supernet.plan import encoder_of


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

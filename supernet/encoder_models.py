"""Networks of an encoder alone: classifiers and embedders.

A supernet and a stand-alone network are one class, built from two plans.

Shapes: B batch, N positions, D width, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from supernet.encoder import ElasticEncoder
from supernet.layers import (
    ElasticEmbedding,
    ElasticLinear,
    ElasticPatchEmbedding,
    EmbeddingExtras,
    sinusoidal_positions,
)
from supernet.plan import StackPlan, encoder_of
from supernet.shared import shared
from supernet.slices import used


class InputEmbedding(nn.Module):
    """Patches or tokens, then the class token, then positions."""

    def __init__(self, settings: ModelSettings, max_dim: int) -> None:
        super().__init__()
        self.settings = settings
        source = settings.input
        self.tokens: ElasticEmbedding | ElasticPatchEmbedding
        if isinstance(source, ImageInput):
            self.tokens = ElasticPatchEmbedding(source.channels, max_dim, source.patch_size)
        else:
            self.tokens = ElasticEmbedding(source.vocab_size, max_dim)
        self.class_token = nn.Parameter(torch.zeros(max_dim)) if settings.class_token else None
        self.positions: nn.Parameter | None = None
        if settings.positions == "learned":
            self.positions = nn.Parameter(torch.randn(settings.max_length, max_dim) * 0.02)
        self.extras = EmbeddingExtras(settings, max_dim)

    def forward(self, inputs: Tensor, embed_dim: int) -> Tensor:
        """Images ``(B, C, H, W)`` or tokens ``(B, N)`` → ``(B, N, embed_dim)``."""
        x_BND = self.tokens(inputs, embed_dim)
        if self.class_token is not None:
            token = used(self.class_token, embed_dim).expand(x_BND.shape[0], 1, -1)
            x_BND = torch.cat((token, x_BND), dim=1)
        length = x_BND.shape[1]
        if self.positions is not None:
            x_BND = x_BND + used(self.positions, length, embed_dim)
        elif self.settings.positions == "sinusoidal":
            table_ND = shared(sinusoidal_positions, length, embed_dim, x_BND.device)
            x_BND = x_BND + table_ND.to(x_BND.dtype)
        return self.extras(x_BND)  # type: ignore[no-any-return]


class PooledEncoder(nn.Module):
    """An encoder and its pooling: what models that say one thing of an input have in common."""

    def __init__(self, settings: ModelSettings, plan: StackPlan, dropout: float = 0.0) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = InputEmbedding(settings, plan.embed_dim)
        self.encoder = ElasticEncoder(settings, plan, dropout)

    def real_positions(self, inputs: Tensor) -> Tensor | None:
        """True at positions that are not padding, class token included; None for images."""
        if not isinstance(self.settings.input, TokenInput):
            return None
        real_BN = inputs != 0
        if not self.settings.class_token:
            return real_BN
        return torch.cat((real_BN.new_ones(real_BN.shape[0], 1), real_BN), dim=1)

    def _pool(self, x_BND: Tensor, mask_BN: Tensor | None) -> Tensor:
        if self.settings.pooling == "class":
            return x_BND[:, 0]
        if self.settings.pooling == "first":
            if mask_BN is None:
                return x_BND[:, 0]
            first_B1D = mask_BN.int().argmax(dim=1)[:, None, None].expand(-1, 1, x_BND.shape[2])
            return x_BND.gather(1, first_B1D)[:, 0]
        if self.settings.class_token:
            x_BND = x_BND[:, 1:]
            mask_BN = None if mask_BN is None else mask_BN[:, 1:]
        if mask_BN is None:
            return x_BND.mean(dim=1)
        weight_BN1 = mask_BN.unsqueeze(-1).to(x_BND.dtype)
        return (x_BND * weight_BN1).sum(dim=1) / weight_BN1.sum(dim=1).clamp(min=1.0)


class EncoderClassifier(PooledEncoder):
    """An encoder and a linear classifier over its class token or its mean."""

    def __init__(self, settings: ModelSettings, plan: StackPlan, dropout: float = 0.0) -> None:
        super().__init__(settings, plan, dropout)
        assert settings.num_classes is not None, "a classifier needs num_classes"
        self.num_classes = settings.num_classes
        self.classifier = ElasticLinear(plan.embed_dim, settings.num_classes)

    def forward(self, inputs: Tensor, architecture: Architecture) -> Tensor:
        """Images ``(B, C, H, W)`` or padded tokens ``(B, N)`` → logits ``(B, C)``."""
        encoder = encoder_of(architecture)
        x_BND = self.embedding(inputs, encoder.embed_dim)
        mask_BN = self.real_positions(inputs)
        x_BND = self.encoder(x_BND, encoder, mask_BN)
        return self.classifier(self._pool(x_BND, mask_BN), self.num_classes)  # type: ignore[no-any-return]


class EncoderEmbedder(PooledEncoder):
    """An encoder of texts whose pooled states are their embeddings."""

    def forward(
        self, tokens_BN: Tensor, architecture: Architecture, mask_BN: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Padded tokens ``(B, N)`` → last hidden states ``(B, N, D)`` and embeddings ``(B, D)``.

        Args:
            tokens_BN: 0 is padding, behind a text, unless a mask is given.
            architecture: the network.
            mask_BN: True at real tokens, from the first column on, as positions are counted.

        Raises:
            UsageError: for texts that are longer than the model's learned positions.
        """
        length = tokens_BN.shape[1]
        learned = self.settings.positions == "learned" and not torch.compiler.is_exporting()
        if learned and length > self.settings.max_length:
            raise UsageError(
                f"a text has {length} tokens, but the model has {self.settings.max_length} "
                "positions: cut texts to that, or split them"
            )
        encoder = encoder_of(architecture)
        real_BN = self.real_positions(tokens_BN) if mask_BN is None else mask_BN
        x_BND = self.encoder(self.embedding(tokens_BN, encoder.embed_dim), encoder, real_BN)
        pooled_BD = self._pool(x_BND, real_BN)
        if self.settings.unit_length:
            pooled_BD = F.normalize(pooled_BD, dim=-1)
        return x_BND, pooled_BD

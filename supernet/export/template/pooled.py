"""An encoder of images or of texts, and what is said of the whole of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from supernet.export.template.encoder import Encoder
from supernet.export.template.layers import (
    embedding_norm_of,
    learned_positions,
    placed,
    token_types,
)


class PooledEncoder(nn.Module):
    """Embeddings of what is read, an encoder, and the pooling of what comes out of it."""

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.model = model = description["model"]
        reads, width = model["input"], description["architecture"]["encoder"]["embed_dim"]
        self.images = reads["kind"] == "image"
        if self.images:
            patch = reads["patch_size"]
            self.embedding = nn.Conv2d(reads["channels"], width, patch, patch)
        else:
            self.embedding = nn.Embedding(reads["vocab_size"], width)
        if model["class_token"]:
            self.class_token = nn.Parameter(torch.zeros(width))
        self.positions = learned_positions(model, width)
        self.types = token_types(model, width)
        self.embedding_norm = embedding_norm_of(model, width)
        self.encoder = Encoder(description)

    def embed(self, inputs: Tensor) -> Tensor:
        """Inputs, see ``reading.json`` -> embeddings ``(B, N, D)``."""
        x = self.embedding(inputs)
        if self.images:
            # Images (B, channels, height, width) are cut into patches, row by row.
            x = x.flatten(2).transpose(1, 2)
        if self.model["class_token"]:
            x = torch.cat((self.class_token.expand(len(x), 1, -1), x), dim=1)
        return self.embedding_norm(placed(x, 0, self.model, self.positions, self.types))

    def real_positions(self, inputs: Tensor) -> Tensor | None:
        """``(B, N)``, False at padding, which is token 0; None for images."""
        if self.images:
            return None
        real = inputs != 0
        if not self.model["class_token"]:
            return real
        return torch.cat((real.new_ones(len(real), 1), real), dim=1)

    def pool(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, D)``."""
        if self.model["pooling"] == "class":
            return x[:, 0]
        if self.model["pooling"] == "first":  # of those that are no padding
            places = torch.zeros_like(x[:, 0, 0]).long() if real is None else real.int().argmax(1)
            return x[torch.arange(len(x), device=x.device), places]
        first = int(self.model["class_token"])  # that is not among the inputs
        if real is None:
            return x[:, first:].mean(dim=1)
        weight = real[:, first:, None].to(x.dtype)
        return (x[:, first:] * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)

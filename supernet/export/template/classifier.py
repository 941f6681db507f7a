"""A classifier of images or of token sequences."""

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


class Network(nn.Module):
    """An encoder, and a linear classifier over what comes out of it."""

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
        self.classifier = nn.Linear(width, model["num_classes"])

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs, see ``reading.json`` -> logits ``(B, classes)``."""
        real = None if self.images else inputs != 0  # tokens (B, N), 0 at the end of short rows
        if real is not None and self.model["class_token"]:
            real = torch.cat((real.new_ones(len(real), 1), real), dim=1)
        return self.classifier(self.pool(self.encoder(self.embed(inputs), real), real))

    def embed(self, inputs: Tensor) -> Tensor:
        """Inputs -> embeddings ``(B, N, D)``."""
        x = self.embedding(inputs)
        if self.images:
            # Images (B, channels, height, width) are cut into patches, row by row.
            x = x.flatten(2).transpose(1, 2)
        if self.model["class_token"]:
            x = torch.cat((self.class_token.expand(len(x), 1, -1), x), dim=1)
        return self.embedding_norm(placed(x, 0, self.model, self.positions, self.types))

    def pool(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, D)``."""
        if self.model["pooling"] == "class":
            return x[:, 0]
        first = int(self.model["class_token"])  # that is not among the inputs
        if real is None:
            return x[:, first:].mean(dim=1)
        weight = real[:, first:, None].to(x.dtype)
        return (x[:, first:] * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The logits for recorded inputs."""
    return [network(inputs["inputs"])]

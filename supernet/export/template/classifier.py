"""A classifier of images or of token sequences."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from supernet.export.template.sizes import (
    CLASS_TOKEN,
    ENCODER_WIDTH,
    IMAGE_CHANNELS,
    IMAGES,
    LEARNED_POSITIONS,
    MAX_LENGTH,
    NUM_CLASSES,
    PADDING,
    PATCH_SIZE,
    POOL_CLASS,
    SINUSOIDAL_POSITIONS,
    VOCABULARY,
)
from supernet.export.template.stacks import Encoder


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Sines and cosines of the positions, alternating: ``(N, D)``."""
    pair = torch.arange((width + 1) // 2, device=device, dtype=torch.float32)
    rate = torch.exp(pair * (-2.0 * math.log(10_000.0) / width))
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)[:, :width]


class Network(nn.Module):
    """An encoder, and a linear classifier over what comes out of it."""

    def __init__(self) -> None:
        super().__init__()
        if IMAGES:
            self.embedding = nn.Conv2d(IMAGE_CHANNELS, ENCODER_WIDTH, PATCH_SIZE, PATCH_SIZE)
        else:
            self.embedding = nn.Embedding(VOCABULARY, ENCODER_WIDTH)
        if CLASS_TOKEN:
            self.class_token = nn.Parameter(torch.zeros(ENCODER_WIDTH))
        if LEARNED_POSITIONS:
            self.positions = nn.Parameter(torch.zeros(MAX_LENGTH, ENCODER_WIDTH))
        self.encoder = Encoder()
        self.classifier = nn.Linear(ENCODER_WIDTH, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs, see ``reading.json`` -> logits ``(B, classes)``."""
        if PADDING:
            real = inputs != 0  # tokens (B, N), 0 at the end of short rows
            if CLASS_TOKEN:
                real = torch.cat((real.new_ones(len(real), 1), real), dim=1)
        return self.classifier(self.pool(self.encoder(self.embed(inputs), real), real))

    def embed(self, inputs: Tensor) -> Tensor:
        """Inputs -> embeddings ``(B, N, D)``."""
        if IMAGES:
            # Images (B, channels, height, width) are cut into patches, row by row.
            x = self.embedding(inputs).flatten(2).transpose(1, 2)
        else:
            x = self.embedding(inputs)
        if CLASS_TOKEN:
            x = torch.cat((self.class_token.expand(len(x), 1, -1), x), dim=1)
        if LEARNED_POSITIONS:
            x = x + self.positions[: x.shape[1]]
        if SINUSOIDAL_POSITIONS:
            x = x + sinusoids(x.shape[1], x.shape[2], x.device).to(x.dtype)
        return x

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        """``(B, N, D)`` -> ``(B, D)``."""
        if POOL_CLASS:
            return x[:, 0]
        else:
            if CLASS_TOKEN:
                x = x[:, 1:]
            if PADDING and CLASS_TOKEN:
                real = real[:, 1:]
            if PADDING:
                weight = real[:, :, None].to(x.dtype)
                return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
            else:
                return x.mean(dim=1)


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The logits for recorded inputs."""
    return [network(inputs["inputs"])]

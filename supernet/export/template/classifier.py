"""A classifier of images or of token sequences."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from supernet.export.template.pooled import PooledEncoder


class Network(PooledEncoder):
    """An encoder, and a linear classifier over what comes out of it."""

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__(description)
        width = description["architecture"]["encoder"]["embed_dim"]
        self.classifier = nn.Linear(width, self.model["num_classes"])

    def forward(self, inputs: Tensor) -> Tensor:
        """Images, or tokens ``(B, N)`` with 0 at the end of short rows -> logits ``(B, classes)``.

        ``reading.json`` tells how inputs are made.
        """
        return self.classifier(self.pool(self.states(inputs), self.real_positions(inputs)))

    def states(self, inputs: Tensor) -> Tensor:
        """The same -> what comes out of the encoder ``(B, positions, D)``."""
        return self.encoder(self.embed(inputs), self.real_positions(inputs))


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The logits for recorded inputs."""
    return [{"logits": network(inputs["inputs"])}]

"""An encoder of texts that makes one vector of each."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from supernet.export.template.pooled import PooledEncoder


class Network(PooledEncoder):
    """An encoder whose pooled states are the embeddings of texts."""

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens ``(B, N)`` -> last hidden states ``(B, N, D)`` and embeddings ``(B, D)``.

        Padding, behind a text, is token 0, or where `real` ``(B, N)`` is False.
        """
        real = self.real_positions(tokens) if real is None else real
        states = self.encoder(self.embed(tokens), real)
        embeddings = self.pool(states, real)
        if self.model["unit_length"]:
            embeddings = F.normalize(embeddings, dim=-1)
        return states, embeddings


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """What is said of recorded inputs; states at padding mean nothing, and are 0."""
    states, embeddings = network(inputs["tokens"])
    padding = (inputs["tokens"] == 0)[:, :, None]
    states = states.masked_fill(padding, 0)
    return [{"last_hidden_state": states, "sentence_embedding": embeddings}]

"""The network of network.py as an encoder of texts for transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from supernet.export.template.embedder import Network
from supernet.export.template.hf_config import NasConfig, refuse


class NasForEmbedding(PreTrainedModel):
    """An encoder whose pooled states are the embeddings of texts."""

    config_class = NasConfig
    main_input_name = "input_ids"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    def get_input_embeddings(self) -> nn.Module:
        """The table of its tokens."""
        return self.network.embedding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **given: Any
    ) -> BaseModelOutputWithPooling:
        """Tokens ``(B, N)``, padded at their end -> states ``(B, N, D)``.

        ``pooler_output`` ``(B, D)`` are the embeddings, pooled as the network was trained for.
        """
        refuse(given)
        real = None if attention_mask is None else attention_mask != 0
        states, embeddings = self.network(input_ids, real)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=embeddings)

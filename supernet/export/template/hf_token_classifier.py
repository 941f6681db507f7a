"""The network of network.py as a classifier of token sequences for transformers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from supernet.export.template.classifier import Network
from supernet.export.template.hf_config import NasConfig, refuse


class NasModel(PreTrainedModel):
    """The encoder without its classifier."""

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
    ) -> BaseModelOutput:
        """Tokens ``(B, N)``, padded at their end -> states ``(B, positions, D)``."""
        refuse(given)
        return BaseModelOutput(
            last_hidden_state=self.network.states(padded(input_ids, attention_mask))
        )


class NasForClassification(NasModel):
    """An encoder with a linear classifier."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **given: Any,
    ) -> SequenceClassifierOutput:
        """Tokens ``(B, N)``, padded at their end -> logits ``(B, classes)``, and the loss."""
        refuse(given)
        logits = self.network(padded(input_ids, attention_mask))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def padded(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Tokens with 0 where the mask says that there is none."""
    return input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, 0)

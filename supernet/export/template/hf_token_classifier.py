"""The network of network.py as a classifier of token sequences for transformers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from supernet.export.template.classifier import Network
from supernet.export.template.hf_config import NasConfig


class NasForClassification(PreTrainedModel):
    """An encoder with a linear classifier."""

    config_class = NasConfig
    main_input_name = "input_ids"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Tokens ``(B, N)``, padded at their end -> logits ``(B, classes)``, and the loss."""
        if attention_mask is not None:
            input_ids = input_ids.masked_fill(attention_mask == 0, 0)
        logits = self.network(input_ids)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

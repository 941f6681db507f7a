"""The network of network.py as a classifier of transformers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from supernet.export.template.classifier import Network
from supernet.export.template.hf_config import NasConfig
from supernet.export.template.sizes import IMAGES

if IMAGES:
    from transformers.modeling_outputs import ImageClassifierOutput
else:
    from transformers.modeling_outputs import SequenceClassifierOutput


class NasForClassification(PreTrainedModel):
    """An encoder with a linear classifier."""

    config_class = NasConfig
    if IMAGES:
        main_input_name = "pixel_values"
    else:
        main_input_name = "input_ids"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network()
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    if IMAGES:

        def forward(
            self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any
        ) -> ImageClassifierOutput:
            """Normalised images ``(B, C, H, W)`` -> logits ``(B, classes)``, and the loss."""
            logits = self.network(pixel_values)
            loss = None if labels is None else F.cross_entropy(logits, labels)
            return ImageClassifierOutput(loss=loss, logits=logits)

    else:

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

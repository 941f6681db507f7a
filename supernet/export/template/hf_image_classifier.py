"""The network of network.py as a classifier of images for transformers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from supernet.export.template.classifier import Network
from supernet.export.template.hf_config import NasConfig


class NasForClassification(PreTrainedModel):
    """An encoder with a linear classifier."""

    config_class = NasConfig
    main_input_name = "pixel_values"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any
    ) -> ImageClassifierOutput:
        """Normalised images ``(B, C, H, W)`` -> logits ``(B, classes)``, and the loss."""
        logits = self.network(pixel_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)

"""The network of network.py as a classifier of images for transformers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput

from supernet.export.template.classifier import Network
from supernet.export.template.hf_config import NasConfig, refuse


class NasModel(PreTrainedModel):
    """The encoder without its classifier."""

    config_class = NasConfig
    main_input_name = "pixel_values"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    def forward(self, pixel_values: Tensor, **given: Any) -> BaseModelOutput:
        """Normalised images ``(B, C, H, W)`` -> states ``(B, positions, D)``."""
        refuse(given)
        return BaseModelOutput(last_hidden_state=self.network.states(pixel_values))


class NasForClassification(NasModel):
    """An encoder with a linear classifier."""

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **given: Any
    ) -> ImageClassifierOutput:
        """Normalised images ``(B, C, H, W)`` -> logits ``(B, classes)``, and the loss."""
        refuse(given)
        logits = self.network(pixel_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)

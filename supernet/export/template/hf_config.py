"""What transformers has to know of the network."""

from __future__ import annotations

from transformers import PretrainedConfig


class NasConfig(PretrainedConfig):
    """Marks, classes and lengths, as they stand in config.json; `description` is the network."""

    model_type = "nas_network"

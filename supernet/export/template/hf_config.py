"""What transformers has to know of the network; its sizes are numbers in network.py."""

from __future__ import annotations

from transformers import PretrainedConfig


class NasConfig(PretrainedConfig):
    """Marks, classes and lengths, as they stand in config.json."""

    model_type = "nas_network"

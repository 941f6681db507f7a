"""What transformers has to know of the network."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig

UNKNOWN = ("inputs_embeds", "decoder_inputs_embeds", "output_hidden_states", "output_attentions")


class NasConfig(PretrainedConfig):
    """Marks, classes and lengths, as they stand in config.json; `description` is the network."""

    model_type = "nas_network"


def refuse(given: dict[str, Any], start: int = 0) -> None:
    """Refuse arguments that a network of the library would answer to, and this one does not.

    Args:
        given: by name.
        start: positions read before.

    Raises:
        ValueError: for the first of them.
    """
    for name in UNKNOWN:
        if given.get(name) is not None and given[name] is not False:
            raise ValueError(f"{name} is nothing that this network knows: leave it out")
    types = given.get("token_type_ids")
    if types is not None and bool(types.any()):
        raise ValueError("token_type_ids has to be 0: a text is one segment for this network")
    places = given.get("position_ids")
    if places is not None:
        counted = torch.arange(start, start + places.shape[-1], device=places.device)
        if not bool((places == counted).all()):
            raise ValueError("position_ids is left out: this network counts from the first token")

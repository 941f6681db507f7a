"""Cut one network out of the supernet, with exactly its own parameters."""

from __future__ import annotations

import re
from typing import overload

import torch

from search_spaces.architecture import Architecture
from supernet.layers import prefix
from supernet.models import EncoderClassifier, EncoderEmbedder, FixedEmbedder, FixedNetwork
from supernet.sequence_models import (
    FixedLanguageModel,
    FixedTranslation,
    LanguageModel,
    TranslationModel,
)

# What the name of a layer's parameter begins with.
BLOCK = re.compile(r"^(encoder|decoder)\.blocks\.(\d+)\.")

Supernet = EncoderClassifier | EncoderEmbedder | TranslationModel | LanguageModel
StandAlone = FixedNetwork | FixedEmbedder | FixedTranslation | FixedLanguageModel


@overload
def extract(supernet: EncoderClassifier, architecture: Architecture) -> FixedNetwork: ...
@overload
def extract(supernet: EncoderEmbedder, architecture: Architecture) -> FixedEmbedder: ...
@overload
def extract(supernet: TranslationModel, architecture: Architecture) -> FixedTranslation: ...
@overload
def extract(supernet: LanguageModel, architecture: Architecture) -> FixedLanguageModel: ...
def extract(supernet: Supernet, architecture: Architecture) -> StandAlone:
    """The stand-alone network of an architecture with the supernet's weights (copies).

    Every elastic size is a prefix, so each parameter of the small network is the leading corner
    of the supernet's parameter of the same name.

    Args:
        supernet: a model built from a space that contains the architecture.
        architecture: the network to cut out.
    """
    with torch.random.fork_rng(devices=[]):  # its first weights are thrown away
        network = _stand_alone(supernet, architecture)
    network.to(next(supernet.parameters()))  # device and precision
    large, blocks = supernet.state_dict(), _blocks(supernet, architecture)
    with torch.no_grad():
        for name, parameter in network.network.state_dict().items():
            source = BLOCK.sub(lambda found: blocks[found[1]][int(found[2])], name)
            parameter.copy_(prefix(large[source], *parameter.shape))
    return network.train(supernet.training)


def without_attention(
    supernet: Supernet, architecture: Architecture, stack: str, layer: int, gene: str
) -> StandAlone:
    """As `extract`, with one layer's attention adding nothing to what the layer is given.

    Args:
        supernet: as of `extract`.
        architecture: the network to cut out.
        stack: ``encoder`` or ``decoder``.
        layer: from 0, among those of the network.
        gene: which attention of the layer, for example ``self_attention``.
    """
    network = extract(supernet, architecture)
    attention = getattr(getattr(network.network, stack).blocks[layer], gene)
    with torch.no_grad():
        for projections in attention.projections.values():
            for parameter in projections.output.parameters():
                parameter.zero_()
    return network


def _blocks(supernet: Supernet, architecture: Architecture) -> dict[str, list[str]]:
    """Name of a stack → what the names of its layers' parameters begin with in the supernet."""
    stacks = {"encoder": architecture.encoder, "decoder": architecture.decoder}
    return {
        name: [f"{name}.blocks.{n}." for n in getattr(supernet, name).kept(len(stack.layers))]
        for name, stack in stacks.items()
        if stack is not None
    }


def _stand_alone(supernet: Supernet, architecture: Architecture) -> StandAlone:
    if isinstance(supernet, TranslationModel):
        return FixedTranslation(supernet.settings, architecture)
    if isinstance(supernet, LanguageModel):
        return FixedLanguageModel(supernet.settings, architecture)
    if isinstance(supernet, EncoderEmbedder):
        return FixedEmbedder(supernet.settings, architecture)
    return FixedNetwork(supernet.settings, architecture)

"""Cut one network out of the supernet, with exactly its own parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from supernet.decoding_state import DecodingState
from supernet.encoder_models import EncoderClassifier, EncoderEmbedder
from supernet.plan import plans_of_network
from supernet.sequence_models import LanguageModel, SequenceModel, TranslationModel
from supernet.slices import prefix

# What the name of a layer's parameter begins with.
BLOCK = re.compile(r"^(encoder|decoder)\.blocks\.(\d+)\.")
# And what stands behind that in the name of an output layer's, of which a size may have its own.
OUTPUT = re.compile(r"^(?:(ffn)\.outer|(\w*?)attention\.projections\.[^.]+\.output)(?=\.)")

Supernet = EncoderClassifier | EncoderEmbedder | TranslationModel | LanguageModel


class StandAlone(nn.Module):
    """One network on its own: exactly its parameters, called without its architecture.

    Args:
        model: makes the task's model, as the classes of `Supernet` do.
        settings: of the model.
        architecture: the network.
        dropout: in training.
    """

    def __init__(
        self,
        model: Callable[..., Supernet],
        settings: ModelSettings,
        architecture: Architecture,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.network = model(settings, *plans_of_network(settings, architecture), dropout)

    def forward(self, *inputs: Tensor, **further: Tensor) -> Any:
        """As the model's, which takes the architecture behind the inputs that it needs."""
        needed = 2 if isinstance(self.network, TranslationModel) else 1
        return self.network(*inputs[:needed], self.architecture, *inputs[needed:], **further)

    def start(self, before_BM: Tensor | None = None) -> DecodingState:
        """As the model's: sources of a translation, or the context of a language model."""
        if isinstance(self.network, LanguageModel):
            return self.network.start(self.architecture, before_BM)
        assert isinstance(self.network, TranslationModel) and before_BM is not None
        return self.network.start(before_BM, self.architecture)

    def step(
        self, tokens_BN: Tensor, state: DecodingState, mask_BN: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `SequenceModel.step`."""
        assert isinstance(self.network, SequenceModel)
        return self.network.step(tokens_BN, state, mask_BN)

    def prefill(self, tokens_BN: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `SequenceModel.prefill`."""
        assert isinstance(self.network, SequenceModel)
        return self.network.prefill(tokens_BN, state)


def extract(supernet: Supernet, architecture: Architecture) -> StandAlone:
    """The stand-alone network of an architecture with the supernet's weights (copies).

    Every elastic size is a prefix, so each parameter of the small network is the leading corner
    of the supernet's parameter of the same name; or of the size's own output layer, where it has
    one.

    Args:
        supernet: a model built from a space that contains the architecture.
        architecture: the network to cut out.
    """
    with torch.random.fork_rng(devices=[]):  # its first weights are thrown away
        network = StandAlone(type(supernet), supernet.settings, architecture)
    network.to(next(supernet.parameters()))  # device and precision
    large = supernet.state_dict()
    with torch.no_grad():
        for name, parameter in network.network.state_dict().items():
            source = _source(name, supernet, architecture, large)
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


def _source(
    name: str, supernet: Supernet, architecture: Architecture, large: Container[str]
) -> str:
    """The supernet's name of a network's parameter."""
    if (block := BLOCK.match(name)) is None:
        return name
    stack = architecture.encoder if block[1] == "encoder" else architecture.decoder
    assert stack is not None
    layer = stack.layers[int(block[2])]
    number = getattr(supernet, block[1]).kept(len(stack.layers))[int(block[2])]
    begin, rest = f"{block[1]}.blocks.{number}.", name[block.end() :]

    def own(found: re.Match[str]) -> str:
        size = layer.ffn_dim if found[1] else getattr(layer, f"{found[2]}num_heads")
        return f"{found[0]}s.{size}"

    of_size = begin + OUTPUT.sub(own, rest)
    return of_size if of_size in large else begin + rest

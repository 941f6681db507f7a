"""A small language space with a memory, and its networks read segment by segment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from search_spaces.architecture import Architecture, DecoderLayer, DecoderStack
from search_spaces.loading import parse_space
from search_spaces.space import SearchSpace
from supernet.building import build_supernet
from supernet.sequence_models import LanguageModel
from tests.support.supernet_cases import randomised

SPACE = """\
[space]
name = "small-xl"
task = "language_modelling"

[model]
max_length = 18
head_dim = 4
positions = "none"
relative_positions = 3

[model.input]
kind = "tokens"
vocab_size = 11

[decoder]
embed_dim = [8, 12]
num_layers = [1, 2, 3]
memory_length = [0, 3, 40]
self_attention = ["softmax"]
self_num_heads = [1, 2, 4]
ffn_dim = [6, 16]
"""


def memory_space(max_length: int = 18, **settings: Any) -> SearchSpace:
    """The space, with other settings where they are given."""
    space = parse_space(SPACE, "small-xl.toml")
    model = replace(space.model, max_length=max_length, **settings)
    return replace(space, model=model)


def remembering(memory_length: int, layers: int = 2) -> Architecture:
    """A network of the space with that memory."""
    own = tuple(DecoderLayer("softmax", 2, (16, 6)[number % 2]) for number in range(layers))
    return Architecture(decoder=DecoderStack(12, own, memory_length))


def random_memory_model(max_length: int = 18, **settings: Any) -> LanguageModel:
    """The supernet of the space, randomised; the same parameters for every `max_length`."""
    model = build_supernet(memory_space(max_length, **settings))
    randomised(model)
    return model.eval()


def a_text(rows: int, width: int, seed: int = 0) -> Tensor:
    """Random tokens without padding, ``(rows, width)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 11, (rows, width), generator=generator)


def by_segments(
    model: LanguageModel, text_BT: Tensor, architecture: Architecture, sizes: Iterable[int]
) -> Tensor:
    """Logits ``(B, T, V)``, each segment going on from the memory of those before."""
    state, found = model.start(architecture), []
    for segment_BN in text_BT.split(list(sizes), dim=1):
        logits_BNV, state = model.step(segment_BN, state.next_segment())
        found.append(logits_BNV)
    return torch.cat(found, dim=1)

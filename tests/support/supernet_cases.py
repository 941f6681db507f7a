"""Small spaces of every sort of network, and models whose every parameter is random."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces.architecture import Architecture, AttentionKind, EncoderLayer, EncoderStack
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.space import SearchSpace, Slot
from search_spaces.variation import sample_distinct
from supernet.building import build_supernet
from supernet.encoder_models import EncoderClassifier

KINDS: tuple[AttentionKind, ...] = ("softmax", "linear", "omni")
OFFERED: tuple[AttentionKind, ...] = (*KINDS, "skip")

IMAGES = ModelSettings(
    ImageInput(8, 2, 2),
    max_length=18,
    num_classes=5,
    head_dim=4,
    omni_span=3,
    linformer_rank=5,
    bigbird_block=1,  # so that 16 positions are more blocks than a block attends
)
TOKENS = replace(IMAGES, input=TokenInput(9), positions="sinusoidal")
SETTINGS = {
    "images": IMAGES,
    "relative keys": replace(IMAGES, relative_positions=3, class_token=True),
    "norm-linear": replace(IMAGES, linear_kernel="norm"),
    "linformer": replace(IMAGES, omni_kernel="linformer"),
    "bigbird": replace(IMAGES, omni_kernel="bigbird"),
    "full": replace(IMAGES, omni_kernel="full", omni_span=2),
    "separate weights": replace(
        IMAGES, share_attention_weights=False, linear_kernel="norm", omni_kernel="linformer"
    ),
    "post-norm": replace(IMAGES, norm="post", activation="gelu", positions="sinusoidal"),
    "qkv_dim": replace(IMAGES, head_dim=None, qkv_dim=8, relative_positions=2),
    "class token read": replace(IMAGES, class_token=True, pooling="class", positions="none"),
    "class token, mean": replace(IMAGES, class_token=True),
    "tokens": TOKENS,
    "tokens, class token": replace(TOKENS, class_token=True, omni_kernel="linformer"),
    "tokens, bigbird": replace(TOKENS, omni_kernel="bigbird", linear_kernel="norm"),
    "tokens, post-norm": replace(TOKENS, norm="post", relative_positions=2, omni_kernel="full"),
}


def space_of(settings: ModelSettings, kinds: Iterable[str] = OFFERED) -> SearchSpace:
    """A space of one to four layers."""
    slots = [
        Slot("encoder", "embed_dim", None, (8, 12, 16)),
        Slot("encoder", "num_layers", None, (1, 2, 4)),
    ]
    for layer in range(4):
        slots += [
            Slot("encoder", "attention", layer, tuple(kinds)),
            Slot("encoder", "num_heads", layer, (1, 2, 4)),
            Slot("encoder", "ffn_dim", layer, (6, 16)),
        ]
    return SearchSpace("small", "classification", settings, tuple(slots))


def random_networks(space: SearchSpace, count: int, seed: int = 0) -> list[Architecture]:
    """Different networks of the space."""
    return space.decode(sample_distinct(space, np.random.default_rng(seed), count))


def network(*kinds: AttentionKind, embed_dim: int = 12, num_heads: int = 2) -> Architecture:
    """A network with these kinds from the first layer to the last, its FFN sizes alternating."""
    layers = [EncoderLayer(kind, num_heads, (16, 6)[i % 2]) for i, kind in enumerate(kinds)]
    return Architecture(EncoderStack(embed_dim, tuple(layers)))


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in fp64 with all parameters random, so that none is 0 or 1 by convention."""
    generator = torch.Generator().manual_seed(seed)
    model.double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return model


def random_supernet(settings: ModelSettings, seed: int = 0) -> EncoderClassifier:
    """The supernet of `space_of`, randomised."""
    supernet = build_supernet(space_of(settings))
    randomised(supernet, seed)
    return supernet


def random_inputs(settings: ModelSettings, batch: int = 3, seed: int = 0) -> Tensor:
    """Images, or tokens with padding at the end of every row but the first."""
    generator = torch.Generator().manual_seed(seed)
    source = settings.input
    if isinstance(source, ImageInput):
        shape = (batch, source.channels, source.image_size, source.image_size)
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    tokens = torch.randint(1, source.vocab_size, (batch, 14), generator=generator)
    for row in range(1, batch):
        tokens[row, 14 - 4 * row :] = 0
    return tokens


def gradients(model: nn.Module, output: Tensor) -> dict[str, Tensor | None]:
    """Gradients of a fixed random combination of the outputs, by parameter name."""
    model.zero_grad(set_to_none=True)
    weight = torch.linspace(-1.0, 2.0, output.numel(), dtype=output.dtype).view_as(output)
    (output * weight).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}

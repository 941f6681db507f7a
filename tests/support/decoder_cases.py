"""Small translation and language spaces, and models whose every parameter is random."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from search_spaces.architecture import (
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.space import SearchSpace, Slot
from supernet.building import build_supernet
from supernet.sequence_models import LanguageModel, TranslationModel
from tests.support.supernet_cases import KINDS, OFFERED, randomised

TEXT = ModelSettings(
    TokenInput(11, target_vocab_size=9),
    max_length=18,
    head_dim=4,
    omni_span=3,
    bigbird_block=1,  # so that 14 positions are more blocks than a block attends
    positions="sinusoidal",
)
SETTINGS = {
    "plain": TEXT,
    "shared table": replace(TEXT, input=TokenInput(9, 11, share_embeddings=True)),
    "learned positions": replace(TEXT, input=TokenInput(9), positions="learned"),
    "relative keys, post-norm": replace(TEXT, relative_positions=3, norm="post", positions="none"),
    "norm-linear": replace(TEXT, linear_kernel="norm", activation="gelu"),
    "bigbird": replace(TEXT, omni_kernel="bigbird"),
    "full": replace(TEXT, omni_kernel="full", omni_span=2),
    "separate weights": replace(TEXT, share_attention_weights=False, linear_kernel="norm"),
    "qkv_dim": replace(TEXT, head_dim=None, qkv_dim=8, relative_positions=2),
}


def translation_space(settings: ModelSettings) -> SearchSpace:
    """Two to three encoder layers, one to three decoder layers."""
    slots = [*_stack("encoder", (8, 12, 16), (2, 3)), *_stack("decoder", (8, 12), (1, 2, 3))]
    return SearchSpace("small", "translation", settings, tuple(slots))


def language_space(settings: ModelSettings) -> SearchSpace:
    """One to four layers."""
    slots = tuple(_stack("decoder", (8, 12, 16), (1, 2, 4), cross=False))
    return SearchSpace("small", "language_modelling", settings, slots)


def _stack(
    stack: str, dims: tuple[int, ...], depths: tuple[int, ...], cross: bool = True
) -> list[Slot]:
    slots = [Slot(stack, "embed_dim", None, dims), Slot(stack, "num_layers", None, depths)]
    prefix = "" if stack == "encoder" else "self_"
    for layer in range(max(depths)):
        slots += [
            Slot(stack, f"{prefix}attention", layer, OFFERED),
            Slot(stack, f"{prefix}num_heads", layer, (1, 2, 4)),
            Slot(stack, "ffn_dim", layer, (6, 16)),
        ]
        if stack == "decoder" and cross:
            slots += [
                Slot(stack, "cross_attention", layer, KINDS),
                Slot(stack, "cross_num_heads", layer, (1, 2, 4)),
                Slot(stack, "ende_connect", layer, (1, 2)),
            ]
    return slots


def translator(
    own: tuple[AttentionKind, ...] = ("softmax", "linear"),
    cross: tuple[AttentionKind, ...] = ("linear", "softmax"),
    connect: int = 2,
    dims: tuple[int, int] = (16, 12),
) -> Architecture:
    """A translation network with these kinds in its decoder."""
    encoder = [EncoderLayer(kind, 2, 16) for kind in ("softmax", "linear", "omni")]
    decoder = [
        DecoderLayer(mine, 2, (16, 6)[i % 2], theirs, 4, connect)
        for i, (mine, theirs) in enumerate(zip(own, cross, strict=True))
    ]
    return Architecture(
        EncoderStack(dims[0], tuple(encoder)), DecoderStack(dims[1], tuple(decoder))
    )


def writer(*kinds: AttentionKind, embed_dim: int = 12) -> Architecture:
    """A language model with these kinds from the first layer to the last."""
    layers = [DecoderLayer(kind, 2, (16, 6)[i % 2]) for i, kind in enumerate(kinds)]
    return Architecture(decoder=DecoderStack(embed_dim, tuple(layers)))


def random_translator(settings: ModelSettings) -> TranslationModel:
    """The supernet of `translation_space`, randomised."""
    model = build_supernet(translation_space(settings))
    randomised(model)
    return model.eval()


def random_writer(settings: ModelSettings) -> LanguageModel:
    """The supernet of `language_space`, randomised."""
    model = build_supernet(language_space(settings))
    randomised(model)
    return model.eval()


def tokens(vocab_size: int, *lengths: int, width: int, seed: int = 0) -> Tensor:
    """Random tokens of these lengths, padded at the end."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, vocab_size, (len(lengths), width), generator=generator)
    return drawn * (torch.arange(width) < torch.tensor(lengths)[:, None])


def sources(settings: ModelSettings) -> Tensor:
    """Three sources of up to 14 tokens."""
    assert isinstance(settings.input, TokenInput)
    return tokens(settings.input.vocab_size, 14, 9, 5, width=14)


def targets(settings: ModelSettings) -> Tensor:
    """Three targets of up to 13 tokens."""
    assert isinstance(settings.input, TokenInput)
    vocab = settings.input.target_vocab_size or settings.input.vocab_size
    return tokens(vocab, 10, 13, 1, width=13, seed=1)

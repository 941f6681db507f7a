"""The cost model against built networks and torch's own operation counter."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from search_spaces.architecture import (
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.costs import cost, params
from search_spaces.loading import load_space
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.variation import sample
from supernet.attention.causal_linear import CHUNK_STATES
from supernet.building import build_supernet
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import StandAlone, extract
from supernet.sequence_models import LanguageModel
from tests.support.memory_cases import memory_space, remembering

IMAGES = ModelSettings(
    ImageInput(8, 2, 3), max_length=20, num_classes=10, head_dim=8, class_token=True
)
TOKENS = ModelSettings(
    TokenInput(20), max_length=70, num_classes=3, qkv_dim=16, norm="post", bigbird_block=4
)
SETTINGS = {
    "images": IMAGES,
    "images, class token read": replace(IMAGES, pooling="class", positions="none"),
    "images, post-norm": replace(IMAGES, norm="post", positions="sinusoidal"),
    "images, norm-linear, linformer": replace(
        IMAGES, linear_kernel="norm", omni_kernel="linformer"
    ),
    "images, full": replace(IMAGES, class_token=False, omni_kernel="full", omni_span=2),
    "tokens": TOKENS,
    "tokens, class token": replace(TOKENS, class_token=True, norm="pre"),
    "tokens, norm-linear": replace(TOKENS, linear_kernel="norm"),
    "tokens, linformer": replace(TOKENS, omni_kernel="linformer"),
    "tokens, bigbird": replace(TOKENS, omni_kernel="bigbird"),
}
KINDS: tuple[tuple[AttentionKind, ...], ...] = (
    ("softmax",),
    ("linear", "linear"),
    ("softmax", "omni"),
    ("omni", "softmax", "linear", "omni", "omni"),
)


def network(*kinds: AttentionKind) -> Architecture:
    layers = [EncoderLayer(kind, 2, 40 + 8 * place) for place, kind in enumerate(kinds)]
    return Architecture(EncoderStack(24, tuple(layers)))


def counted_flops(settings: ModelSettings, built: nn.Module) -> int:
    """What torch counts, with attention taken apart into its matrix products."""
    if isinstance(settings.input, ImageInput):
        inputs = torch.zeros(1, settings.input.channels, 8, 8)
    else:
        inputs = torch.ones(1, settings.max_length - settings.class_token, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        built.eval()(inputs)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("kinds", KINDS, ids=" ".join)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_costs_are_those_of_the_built_network(
    settings: ModelSettings, kinds: tuple[AttentionKind, ...]
) -> None:
    architecture = network(*kinds)
    built = StandAlone(EncoderClassifier, settings, architecture)
    found = cost(settings, "classification", architecture, "matmul")
    assert found.params == sum(p.numel() for p in built.parameters())
    assert found.flops == counted_flops(settings, built)


def test_relative_keys_are_counted_by_their_definition() -> None:
    """The table counts N × N products; our kernel needs only N × (2R + 1)."""
    settings = replace(IMAGES, relative_positions=3)
    architecture = network("softmax", "linear", "softmax")
    built = StandAlone(EncoderClassifier, settings, architecture)
    found = cost(settings, "classification", architecture, "matmul")
    assert found.params == sum(p.numel() for p in built.parameters())
    n, width, layers = 17, 16, 2
    spared = 2 * layers * n * (n - 7) * width
    assert found.flops - spared == counted_flops(settings, built)


@pytest.mark.parametrize("memory", [0, 5, 12])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_segment_is_read_at_the_cost_of_the_model(
    norm: Literal["pre", "post"], memory: int
) -> None:
    """A memory that is full, and the segment behind it; relative keys as in the test above."""
    settings = replace(memory_space().model, norm=norm)
    architecture, n = remembering(memory), 18
    built = StandAlone(LanguageModel, settings, architecture).eval()
    state = built.start(torch.ones(1, 12, dtype=torch.long))
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        built.step(torch.ones(1, n, dtype=torch.long), state)
    found = cost(settings, "language_modelling", architecture, "matmul")
    assert found.params == sum(p.numel() for p in built.parameters())
    spared = 2 * 2 * n * (n + memory - 7) * 8
    assert found.flops - spared == counter.get_total_flops()


CAUSAL = replace(TOKENS, max_length=256, norm="pre", omni_span=1)


@pytest.mark.parametrize("tokens", [1, 40, 64, 100, 256])
@pytest.mark.parametrize(
    ("kind", "settings", "features", "values"),
    [
        ("linear", CAUSAL, 16, 9),
        ("linear", replace(CAUSAL, linear_kernel="norm"), 8, 8),
        ("omni", CAUSAL, 8, 9),
    ],
    ids=["cosformer", "norm", "performer"],
)
def test_causal_linear_attention_is_counted_as_the_recurrence(
    kind: AttentionKind, settings: ModelSettings, features: int, values: int, tokens: int
) -> None:
    """It is computed in chunks, within which queries meet keys; that is what torch counts more."""
    layer = DecoderLayer(kind, 2, 40)
    architecture = Architecture(decoder=DecoderStack(24, (layer,)))
    built = StandAlone(LanguageModel, settings, architecture).eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        built(torch.ones(1, tokens, dtype=torch.long))
    chunk = min(CHUNK_STATES, tokens)
    filled = -(-tokens // chunk) * chunk
    met = filled * chunk * (features + values) if tokens > 1 else 0
    sums = 2 * (filled - tokens) * features * values
    if 1 < filled == chunk:  # a single chunk has no past to read
        sums -= filled * features * values
    found = cost(settings, "language_modelling", architecture, "matmul", source_length=tokens)
    assert counter.get_total_flops() == found.flops + 2 * layer.self_num_heads * (met + sums)


def test_params_are_those_of_a_network_cut_from_the_supernet() -> None:
    space = load_space("digits")
    supernet = build_supernet(space)
    for architecture in space.decode(sample(space, np.random.default_rng(0), 8)):
        cut = extract(supernet, architecture)
        held = sum(p.numel() for p in cut.parameters())
        assert params(space.model, space.task, architecture) == held
    assert held < sum(p.numel() for p in supernet.parameters())

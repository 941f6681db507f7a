"""Random networks of every kind, small enough that hundreds of them are built in a test."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.architecture import (
    LINEAR_KERNELS,
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.attention import operator_of
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.tasks import TaskName
from supernet.blueprint import Blueprint
from supernet.export.weights import bare_network
from supernet.extraction import StandAlone

TASKS: tuple[TaskName, ...] = ("classification", "translation", "language_modelling")
KINDS: tuple[AttentionKind, ...] = (
    "softmax",
    "linear",
    "omni",
    "window",
    "window:3",
    "skip",
    *(f"linear:{kernel}" for kernel in LINEAR_KERNELS),
)
WORDS, LENGTH = 30, 40


def random_blueprint(seed: int, task: TaskName | None = None) -> Blueprint:
    """A network, drawn from everything that a space may say."""
    rng = random.Random(seed)
    task = task or TASKS[seed % 3]
    if task == "language_modelling" and rng.random() < 0.3:
        return Blueprint(task, *_with_memory(rng))
    settings = _settings(rng, task)
    return Blueprint(task, settings, _architecture(rng, task, settings))


def _settings(rng: random.Random, task: TaskName) -> ModelSettings:
    omni = ["performer", "bigbird", "full", *(["linformer"] if task == "classification" else [])]
    values: dict[str, Any] = {
        "norm": rng.choice(["pre", "post"]),
        "positions": rng.choice(["none", "sinusoidal", "learned", "rotary"]),
        "linear_kernel": rng.choice(LINEAR_KERNELS),
        "omni_kernel": rng.choice(omni),
        "omni_span": rng.choice([1, 2, 3]),
        "linformer_rank": 4,
        "bigbird_block": rng.choice([2, 3]),
        "relative_positions": rng.choice([0, 0, 4]),
        "window": rng.choice([1, 5, 100]),
        rng.choice(["head_dim", "qkv_dim"]): 8,
        **_blocks(rng),
    }
    if values["positions"] == "rotary":
        values["relative_positions"] = 0
    if values["rotary_theta"] < 100.0:
        values["rotary_factor"] = 4.0
        values["rotary_original_length"] = 12 if values["rotary_share"] == 1.0 else 0
    if task == "classification":
        values |= {"num_classes": 5, "class_token": rng.random() < 0.5}
        values["pooling"] = rng.choice(["mean", "class"]) if values["class_token"] else "mean"
    if task == "embedding":
        # Texts are padded in front too, where the file's blocks of BigBird begin elsewhere.
        values["omni_kernel"] = rng.choice(["performer", "full"])
        values |= {"pooling": rng.choice(["mean", "first"]), "unit_length": rng.random() < 0.5}
    values["window_first"] = rng.random() < 0.5
    return ModelSettings(_input(rng, task), max_length=LENGTH, **values)


def _blocks(rng: random.Random) -> dict[str, Any]:
    """What a block is made of, each part drawn by itself."""
    return {
        "norm_kind": rng.choice(["layer", "rms"]),
        "norm_eps": rng.choice([1e-5, 1e-12, 0.1]),
        "ffn_form": rng.choice(["plain", "gated"]),
        "activation": rng.choice(["relu", "gelu", "gelu_tanh", "silu"]),
        "rotary_theta": rng.choice([50.0, 10_000.0]),
        "rotary_share": rng.choice([0.5, 1.0]),
        "token_types": rng.choice([0, 0, 2]),
        **{name: rng.random() < 0.5 for name in SWITCHES},
    }


SWITCHES = (
    "qkv_bias",
    "output_bias",
    "ffn_bias",
    "qk_norm",
    "embedding_norm",
    "tied_output",
    "scale_embeddings",
)


def _input(rng: random.Random, task: TaskName) -> ImageInput | TokenInput:
    if task == "classification" and rng.random() < 0.5:
        return ImageInput(image_size=12, patch_size=2, channels=3)
    if task == "translation" and rng.random() < 0.5:
        return TokenInput(WORDS, None, share_embeddings=True)
    return TokenInput(WORDS, WORDS - 4 if task == "translation" else None)


def _architecture(rng: random.Random, task: TaskName, settings: ModelSettings) -> Architecture:
    encoder = decoder = None
    if task != "language_modelling":
        layers = _layers(rng, EncoderLayer, "num_kv_heads", lambda: {})
        encoder = EncoderStack(rng.choice([8, 12]), tuple(layers))
    if task in ("translation", "language_modelling"):
        depth = len(encoder.layers) if encoder else 0
        layers = _layers(
            rng, DecoderLayer, "self_num_kv_heads", lambda: _cross(rng, depth, settings)
        )
        decoder = DecoderStack(rng.choice([8, 12]), tuple(layers))
    return Architecture(encoder, decoder)


def _layers(rng: random.Random, cls: Any, groups: str, more: Any) -> list[Any]:
    heads = rng.choice([1, 2, 4])
    return [
        cls(
            rng.choice(KINDS),
            heads,
            rng.choice([8, 16]),
            **{groups: rng.choice([None, 1, max(1, heads // 2)])},
            **more(),
        )
        for _ in range(rng.randint(1, 4))
    ]


def _cross(rng: random.Random, depth: int, settings: ModelSettings) -> dict[str, Any]:
    if not depth:
        return {}
    return {
        "cross_attention": rng.choice(
            [kind for kind in KINDS if operator_of(settings, kind, "cross").crosses]
        ),
        "cross_num_heads": rng.choice([1, 2]),
        "ende_connect": rng.randint(1, depth),
    }


def _with_memory(rng: random.Random) -> tuple[ModelSettings, Architecture]:
    settings = ModelSettings(
        TokenInput(WORDS), LENGTH, qkv_dim=8, positions="none", relative_positions=4
    )
    layers = tuple(DecoderLayer("softmax", 2, 16) for _ in range(rng.randint(1, 3)))
    return settings, Architecture(decoder=DecoderStack(12, layers, memory_length=rng.randint(3, 9)))


def random_network(blueprint: Blueprint, seed: int, std: float = 0.4) -> StandAlone:
    """The network with weights that make a difference everywhere."""
    network = bare_network(blueprint).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=std, generator=generator)
    return network


def random_inputs(blueprint: Blueprint, seed: int) -> dict[str, Tensor]:
    """Inputs as a record names them; some rows are padded."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int, most: int = WORDS) -> Tensor:
        return torch.randint(1, most, (3, length), generator=generator)

    if blueprint.task == "translation":
        source = tokens(LENGTH - 1)
        source[1, 7:], source[2, 30:] = 0, 0
        return {"source": source, "target": tokens(LENGTH - 2, WORDS - 4)}
    if blueprint.task == "language_modelling":
        assert blueprint.architecture.decoder is not None
        memory = blueprint.architecture.decoder.memory_length
        return {"tokens": tokens(11), **({"context": tokens(memory)} if memory else {})}
    if blueprint.task == "embedding":
        text = tokens(LENGTH - 1)
        text[1, 20:], text[2, :9] = 0, 0
        return {"tokens": text}
    if isinstance(blueprint.settings.input, ImageInput):
        return {"inputs": torch.randn(3, 3, 12, 12, generator=generator)}
    inputs = tokens(LENGTH - 1)
    inputs[1, 20:] = 0
    return {"inputs": inputs}

"""ViT: a pre-norm encoder over patches of an image, and a classifier over its class token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from search_spaces.architecture import Architecture
from search_spaces.settings import STYLES, ImageInput, ModelSettings
from supernet.pretrained.config import Config
from supernet.pretrained.families.base import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    HeadsInEmbedding,
    Sizes,
    encoder_network,
    num_layers,
)
from supernet.pretrained.names import NamePair, layer_kinds, linear_pairs, projections_name


class ViTFamily(HeadsInEmbedding):
    """``vit``, with its classifier."""

    model_type = "vit"
    task = "classification"
    classes = ("ViTForImageClassification",)
    base = "vit."
    unused = (r"pooler\..*",)

    def read(self, config: Config) -> tuple[ModelSettings, Architecture]:
        """See `Family.read`."""
        width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        if width % heads:
            raise config.wrong("num_attention_heads", heads, f"a divisor of hidden_size = {width}")
        kinds = ("softmax",) * num_layers(config, "num_hidden_layers")
        image = ImageInput(
            _side(config, "image_size", 224),
            _side(config, "patch_size", 16),
            config.integer("num_channels", 3),
        )
        if image.image_size % image.patch_size:
            raise config.wrong("image_size", image.image_size, "a multiple of patch_size")
        settings = ModelSettings(
            input=image,
            max_length=image.num_tokens + 1,
            num_classes=num_labels(config),
            head_dim=width // heads,
            **{
                **STYLES["vit"],
                "norm_eps": config.number("layer_norm_eps", 1e-12),
                "activation": config.choice("hidden_act", "gelu", ACTIVATIONS),
                "qkv_bias": config.flag("qkv_bias", True),
            },
        )
        sizes = Sizes(width, kinds, heads, heads, config.integer("intermediate_size"))
        return settings, encoder_network(sizes)

    def pairs(self, settings: ModelSettings, architecture: Architecture) -> Iterator[NamePair]:
        """See `Family.pairs`."""
        embeddings = "vit.embeddings"
        yield NamePair(f"{embeddings}.cls_token", ("embedding.class_token",), leading=2)
        yield NamePair(f"{embeddings}.position_embeddings", ("embedding.positions",), leading=1)
        yield from linear_pairs(
            f"{embeddings}.patch_embeddings.projection", "embedding.tokens", True
        )
        for number, kind in enumerate(layer_kinds(architecture)):
            theirs, ours = f"vit.encoder.layer.{number}", f"encoder.blocks.{number}"
            attention = f"{ours}.attention.{projections_name(settings, kind)}"
            for name in ("query", "key", "value"):
                yield from linear_pairs(
                    f"{theirs}.attention.attention.{name}",
                    f"{attention}.{name}",
                    settings.qkv_bias,
                )
            for name, own in (
                ("attention.output.dense", f"{attention}.output"),
                ("layernorm_before", f"{ours}.attention_norm"),
                ("layernorm_after", f"{ours}.ffn_norm"),
                ("intermediate.dense", f"{ours}.ffn.inner"),
                ("output.dense", f"{ours}.ffn.outer"),
            ):
                yield from linear_pairs(f"{theirs}.{name}", own, True)
        yield from linear_pairs("vit.layernorm", "encoder.final_norm", True)
        yield from linear_pairs("classifier", "classifier", True)

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        assert isinstance(settings.input, ImageInput)
        return {
            "image_size": settings.input.image_size,
            "patch_size": settings.input.patch_size,
            "num_channels": settings.input.channels,
            "hidden_size": sizes.embed_dim,
            "num_hidden_layers": len(sizes.kinds),
            "num_attention_heads": sizes.num_heads,
            "intermediate_size": sizes.ffn_dim,
            "hidden_act": THEIR_ACTIVATIONS[settings.activation],
            "layer_norm_eps": settings.norm_eps,
            "qkv_bias": settings.qkv_bias,
            "pooler_output_size": None,
        }


def num_labels(config: Config) -> int:
    """Classes, from their names or their number; transformers' own default is two."""
    names = config.get("id2label")
    if names is None:
        return config.integer("num_labels", 2)
    if not isinstance(names, dict) or not names:
        raise config.wrong("id2label", names, "a table of numbers and names")
    return len(names)


def _side(config: Config, key: str, default: int) -> int:
    """One side of a square, which may be written as two."""
    value = config.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Config(config.file, {key: value[0]}).integer(key)
    return config.integer(key, default)

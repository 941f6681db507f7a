"""BERT: a post-norm encoder with learned positions and token types, for embeddings of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from search_spaces.architecture import Architecture
from search_spaces.settings import STYLES, ModelSettings, TokenInput
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


class BertFamily(HeadsInEmbedding):
    """``bert``, without the heads of its pre-training."""

    model_type = "bert"
    task = "embedding"
    classes = ("BertModel", "BertForMaskedLM", "BertForPreTraining")
    base = "bert."
    carried = (r"pooler\..*",)
    unused = (r"embeddings\.position_ids", r"pooler\..*", r"cls\..*")

    def read(self, config: Config) -> tuple[ModelSettings, Architecture]:
        """See `Family.read`."""
        config.must_be("position_embedding_type", "absolute")
        config.must_be("tie_word_embeddings", True, False)
        width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        if width % heads:
            raise config.wrong("num_attention_heads", heads, f"a divisor of hidden_size = {width}")
        kinds = ("softmax",) * num_layers(config, "num_hidden_layers")
        settings = ModelSettings(
            input=TokenInput(config.integer("vocab_size")),
            max_length=config.integer("max_position_embeddings"),
            head_dim=width // heads,
            **{
                **STYLES["bert"],
                "norm_eps": config.number("layer_norm_eps", 1e-12),
                "activation": config.choice("hidden_act", "gelu", ACTIVATIONS),
                "token_types": config.integer("type_vocab_size", 2),
            },
        )
        sizes = Sizes(width, kinds, heads, heads, config.integer("intermediate_size"))
        return settings, encoder_network(sizes)

    def pairs(self, settings: ModelSettings, architecture: Architecture) -> Iterator[NamePair]:
        """See `Family.pairs`."""
        embeddings = "bert.embeddings"
        yield NamePair(f"{embeddings}.word_embeddings.weight", ("embedding.tokens.weight",))
        yield NamePair(f"{embeddings}.position_embeddings.weight", ("embedding.positions",))
        yield NamePair(f"{embeddings}.token_type_embeddings.weight", ("embedding.extras.types",))
        yield from linear_pairs(f"{embeddings}.LayerNorm", "embedding.extras.norm", True)
        for number, kind in enumerate(layer_kinds(architecture)):
            theirs, ours = f"bert.encoder.layer.{number}", f"encoder.blocks.{number}"
            attention = f"{ours}.attention.{projections_name(settings, kind)}"
            for name, own in (
                ("attention.self.query", f"{attention}.query"),
                ("attention.self.key", f"{attention}.key"),
                ("attention.self.value", f"{attention}.value"),
                ("attention.output.dense", f"{attention}.output"),
                ("attention.output.LayerNorm", f"{ours}.attention_norm"),
                ("intermediate.dense", f"{ours}.ffn.inner"),
                ("output.dense", f"{ours}.ffn.outer"),
                ("output.LayerNorm", f"{ours}.ffn_norm"),
            ):
                yield from linear_pairs(f"{theirs}.{name}", own, True)

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        assert isinstance(settings.input, TokenInput)
        return {
            "vocab_size": settings.input.vocab_size,
            "max_position_embeddings": settings.max_length,
            "type_vocab_size": settings.token_types,
            "hidden_size": sizes.embed_dim,
            "num_hidden_layers": len(sizes.kinds),
            "num_attention_heads": sizes.num_heads,
            "intermediate_size": sizes.ffn_dim,
            "hidden_act": THEIR_ACTIVATIONS[settings.activation],
            "layer_norm_eps": settings.norm_eps,
        }

"""GPT-2: pre-norm, learned positions, and linear layers whose weights are written ``(in, out)``."""

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
    decoder_network,
    num_layers,
)
from supernet.pretrained.names import NamePair, layer_kinds, linear_pairs, projections_name


class GPT2Family(HeadsInEmbedding):
    """``gpt2``."""

    model_type = "gpt2"
    task = "language_modelling"
    classes = ("GPT2LMHeadModel", "GPT2Model")
    base = "transformer."
    unused = (r"h\.\d+\.attn\.(bias|masked_bias)",)

    def read(self, config: Config) -> tuple[ModelSettings, Architecture]:
        """See `Family.read`."""
        config.must_be("scale_attn_weights", True)
        config.must_be("scale_attn_by_inverse_layer_idx", False)
        config.must_be("n_ctx", config.integer("n_positions"))
        width, heads = config.integer("n_embd"), config.integer("n_head")
        if width % heads:
            raise config.wrong("n_head", heads, f"a divisor of n_embd = {width}")
        kinds = ("softmax",) * num_layers(config, "n_layer")
        settings = ModelSettings(
            input=TokenInput(config.integer("vocab_size")),
            max_length=config.integer("n_positions"),
            head_dim=width // heads,
            **{
                **STYLES["gpt2"],
                "norm_eps": config.number("layer_norm_epsilon", 1e-5),
                "activation": config.choice("activation_function", "gelu_new", ACTIVATIONS),
                "tied_output": config.flag("tie_word_embeddings", True),
            },
        )
        sizes = Sizes(width, kinds, heads, heads, config.integer("n_inner", 4 * width))
        return settings, decoder_network(sizes)

    def pairs(self, settings: ModelSettings, architecture: Architecture) -> Iterator[NamePair]:
        """See `Family.pairs`."""
        yield NamePair("transformer.wte.weight", ("tables.0.weight",))
        yield NamePair("transformer.wpe.weight", ("decoder_positions.learned",))
        for number, kind in enumerate(layer_kinds(architecture)):
            theirs, ours = f"transformer.h.{number}", f"decoder.blocks.{number}"
            attention = f"{ours}.self_attention.{projections_name(settings, kind)}"
            asked = [f"{attention}.{name}" for name in ("query", "key", "value")]
            for part, turned in (("weight", True), ("bias", False)):
                joined = tuple(f"{name}.{part}" for name in asked)
                yield NamePair(f"{theirs}.attn.c_attn.{part}", joined, turned)
            for name, own in (
                ("attn.c_proj", f"{attention}.output"),
                ("mlp.c_fc", f"{ours}.ffn.inner"),
                ("mlp.c_proj", f"{ours}.ffn.outer"),
            ):
                yield from linear_pairs(f"{theirs}.{name}", own, True, transposed=True)
            yield from linear_pairs(f"{theirs}.ln_1", f"{ours}.self_norm", True)
            yield from linear_pairs(f"{theirs}.ln_2", f"{ours}.ffn_norm", True)
        yield from linear_pairs("transformer.ln_f", "decoder.final_norm", True)
        if not settings.tied_output:
            yield NamePair("lm_head.weight", ("output.weight",))

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        assert isinstance(settings.input, TokenInput)
        return {
            "vocab_size": settings.input.vocab_size,
            "n_positions": settings.max_length,
            "n_ctx": settings.max_length,
            "n_embd": sizes.embed_dim,
            "n_layer": len(sizes.kinds),
            "n_head": sizes.num_heads,
            "n_inner": sizes.ffn_dim,
            "activation_function": THEIR_ACTIVATIONS[settings.activation],
            "layer_norm_epsilon": settings.norm_eps,
            "tie_word_embeddings": settings.tied_output,
        }

"""Llama, and those that differ from it by a bias, a norm or a window: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from search_spaces.architecture import Architecture, AttentionKind, base_kind, variant_of
from search_spaces.settings import STYLES, ModelSettings, TokenInput
from supernet.pretrained.config import Config
from supernet.pretrained.families.base import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Sizes,
    StockFamily,
    decoder_network,
    num_layers,
)
from supernet.pretrained.names import NamePair, layer_kinds, linear_pairs, projections_name

THETA = 10_000.0
DEFAULT_WINDOW = 4_096
DEFAULT_ROPE = "default"
_FACTOR = {"factor": "rotary_factor"}
ROPE_FORMS: Mapping[str, Mapping[str, str]] = {
    DEFAULT_ROPE: {},
    "linear": _FACTOR,
    "llama3": {
        **_FACTOR,
        "low_freq_factor": "rotary_low_freq_factor",
        "high_freq_factor": "rotary_high_freq_factor",
        "original_max_position_embeddings": "rotary_original_length",
    },
}
"""Forms of rotary positions, with their keys and what they are called here."""
ROPE_KEYS = frozenset(
    """
    attention_factor beta_fast beta_slow factor high_freq_factor long_factor low_freq_factor
    original_max_position_embeddings partial_rotary_factor rope_theta rope_type short_factor type
    """.split()
)
"""Keys of the table of any form; those that are not of its own form change nothing."""
FULL, SLIDING = "full_attention", "sliding_attention"


class Biases(NamedTuple):
    """Which linear layers of a block have biases."""

    qkv: bool
    output: bool
    ffn: bool


class LlamaLike(StockFamily):
    """Pre-norm decoders with rotary positions, a gated FFN and grouped keys."""

    task = "language_modelling"
    base = "model."
    unused = (r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
    qk_norm = False
    usual_groups: int | None = None
    """Heads of keys where nothing is said of them; None is as many as of queries."""

    def read(self, config: Config) -> tuple[ModelSettings, Architecture]:
        """See `Family.read`."""
        width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        head_dim = config.integer("head_dim", self.default_head_dim(config, width, heads))
        if head_dim % 2:
            raise config.wrong("head_dim", head_dim, "an even number, for pairs are rotated")
        kinds = self.kinds(config, num_layers(config, "num_hidden_layers"))
        usual = heads if "num_key_value_heads" in config.values else self.usual_groups or heads
        groups = config.integer("num_key_value_heads", usual)
        sizes = Sizes(width, kinds, heads, groups, config.integer("intermediate_size"))
        biases = self.biases(config)
        settings = ModelSettings(
            input=TokenInput(config.integer("vocab_size")),
            max_length=config.integer("max_position_embeddings"),
            head_dim=head_dim,
            **{
                **STYLES["llama"],
                "norm_eps": config.number("rms_norm_eps", 1e-6),
                "activation": config.choice("hidden_act", "silu", ACTIVATIONS),
                **rotary_settings(config),
                "qkv_bias": biases.qkv,
                "output_bias": biases.output,
                "ffn_bias": biases.ffn,
                "qk_norm": self.qk_norm,
                "tied_output": config.flag("tie_word_embeddings", False),
            },
        )
        return settings, decoder_network(sizes)

    def default_head_dim(self, config: Config, width: int, heads: int) -> int:
        """The width of a head where the configuration does not say it."""
        if config.get("head_dim") is None and width % heads:
            raise config.wrong("num_attention_heads", heads, f"a divisor of hidden_size = {width}")
        return width // heads

    @abstractmethod
    def biases(self, config: Config) -> Biases:
        """Which layers have biases."""

    def kinds(self, config: Config, count: int) -> tuple[AttentionKind, ...]:
        """The attention of each layer."""
        config.must_be("layer_types", [FULL] * count)
        return ("softmax",) * count

    def pairs(self, settings: ModelSettings, architecture: Architecture) -> Iterator[NamePair]:
        """See `Family.pairs`."""
        yield NamePair("model.embed_tokens.weight", ("tables.0.weight",))
        for number, kind in enumerate(layer_kinds(architecture)):
            yield from self._layer(number, kind, settings)
        yield NamePair("model.norm.weight", ("decoder.final_norm.weight",))
        if not settings.tied_output:
            yield NamePair("lm_head.weight", ("output.weight",))

    def _layer(
        self, number: int, kind: AttentionKind, settings: ModelSettings
    ) -> Iterator[NamePair]:
        theirs, ours = f"model.layers.{number}", f"decoder.blocks.{number}"
        attention = f"{ours}.self_attention.{projections_name(settings, kind)}"
        for name, own in (("q", "query"), ("k", "key"), ("v", "value")):
            yield from linear_pairs(
                f"{theirs}.self_attn.{name}_proj", f"{attention}.{own}", settings.qkv_bias
            )
        yield from linear_pairs(
            f"{theirs}.self_attn.o_proj", f"{attention}.output", settings.output_bias
        )
        for name, own in (("gate", "gate"), ("up", "inner"), ("down", "outer")):
            yield from linear_pairs(
                f"{theirs}.mlp.{name}_proj", f"{ours}.ffn.{own}", settings.ffn_bias
            )
        norms = {"input_layernorm": "self_norm", "post_attention_layernorm": "ffn_norm"}
        for name, own in norms.items():
            yield NamePair(f"{theirs}.{name}.weight", (f"{ours}.{own}.weight",))
        if settings.qk_norm:
            for name, own in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
                yield NamePair(f"{theirs}.self_attn.{name}.weight", (f"{attention}.{own}.weight",))

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        assert isinstance(settings.input, TokenInput)
        return {
            "vocab_size": settings.input.vocab_size,
            "hidden_size": sizes.embed_dim,
            "intermediate_size": sizes.ffn_dim,
            "num_hidden_layers": len(sizes.kinds),
            "num_attention_heads": sizes.num_heads,
            "num_key_value_heads": sizes.num_kv_heads,
            "head_dim": settings.head_dim,
            "max_position_embeddings": settings.max_length,
            "rms_norm_eps": settings.norm_eps,
            "hidden_act": THEIR_ACTIVATIONS[settings.activation],
            "tie_word_embeddings": settings.tied_output,
            **rotary_keys(settings),
        }


class LlamaFamily(LlamaLike):
    """``llama``."""

    model_type = "llama"
    classes = ("LlamaForCausalLM", "LlamaModel")

    def biases(self, config: Config) -> Biases:
        """See `LlamaLike.biases`."""
        attention = config.flag("attention_bias", False)
        return Biases(attention, attention, config.flag("mlp_bias", False))

    def problem(self, settings: ModelSettings, sizes: Sizes) -> str | None:
        """See `StockFamily.problem`."""
        if sizes.embed_dim % sizes.num_heads:
            return f"{sizes.num_heads} heads do not divide the embedding size {sizes.embed_dim}"
        return super().problem(settings, sizes)

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        biases = {"attention_bias": settings.qkv_bias, "mlp_bias": settings.ffn_bias}
        return {**super().sized(settings, sizes), **biases}


class MistralFamily(LlamaLike):
    """``mistral``: one window for all layers, or none."""

    model_type = "mistral"
    classes = ("MistralForCausalLM", "MistralModel")
    usual_groups = 8

    def biases(self, config: Config) -> Biases:
        """See `LlamaLike.biases`."""
        config.must_be("attention_bias", False)
        return Biases(False, False, False)

    def kinds(self, config: Config, count: int) -> tuple[AttentionKind, ...]:
        """See `LlamaLike.kinds`."""
        window = config.get("sliding_window")
        if window is None and "sliding_window" in config.values:
            config.must_be("layer_types", [FULL] * count)
            return ("softmax",) * count
        config.must_be("layer_types", [SLIDING] * count)
        return (f"window:{config.integer('sliding_window', DEFAULT_WINDOW)}",) * count

    def problem(self, settings: ModelSettings, sizes: Sizes) -> str | None:
        """See `StockFamily.problem`."""
        if len(kinds := set(sizes.kinds)) > 1:
            return f"mistral has one kind of attention for all layers, not {' and '.join(kinds)}"
        return windows_problem(self.model_type, sizes)

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        return {**super().sized(settings, sizes), "sliding_window": window_size(sizes)}


class QwenFamily(LlamaLike):
    """What Qwen2 and Qwen3 share: windows where ``layer_types`` says so."""

    usual_groups = 32

    def kinds(self, config: Config, count: int) -> tuple[AttentionKind, ...]:
        """See `LlamaLike.kinds`."""
        slides = config.flag("use_sliding_window", False)
        first = config.integer("max_window_layers", 28, lowest=0)
        size = config.get("sliding_window")
        if size is None and "sliding_window" not in config.values:
            size = DEFAULT_WINDOW
        slides = slides and size is not None
        usual = [SLIDING if slides and n >= first else FULL for n in range(count)]
        types = config.get("layer_types", usual)
        known = isinstance(types, list) and all(one in (FULL, SLIDING) for one in types)
        if not known or len(types) != count:
            raise config.wrong("layer_types", types, f"{count} of {FULL!r} and {SLIDING!r}")
        if SLIDING not in types:
            return ("softmax",) * count
        if not slides:
            raise config.wrong(
                "use_sliding_window",
                False,
                f"true, with a sliding_window, where a layer is {SLIDING!r}",
            )
        window = f"window:{config.integer('sliding_window', DEFAULT_WINDOW)}"
        return tuple(window if one == SLIDING else "softmax" for one in types)

    def problem(self, settings: ModelSettings, sizes: Sizes) -> str | None:
        """See `StockFamily.problem`."""
        return windows_problem(self.model_type, sizes)

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        types = [SLIDING if base_kind(kind) == "window" else FULL for kind in sizes.kinds]
        size = window_size(sizes)
        return {
            **super().sized(settings, sizes),
            "layer_types": types,
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "max_window_layers": types.index(SLIDING) if SLIDING in types else len(types),
        }


class Qwen2Family(QwenFamily):
    """``qwen2``: biases of queries, keys and values."""

    model_type = "qwen2"
    classes = ("Qwen2ForCausalLM", "Qwen2Model")

    def biases(self, config: Config) -> Biases:
        """See `LlamaLike.biases`."""
        config.must_be("attention_bias", False)
        return Biases(True, False, False)


class Qwen3Family(QwenFamily):
    """``qwen3``: norms of each head of queries and of keys."""

    model_type = "qwen3"
    classes = ("Qwen3ForCausalLM", "Qwen3Model")
    qk_norm = True

    def default_head_dim(self, config: Config, width: int, heads: int) -> int:
        """See `LlamaLike.default_head_dim`."""
        return 128

    def biases(self, config: Config) -> Biases:
        """See `LlamaLike.biases`."""
        attention = config.flag("attention_bias", False)
        return Biases(attention, attention, False)

    def sized(self, settings: ModelSettings, sizes: Sizes) -> dict[str, Any]:
        """See `StockFamily.sized`."""
        return {**super().sized(settings, sizes), "attention_bias": settings.qkv_bias}


def rotary_settings(config: Config) -> dict[str, Any]:
    """Settings of rotary positions, from the table of transformers 5 or the keys before it.

    Where both tables are given transformers reads the older one alone, unless it is empty.
    """
    config.must_be("partial_rotary_factor", 1.0)
    theta = config.number("rope_theta", THETA)
    tables = {key: config.get(key, {}) for key in ("rope_scaling", "rope_parameters")}
    key = "rope_scaling" if tables["rope_scaling"] else "rope_parameters"
    table = tables[key]
    if not isinstance(table, dict):
        raise config.wrong(key, table, "a table with rope_type and rope_theta")
    name = "type" if "type" in table and "rope_type" not in table else "rope_type"
    form = table.get(name, DEFAULT_ROPE)
    known = isinstance(form, str) and form in ROPE_FORMS
    if not known or any(isinstance(value, dict) for value in table.values()):
        allowed = ", ".join(map(repr, ROPE_FORMS))
        raise config.wrong(f"{key}.{name}", form, f"one of {allowed} for all layers")
    part = Config(config.file, table)
    part.must_be("partial_rotary_factor", 1.0)
    found: dict[str, Any] = {"rotary_theta": part.number("rope_theta", theta)}
    for unknown in sorted(table.keys() - ROPE_KEYS):
        if table[unknown] is not None:
            right = f"{', '.join(sorted(ROPE_KEYS))}, and nothing of that name"
            raise config.wrong(f"{key}.{unknown}", table[unknown], right)
    for theirs, own in ROPE_FORMS[form].items():
        read = part.integer if own == "rotary_original_length" else part.number
        found[own] = read(theirs)
    return found


def rotary_keys(settings: ModelSettings) -> dict[str, Any]:
    """What `rotary_settings` reads, in both forms: older transformers know no table of the base."""
    stretched = "llama3" if settings.rotary_original_length else "linear"
    form = DEFAULT_ROPE if settings.rotary_factor == 1.0 and stretched == "linear" else stretched
    values = {theirs: getattr(settings, own) for theirs, own in ROPE_FORMS[form].items()}
    table = {"rope_type": form, "rope_theta": settings.rotary_theta, **values}
    older = {"rope_scaling": table} if values else {}
    return {"rope_parameters": table, "rope_theta": settings.rotary_theta, **older}


def window_size(sizes: Sizes) -> int | None:
    """The positions that the layers with a window see; None where none has one."""
    return next((int(variant_of(k)) for k in sizes.kinds if base_kind(k) == "window"), None)


def windows_problem(family: str, sizes: Sizes) -> str | None:
    """What keeps kinds from being softmax and windows of one size."""
    for kind in sizes.kinds:
        if base_kind(kind) not in ("softmax", "window"):
            return f"{family} knows softmax and windows only, not {kind!r}"
    windows = sorted({kind for kind in sizes.kinds if kind != "softmax"})
    return f"{family} has windows of one size, not {', '.join(windows)}" if windows[1:] else None

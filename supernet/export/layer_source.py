"""The layers of a network as lines of source, one call for each, with all sizes as numbers."""

from __future__ import annotations

from search_spaces.architecture import AttentionKind, DecoderLayer, omni_spans
from supernet.export.blueprint import Blueprint
from supernet.export.properties import kernel_of, last_outputs
from supernet.plan import decoder_of, decoder_spans, encoder_of

CLASSES = {
    "softmax": "SoftmaxAttention",
    "relative": "RelativeAttention",
    "cosformer": "CosformerAttention",
    "performer": "LinearAttention",
    "norm": "NormLinearAttention",
    "bigbird": "BigBirdAttention",
    "linformer": "LinformerAttention",
}


def encoder_lines(blueprint: Blueprint) -> list[str]:
    """One line for each encoder layer, first to last."""
    if blueprint.architecture.encoder is None:
        return []
    encoder = encoder_of(blueprint.architecture)
    kinds = [layer.attention for layer in encoder.layers]
    spans = omni_spans(kinds, blueprint.settings.omni_span)
    width, lines = encoder.embed_dim, []
    for layer, span in zip(encoder.layers, spans, strict=True):
        attention = _attention(
            blueprint, layer.attention, "encoder", (width, width), layer.num_heads, span
        )
        lines.append(f"EncoderLayer({width}, {attention}, ffn_width={layer.ffn_dim}),")
    return lines


def decoder_lines(blueprint: Blueprint) -> list[str]:
    """A call for each decoder layer, first to last."""
    if blueprint.architecture.decoder is None:
        return []
    decoder = decoder_of(blueprint.architecture)
    lines = []
    for layer, span in zip(decoder.layers, decoder_spans(blueprint.settings, decoder), strict=True):
        arguments = _decoder_arguments(blueprint, layer, span)
        line = f"DecoderLayer({', '.join(arguments)}),"
        if len(line) <= 92:
            lines.append(line)
        else:
            lines += ["DecoderLayer(", *(f"    {one}," for one in arguments), "),"]
    return lines


def _decoder_arguments(blueprint: Blueprint, layer: DecoderLayer, span: int) -> list[str]:
    encoder, width = blueprint.architecture.encoder, decoder_of(blueprint.architecture).embed_dim
    own = (width, width)
    arguments = [
        str(width),
        _attention(blueprint, layer.self_attention, "decoder", own, layer.self_num_heads, span),
    ]
    if layer.cross_attention is not None and layer.cross_num_heads is not None:
        assert encoder is not None
        widths = (width, encoder.embed_dim)
        arguments.append(
            _attention(blueprint, layer.cross_attention, "cross", widths, layer.cross_num_heads, 1)
        )
    arguments.append(f"ffn_width={layer.ffn_dim}")
    if last_outputs(blueprint) > 1:
        arguments.append(f"joined={layer.ende_connect}")
    return arguments


def _attention(
    blueprint: Blueprint,
    kind: AttentionKind,
    place: str,
    widths: tuple[int, int],
    heads: int,
    span: int,
) -> str:
    name = CLASSES[kernel_of(blueprint.settings, kind, place)]
    head_width = blueprint.settings.attention_dim(heads) // heads
    spans = f", span={span}" if kind == "omni" and span > 1 else ""
    return f"{name}({widths[0]}, {widths[1]}, {heads}, {head_width}{spans})"

"""Properties and sizes of a network, under the names that the parts of `template` know them by."""

from __future__ import annotations

from search_spaces.architecture import AttentionKind, omni_spans
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from supernet.export.blueprint import Blueprint

PLACES = ("encoder", "decoder", "cross")
KERNELS = ("softmax", "relative", "cosformer", "performer", "norm", "bigbird", "linformer")


def kernel_of(settings: ModelSettings, kind: AttentionKind, place: str) -> str:
    """What a layer of that kind computes: one of `KERNELS`.

    Args:
        settings: of the space.
        kind: the layer's.
        place: ``encoder``, ``decoder`` or ``cross``, between which there are no relative keys.
    """
    if kind == "softmax":
        return "relative" if settings.relative_positions and place != "cross" else "softmax"
    if kind == "linear":
        return settings.linear_kernel
    return "softmax" if settings.omni_kernel == "full" else settings.omni_kernel


def kinds_of(blueprint: Blueprint) -> dict[str, list[AttentionKind]]:
    """The attention kinds of all layers, by place."""
    encoder, decoder = blueprint.architecture.encoder, blueprint.architecture.decoder
    layers = decoder.layers if decoder else ()
    return {
        "encoder": [layer.attention for layer in encoder.layers] if encoder else [],
        "decoder": [layer.self_attention for layer in layers],
        "cross": [layer.cross_attention for layer in layers if layer.cross_attention],
    }


def properties(blueprint: Blueprint, num_words: int | None, weights_file: str) -> dict[str, bool]:
    """Every name that a branch of the parts asks for, and whether it holds.

    Arguments as for `generate.modeling_source`.
    """
    kinds, settings = kinds_of(blueprint), blueprint.settings
    kernels = {
        place: {kernel_of(settings, kind, place) for kind in kinds[place]} for place in PLACES
    }
    spans = {
        place: max(omni_spans(kinds[place], settings.omni_span), default=1) > 1
        for place in ("encoder", "decoder")
    }
    return {
        **_task_properties(blueprint),
        **_kernel_properties(kernels),
        **_embedding_properties(blueprint),
        "PRE_NORM": settings.norm == "pre",
        "GELU": settings.activation == "gelu",
        "ENCODER_SPANS": spans["encoder"],
        "DECODER_SPANS": spans["decoder"],
        "OMNI": any(spans.values()),
        "POSITIONS": _needs_positions(kernels),
        "FEWER_WORDS": num_words is not None and num_words < _target_size(settings),
        "SAFETENSORS": weights_file.endswith(".safetensors"),
    }


def _task_properties(blueprint: Blueprint) -> dict[str, bool]:
    settings, decoder = blueprint.settings, blueprint.architecture.decoder
    images = isinstance(settings.input, ImageInput)
    return {
        "CLASSIFIER": blueprint.task == "classification",
        "TRANSLATOR": blueprint.task == "translation",
        "LANGUAGE_MODEL": blueprint.task == "language_modelling",
        "IMAGES": images,
        "PADDING": not images and blueprint.task != "language_modelling",
        "CLASS_TOKEN": settings.class_token,
        "POOL_CLASS": settings.pooling == "class",
        "LEARNED_POSITIONS": settings.positions == "learned",
        "SINUSOIDAL_POSITIONS": settings.positions == "sinusoidal",
        "MEMORY": decoder is not None and decoder.memory_length > 0,
        "JOINED": last_outputs(blueprint) > 1,
    }


def _kernel_properties(kernels: dict[str, set[str]]) -> dict[str, bool]:
    """``SOFTMAX_ENCODER`` and so on; ``LINEAR_…`` is cosFormer or Performer."""
    found = {
        f"{kernel}_{place}".upper(): kernel in kernels[place]
        for kernel in KERNELS
        for place in PLACES
    }
    linear = {
        f"LINEAR_{place}".upper(): bool(kernels[place] & {"cosformer", "performer"})
        for place in PLACES
    }
    return found | linear


def _needs_positions(kernels: dict[str, set[str]]) -> bool:
    """Whether attention of any layer depends on the place of a token by itself."""
    everywhere = set().union(*kernels.values())
    return (
        "cosformer" in everywhere or "norm" in kernels["decoder"] or "bigbird" in kernels["cross"]
    )


def _embedding_properties(blueprint: Blueprint) -> dict[str, bool]:
    """How one table of embeddings serves stacks of two widths, and two vocabularies."""
    source = blueprint.settings.input
    shared = isinstance(source, TokenInput) and source.share_embeddings
    widths = _widths(blueprint)
    vocabulary = _vocabulary(source) if shared else 0
    return {
        "SHARED_EMBEDDING": shared,
        "CUT_SOURCE": shared and widths[0] < max(widths),
        "CUT_TARGET": shared and widths[1] < max(widths),
        "CUT_VOCABULARY": shared and _target_size(blueprint.settings) < vocabulary,
    }


def sizes(blueprint: Blueprint, num_words: int | None) -> dict[str, int]:
    """Every size that the parts name; those that a network does not have are left out."""
    settings, decoder = blueprint.settings, blueprint.architecture.decoder
    found = {
        "ENCODER_WIDTH": _widths(blueprint)[0],
        "DECODER_WIDTH": _widths(blueprint)[1],
        "EMBEDDING_WIDTH": max(_widths(blueprint)),
        "NUM_CLASSES": settings.num_classes,
        "NUM_WORDS": num_words,
        "MAX_LENGTH": settings.max_length,
        "MEMORY_LENGTH": decoder.memory_length if decoder else None,
        "LAST_OUTPUTS": last_outputs(blueprint),
        "RELATIVE_POSITIONS": settings.relative_positions,
        "LINFORMER_RANK": settings.linformer_rank,
        "BIGBIRD_BLOCK": settings.bigbird_block,
        "PARAMETERS": blueprint.params,
        **_input_sizes(settings),
    }
    return {name: value for name, value in found.items() if value is not None}


def _input_sizes(settings: ModelSettings) -> dict[str, int]:
    source = settings.input
    if isinstance(source, ImageInput):
        return {"IMAGE_CHANNELS": source.channels, "PATCH_SIZE": source.patch_size}
    return {
        "SOURCE_VOCABULARY": source.vocab_size,
        "TARGET_VOCABULARY": _target_size(settings),
        "VOCABULARY": _vocabulary(source),
    }


def last_outputs(blueprint: Blueprint) -> int:
    """Outputs of the encoder that the decoder sees."""
    decoder = blueprint.architecture.decoder
    return max((layer.ende_connect or 1 for layer in decoder.layers), default=1) if decoder else 1


def _widths(blueprint: Blueprint) -> tuple[int, int]:
    """Embedding sizes of encoder and decoder; 0 where there is none."""
    stacks = (blueprint.architecture.encoder, blueprint.architecture.decoder)
    encoder, decoder = (stack.embed_dim if stack else 0 for stack in stacks)
    return encoder, decoder


def _target_size(settings: ModelSettings) -> int:
    source = settings.input
    if isinstance(source, ImageInput):
        return 0
    return source.target_vocab_size or source.vocab_size


def _vocabulary(source: ImageInput | TokenInput) -> int:
    """Rows of a table that serves source and target."""
    assert isinstance(source, TokenInput)
    return max(source.vocab_size, source.target_vocab_size or 0)

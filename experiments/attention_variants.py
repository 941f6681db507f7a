"""The networks of the decoder study: one shape, with every attention in every place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from search_spaces.architecture import (
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.settings import LinearKernel, ModelSettings, TokenInput

LAYERS, WIDTH, HEADS, FFN = 3, 192, 4, 384
MAX_LENGTH = 128


@dataclass(frozen=True)
class Variant:
    """Which attention stands where."""

    name: str
    encoder: AttentionKind
    decoder: AttentionKind
    cross: AttentionKind
    kernel: LinearKernel = "cosformer"
    target: float = 0.93

    def settings(self, vocab_size: int, max_length: int = MAX_LENGTH) -> ModelSettings:
        """The fixed part of the network."""
        return ModelSettings(
            TokenInput(vocab_size, vocab_size, share_embeddings=True),
            max_length,
            head_dim=WIDTH // HEADS,
            positions="sinusoidal",
            linear_kernel=self.kernel,
            omni_span=LAYERS,
        )

    @property
    def architecture(self) -> Architecture:
        """The network."""
        encoder = EncoderLayer(self.encoder, HEADS, FFN)
        decoder = DecoderLayer(self.decoder, HEADS, FFN, self.cross, HEADS, 1)
        return Architecture(
            EncoderStack(WIDTH, (encoder,) * LAYERS), DecoderStack(WIDTH, (decoder,) * LAYERS)
        )


def _variants() -> Iterator[Variant]:
    kinds: tuple[AttentionKind, ...] = ("softmax", "linear")
    for encoder in kinds:
        for decoder in kinds:
            for cross in kinds:
                places = {"encoder": encoder, "decoder": decoder, "cross": cross}
                linear = [place for place, kind in places.items() if kind == "linear"]
                name = f"cosFormer: {', '.join(linear)}" if linear else "all softmax"
                yield Variant(name, encoder, decoder, cross)
    yield Variant("norm-linear everywhere", "linear", "linear", "linear", "norm", target=0.85)
    yield Variant("omni: encoder, decoder", "omni", "omni", "softmax", target=0.85)


VARIANTS = {variant.name: variant for variant in _variants()}

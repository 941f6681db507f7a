"""The price list of a space's networks: formulas, convention and lengths bound together.

A search asks for the cost of millions of networks that share few distinct layers, so the price of
each layer is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    omni_spans,
)
from search_spaces.conventions import Convention, Tally, find_convention
from search_spaces.costs import layers
from search_spaces.costs.layers import Parts
from search_spaces.errors import ArchitectureError, UsageError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TASKS, TaskName

Totals = tuple[int, int]

TRANSLATION_LENGTH = 30  # tokens of source and target where none are given, as in HAT's tables


class CostModel:
    """Everything but the architecture, bound once, with the price of each layer remembered.

    Attributes:
        settings: the fixed part of the networks.
        task: what they do.
        convention: the way of counting.
        source: tokens of the input, without a class token.
        target: tokens of the target; None where there is none.
        ends: (encoder size, decoder size; 0 where absent) → price of all but the layers.
        encoder_layer: (embedding size, layer, span) → its price.
        decoder_layer: (embedding size, encoder's embedding size, layer, span, memory length) → its
            price.
    """

    def __init__(
        self,
        settings: ModelSettings,
        task: TaskName,
        convention: Convention,
        source: int,
        target: int | None,
    ) -> None:
        self.settings = settings
        self.task: TaskName = task
        self.convention = convention
        self.source = source
        self.target = target
        self._encoder_tokens = source + (TASKS[task].classifies and settings.class_token)
        self._decoder_tokens = source if target is None else target
        self.ends = lru_cache(maxsize=4096)(self._ends_price)
        self.encoder_layer = lru_cache(maxsize=65_536)(self._encoder_layer_price)
        self.decoder_layer = lru_cache(maxsize=65_536)(self._decoder_layer_price)

    def totals(self, architecture: Architecture) -> Totals:
        """``(params, flops)``."""
        encoder, decoder = self._stacks(architecture)
        encoder_dim = encoder.embed_dim if encoder else 0
        prices = [self.ends(encoder_dim, decoder.embed_dim if decoder else 0)]
        if encoder:
            for layer, span in zip(encoder.layers, self._encoder_spans(encoder), strict=True):
                prices.append(self.encoder_layer(encoder_dim, layer, span))
        if decoder:
            dim = decoder.embed_dim
            for step, span in zip(decoder.layers, self._decoder_spans(decoder), strict=True):
                prices.append(
                    self.decoder_layer(dim, encoder_dim, step, span, decoder.memory_length)
                )
        params, flops = zip(*prices, strict=True)
        return sum(params), sum(flops)

    def parts(self, architecture: Architecture) -> Iterator[tuple[str, Tally]]:
        """Every part the convention counts, with its name, first to last."""
        encoder, decoder = self._stacks(architecture)
        encoder_dim = encoder.embed_dim if encoder else 0
        decoder_dim = decoder.embed_dim if decoder else 0
        yield from self._input_parts(encoder_dim, decoder_dim)
        for number, span in enumerate(self._encoder_spans(encoder)):
            assert encoder is not None
            parts = self._encoder_parts(encoder_dim, encoder.layers[number], span)
            yield from _named(f"encoder.{number}", parts)
        for number, span in enumerate(self._decoder_spans(decoder)):
            assert decoder is not None
            layer, memory = decoder.layers[number], decoder.memory_length
            parts = self._decoder_parts(decoder_dim, encoder_dim, layer, span, memory)
            yield from _named(f"decoder.{number}", parts)
        yield from self._output_parts(encoder_dim, decoder_dim)

    def _stacks(
        self, architecture: Architecture
    ) -> tuple[EncoderStack | None, DecoderStack | None]:
        encoder, decoder = architecture.encoder, architecture.decoder
        wanted = TASKS[self.task].stacks
        if (encoder is not None, decoder is not None) != ("encoder" in wanted, "decoder" in wanted):
            raise ArchitectureError(
                f"a {self.task} network has an {' and a '.join(wanted)} and nothing else; "
                f"the architecture has {' and '.join(architecture.to_json())}"
            )
        return encoder, decoder

    def _encoder_spans(self, encoder: EncoderStack | None) -> tuple[int, ...]:
        kinds = [layer.attention for layer in encoder.layers] if encoder else []
        return omni_spans(kinds, self.settings.omni_span)

    def _decoder_spans(self, decoder: DecoderStack | None) -> tuple[int, ...]:
        kinds = [layer.self_attention for layer in decoder.layers] if decoder else []
        return omni_spans(kinds, self.settings.omni_span)

    def _encoder_parts(self, dim: int, layer: EncoderLayer, span: int) -> Parts:
        return layers.encoder_layer(self.settings, dim, layer, self._encoder_tokens, span)

    def _decoder_parts(
        self, dim: int, encoder_dim: int, layer: DecoderLayer, span: int, memory: int
    ) -> Parts:
        lengths = self._decoder_tokens, self.source, span, memory
        return layers.decoder_layer(self.settings, dim, encoder_dim, layer, *lengths)

    def _input_parts(self, encoder_dim: int, decoder_dim: int) -> Parts:
        if not self.convention.embeddings:
            return ()
        tally = layers.embeddings(
            self.settings,
            self.task,
            encoder_dim,
            decoder_dim,
            self._encoder_tokens,
            self._decoder_tokens,
        )
        return (("embedding", tally),)

    def _output_parts(self, encoder_dim: int, decoder_dim: int) -> Iterator[tuple[str, Tally]]:
        """The last norm of each stack, and the output layer."""
        for stack, dim, tokens in (
            ("encoder", encoder_dim, self._encoder_tokens),
            ("decoder", decoder_dim, self._decoder_tokens),
        ):
            if dim and self.settings.norm == "pre":
                yield f"{stack}.norm", layers.norm(self.settings, tokens, dim)
        if self.convention.output_layer:
            dim = decoder_dim or encoder_dim
            num_outputs = 1 if TASKS[self.task].classifies else self._decoder_tokens
            yield "output", layers.output_layer(self.settings, self.task, dim, num_outputs)

    def _ends_price(self, encoder_dim: int, decoder_dim: int) -> Totals:
        first = self._input_parts(encoder_dim, decoder_dim)
        return self._price((*first, *self._output_parts(encoder_dim, decoder_dim)))

    def _encoder_layer_price(self, dim: int, layer: EncoderLayer, span: int) -> Totals:
        return self._price(self._encoder_parts(dim, layer, span))

    def _decoder_layer_price(
        self, dim: int, encoder_dim: int, layer: DecoderLayer, span: int, memory: int
    ) -> Totals:
        return self._price(self._decoder_parts(dim, encoder_dim, layer, span, memory))

    def _price(self, parts: Iterable[tuple[str, Tally]]) -> Totals:
        tallies = [tally for _, tally in parts]
        params = sum(tally.params for tally in tallies)
        return params, sum(self.convention.flops(tally) for tally in tallies)


@lru_cache(maxsize=256)
def cost_model(
    settings: ModelSettings,
    task: TaskName,
    convention: str = "true",
    source_length: int | None = None,
    target_length: int | None = None,
) -> CostModel:
    """The cost model of a space's networks; the same object for the same arguments.

    Arguments and errors as for `search_spaces.costs.cost`.
    """
    counted = find_convention(convention)
    source, target = _lengths(settings, task, source_length, target_length)
    return CostModel(settings, task, counted, source, target)


def _lengths(
    settings: ModelSettings, task: TaskName, source: int | None, target: int | None
) -> tuple[int, int | None]:
    longest = settings.max_length
    if TASKS[task].crosses:
        usual = min(TRANSLATION_LENGTH, longest)
        return (
            _checked("source_length", source, usual, longest),
            _checked("target_length", target, usual, longest),
        )
    if target is not None:
        raise UsageError(
            f"target_length is {target}, but {task} has one sequence only; give source_length"
        )
    if isinstance(settings.input, ImageInput):
        patches = settings.input.num_tokens
        if source not in (None, patches):
            raise UsageError(
                f"source_length is {source}, but every image has {patches} patches; leave it out"
            )
        return patches, None
    if TASKS[task].classifies:
        longest -= settings.class_token
    return _checked("source_length", source, longest, longest), None


def _checked(name: str, given: int | None, default: int, longest: int) -> int:
    if given is None:
        return default
    if not 1 <= given <= longest:
        raise UsageError(f"{name} is {given}; these networks take 1 to {longest} tokens")
    return given


def _named(prefix: str, parts: Parts) -> Iterator[tuple[str, Tally]]:
    for name, tally in parts:
        yield f"{prefix}.{name}", tally

"""What training a supernet needs of a GPU, by arithmetic: memory, operations, time.

Memory is that of the largest network of an update, which trains alone: one network after the other
adds to the gradients. It is counted in fp32 or, under autocast, with what matrix products take and
give in bf16; norms, the residual stream, weights, gradients and AdamW's moments stay in fp32. What
the allocator loses between tensors comes on top, 5 to 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from search_spaces.architecture import (
    SKIP,
    Architecture,
    AttentionKind,
    DecoderLayer,
    EncoderLayer,
    omni_spans,
)
from search_spaces.attention import operator_of
from search_spaces.costs import flops, totals
from search_spaces.settings import ImageInput
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS
from search_spaces.variation import largest
from supernet.training_settings import ENDS, TrainingSettings

LayerT = TypeVar("LayerT", EncoderLayer, DecoderLayer)

OPTIMISER_BYTES = 8
"""Of AdamW's two moments, for each parameter."""
A100_OPS = 312e12
"""bf16 multiplications and additions a second of an A100. Source: NVIDIA's data sheet (2020)."""
USED_SHARE = 0.3
"""Of them that a training is expected to use; a guess that a run of one's own replaces."""


@dataclass(frozen=True, slots=True)
class TrainingCosts:
    """What a training needs of each GPU.

    Attributes:
        params: of the model.
        weight_bytes: weights, gradients, AdamW's moments, an average where one is kept, and the
            weights of a teacher.
        activation_bytes: what the largest network keeps for its gradients.
        logit_bytes: of the output layer's scores, at their largest.
        tokens: positions of an update, on all GPUs.
        operations: floating-point operations of an update, on all GPUs.
        updates: planned, or fewer where the data have shorter epochs; 0 where an epoch's length is
            not known before the data are read.
    """

    params: int
    weight_bytes: int
    activation_bytes: int
    logit_bytes: int
    tokens: int
    operations: float
    updates: int

    @property
    def memory_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.activation_bytes + self.logit_bytes

    def hours(self, gpus: int = 1, ops: float = A100_OPS, used: float = USED_SHARE) -> float:
        """Hours of the whole training on so many GPUs of so many operations a second."""
        return self.operations * self.updates / (ops * used * gpus) / 3600


def training_costs(
    space: SearchSpace,
    params: int,
    settings: TrainingSettings,
    gpus: int = 1,
    network: Architecture | None = None,
    teacher: Architecture | None = None,
) -> TrainingCosts:
    """What training the supernet of a space needs, or one network on its own.

    Args:
        space: what is trained.
        params: of its supernet, or of the network.
        settings: the numbers.
        gpus: that share an update.
        network: that is trained; the largest, among others, if not given.
        teacher: the network of a checkpoint, of the sizes of the space, that stays as it is; it
            teaches where `distillation` is above 0.
    """
    alone, autocast = network is not None, settings.bfloat16 is not False
    if network is None:
        (network,) = space.decode(largest(space))
    widest = network if alone else _with_omni(space, network)
    per_batch, length = batch_positions(space, settings)
    # GPUs share whole batches of an update while there are enough, see `Group.shares`.
    on_one = per_batch if settings.accumulate >= gpus else math.ceil(per_batch / gpus)
    states = activation_bytes(space, widest, settings, autocast, any_kind=not alone) * on_one
    copies = 4 + 4 + OPTIMISER_BYTES + (4 if settings.ema_decay else 0)
    products = 2 if autocast else 4
    cast = products * params if autocast else 0  # of the weights that an update uses
    networks = settings.num_random + ENDS[settings.sampling]
    networks = 1 if alone else networks
    passes = 4 if settings.recompute else 3
    lengths = _lengths(space, length)
    counted = max(flops(space.model, space.task, n, "true", *lengths) for n in (network, widest))
    tokens = per_batch * settings.accumulate
    frozen, teaching = 0, 0
    if teacher is not None and settings.distillation > 0.0:
        frozen, teaching = totals(space.model, space.task, teacher, "true", *lengths)
    itself = ENDS[settings.sampling] > 0 and settings.distillation > 0.0 and not alone
    ends = settings.max_updates, settings.epochs * settings.epoch_updates
    return TrainingCosts(
        params,
        copies * params + cast + 4 * frozen,
        states,
        logit_bytes(space, settings, on_one, autocast, taught=frozen > 0 or itself),
        tokens,
        (passes * networks * counted + teaching) / length * tokens,
        min(filter(None, ends), default=0),
    )


def batch_positions(space: SearchSpace, settings: TrainingSettings) -> tuple[int, int]:
    """Positions of a batch, and of one sequence of it."""
    source = space.model.input
    if isinstance(source, ImageInput):
        length = source.num_tokens + (space.model.class_token and TASKS[space.task].classifies)
        return settings.batch_size * length, length
    longest = min(settings.segment_length, space.model.max_length)
    if TASKS[space.task].classifies:
        return settings.batch_size * space.model.max_length, space.model.max_length
    return max(settings.max_tokens, longest), longest


def _with_omni(space: SearchSpace, network: Architecture) -> Architecture:
    """The network with omni layers where the space offers them, so that it has the most states.

    An omni layer looks at the outputs since the one before it, `omni_span` of them at most, and
    does all its work on as many states a position: there are most where they are that far apart.
    """
    encoder, decoder, span = network.encoder, network.decoder, space.model.omni_span
    if encoder is not None and "omni" in _kinds(space, "attention"):
        layers = tuple(_omni_apart(encoder.layers, "attention", span))
        encoder = replace(encoder, layers=layers)
    if decoder is not None and "omni" in _kinds(space, "self_attention"):
        steps = tuple(_omni_apart(decoder.layers, "self_attention", span))
        decoder = replace(decoder, layers=steps)
    return Architecture(encoder, decoder)


def _omni_apart(layers: Sequence[LayerT], gene: str, span: int) -> Iterator[LayerT]:
    """The layers; each that is `span` behind another omni one, and the last one, is omni."""
    kind: dict[str, Any] = {gene: "omni"}
    for number, layer in enumerate(layers, start=1):
        omni = number % span == 0 or number == len(layers)
        yield replace(layer, **kind) if omni else layer


def activation_bytes(
    space: SearchSpace,
    network: Architecture,
    settings: TrainingSettings,
    autocast: bool,
    any_kind: bool = False,
) -> int:
    """Bytes that a position of a network keeps for its gradients.

    Each block keeps the input and the output of its norms (of embedding size, in fp32 and as the
    matrix products take it), what attention keeps (`AttentionOperator.kept`) and the hidden units
    before and after the activation, with a gate both factors besides. With recomputed activations
    a layer keeps its input alone, and one layer at a time all of the rest.

    Args:
        space: of the network.
        network: whose sizes count.
        settings: whether activations are recomputed.
        autocast: whether matrix products are in bf16.
        any_kind: count self-attention as of the kind that keeps most of those that the space
            offers, and not of the network's own, but for
            layers that look at several outputs.
    """
    every = _layers(space, network)
    layers = [
        _layer_bytes(space, dim, layer, span, autocast, any_kind) for dim, layer, span in every
    ]
    dims = [dim for dim, _, _ in every]
    if not settings.recompute:
        return sum(layers)
    return sum(4 * dim for dim in dims) + max(layers)


def _layers(
    space: SearchSpace, network: Architecture
) -> list[tuple[int, EncoderLayer | DecoderLayer, int]]:
    """Embedding size, layer and states a position, of every layer."""
    found: list[tuple[int, EncoderLayer | DecoderLayer, int]] = []
    largest_span = space.model.omni_span
    if network.encoder is not None:
        kinds = [layer.attention for layer in network.encoder.layers]
        spans = omni_spans(kinds, largest_span)
        dim = network.encoder.embed_dim
        found += [(dim, layer, s) for layer, s in zip(network.encoder.layers, spans, strict=True)]
    if network.decoder is not None:
        kinds = [layer.self_attention for layer in network.decoder.layers]
        spans = omni_spans(kinds, largest_span)
        dim = network.decoder.embed_dim
        found += [(dim, step, s) for step, s in zip(network.decoder.layers, spans, strict=True)]
    return found


def _layer_bytes(
    space: SearchSpace,
    dim: int,
    layer: EncoderLayer | DecoderLayer,
    span: int,
    autocast: bool,
    any_kind: bool,
) -> int:
    model, products = space.model, 2 if autocast else 4
    if isinstance(layer, EncoderLayer):
        gene, kind, heads = "attention", layer.attention, layer.num_heads
    else:
        gene, kind, heads = "self_attention", layer.self_attention, layer.self_num_heads
    attentions = [(_costliest(space, gene) if any_kind and span == 1 else kind, heads)]
    if isinstance(layer, DecoderLayer) and layer.cross_attention and layer.cross_num_heads:
        attentions.append((layer.cross_attention, layer.cross_num_heads))
    hidden = (4 if model.ffn_form == "gated" else 2) * layer.ffn_dim
    bare = model.norm == "pre" and attentions[0][0] == SKIP  # no norm stands before nothing
    norms = (len(attentions) + 1 - bare) * dim * (4 + products)
    inside = sum(
        operator_of(model, kind, "encoder").kept * model.attention_dim(heads)
        for kind, heads in attentions
    )
    return span * (norms + products * (inside + hidden))


def _kinds(space: SearchSpace, gene: str) -> list[AttentionKind]:
    """Those that a space offers."""
    return sorted({str(c) for slot in space.slots if slot.gene == gene for c in slot.choices})


def _costliest(space: SearchSpace, gene: str) -> AttentionKind:
    """The kind that keeps most, of those that a space offers."""
    return max(_kinds(space, gene), key=lambda kind: operator_of(space.model, kind).kept)


def logit_bytes(
    space: SearchSpace,
    settings: TrainingSettings,
    positions: int,
    autocast: bool,
    taught: bool = False,
) -> int:
    """Of the scores of `positions` tokens at their largest.

    They are held as the output layer gives them, as log-probabilities and as gradients, in fp32 but
    for the first under autocast. Where another network teaches there are besides its own scores,
    its probabilities and the log-probabilities that are compared with these.
    """
    source = space.model.input
    if isinstance(source, ImageInput) or TASKS[space.task].classifies:
        return 0
    vocab = source.vocab_size
    if TASKS[space.task].crosses:
        vocab = source.target_vocab_size or vocab
    held = min(positions, settings.loss_chunk) if settings.loss_chunk else positions
    given = 2 if autocast else 4
    copies = (given + 4 if autocast else given) + 4 + 4
    return held * vocab * (copies + (given + 4 + 4 if taught else 0))


def _lengths(space: SearchSpace, length: int) -> tuple[int | None, int | None]:
    """Source and target of a sequence of so many positions, without a class token."""
    if isinstance(space.model.input, ImageInput):
        return None, None
    task = TASKS[space.task]
    source = length - (task.classifies and space.model.class_token)
    return source, length if task.crosses else None

"""Decoder layers and a stack of them, for whole sequences and for one token after another.

A whole sequence is decoded by the same call as a single token: it starts from no state, and takes
many positions at once. Targets are padded at their end, where a causal layer never looks.

Shapes: B batch, N new positions (times layers for an omni layer), M source positions times joined
layers, D width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from search_spaces.architecture import SKIP, DecoderLayer, DecoderStack
from search_spaces.settings import ModelSettings
from supernet.attention.base import (
    State,
    for_states,
    in_product_precision,
    state_positions,
)
from supernet.blocks import ElasticAttention, attention_norm
from supernet.depth import Stack
from supernet.layers import ElasticFeedForward, ScaledDropout, build_norm, recomputed
from supernet.plan import DecoderLayerPlan, DecoderPlan, decoder_spans
from supernet.rotary import Rotation, rotation_of
from supernet.shared import shared, sharing

States = tuple[State, ...]
Memories = tuple[State | None, ...]


class ElasticDecoderBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward of one decoder layer.

    With ``norm="pre"`` a block is ``x + f(norm(x))``; with ``"post"`` it is ``norm(x + f(x))``.
    The encoder's outputs are not normed again. Without self-attention (`SKIP`) f is 0 there, and
    the state holds nothing.
    """

    def __init__(
        self,
        settings: ModelSettings,
        max_dim: int,
        max_encoder_dim: int,
        plan: DecoderLayerPlan,
        dropout: float,
    ) -> None:
        super().__init__()
        self.pre_norm = settings.norm == "pre"
        self.self_norm = attention_norm(settings, max_dim, plan.self_attention)
        self.self_attention = ElasticAttention(settings, max_dim, plan.self_attention, "decoder")
        self.cross_norm: nn.Module | None = None
        self.cross_attention: ElasticAttention | None = None
        if plan.cross_attention is not None:
            self.cross_norm = build_norm(settings, max_dim)
            self.cross_attention = ElasticAttention(
                settings, max_dim, plan.cross_attention, "cross", max_encoder_dim
            )
        self.ffn_norm = build_norm(settings, max_dim)
        self.ffn = ElasticFeedForward(settings, max_dim, plan.ffn_dim, dropout, plan.own_outputs)
        self.dropout = ScaledDropout(dropout, max_dim)

    def memory(self, encoded_BMD: Tensor, layer: DecoderLayer, mask_BM: Tensor | None) -> State:
        """The encoder's outputs, `ende_connect` at each position, as this layer reads them."""
        assert self.cross_attention is not None and layer.cross_attention is not None
        assert layer.cross_num_heads is not None and layer.ende_connect is not None
        return self.cross_attention.memory(
            encoded_BMD, layer.cross_attention, layer.cross_num_heads, mask_BM, layer.ende_connect
        )

    def forward(
        self,
        x_BND: Tensor,
        layer: DecoderLayer,
        memory: State | None,
        state: State | None,
        positions_1N: Tensor,
        span: int = 1,
        mask_BN: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, State]:
        """New positions through the layer.

        Args:
            x_BND: their states, `span` for each position.
            layer: the sizes.
            memory: of `memory`; None in a decoder-only network.
            state: of self-attention over the positions before; None at the start.
            positions_1N: positions of the states, from 0.
            span: states per position.
            mask_BN: True at real states; None when all are.
            rotation: of the positions; None without rotary positions.

        Returns:
            ``(B, N, D)``, and the state after these positions.
        """
        after: State = ()
        if layer.self_attention != SKIP:
            attended, after = self.self_attention.causal(
                self._before(self.self_norm, x_BND),
                layer.self_attention,
                layer.self_num_heads,
                state,
                span,
                mask_BN,
                layer.self_num_kv_heads,
                rotation,
                positions_1N,
            )
            x_BND = self._after(self.self_norm, x_BND, attended)
        elif not self.pre_norm:
            x_BND = self.self_norm(x_BND)
        if self.cross_attention is not None and self.cross_norm is not None:
            assert layer.cross_attention is not None and layer.cross_num_heads is not None
            assert memory is not None
            attended = self.cross_attention.read(
                self._before(self.cross_norm, x_BND),
                layer.cross_attention,
                layer.cross_num_heads,
                memory,
                positions_1N,
            )
            x_BND = self._after(self.cross_norm, x_BND, attended)
        transformed = self.ffn(self._before(self.ffn_norm, x_BND), layer.ffn_dim)
        return self._after(self.ffn_norm, x_BND, transformed), after

    def _before(self, norm: nn.Module, x_BND: Tensor) -> Tensor:
        return norm(x_BND) if self.pre_norm else x_BND

    def _after(self, norm: nn.Module, x_BND: Tensor, change_BND: Tensor) -> Tensor:
        x_BND = x_BND + self.dropout(change_BND)
        return x_BND if self.pre_norm else norm(x_BND)


class ElasticDecoder(Stack):
    """Runs the layers a `DecoderStack` names; deeper blocks of the supernet are left out."""

    def __init__(self, settings: ModelSettings, plan: DecoderPlan, dropout: float) -> None:
        super().__init__()
        self.settings = settings
        self.checkpoints = False  # see `TrainingSettings.recompute`
        self.blocks = nn.ModuleList(
            ElasticDecoderBlock(settings, plan.embed_dim, plan.encoder_dim, layer, dropout)
            for layer in plan.layers
        )
        self.final_norm = build_norm(settings, plan.embed_dim) if settings.norm == "pre" else None

    def memories(
        self, outputs: list[Tensor], decoder: DecoderStack, mask_BN: Tensor | None
    ) -> Memories:
        """What each layer keeps of the encoder's last outputs, each ``(B, N, D)``."""
        counts = {layer.ende_connect or 1 for layer in decoder.layers}
        joined = {count: join_outputs(outputs[-count:], mask_BN) for count in counts}
        memories: list[State | None] = []
        for number, layer in zip(self.kept(len(decoder.layers)), decoder.layers, strict=True):
            block = self.blocks[number]
            assert isinstance(block, ElasticDecoderBlock)
            encoded_BMD, mask_BM = joined[layer.ende_connect or 1]
            memories.append(block.memory(encoded_BMD, layer, mask_BM))
        return tuple(memories)

    def forward(
        self,
        x_BND: Tensor,
        decoder: DecoderStack,
        memories: Memories,
        states: States | None,
        start: int = 0,
        mask_BN: Tensor | None = None,
    ) -> tuple[Tensor, States]:
        """Embeddings ``(B, N, D)`` of new positions → last layer's output, and the states.

        Args:
            x_BND: embeddings.
            decoder: the sizes.
            memories: one for each layer; None for each layer of a decoder-only network.
            states: what the last call returned; None at the start of a sequence.
            start: position of the first of the new ones.
            mask_BN: True at real ones of them, which padding may precede only at the start of a
                sequence; None when all are real.
        """
        positions_1N = shared(state_positions, None, x_BND.shape[1], 1, x_BND.device)
        if not isinstance(start, int) or start:  # in a graph it is known only when that runs
            positions_1N = start + positions_1N
        spans = decoder_spans(self.settings, decoder)
        rotation = rotation_of(self.settings, positions_1N[0])
        if self.final_norm is None:  # each layer ends in a norm: nothing adds up over them
            x_BND = in_product_precision(x_BND)
        outputs, after, kept = [x_BND], [], self.kept(len(decoder.layers))
        with sharing():
            for number, (layer, span) in enumerate(zip(decoder.layers, spans, strict=True)):
                step = partial(
                    omni_step,
                    self.blocks[kept[number]],
                    outputs[-span:],
                    layer,
                    memories[number],
                    None if states is None else states[number],
                    positions_1N,
                    mask_BN,
                    rotation,
                )
                x_BND, state = recomputed(step) if self.checkpoints and self.training else step()
                after.append(state)
                outputs = [*outputs, x_BND][-self.settings.omni_span :]
        return x_BND if self.final_norm is None else self.final_norm(x_BND), tuple(after)


def omni_step(
    block: nn.Module,
    outputs: list[Tensor],
    layer: DecoderLayer,
    memory: State | None,
    state: State | None,
    positions_1N: Tensor,
    mask_BN: Tensor | None = None,
    rotation: Rotation | None = None,
) -> tuple[Tensor, State]:
    """One decoder layer over the outputs of one or several layers, each ``(B, N, D)``.

    An omnidirectional layer runs as a whole, cross-attention included, on all states of the new
    positions, as in an encoder, and keeps the largest value of each feature among the states of a
    position. Only its self-attention has to remember earlier positions.
    """
    span = len(outputs)
    if span == 1:
        return block(outputs[0], layer, memory, state, positions_1N, 1, mask_BN, rotation)  # type: ignore[no-any-return]
    states_BND = torch.stack(outputs, dim=2).flatten(1, 2)
    positions_1N = shared(for_states, positions_1N, span)
    if mask_BN is not None:
        mask_BN = shared(for_states, mask_BN, span)
    done_BND, state = block(states_BND, layer, memory, state, positions_1N, span, mask_BN, rotation)
    return done_BND.unflatten(1, (-1, span)).amax(dim=2), state


def join_outputs(outputs: list[Tensor], mask_BN: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Several layers' outputs ``(B, N, D)`` along time, and the mask repeated for each.

    They are sorted position by position (state ``position * layers + layer``), so that a kernel
    knows their positions by the number of layers; to attention the order makes no difference.

    Source: HAT, arbitrary encoder-decoder attention.
    """
    count = len(outputs)
    if count == 1:
        return outputs[0], mask_BN
    mask = None if mask_BN is None else shared(for_states, mask_BN, count)
    return torch.stack(outputs, dim=2).flatten(1, 2), mask

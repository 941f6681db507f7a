"""A stack of encoder layers, omnidirectional ones included."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from search_spaces.architecture import EncoderLayer, EncoderStack, omni_spans
from search_spaces.settings import ModelSettings
from supernet.attention.base import for_states, in_product_precision
from supernet.blocks import ElasticEncoderBlock
from supernet.depth import Stack
from supernet.layers import build_norm, recomputed
from supernet.plan import StackPlan
from supernet.rotary import Rotation, rotation_of
from supernet.shared import shared, sharing


class ElasticEncoder(Stack):
    """Runs the layers an `EncoderStack` names; deeper blocks of the supernet are left out."""

    def __init__(self, settings: ModelSettings, plan: StackPlan, dropout: float) -> None:
        super().__init__()
        self.settings = settings
        self.checkpoints = False  # see `TrainingSettings.recompute`
        self.blocks = nn.ModuleList(
            ElasticEncoderBlock(settings, plan.embed_dim, layer, dropout) for layer in plan.layers
        )
        self.final_norm = build_norm(settings, plan.embed_dim) if settings.norm == "pre" else None

    def forward(self, x_BND: Tensor, encoder: EncoderStack, key_mask_BN: Tensor | None) -> Tensor:
        """Embeddings ``(B, N, D)`` → last layer's output ``(B, N, D)``."""
        return self.last_outputs(x_BND, encoder, key_mask_BN, 1)[-1]

    def last_outputs(
        self, x_BND: Tensor, encoder: EncoderStack, key_mask_BN: Tensor | None, count: int
    ) -> list[Tensor]:
        """The outputs of the last `count` layers, last one last, each ``(B, N, D)``.

        With ``norm="pre"`` each of them passes the final norm: sums of residuals as they are would
        reach a decoder on another scale than the last output does. (HAT norms the last one only.)
        """
        spans = omni_spans([layer.attention for layer in encoder.layers], self.settings.omni_span)
        kept = max(self.settings.omni_span, count)
        rotation = rotation_of(self.settings, torch.arange(x_BND.shape[1], device=x_BND.device))
        if self.final_norm is None:  # each layer ends in a norm: nothing adds up over them
            x_BND = in_product_precision(x_BND)
        outputs = [x_BND]
        numbers = self.kept(len(encoder.layers))
        with sharing():
            for number, layer, span in zip(numbers, encoder.layers, spans, strict=True):
                block = self.blocks[number]
                step = partial(omni_block, block, outputs[-span:], layer, key_mask_BN, rotation)
                x_BND = recomputed(step) if self.checkpoints and self.training else step()
                outputs = [*outputs, x_BND][-kept:]
        last = outputs[-count:]
        return last if self.final_norm is None else [self.final_norm(x) for x in last]


def omni_block(
    block: nn.Module,
    outputs: list[Tensor],
    layer: EncoderLayer,
    key_mask_BN: Tensor | None,
    rotation: Rotation | None = None,
) -> Tensor:
    """One layer over the outputs of one or, omnidirectional, several layers, each ``(B, N, D)``.

    The states are sorted position by position (IndexSort), pass attention and feed-forward, and
    the largest value of each feature among the states of a position is kept.

    Source: OmniNet, equations 4 and 5 and section 3.2.4: the block replaces the layer.
    """
    span = len(outputs)
    if span == 1:
        return block(outputs[0], layer, key_mask_BN, 1, rotation)  # type: ignore[no-any-return]
    states_BND = torch.stack(outputs, dim=2).flatten(1, 2)
    mask = None if key_mask_BN is None else shared(for_states, key_mask_BN, span)
    attended = block(states_BND, layer, mask, span, rotation)
    return attended.unflatten(1, (-1, span)).amax(dim=2)  # type: ignore[no-any-return]

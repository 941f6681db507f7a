"""What omnidirectional layers look at, and what they take from it: shares, as plain numbers.

They are measured by `supernet.omni_shares`, kept by `nas.run.omni_views`, and drawn without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len

from search_spaces.architecture import Architecture, AttentionKind, omni_spans

StackName = Literal["encoder", "decoder"]
Share = Annotated[float, Ge(-1e-6), Le(1 + 1e-6)]
Row = tuple[Share, ...]
Rows = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class OmniLayer:
    """Shares of one omni layer, means over the examples' real positions.

    Attributes:
        stack: ``encoder`` or ``decoder``.
        layer: its number, from 1.
        sources: the outputs it looks at: 0 for the embeddings, otherwise a layer's number.
        attention: by head, a row for each source of the queries, with the share of attention that
            each source of the keys gets from it.
        pooling: share of the features that the pooling keeps from each source.
    """

    stack: StackName
    layer: int
    sources: Annotated[tuple[int, ...], Len(2)]
    attention: Annotated[tuple[Rows, ...], Len(1)]
    pooling: Row

    @property
    def by_head(self) -> Rows:
        """By head, the share of attention that each source gets."""
        return tuple(_means(rows) for rows in self.attention)

    @property
    def attended(self) -> tuple[float, ...]:
        """The share of attention that each source gets, mean over heads."""
        return _means(self.by_head)

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{self.stack} layer {self.layer}"


@dataclass(frozen=True, slots=True)
class OmniMap:
    """Shares of one image, patch by patch; a class token has no place in it.

    Attributes:
        example: its number in the validation split, from 0.
        layer: of the encoder.
        attention: for each source, the share of all attention that each patch gets, mean over
            heads; the query is the class token where there is one, otherwise the mean of all.
        pooling: for each source, the share of each patch's features that it gives.
    """

    example: int
    layer: int
    attention: Rows
    pooling: Rows


def omni_layers(
    architecture: Architecture, max_span: int
) -> list[tuple[StackName, int, tuple[int, ...]]]:
    """Stack, number and sources of every omni layer that looks at more than one layer's output."""
    kinds: list[tuple[StackName, list[AttentionKind]]] = []
    if architecture.encoder is not None:
        kinds.append(("encoder", [layer.attention for layer in architecture.encoder.layers]))
    if architecture.decoder is not None:
        kinds.append(("decoder", [layer.self_attention for layer in architecture.decoder.layers]))
    return [
        (stack, number, tuple(range(number - span, number)))
        for stack, names in kinds
        for number, span in enumerate(omni_spans(names, max_span), start=1)
        if span > 1
    ]


def _means(rows: Rows) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))

"""Bytes of what a decoder carries from token to token: its cache of keys and values, and its sums.

Numbers are those of the live tensors, see `search_spaces.attention.AttentionOperator.state`;
engines that hand out memory in pages of one size for all layers need more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from search_spaces.architecture import DecoderLayer
from search_spaces.attention import StateSizes, operator_of, window_of
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings

Allocator = Literal["live", "paged"]
PAGE_POSITIONS = 16
SOURCE_BYTES = {"softmax": 1, "bigbird": 8}
"""What is kept of a source's state besides key and value: whether it is real, or its block."""


@lru_cache(maxsize=65_536)
def layer_state_bytes(
    settings: ModelSettings,
    layer: DecoderLayer,
    span: int,
    context: int,
    dtype_bytes: int = 4,
    allocator: Allocator = "live",
    source: int | None = None,
) -> int:
    """Bytes of the state of one sequence in one layer.

    Args:
        settings: of the network's space.
        layer: of a decoder.
        span: states a position that it runs on.
        context: positions that were read, at least 1.
        dtype_bytes: of a number of keys and values, 2 or 4; sums are fp32 whatever it is.
        allocator: ``live`` counts the tensors; ``paged`` counts whole pages of 16 positions, and
            windows as long as the context, as engines do that give all layers pages of one size.
        source: positions of the source, for networks with cross-attention.

    Raises:
        UsageError: for cross-attention without a source's length.
    """
    kind, heads = layer.self_attention, layer.self_num_heads
    operator = operator_of(settings, kind, "decoder")
    window = window_of(settings, kind)
    if allocator == "paged" and (operator.grows or window):
        context = -(-context // PAGE_POSITIONS) * PAGE_POSITIONS
        window = context
    sizes = StateSizes(
        heads,
        layer.self_num_kv_heads or heads,
        settings.head_width(heads),
        context * span,
        window * span,
        dtype_bytes,
    )
    total = operator.state(settings, sizes)
    if layer.cross_attention is None or layer.cross_num_heads is None:
        return total
    if source is None:
        raise UsageError("cross-attention keeps the source: say how long it is, source=30")
    heads, operator = layer.cross_num_heads, operator_of(settings, layer.cross_attention, "cross")
    if allocator == "paged" and operator.grows:
        source = -(-source // PAGE_POSITIONS) * PAGE_POSITIONS
    kept = sizes._replace(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=settings.head_width(heads),
        context=source * (layer.ende_connect or 1),
        window=0,
    )
    marks = kept.context * SOURCE_BYTES.get(operator.name, 0)
    return total + operator.state(settings, kept) + marks

"""The attention operators: which one a layer means, and what it costs, one entry an operator.

A *kind* (softmax, linear, omni) is what the search chooses for a layer; an *operator* is what the
layer computes then, which the settings of the space say. `supernet.attention.kernels` has the class
of each operator under the same name, and exports have theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from search_spaces.architecture import ATTENTION_KINDS, AttentionKind
from search_spaces.conventions import Tally
from search_spaces.errors import ArchitectureError
from search_spaces.settings import ModelSettings

Place = Literal["encoder", "decoder", "cross"]

BIGBIRD_GLOBAL_BLOCKS = 2
BIGBIRD_BLOCKS_PER_ROW = 3 + 3 + BIGBIRD_GLOBAL_BLOCKS  # window, random, global


class AttentionSizes(NamedTuple):
    """What an operator's cost depends on besides the settings.

    Attributes:
        width: of queries, keys and values, over all heads.
        head_dim: width of one head.
        queries: states that ask.
        keys: states that are looked at.
        span: layer outputs that are looked at, so that `keys` is `span` times a number of
            positions.
    """

    width: int
    head_dim: int
    queries: int
    keys: int
    span: int


@dataclass(frozen=True, slots=True)
class AttentionOperator:
    """What happens between the input projections and the output projection of attention.

    Attributes:
        name: as `supernet.attention.kernels` and the exports know it.
        cost: parameters and multiply-adds, see `Tally`.
        causal: whether it can stand in a decoder, where later positions have to be left out.
    """

    name: str
    cost: Callable[[ModelSettings, AttentionSizes], Tally]
    causal: bool = True


def operator_of(
    settings: ModelSettings, kind: AttentionKind, place: Place = "encoder"
) -> AttentionOperator:
    """The operator of a layer.

    Args:
        settings: of the space; they say which linear and which omni kernel is meant.
        kind: the layer's attention kind.
        place: in an encoder, in a decoder's self-attention, or between the two. Between them there
            are no relative keys.

    Raises:
        ArchitectureError: for an unknown kind.
    """
    match kind:
        case "softmax":
            relative = settings.relative_positions and place != "cross"
            return OPERATORS["relative" if relative else "softmax"]
        case "linear":
            return OPERATORS[settings.linear_kernel]
        case "omni":
            full = settings.omni_kernel == "full"
            return OPERATORS["softmax" if full else settings.omni_kernel]
    raise ArchitectureError(f"no attention kind {kind!r}; there are {', '.join(ATTENTION_KINDS)}")


def _softmax(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Every query meets every key; so does full omni attention."""
    pairs = sizes.queries * sizes.keys
    return Tally(products=2 * pairs * sizes.width, scalings=sizes.queries * sizes.width)


def _relative(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Softmax with Shaw's relative keys: one table, and one more product."""
    return Tally(
        params=(2 * settings.relative_positions + 1) * sizes.width,
        products=3 * sizes.queries * sizes.keys * sizes.width,
        scalings=sizes.queries * sizes.width,
    )


def _cosformer(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Two products with a state of (features × D) per head.

    The features are doubled, and the denominator costs as much as one more value column. Scalings
    are sine and cosine of queries and keys, and the division of the output. (The published code
    scales the query instead and divides inside an einsum: the same number.)
    Source: cosFormer (Qin et al. 2022), equation 10.
    """
    products = 2 * (sizes.queries + sizes.keys) * sizes.width * (sizes.head_dim + 1)
    scalings = (3 * sizes.queries + 2 * sizes.keys) * sizes.width
    return Tally(linear_attention=products, scalings=scalings)


def _norm(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Two products with a state of (D × D) per head, and the gain of a norm.

    Source: TransNormer (Qin et al. 2022), equation 12.
    """
    products = (sizes.queries + sizes.keys) * sizes.width * sizes.head_dim
    scalings = sizes.queries * sizes.width
    return Tally(sizes.width, linear_attention=products, scalings=scalings)


def _performer(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Source: OmniNet (Tay et al. 2021), section 3.2."""
    products = (sizes.queries + sizes.keys) * sizes.width * (sizes.head_dim + 1)
    return Tally(linear_attention=products, scalings=sizes.queries * sizes.width)


def _linformer(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Source: Linformer (Wang et al. 2020), section 4."""
    rank = settings.linformer_rank
    return Tally(
        params=rank * settings.max_length * sizes.span,
        products=2 * rank * (sizes.queries + sizes.keys) * sizes.width,
        scalings=sizes.queries * sizes.width,
    )


def _bigbird(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """A block of queries attends 8 blocks (window of 3, 3 random, 2 global).

    The global blocks attend everything; where there are no more blocks than that it is full
    attention. Query-key pairs are computed in whole blocks.
    Source: OmniNet (Tay et al. 2021), section 3.2.
    """
    block = settings.bigbird_block * sizes.span
    key_blocks, query_blocks = -(-sizes.keys // block), -(-sizes.queries // block)
    if key_blocks <= BIGBIRD_BLOCKS_PER_ROW:
        return _softmax(settings, sizes)
    everywhere = min(query_blocks, BIGBIRD_GLOBAL_BLOCKS)
    sparse = query_blocks - everywhere
    pairs = (everywhere * key_blocks + sparse * BIGBIRD_BLOCKS_PER_ROW) * block**2
    return Tally(products=2 * pairs * sizes.width, scalings=sizes.queries * sizes.width)


OPERATORS: dict[str, AttentionOperator] = {
    operator.name: operator
    for operator in (
        AttentionOperator("softmax", _softmax),
        AttentionOperator("relative", _relative),
        AttentionOperator("cosformer", _cosformer),
        AttentionOperator("norm", _norm),
        AttentionOperator("performer", _performer),
        AttentionOperator("linformer", _linformer, causal=False),
        AttentionOperator("bigbird", _bigbird),
    )
}

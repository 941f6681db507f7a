"""The attention operators: which one a layer means, and what it costs, one entry an operator.

A *kind* (softmax, window, linear, omni, skip) is what a search chooses for a layer, with a variant
where several are offered; an *operator* is what the layer computes then, which the variant or the
settings of the space say. `supernet.attention.kernels` has the class of each operator under the
same name, and exports have theirs; ``skip`` needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from search_spaces.architecture import AttentionKind, base_kind, kind_problem, variant_of
from search_spaces.conventions import Tally
from search_spaces.errors import ArchitectureError
from search_spaces.settings import ModelSettings

Place = Literal["encoder", "decoder", "cross"]

BIGBIRD_GLOBAL_BLOCKS = 2
BIGBIRD_BLOCKS_PER_ROW = 3 + 3 + BIGBIRD_GLOBAL_BLOCKS  # window, random, global


class AttentionSizes(NamedTuple):
    """What an operator's cost depends on besides the settings.

    Attributes:
        width: of queries, over all heads.
        head_dim: width of one head.
        queries: states that ask.
        keys: states that are looked at.
        span: layer outputs that are looked at, so that `keys` is `span` times a number of
            positions.
        embed_dim: width of the states.
        window: positions that a windowed layer sees on a side, see `ModelSettings.window`.
        causal: whether only one side is seen.
    """

    width: int
    head_dim: int
    queries: int
    keys: int
    span: int
    embed_dim: int
    window: int = 0
    causal: bool = False

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return self.width // self.head_dim


class StateSizes(NamedTuple):
    """What the state depends on that attention carries from token to token.

    Attributes:
        num_heads: of queries.
        num_kv_heads: of keys and values.
        head_dim: width of one head.
        context: positions that were read, times the states of a position.
        window: as in `AttentionSizes`.
        dtype_bytes: of one number of what is not summed, 2 or 4.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    window: int = 0
    dtype_bytes: int = 4


StateBytes = Callable[[ModelSettings, StateSizes], int]


@dataclass(frozen=True, slots=True)
class AttentionOperator:
    """What happens between the input projections and the output projection of attention.

    Attributes:
        name: as `supernet.attention.kernels` and the exports know it.
        kept: numbers that a position keeps for the gradients, queries, keys and values among them,
            in widths of the layer's attention; measured with heads of 64, more with narrower ones.
        cost: parameters and multiply-adds, see `Tally`.
        state: bytes that it carries for one sequence; 0 where it is not causal.
        causal: whether it can stand in a decoder, where later positions have to be left out.
        crosses: whether it can stand between an encoder and a decoder.
        rotates: whether rotary positions turn its queries and keys.
        grows: whether its state grows with the context for ever.
        full: whether every position looks at all of them, each by itself.
    """

    name: str
    kept: int
    cost: Callable[[ModelSettings, AttentionSizes], Tally]
    state: StateBytes
    causal: bool = True
    crosses: bool = True
    rotates: bool = False
    grows: bool = False
    full: bool = False


def window_of(settings: ModelSettings, kind: AttentionKind) -> int:
    """Positions that a layer of that kind sees on a side; 0 for kinds without a window."""
    if base_kind(kind) != "window":
        return 0
    return int(variant_of(kind) or settings.window)


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
    match base_kind(kind):
        case "softmax":
            relative = settings.relative_positions and place != "cross"
            return OPERATORS["relative" if relative else "softmax"]
        case "linear":
            return OPERATORS[variant_of(kind) or settings.linear_kernel]
        case "omni":
            full = settings.omni_kernel == "full"
            return OPERATORS["softmax" if full else settings.omni_kernel]
        case "skip":
            return OPERATORS["skip"]
        case "window" if window_of(settings, kind):
            return OPERATORS["window"]
        case "window":
            raise ArchitectureError(
                "a layer of kind 'window' needs to know how much it sees: write window:64, or set "
                "window = 64 in the space's [model] table"
            )
    raise ArchitectureError(f"no attention kind {kind!r}; {kind_problem(kind)}")


# -- softmax ------------------------------------------------------------------------------------


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


def _window(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Every query meets the keys of its window; as many on the other side in an encoder.

    There the first position may see all, and be seen by all.
    """
    positions = sizes.keys // sizes.span
    seen = min(sizes.window - 1, positions - 1)
    ends = seen * (seen + 1) // 2  # pairs that the beginning of the sequence lacks
    pairs = positions * (seen + 1) - ends
    if not sizes.causal:
        side = min(sizes.window, positions - 1)
        pairs = positions * (2 * side + 1) - side * (side + 1)
        pairs += settings.first_sees_all * 2 * (positions - 1 - side)
    scores = 2 * pairs * sizes.span**2 * sizes.width
    return Tally(products=scores, scalings=sizes.queries * sizes.width)


def _keys_and_values(settings: ModelSettings, sizes: StateSizes) -> int:
    """Of every position."""
    return 2 * sizes.context * sizes.num_kv_heads * sizes.head_dim * sizes.dtype_bytes


def _repeated_keys_and_values(settings: ModelSettings, sizes: StateSizes) -> int:
    """Of every position, for every head of queries: the kernel knows no groups."""
    return _keys_and_values(settings, sizes._replace(num_kv_heads=sizes.num_heads))


def _last_keys_and_values(settings: ModelSettings, sizes: StateSizes) -> int:
    """Of the positions that the next one still sees, and its own."""
    return _keys_and_values(settings, sizes._replace(context=min(sizes.context, sizes.window)))


# -- linear -------------------------------------------------------------------------------------


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


def _elu(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Two products with a state of (D × D) per head, and one more column for the denominator.

    Source: Katharopoulos et al. (2020), equations 4 and 5; OmniNet (Tay et al. 2021), section 3.2.
    """
    products = (sizes.queries + sizes.keys) * sizes.width * (sizes.head_dim + 1)
    return Tally(linear_attention=products, scalings=sizes.queries * sizes.width)


def _hedgehog(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """As `_elu` with twice the features, which a square matrix per head makes.

    Source: Zhang et al., The Hedgehog and the Porcupine (2024), equation 6.
    """
    states = sizes.queries + sizes.keys
    return Tally(
        params=sizes.width * sizes.head_dim,
        products=states * sizes.width * sizes.head_dim,
        linear_attention=2 * states * sizes.width * (sizes.head_dim + 1),
        scalings=sizes.queries * sizes.width,
    )


def _both_ways(sizes: AttentionSizes) -> int:
    """Passes over a sequence: an encoder's recurrence runs forwards and backwards."""
    return 1 if sizes.causal else 2


def _decay(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """A gate per head and state, two products with a state of (D × D), and a norm.

    Source: Yang et al., Gated Linear Attention (2024), equation 3, with the scalar gate of Mamba-2.
    """
    n, heads = sizes.queries, sizes.num_heads
    return Tally(
        params=(sizes.embed_dim + 1) * heads + sizes.width,
        products=n * sizes.embed_dim * heads,
        linear_attention=_both_ways(sizes) * 2 * n * sizes.width * sizes.head_dim,
        scalings=n * sizes.width * (1 + _both_ways(sizes) * sizes.head_dim),
    )


GATE_RANK = 16
"""Of the weights of a gate per channel."""


def _decay_channel(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """As `_decay` with a gate for each feature of the keys, whose weights are of low rank.

    Source: Yang et al., Gated Linear Attention (2024), equation 3 and section 4.4.
    """
    n, width = sizes.queries, sizes.width
    weights = GATE_RANK * (sizes.embed_dim + width)
    return _decay(settings, sizes)._replace(params=weights + 2 * width, products=n * weights)


CONVOLUTION = 4
"""Positions of the short convolution before the gated delta rule."""


def _gated_delta(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Gates, a short convolution, three products with a state of (D × D), a gated norm.

    Source: Yang et al., Gated Delta Networks (2024), equation 10 and figure 1.
    """
    n, heads, width = sizes.queries, sizes.num_heads, sizes.width
    gates = 2 * heads + width
    return Tally(
        params=sizes.embed_dim * gates + 2 * heads + 3 * CONVOLUTION * width + sizes.head_dim,
        products=n * (sizes.embed_dim * gates + _both_ways(sizes) * 3 * CONVOLUTION * width),
        linear_attention=_both_ways(sizes) * 3 * n * width * sizes.head_dim,
        scalings=n * width * (2 + _both_ways(sizes) * (2 + sizes.head_dim)),
    )


def _sums(columns: int, features: int = 1) -> StateBytes:
    """Bytes of ``features * D`` by ``D + columns`` sums of a head, in fp32."""

    def state(settings: ModelSettings, sizes: StateSizes) -> int:
        return sizes.num_heads * features * sizes.head_dim * (sizes.head_dim + columns) * 4

    return state


def _delta_state(settings: ModelSettings, sizes: StateSizes) -> int:
    """The matrix of each head in fp32, and what the short convolution still sees."""
    last = (CONVOLUTION - 1) * 3 * sizes.num_heads * sizes.head_dim * sizes.dtype_bytes
    return sizes.num_heads * sizes.head_dim**2 * 4 + last


def _nothing(settings: ModelSettings, sizes: StateSizes) -> int:
    return 0


def _skip(settings: ModelSettings, sizes: AttentionSizes) -> Tally:
    """Nothing is projected either, see `search_spaces.costs.layers`."""
    return Tally()


# -- omnidirectional ----------------------------------------------------------------------------


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
        AttentionOperator(
            "softmax", 6, _softmax, _keys_and_values, rotates=True, grows=True, full=True
        ),
        AttentionOperator("relative", 6, _relative, _keys_and_values, grows=True, full=True),
        AttentionOperator("window", 8, _window, _last_keys_and_values, crosses=False, rotates=True),
        AttentionOperator("cosformer", 14, _cosformer, _sums(1, features=2)),
        AttentionOperator("norm", 12, _norm, _sums(0)),
        AttentionOperator("elu", 11, _elu, _sums(1), rotates=True),
        AttentionOperator("hedgehog", 19, _hedgehog, _sums(1, features=2), rotates=True),
        AttentionOperator("decay", 16, _decay, _sums(0), crosses=False),
        AttentionOperator("decay_channel", 23, _decay_channel, _sums(0), crosses=False),
        AttentionOperator("gated_delta", 36, _gated_delta, _delta_state, crosses=False),
        AttentionOperator("performer", 11, _elu, _sums(1)),
        AttentionOperator("linformer", 6, _linformer, _nothing, causal=False, crosses=False),
        AttentionOperator("bigbird", 12, _bigbird, _repeated_keys_and_values, grows=True),
        AttentionOperator("skip", 0, _skip, _nothing, crosses=False),
    )
}

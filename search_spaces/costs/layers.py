"""What the pieces of a transformer hold and do: parameters and multiply-adds, as plain integers.

Everything here follows the structure that `supernet` builds; a test holds the two together. What
is counted of these numbers is a matter of the convention, see `search_spaces.conventions`. What
attention does between its projections is counted in `search_spaces.attention`.

Letters: n positions (states) that ask, m positions that are looked at, d embedding size, w width of
the attention, D width of one head.
"""

from __future__ import annotations

from search_spaces.architecture import (
    SKIP,
    AttentionKind,
    DecoderLayer,
    EncoderLayer,
    self_attention,
)
from search_spaces.attention import AttentionSizes, Place, operator_of, window_of
from search_spaces.conventions import Tally
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TASKS, TaskName

Parts = tuple[tuple[str, Tally], ...]


def linear(positions: int, d_in: int, d_out: int, bias: bool = True) -> Tally:
    """A linear layer at each of the positions; adding the bias is not counted."""
    return Tally(params=(d_in + bias) * d_out, products=positions * d_in * d_out)


def norm(settings: ModelSettings, positions: int, dim: int) -> Tally:
    """A norm with a gain, and with a bias where it is a layer norm."""
    gains = 1 if settings.norm_kind == "rms" else 2
    return Tally(params=gains * dim, scalings=positions * dim)


def feed_forward(settings: ModelSettings, positions: int, dim: int, ffn_dim: int) -> Tally:
    """Norm and two linear layers, or three and a product; the activation is not counted."""
    bias = settings.ffn_bias
    first = linear(positions, dim, ffn_dim, bias)
    parts = norm(settings, positions, dim).plus(first).plus(linear(positions, ffn_dim, dim, bias))
    if settings.ffn_form == "plain":
        return parts
    return parts.plus(first).plus(Tally(scalings=positions * ffn_dim))


def projections(
    settings: ModelSettings, n: int, d: int, m: int, d_keys: int, width: int, key_width: int
) -> Tally:
    """Norm, queries, keys, values and output of an attention block; the kernel comes on top."""
    ask = linear(n, d, width, settings.qkv_bias)
    look = linear(m, d_keys, key_width, settings.qkv_bias)
    tell = linear(n, width, d, settings.output_bias)
    return norm(settings, n, d).plus(ask).plus(look).plus(look).plus(tell)


def heads_made_ready(
    settings: ModelSettings, kind: AttentionKind, n: int, width: int, key_width: int, head_dim: int
) -> Tally:
    """Norms of queries and keys, and rotary positions, where self-attention has them."""
    tally = Tally()
    if settings.qk_norm:
        tally = tally.plus(Tally(params=2 * head_dim, scalings=n * (width + key_width)))
    turned = settings.rotary_dim(head_dim)
    if turned and operator_of(settings, kind).rotates:
        tally = tally.plus(Tally(scalings=2 * n * (width + key_width) // head_dim * turned))
    return tally


def self_projections(
    settings: ModelSettings,
    n: int,
    dim: int,
    kind: AttentionKind,
    num_heads: int,
    num_kv_heads: int | None,
) -> Tally:
    """All of self-attention but the kernel.

    Without attention only a norm is left, and that only where it stands behind the block.
    """
    if kind == SKIP:
        return norm(settings, n, dim) if settings.norm == "post" else Tally()
    width = settings.attention_dim(num_heads)
    key_width = settings.key_dim(num_heads, num_kv_heads)
    ready = heads_made_ready(settings, kind, n, width, key_width, width // num_heads)
    return projections(settings, n, dim, n, dim, width, key_width).plus(ready)


def kernel(
    settings: ModelSettings,
    kind: AttentionKind,
    num_heads: int,
    n: int,
    m: int,
    dim: int,
    span: int = 1,
    place: Place = "encoder",
) -> Tally:
    """What an attention kind does between projected queries, keys and values.

    Args:
        settings: of the space.
        kind: with its variant.
        num_heads: heads of the layer.
        n: states that ask.
        m: states that are looked at.
        dim: width of the states.
        span: layer outputs that are looked at, so that m is `span` times a number of positions.
        place: where the layer stands.
    """
    width = settings.attention_dim(num_heads)
    sizes = AttentionSizes(
        width,
        width // num_heads,
        n,
        m,
        span,
        dim,
        window_of(settings, kind),
        causal=place == "decoder",
    )
    return operator_of(settings, kind, place).cost(settings, sizes)


def encoder_layer(
    settings: ModelSettings, dim: int, layer: EncoderLayer, tokens: int, span: int
) -> Parts:
    """The parts of an encoder layer; an omni layer runs as a whole on `span` states a token."""
    n = tokens * span
    return (
        ("projections", self_projections(settings, n, dim, *self_attention(layer))),
        ("attention", kernel(settings, layer.attention, layer.num_heads, n, n, dim, span)),
        ("ffn", feed_forward(settings, n, dim, layer.ffn_dim)),
    )


def decoder_layer(
    settings: ModelSettings,
    dim: int,
    encoder_dim: int,
    layer: DecoderLayer,
    tokens: int,
    source_tokens: int,
    span: int,
    memory_length: int = 0,
) -> Parts:
    """The parts of a decoder layer; the cross parts are left out in a decoder-only network.

    A layer whose self-attention is omni runs as a whole, cross-attention included, on `span`
    states a token. Cross-attention looks at the last ``ende_connect`` encoder outputs, joined.
    Causal attention is counted as if every pair were computed, as fused kernels and tables do.
    A memory of earlier segments is counted full; its keys and values were projected before.
    """
    n = tokens * span
    kind, heads, groups = self_attention(layer)
    keys = n + memory_length
    own: Parts = (
        ("self_projections", self_projections(settings, n, dim, kind, heads, groups)),
        ("self_attention", kernel(settings, kind, heads, n, keys, dim, span, "decoder")),
    )
    ffn = ("ffn", feed_forward(settings, n, dim, layer.ffn_dim))
    if layer.cross_attention is None or layer.cross_num_heads is None:
        return (*own, ffn)
    connect = layer.ende_connect or 1
    m = connect * source_tokens
    width = settings.attention_dim(layer.cross_num_heads)
    cross = kernel(
        settings, layer.cross_attention, layer.cross_num_heads, n, m, dim, connect, "cross"
    )
    return (
        *own,
        ("cross_projections", projections(settings, n, dim, m, encoder_dim, width, width)),
        ("cross_attention", cross),
        ffn,
    )


def embeddings(
    settings: ModelSettings,
    task: TaskName,
    encoder_dim: int,
    decoder_dim: int,
    encoder_tokens: int,
    decoder_tokens: int,
) -> Tally:
    """Patch convolution or token tables, class token, learned positions; a look-up costs nothing.

    A shared table of an encoder and a decoder of different sizes is as wide as the wider one.
    Token types are a look-up too; an embedding norm stands behind each stack's sum.
    """
    dims = [dim for dim in (encoder_dim, decoder_dim) if dim]
    extras = Tally(settings.token_types * sum(dims))
    for dim, tokens in ((encoder_dim, encoder_tokens), (decoder_dim, decoder_tokens)):
        if dim and settings.embedding_norm:
            extras = extras.plus(norm(settings, tokens, dim))
    positions = settings.max_length * sum(dims) if settings.positions == "learned" else 0
    class_token = encoder_dim if settings.class_token and TASKS[task].classifies else 0
    source = settings.input
    if isinstance(source, ImageInput):
        patch = linear(source.num_tokens, source.patch_size**2 * source.channels, encoder_dim)
        return patch.plus(extras).plus(Tally(positions + class_token))
    target_vocab = source.target_vocab_size or source.vocab_size
    if not TASKS[task].crosses:
        table = source.vocab_size * sum(dims)
    elif source.share_embeddings:
        table = max(source.vocab_size, target_vocab) * max(dims)
    else:
        table = source.vocab_size * encoder_dim + target_vocab * decoder_dim
    return extras.plus(Tally(table + positions + class_token))


def output_layer(settings: ModelSettings, task: TaskName, dim: int, tokens: int) -> Tally:
    """The classifier, or the product with the target embeddings or a table of its own.

    `tokens` are the positions that are told of: 1 where a network says one thing of an input.
    """
    if TASKS[task].classifies:
        return linear(tokens, dim, settings.num_classes or 0)
    assert not isinstance(settings.input, ImageInput)
    vocab = settings.input.vocab_size
    if TASKS[task].crosses:
        vocab = settings.input.target_vocab_size or vocab
    return Tally(0 if settings.tied_output else vocab * dim, products=tokens * dim * vocab)

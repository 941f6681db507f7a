"""What the pieces of a transformer hold and do: parameters and multiply-adds, as plain integers.

Everything here follows the structure that `supernet` builds; a test holds the two together. What
is counted of these numbers is a matter of the convention, see `search_spaces.conventions`. What
attention does between its projections is counted in `search_spaces.attention`.

Letters: n positions (states) that ask, m positions that are looked at, d embedding size, w width of
the attention, D width of one head.
"""

from __future__ import annotations

from search_spaces.architecture import AttentionKind, DecoderLayer, EncoderLayer
from search_spaces.attention import AttentionSizes, operator_of
from search_spaces.conventions import Tally
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TASKS, TaskName

Parts = tuple[tuple[str, Tally], ...]


def linear(positions: int, d_in: int, d_out: int) -> Tally:
    """A linear layer with bias at each of the positions; adding the bias is not counted."""
    return Tally(params=d_in * d_out + d_out, products=positions * d_in * d_out)


def layer_norm(positions: int, dim: int) -> Tally:
    """A layer norm with gain and bias."""
    return Tally(params=2 * dim, scalings=positions * dim)


def feed_forward(positions: int, dim: int, ffn_dim: int) -> Tally:
    """Norm and two linear layers; the activation is not counted."""
    norm = layer_norm(positions, dim)
    return norm.plus(linear(positions, dim, ffn_dim)).plus(linear(positions, ffn_dim, dim))


def projections(n: int, d: int, m: int, d_keys: int, width: int) -> Tally:
    """Norm, queries, keys, values and output of an attention block; the kernel comes on top."""
    ask, look = linear(n, d, width), linear(m, d_keys, width)
    return layer_norm(n, d).plus(ask).plus(look).plus(look).plus(linear(n, width, d))


def kernel(
    settings: ModelSettings,
    kind: AttentionKind,
    num_heads: int,
    n: int,
    m: int,
    span: int = 1,
    cross: bool = False,
) -> Tally:
    """What an attention kind does between projected queries, keys and values.

    Args:
        settings: of the space.
        kind: softmax, linear or omni.
        num_heads: heads of the layer.
        n: states that ask.
        m: states that are looked at.
        span: layer outputs that are looked at, so that m is `span` times a number of positions.
        cross: keys come from the encoder; there are no relative keys then.
    """
    width = settings.attention_dim(num_heads)
    sizes = AttentionSizes(width, width // num_heads, n, m, span)
    return operator_of(settings, kind, "cross" if cross else "encoder").cost(settings, sizes)


def encoder_layer(
    settings: ModelSettings, dim: int, layer: EncoderLayer, tokens: int, span: int
) -> Parts:
    """The parts of an encoder layer; an omni layer runs as a whole on `span` states a token."""
    n = tokens * span
    width = settings.attention_dim(layer.num_heads)
    return (
        ("projections", projections(n, dim, n, dim, width)),
        ("attention", kernel(settings, layer.attention, layer.num_heads, n, n, span)),
        ("ffn", feed_forward(n, dim, layer.ffn_dim)),
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
    width = settings.attention_dim(layer.self_num_heads)
    own: Parts = (
        ("self_projections", projections(n, dim, n, dim, width)),
        (
            "self_attention",
            kernel(
                settings, layer.self_attention, layer.self_num_heads, n, n + memory_length, span
            ),
        ),
    )
    ffn = ("ffn", feed_forward(n, dim, layer.ffn_dim))
    if layer.cross_attention is None or layer.cross_num_heads is None:
        return (*own, ffn)
    connect = layer.ende_connect or 1
    m = connect * source_tokens
    width = settings.attention_dim(layer.cross_num_heads)
    cross = kernel(
        settings, layer.cross_attention, layer.cross_num_heads, n, m, connect, cross=True
    )
    return (
        *own,
        ("cross_projections", projections(n, dim, m, encoder_dim, width)),
        ("cross_attention", cross),
        ffn,
    )


def embeddings(
    settings: ModelSettings, task: TaskName, encoder_dim: int, decoder_dim: int
) -> Tally:
    """Patch convolution or token tables, class token, learned positions; a look-up costs nothing.

    A shared table of an encoder and a decoder of different sizes is as wide as the wider one.
    """
    dims = [dim for dim in (encoder_dim, decoder_dim) if dim]
    positions = settings.max_length * sum(dims) if settings.positions == "learned" else 0
    class_token = encoder_dim if settings.class_token and TASKS[task].classifies else 0
    source = settings.input
    if isinstance(source, ImageInput):
        patch = linear(source.num_tokens, source.patch_size**2 * source.channels, encoder_dim)
        return patch.plus(Tally(positions + class_token))
    target_vocab = source.target_vocab_size or source.vocab_size
    if not TASKS[task].crosses:
        table = source.vocab_size * sum(dims)
    elif source.share_embeddings:
        table = max(source.vocab_size, target_vocab) * max(dims)
    else:
        table = source.vocab_size * encoder_dim + target_vocab * decoder_dim
    return Tally(table + positions + class_token)


def output_layer(settings: ModelSettings, task: TaskName, dim: int, tokens: int) -> Tally:
    """The classifier, or the product with the target embeddings, which adds no parameters."""
    if TASKS[task].classifies:
        return linear(1, dim, settings.num_classes or 0)
    assert not isinstance(settings.input, ImageInput)
    vocab = settings.input.vocab_size
    if TASKS[task].crosses:
        vocab = settings.input.target_vocab_size or vocab
    return Tally(products=tokens * dim * vocab)

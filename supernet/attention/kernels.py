"""The class of each attention operator, under the names of `search_spaces.attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from search_spaces.architecture import AttentionKind
from search_spaces.attention import Place, operator_of, window_of
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings
from supernet.attention.base import AttentionKernel
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.decay import DecayKernel
from supernet.attention.gated_delta import GatedDeltaKernel
from supernet.attention.linear import (
    CosformerKernel,
    EluKernel,
    HedgehogKernel,
    NormLinearKernel,
)
from supernet.attention.omni import LinformerKernel, PerformerKernel
from supernet.attention.softmax import SoftmaxKernel
from supernet.attention.window import WindowKernel


class KernelSizes(NamedTuple):
    """Largest sizes that a kernel is called with.

    Attributes:
        width: H * D of the layer's attention.
        span: states per position that the layer sees; 1 but for omni layers.
        embed_dim: width of the block's input.
        num_heads: heads.
        head_dim: width D of one head.
        window: positions that a windowed layer sees on a side.
    """

    width: int
    span: int
    embed_dim: int
    num_heads: int
    head_dim: int
    window: int


KERNELS: dict[str, Callable[[ModelSettings, KernelSizes], AttentionKernel]] = {
    "softmax": lambda settings, sizes: SoftmaxKernel(0, sizes.width),
    "relative": lambda settings, sizes: SoftmaxKernel(settings.relative_positions, sizes.width),
    "window": lambda settings, sizes: WindowKernel(sizes.window, settings.first_sees_all),
    "elu": lambda settings, sizes: EluKernel(),
    "hedgehog": lambda settings, sizes: HedgehogKernel(sizes.width, sizes.head_dim),
    "decay": lambda settings, sizes: DecayKernel(sizes.embed_dim, sizes.width, sizes.num_heads),
    "decay_channel": lambda settings, sizes: DecayKernel(
        sizes.embed_dim, sizes.width, sizes.num_heads, per_channel=True
    ),
    "gated_delta": lambda settings, sizes: GatedDeltaKernel(
        sizes.embed_dim, sizes.width, sizes.num_heads, sizes.head_dim
    ),
    "cosformer": lambda settings, sizes: CosformerKernel(settings.max_length),
    "norm": lambda settings, sizes: NormLinearKernel(sizes.width),
    "performer": lambda settings, sizes: PerformerKernel(),
    "linformer": lambda settings, sizes: LinformerKernel(
        settings.linformer_rank, settings.max_length, sizes.span
    ),
    "bigbird": lambda settings, sizes: BigBirdKernel(settings.bigbird_block, settings.max_length),
}


def build_kernel(
    kind: AttentionKind,
    settings: ModelSettings,
    width: int,
    span: int,
    place: Place = "encoder",
    embed_dim: int = 0,
    num_heads: int = 0,
    head_dim: int = 0,
) -> AttentionKernel:
    """The kernel of one layer.

    Args:
        kind: the layer's attention kind, with its variant.
        settings: the space's settings; they say which kernel is meant by a kind without one.
        width: largest width H * D of the layer's attention.
        span: most states per position that the layer sees; 1 but for omni layers.
        place: see `operator_of`.
        embed_dim: largest width of the block's input, for kernels that read it.
        num_heads: most heads, for kernels that have parameters of each.
        head_dim: widest head, likewise.

    Raises:
        ArchitectureError: for an unknown kind.
        UsageError: for an operator that cannot stand in a decoder, there.
    """
    operator = operator_of(settings, kind, place)
    if place != "encoder" and not operator.causal:
        raise UsageError(
            f"{kind}_kernel {operator.name!r} cannot stand in a decoder: it mixes positions before "
            f"it attends; choose another one, or leave {kind!r} to the encoder"
        )
    if place == "cross" and not operator.crosses:
        raise UsageError(
            f"attention of the kind {kind!r} cannot stand between an encoder and a decoder: it "
            "goes along one sequence; choose another kind there"
        )
    sizes = KernelSizes(width, span, embed_dim, num_heads, head_dim, window_of(settings, kind))
    return KERNELS[operator.name](settings, sizes)

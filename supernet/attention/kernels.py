"""The class of each attention operator, under the names of `search_spaces.attention`."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.architecture import AttentionKind
from search_spaces.attention import Place, operator_of
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings
from supernet.attention.base import AttentionKernel
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.linear import CosformerKernel, NormLinearKernel
from supernet.attention.omni import LinformerKernel, PerformerKernel
from supernet.attention.softmax import SoftmaxKernel

# Operator → its kernel for settings, a largest width H * D and the most states of a position.
KERNELS: dict[str, Callable[[ModelSettings, int, int], AttentionKernel]] = {
    "softmax": lambda settings, max_dim, span: SoftmaxKernel(0, max_dim),
    "relative": lambda settings, max_dim, span: SoftmaxKernel(settings.relative_positions, max_dim),
    "cosformer": lambda settings, max_dim, span: CosformerKernel(settings.max_length),
    "norm": lambda settings, max_dim, span: NormLinearKernel(max_dim),
    "performer": lambda settings, max_dim, span: PerformerKernel(),
    "linformer": lambda settings, max_dim, span: LinformerKernel(
        settings.linformer_rank, settings.max_length, span
    ),
    "bigbird": lambda settings, max_dim, span: BigBirdKernel(
        settings.bigbird_block, settings.max_length
    ),
}


def build_kernel(
    kind: AttentionKind,
    settings: ModelSettings,
    max_dim: int,
    span: int,
    place: Place = "encoder",
) -> AttentionKernel:
    """The kernel of one layer.

    Args:
        kind: the layer's attention kind.
        settings: the space's settings; they say which linear and which omni kernel is meant.
        max_dim: largest width H * D of the layer's attention.
        span: most states per position that the layer sees; 1 but for omni layers.
        place: see `operator_of`.

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
    return KERNELS[operator.name](settings, max_dim, span)

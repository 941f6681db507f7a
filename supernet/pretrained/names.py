"""Which tensors of a checkpoint and parameters of our networks belong together, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.architecture import Architecture, AttentionKind
from search_spaces.settings import ModelSettings
from supernet.blocks import projections_of


@dataclass(frozen=True, slots=True)
class NamePair:
    """One tensor of theirs and the parameters of ours that it holds.

    Attributes:
        theirs: name in the checkpoint.
        ours: names in a stand-alone network; several lie behind each other along the outputs;
            how long each is comes from the network.
        transposed: whether theirs is ``(in, out)``, as in GPT-2's convolutions, where ours is
            ``(out, in)``.
        leading: dimensions of size 1 that theirs has before ours.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    leading: int = 0

    def their_shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of their tensor, from those of our parameters."""
        first, *rest = (shapes[name] for name in self.ours)
        joined = (first[0] + sum(shape[0] for shape in rest), *first[1:])
        turned = joined[::-1] if self.transposed else joined
        return (1,) * self.leading + turned

    def to_ours(
        self, tensor: Tensor, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Our parameters, each contiguous and with memory of its own."""
        whole = tensor.reshape(tensor.shape[self.leading :])
        whole = whole.t() if self.transposed else whole
        parts = whole.split([shapes[name][0] for name in self.ours])
        for name, part in zip(self.ours, parts, strict=True):
            yield name, part.clone(memory_format=torch.contiguous_format)

    def to_theirs(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Their tensor."""
        whole = torch.cat([parameters[name] for name in self.ours])
        whole = whole.t() if self.transposed else whole
        return whole.reshape((1,) * self.leading + tuple(whole.shape)).contiguous()


def linear_pairs(
    theirs: str, ours: str, bias: bool, transposed: bool = False
) -> Iterator[NamePair]:
    """A linear layer or a norm: its weight, and its bias where there is one."""
    yield NamePair(f"{theirs}.weight", (f"{ours}.weight",), transposed)
    if bias:
        yield NamePair(f"{theirs}.bias", (f"{ours}.bias",))


def layer_kinds(architecture: Architecture) -> list[AttentionKind]:
    """The kind of self-attention of each layer of the only stack."""
    if architecture.decoder is not None:
        return [layer.self_attention for layer in architecture.decoder.layers]
    assert architecture.encoder is not None
    return [layer.attention for layer in architecture.encoder.layers]


def projections_name(settings: ModelSettings, kind: AttentionKind) -> str:
    """``projections.shared``, or with weights of its own ``projections.softmax``."""
    return f"projections.{'shared' if settings.share_attention_weights else projections_of(kind)}"

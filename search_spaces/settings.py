"""What all networks of one space share: input, norm placement, widths, attention kernels.

These are fixed by the space file, not searched; a model is built from `ModelSettings` plus an
`Architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LinearKernel = Literal["cosformer", "norm"]
OmniKernel = Literal["performer", "linformer", "bigbird", "full"]
Positions = Literal["none", "sinusoidal", "learned"]


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Square images, cut into patches by a strided convolution.

    Attributes:
        image_size: height and width in pixels; a multiple of `patch_size`.
        patch_size: side of a patch in pixels (kernel and stride of the convolution).
        channels: colour channels.
    """

    image_size: int
    patch_size: int
    channels: int

    @property
    def num_tokens(self) -> int:
        """Patches per image."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Sequences of token numbers; 0 is padding.

    Attributes:
        vocab_size: source (or only) vocabulary, padding included.
        target_vocab_size: the decoder's vocabulary; None where there is only one.
        share_embeddings: translation only: one table for source, target and output layer.
    """

    vocab_size: int
    target_vocab_size: int | None = None
    share_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The fixed part of every network of a space.

    Attributes:
        input: images or tokens.
        max_length: longest sequence in tokens, class token included; cosFormer's constant M.
        num_classes: classification only; None elsewhere.
        head_dim: width of one head, so that a layer's attention is ``head_dim * heads`` wide.
        qkv_dim: fixed width of queries, keys and values; a head is ``qkv_dim / heads`` wide.
            Exactly one of `head_dim` and `qkv_dim` is given.
        norm: layer norm before each block (with a last norm at the end), or after it.
        activation: of the feed-forward network.
        positions: absolute position information added to the embeddings.
        relative_positions: largest distance of Shaw's relative keys in softmax layers; 0 is off.
            One table of ``2 * distance + 1`` rows by the attention's width in each layer.
        class_token: a learned token before the patches or tokens (classification).
        pooling: what the classifier reads: the class token, or the mean over the other tokens.
        linear_kernel: what a layer of kind ``linear`` computes.
        omni_kernel: what a layer of kind ``omni`` computes over the layers below it.
        omni_span: the most layer outputs an omni layer looks at.
        linformer_rank: k of the linformer kernel.
        bigbird_block: positions per block of the bigbird kernel.
        share_attention_weights: in the supernet, one set of projections for all attention kinds
            of a layer, or one set for each. No difference to a stand-alone network.
    """

    input: ImageInput | TokenInput
    max_length: int
    num_classes: int | None = None
    head_dim: int | None = None
    qkv_dim: int | None = None
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu"] = "relu"
    positions: Positions = "learned"
    relative_positions: int = 0
    class_token: bool = False
    pooling: Literal["class", "mean"] = "mean"
    linear_kernel: LinearKernel = "cosformer"
    omni_kernel: OmniKernel = "performer"
    omni_span: int = 4
    linformer_rank: int = 32
    bigbird_block: int = 64
    share_attention_weights: bool = True

    def attention_dim(self, num_heads: int) -> int:
        """Width of queries, keys and values for that number of heads."""
        if self.qkv_dim is not None:
            return self.qkv_dim
        assert self.head_dim is not None
        return self.head_dim * num_heads

    def memory_problem(self) -> str | None:
        """Why these networks cannot have a memory of earlier segments; None when they can.

        Positions that are added to embeddings start anew with each segment, so a remembered key
        would seem to stand at a place of the present segment.
        """
        if self.positions == "none" and self.relative_positions > 0:
            return None
        return (
            "a memory of earlier segments needs relative_positions > 0 and positions = 'none', "
            f"because distances survive from one segment to the next and places do not; given "
            f"relative_positions = {self.relative_positions} and positions = {self.positions!r}"
        )

    def problem(self) -> str | None:
        """What makes these settings contradictory, in one sentence; None when they are fine."""
        image = isinstance(self.input, ImageInput)
        if (self.head_dim is None) == (self.qkv_dim is None):
            return "give exactly one of head_dim and qkv_dim"
        if isinstance(self.input, ImageInput):
            if self.input.image_size % self.input.patch_size:
                return (
                    f"image_size {self.input.image_size} is not a multiple of "
                    f"patch_size {self.input.patch_size}"
                )
            needed = self.input.num_tokens + self.class_token
            if self.max_length < needed:
                return f"max_length {self.max_length} is less than the {needed} tokens of an image"
        if self.pooling == "class" and not self.class_token:
            return "pooling is 'class', but class_token is false"
        if image and self.num_classes is None:
            return "an image space needs num_classes"
        return None

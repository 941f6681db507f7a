"""What all networks of one space share: input, norm placement, widths, attention kernels.

These are fixed by the space file, not searched; a model is built from `ModelSettings` plus an
`Architecture`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

LinearKernel = Literal[
    "cosformer", "norm", "elu", "hedgehog", "decay", "decay_channel", "gated_delta"
]
OmniKernel = Literal["performer", "linformer", "bigbird", "full"]
Positions = Literal["none", "sinusoidal", "learned", "rotary"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


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
    """Sequences of token numbers.

    In translation and in encoders 0 is padding. In a language model it is a token like others, as
    vocabularies of checkpoints need it: there places tell what is padding, not numbers.

    Attributes:
        vocab_size: source (or only) vocabulary, padding included.
        target_vocab_size: the decoder's vocabulary; None where there is only one.
        share_embeddings: translation only: one table for source, target and output layer.
    """

    vocab_size: int
    target_vocab_size: int | None = None
    share_embeddings: bool = False


FIRST_FIELDS = frozenset(
    (
        "input",
        "max_length",
        "num_classes",
        "head_dim",
        "qkv_dim",
        "norm",
        "activation",
        "positions",
        "relative_positions",
        "class_token",
        "pooling",
        "linear_kernel",
        "omni_kernel",
        "omni_span",
        "linformer_rank",
        "bigbird_block",
        "share_attention_weights",
    )
)
"""Of 0.2, all of which digests and files name."""


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
        pooling: what the classifier reads, or an embedding is: the class token, the mean over the
            other tokens, or the first real token of a text that begins with one for it.
        linear_kernel: what a layer of kind ``linear`` computes.
        omni_kernel: what a layer of kind ``omni`` computes over the layers below it.
        omni_span: the most layer outputs an omni layer looks at.
        linformer_rank: k of the linformer kernel.
        bigbird_block: positions per block of the bigbird kernel.
        share_attention_weights: in the supernet, one set of projections for all attention kinds
            of a layer, or one set for each. No difference to a stand-alone network.
        norm_kind: layer norm, or root mean square norm (gain only, no mean taken off).
        norm_eps: what is added to the variance, or to the mean square.
        ffn_form: two linear layers, or three, the first of which gates the second's output:
            ``outer(activation(gate(x)) * inner(x))``.
        rotary_theta: base of the wave lengths of rotary positions.
        rotary_share: share of each head that rotary positions turn; the leading part.
        rotary_factor: what wave lengths are stretched by, from 1, so that a network that was
            trained on shorter texts reads longer ones.
        rotary_original_length: texts that it was trained on before, in tokens; 0 to stretch all
            waves alike, which Llama's configuration calls ``linear``. Otherwise (``llama3``) those
            that turn more often in such a text than `rotary_high_freq_factor` times stay as they
            are, those that turn less often than `rotary_low_freq_factor` times are stretched
            wholly, and those between in part.
        rotary_low_freq_factor: turns in such a text up to which a wave is stretched wholly.
        rotary_high_freq_factor: turns in such a text from which a wave stays as it is.
        qkv_bias: whether queries, keys and values have biases.
        output_bias: whether the projection behind attention has one.
        ffn_bias: whether the linear layers of the FFN have biases.
        qk_norm: a root mean square norm over each head of queries and of keys in self-attention.
        embedding_norm: a norm over the sum of embeddings and positions.
        token_types: rows of the table of token types, of which row 0 is added to every token; 0 is
            no table.
        tied_output: whether tokens are told by the embeddings; else by an output layer.
        scale_embeddings: whether token embeddings are multiplied by sqrt(embed_dim) where tokens
            are written.
        window: positions that a layer of kind ``window`` sees; 0 where each says so itself
            (``window:64``). In a decoder those up to the query's own, in an encoder so many on
            either side, and the query's own.
        unit_length: whether embeddings of texts are scaled to length 1.
        own_outputs: in the supernet, each number of heads and each size of an FFN below a layer's
            largest has an output layer of its own, in place of the leading part of the largest's.
            No difference to a stand-alone network.
        window_first: whether in an encoder the first real position is seen by all in layers of kind
            ``window``, and sees all; so it is with a class token in any case.
    """

    input: ImageInput | TokenInput
    max_length: int
    num_classes: int | None = None
    head_dim: int | None = None
    qkv_dim: int | None = None
    norm: Literal["pre", "post"] = "pre"
    activation: Activation = "relu"
    positions: Positions = "learned"
    relative_positions: int = 0
    class_token: bool = False
    pooling: Literal["class", "mean", "first"] = "mean"
    linear_kernel: LinearKernel = "cosformer"
    omni_kernel: OmniKernel = "performer"
    omni_span: int = 4
    linformer_rank: int = 32
    bigbird_block: int = 64
    share_attention_weights: bool = True
    norm_kind: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-5
    ffn_form: Literal["plain", "gated"] = "plain"
    rotary_theta: float = 10_000.0
    rotary_share: float = 1.0
    rotary_factor: float = 1.0
    rotary_original_length: int = 0
    rotary_low_freq_factor: float = 1.0
    rotary_high_freq_factor: float = 4.0
    qkv_bias: bool = True
    output_bias: bool = True
    ffn_bias: bool = True
    qk_norm: bool = False
    embedding_norm: bool = False
    token_types: int = 0
    tied_output: bool = True
    scale_embeddings: bool = True
    window: int = 0
    unit_length: bool = False
    own_outputs: bool = False
    window_first: bool = False

    def stated(self) -> dict[str, Any]:
        """The fields, without those added since 0.2 that have their default.

        Digests and files of older spaces stay what they were.
        """
        return {
            field.name: value
            for field, value in zip(fields(self), asdict(self).values(), strict=True)
            if field.name in FIRST_FIELDS or value != field.default
        }

    @property
    def first_sees_all(self) -> bool:
        """Whether windows of an encoder see the first real position, and it sees all."""
        return self.class_token or self.window_first

    def head_width(self, num_heads: int) -> int:
        """Width of one of so many heads."""
        return self.attention_dim(num_heads) // num_heads

    def key_dim(self, num_heads: int, num_kv_heads: int | None) -> int:
        """Width of keys, and of values, over their heads; None is as many as queries have."""
        return self.head_width(num_heads) * (num_kv_heads or num_heads)

    def rotary_dim(self, head_dim: int) -> int:
        """Leading features of a head that rotary positions turn: an even number."""
        return int(head_dim * self.rotary_share) // 2 * 2 if self.positions == "rotary" else 0

    def rotary_problem(self, num_heads: int) -> str | None:
        """Why rotary positions turn nothing of so many heads; None where they do, or are not."""
        width = self.head_width(num_heads)
        if self.positions != "rotary" or self.rotary_dim(width):
            return None
        if width < 2:
            return "rotary positions turn pairs of features, and a head has one: make heads wider"
        return (
            f"a rotary_share of {self.rotary_share:g} turns no pair of the {width} features of a "
            f"head, so that there would be no positions; set rotary_share to "
            f"{math.ceil(2000 / width) / 1000:g} or more, or make heads wider"
        )

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
        if self.pooling == "first" and (image or self.class_token):
            return "pooling is 'first', which is for texts without a class token: write 'class'"
        if image and self.num_classes is None:
            return "an image space needs num_classes"
        return self._number_problem()

    def _number_problem(self) -> str | None:
        if not 0 < self.norm_eps < 1:
            return f"norm_eps is between 0 and 1, for example 1e-5; given {self.norm_eps}"
        if not 1 < self.rotary_theta < math.inf:
            return (
                "rotary_theta is a finite number above 1, for example 10000.0; given "
                f"{self.rotary_theta}"
            )
        if not 0 < self.rotary_share <= 1:
            return f"rotary_share is more than 0 and at most 1; given {self.rotary_share}"
        if self.positions == "rotary" and self.relative_positions:
            return "positions = 'rotary' and relative_positions tell distances twice: leave one out"
        return self._stretch_problem()

    def _stretch_problem(self) -> str | None:
        low, high = self.rotary_low_freq_factor, self.rotary_high_freq_factor
        if not 1 <= self.rotary_factor < math.inf:
            return (
                "rotary_factor stretches wave lengths, so that it is a finite number from 1 on; "
                f"given {self.rotary_factor}"
            )
        if not 0 < low < high < math.inf:
            return (
                "rotary_low_freq_factor is more than 0 and rotary_high_freq_factor is finite and "
                f"more than that; given {low} and {high}"
            )
        return None


STYLES: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "norm": "pre",
        "norm_kind": "rms",
        "norm_eps": 1e-6,
        "positions": "rotary",
        "ffn_form": "gated",
        "activation": "silu",
        "qkv_bias": False,
        "output_bias": False,
        "ffn_bias": False,
        "tied_output": False,
        "scale_embeddings": False,
    },
    "gpt2": {
        "norm": "pre",
        "norm_eps": 1e-5,
        "positions": "learned",
        "activation": "gelu_tanh",
        "scale_embeddings": False,
    },
    "bert": {
        "norm": "post",
        "norm_eps": 1e-12,
        "positions": "learned",
        "activation": "gelu",
        "embedding_norm": True,
        "token_types": 2,
    },
    "vit": {
        "norm": "pre",
        "norm_eps": 1e-12,
        "positions": "learned",
        "activation": "gelu",
        "class_token": True,
        "pooling": "class",
    },
}
"""What ``style`` in a ``[model]`` table stands for; what the table gives itself comes first."""

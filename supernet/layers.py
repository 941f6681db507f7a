"""Elastic layers: a torch layer plus a prefix slice whose size comes in with the call.

Input sizes are read off the input; output sizes are arguments. Slices are views of the largest
layer's parameters, never copies, and nothing remembers a size between calls.

Shapes: B batch, N positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.compiler import is_dynamo_compiling
from torch.utils.checkpoint import checkpoint

from search_spaces.settings import Activation, ModelSettings
from supernet.attention.base import LOW_PRECISION, without_autocast
from supernet.slices import multiplied, prefix, rows, stacked, used

T = TypeVar("T")
CPU_LEVELS = 1 << 16
"""Of the rates of dropout on a CPU."""


class ElasticLinear(nn.Linear):
    """A linear layer that can be used at any input and output width up to its own."""

    def __init__(self, max_in: int, max_out: int, bias: bool = True) -> None:
        super().__init__(max_in, max_out, bias)
        nn.init.xavier_uniform_(self.weight)
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, x_BND: Tensor, out_features: int) -> Tensor:  # type: ignore[override]
        """``(…, in)`` → ``(…, out_features)``."""
        weight = multiplied(self.weight, out_features, x_BND.shape[-1])
        bias = None if self.bias is None else multiplied(self.bias, out_features)
        return F.linear(x_BND, weight, bias)


def side_by_side(
    layers: Sequence[ElasticLinear], x_BND: Tensor, out_features: int
) -> Tensor | None:
    """What layers of one size make of one input, by a single product: ``(…, layers * out)``.

    None where their weights lie apart, see `stacked`.
    """
    weight = stacked([layer.weight for layer in layers], out_features, x_BND.shape[-1])
    if weight is None:
        return None
    biased = layers[0].bias is not None
    bias = stacked([layer.bias for layer in layers], out_features) if biased else None
    return F.linear(x_BND, weight, bias)


class ElasticLayerNorm(nn.LayerNorm):
    """Layer norm over however many features come in."""

    def forward(self, x_BND: Tensor) -> Tensor:
        """``(…, D)`` → ``(…, D)``, statistics over the D features that are there."""
        width = x_BND.shape[-1]
        if x_BND.dtype in (torch.bfloat16, torch.float16):
            # Statistics are those of fp32 all the same; autocast would raise the result, too.
            weight, bias = multiplied(self.weight, width), multiplied(self.bias, width)
            weight, bias = weight.to(x_BND.dtype), bias.to(x_BND.dtype)
            with without_autocast(x_BND.device):
                return F.layer_norm(x_BND, (width,), weight, bias, self.eps)
        weight, bias = used(self.weight, width), used(self.bias, width)
        return F.layer_norm(x_BND, (width,), weight, bias, self.eps)


class ElasticRMSNorm(nn.Module):
    """Division by the root mean square of however many features come in, and a gain.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4. As in
    Llama the square is taken in fp32, and the gain is multiplied in the precision of the input.
    """

    def __init__(self, max_dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(max_dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``(…, D)`` → ``(…, D)``, the mean over the D features that are there."""
        width = x.shape[-1]
        if x.dtype in (torch.bfloat16, torch.float16):
            # Not of one call: its gain would be multiplied before the result is rounded.
            normed = F.rms_norm(x.float(), (width,), eps=self.eps).to(x.dtype)
            return normed * used(self.weight, width).to(x.dtype)
        return F.rms_norm(x, (width,), used(self.weight, width), self.eps)


def build_norm(settings: ModelSettings, max_dim: int) -> ElasticLayerNorm | ElasticRMSNorm:
    """The norm of a space's networks, for up to `max_dim` features."""
    if settings.norm_kind == "rms":
        return ElasticRMSNorm(max_dim, settings.norm_eps)
    return ElasticLayerNorm(max_dim, settings.norm_eps)


class ElasticEmbedding(nn.Embedding):
    """Token embeddings of any width up to the table's; token 0 is padding."""

    def __init__(self, vocab_size: int, max_dim: int) -> None:
        super().__init__(vocab_size, max_dim)
        nn.init.normal_(self.weight, std=max_dim**-0.5)

    def forward(self, tokens_BN: Tensor, embed_dim: int) -> Tensor:  # type: ignore[override]
        """Token numbers ``(B, N)`` → ``(B, N, embed_dim)``."""
        return rows(self.weight, tokens_BN, embed_dim)


class EmbeddingExtras(nn.Module):
    """What comes on top of embeddings and positions: a token type, and a norm of the sum.

    Source: Devlin et al., BERT (2019), figure 2. All tokens are of type 0; a table has the other
    rows for weights that come from elsewhere.
    """

    def __init__(self, settings: ModelSettings, max_dim: int) -> None:
        super().__init__()
        self.types: nn.Parameter | None = None
        if settings.token_types:
            self.types = nn.Parameter(torch.randn(settings.token_types, max_dim) * 0.02)
        self.norm = build_norm(settings, max_dim) if settings.embedding_norm else None

    def forward(self, x_BND: Tensor) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``."""
        if self.types is not None:
            x_BND = x_BND + prefix(self.types[0], x_BND.shape[-1])
        return x_BND if self.norm is None else self.norm(x_BND)


class ElasticPatchEmbedding(nn.Conv2d):
    """Cuts images into patches: a convolution whose kernel is its stride."""

    def __init__(self, channels: int, max_dim: int, patch_size: int) -> None:
        super().__init__(channels, max_dim, kernel_size=patch_size, stride=patch_size)
        nn.init.xavier_uniform_(self.weight.view(max_dim, -1))
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, images_BCHW: Tensor, embed_dim: int) -> Tensor:  # type: ignore[override]
        """Images ``(B, C, H, W)`` → patches ``(B, N, embed_dim)``, row by row."""
        assert self.bias is not None
        weight = multiplied(self.weight, embed_dim, *self.weight.shape[1:])
        bias = multiplied(self.bias, embed_dim)
        return F.conv2d(images_BCHW, weight, bias, self.stride).flatten(2).transpose(1, 2)


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class ElasticFeedForward(nn.Module):
    """Two linear layers with an activation between, any inner size up to its own.

    Inner sizes of `own_outputs` have a second layer of their own (`ModelSettings.own_outputs`).

    With ``ffn_form = "gated"`` a third one gates: ``outer(activation(gate(x)) * inner(x))``.

    Source of the gated form: Shazeer, GLU Variants Improve Transformer (2020), equation 6.
    """

    def __init__(
        self,
        settings: ModelSettings,
        max_dim: int,
        max_ffn_dim: int,
        dropout: float,
        own_outputs: Sequence[int] = (),
    ) -> None:
        super().__init__()
        bias = settings.ffn_bias
        self.gate: ElasticLinear | None = None
        if settings.ffn_form == "gated":
            self.gate = ElasticLinear(max_dim, max_ffn_dim, bias)
        self.inner = ElasticLinear(max_dim, max_ffn_dim, bias)
        self.outer = ElasticLinear(max_ffn_dim, max_dim, bias)
        self.outers = nn.ModuleDict({str(n): ElasticLinear(n, max_dim, bias) for n in own_outputs})
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = ScaledDropout(dropout, max_ffn_dim)

    def forward(self, x_BND: Tensor, ffn_dim: int) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)`` through `ffn_dim` hidden units."""
        if (done_BND := self._relu_in_one(x_BND, ffn_dim)) is not None:
            return done_BND
        hidden = self.inner(x_BND, ffn_dim)
        if self.gate is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self.gate(x_BND, ffn_dim)) * hidden
        outer = own_output(self.outer, self.outers, ffn_dim)
        return outer(self.dropout(hidden), x_BND.shape[-1])  # type: ignore[no-any-return]

    def _relu_in_one(self, x_BND: Tensor, ffn_dim: int) -> Tensor | None:
        """As `forward`, by `ReluFeedForward`, for a gradient in less than fp32; or None."""
        plain = self.activation is F.relu and self.gate is None and self.inner.bias is not None
        low = x_BND.dtype in LOW_PRECISION and not is_dynamo_compiling()
        if not plain or not low or not torch.is_grad_enabled():
            return None
        width, outer = x_BND.shape[-1], own_output(self.outer, self.outers, ffn_dim)
        inner_FD = multiplied(self.inner.weight, ffn_dim, width)
        if inner_FD.dtype != x_BND.dtype:  # it is cast where it is multiplied
            return None
        done: Tensor = ReluFeedForward.apply(  # type: ignore[no-untyped-call]
            x_BND,
            inner_FD,
            multiplied(self.inner.bias, ffn_dim),
            multiplied(outer.weight, width, ffn_dim),
            multiplied(outer.bias, width),
            self.dropout.rate_of(ffn_dim),
        )
        return done


class ReluFeedForward(torch.autograd.Function):
    """Two linear layers with ReLU and dropout between, in fewer operations than one by one.

    ReLU comes with the first product. What it and dropout let pass is where their result is above
    0, so that neither keeps anything for the gradient, and both are one step of it.

    Shapes: P all positions of a batch, F hidden units.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BND: Tensor,
        inner_FD: Tensor,
        inner_F: Tensor,
        outer_DF: Tensor,
        outer_D: Tensor,
        rate: float,
    ) -> Tensor:
        """``(B, N, D)`` → ``(B, N, D)``; weights and biases of the layers, and dropout's rate."""
        x_PD = x_BND.flatten(0, 1)
        hidden_PF = torch._addmm_activation(inner_F, x_PD, inner_FD.t())
        hidden_PF = dropout(hidden_PF, rate) if rate else hidden_PF
        ctx.save_for_backward(x_PD, inner_FD, outer_DF, hidden_PF)
        ctx.scale = dropout_scale(rate, x_BND.device)
        return torch.addmm(outer_D, hidden_PF, outer_DF.t()).view_as(x_BND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BND: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by input, weights and biases."""
        x_PD, inner_FD, outer_DF, hidden_PF = ctx.saved_tensors
        grad_PD = grad_BND.flatten(0, 1)
        by_hidden_PF = torch.empty_like(hidden_PF)
        torch.addmm(by_hidden_PF, grad_PD, outer_DF, beta=0, alpha=ctx.scale, out=by_hidden_PF)
        by_hidden_PF = torch.ops.aten.threshold_backward(by_hidden_PF, hidden_PF, 0)
        return (
            (by_hidden_PF @ inner_FD).view_as(grad_BND),
            by_hidden_PF.t() @ x_PD,
            by_hidden_PF.sum(dim=0),
            grad_PD.t() @ hidden_PF,
            grad_PD.sum(dim=0),
            None,
        )


def own_output(largest: ElasticLinear, own: nn.ModuleDict, size: int) -> ElasticLinear:
    """The output layer of a size: its own, or the largest's, whose leading part it then uses."""
    # Asked of the table first: the size of a traced graph is no number yet.
    found = own[str(size)] if len(own) and str(size) in own else largest
    assert isinstance(found, ElasticLinear)
    return found


def recomputed(step: Callable[[], T]) -> T:
    """What a step of the network gives, of whose inside nothing is kept for the gradients.

    It is computed once more when they are; dropout draws the same numbers then. On a card that is
    in a thread of autograd's, which gets what this one knows of `slices` and `shared`.
    """
    known = copy_context()
    result: T = checkpoint(lambda: known.run(step), use_reentrant=False)
    return result


class ScaledDropout(nn.Module):
    """Dropout whose rate shrinks with the width, so that narrow networks are not starved.

    Source: HAT's training code scales the rate by width / largest width; the same here.
    """

    def __init__(self, rate: float, max_width: int) -> None:
        super().__init__()
        self.rate = rate
        self.max_width = max_width

    def forward(self, x: Tensor) -> Tensor:
        """The input, with a share ``rate * width / max_width`` of it zeroed while training."""
        rate = self.rate_of(x.shape[-1])
        return dropout(x, rate) if rate else x

    def rate_of(self, width: int) -> float:
        """The share that is zeroed at a width; 0 unless training."""
        return self.rate * width / self.max_width if self.training else 0.0


def dropout(x: Tensor, rate: float) -> Tensor:
    """The input with a share `rate` of its elements zeroed, and the others scaled up for it.

    On a CPU one random number serves four elements, 16 bits each, for the generator is what
    torch's own spends its time on; the rate is then rounded to 1/65,536.

    Args:
        x: any shape.
        rate: at least 0, less than 1.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped = round(rate * CPU_LEVELS)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    draws = words.view(torch.int16)[: x.numel()].view(x.shape)
    kept = (draws >= dropped - CPU_LEVELS // 2).to(x.dtype)
    return x * kept.mul_(dropout_scale(rate, x.device))


def dropout_scale(rate: float, device: torch.device) -> float:
    """What `dropout` multiplies the elements by that it leaves."""
    if device.type != "cpu":
        return 1.0 / (1.0 - rate)
    return CPU_LEVELS / (CPU_LEVELS - round(rate * CPU_LEVELS))


def sinusoidal_positions(
    num_positions: int, dim: int, device: torch.device, start: int = 0
) -> Tensor:
    """Fixed sines and cosines of the positions from `start` on, ``(num_positions, dim)``.

    Source: Attention Is All You Need, section 3.5; sine and cosine alternate as printed there.
    """
    end = start + num_positions
    return sinusoids(torch.arange(start, end, device=device, dtype=torch.float32), dim)


def sinusoids(positions_N: Tensor, dim: int) -> Tensor:
    """`sinusoidal_positions` of any positions, ``(N, dim)``."""
    pair = torch.arange((dim + 1) // 2, device=positions_N.device, dtype=torch.float32)
    rate = torch.exp(pair * (-2.0 * math.log(10_000.0) / dim))
    angle = positions_N.to(torch.float32)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)[:, :dim]

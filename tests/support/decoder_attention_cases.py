"""Every kernel that can stand in a decoder, with its causal twin and its twin across sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from search_spaces.architecture import AttentionKind
from search_spaces.settings import ModelSettings
from supernet.attention import AttentionKernel, build_kernel
from supernet.attention.base import State
from supernet.attention.kernels import Place
from tests.supernet.attention.test_contract import MAX_LENGTH, SETTINGS, Attention
from tests.support import naive_attention as naive

Twin = Callable[..., Tensor]  # (kernel, q, k, v, mask, span, seen=…, positions=…)


@dataclass(frozen=True)
class DecoderCase:
    """One kernel under one setting, with its twin."""

    name: str
    kind: AttentionKind
    settings: ModelSettings
    span: int
    twin: Twin

    def build(
        self, dim: int = 8, dtype: torch.dtype = torch.float64, place: Place = "decoder"
    ) -> AttentionKernel:
        """A kernel whose parameters are random, and the same numbers in every precision."""
        kernel = build_kernel(self.kind, self.settings, dim, self.span, place)
        generator = torch.Generator().manual_seed(7)
        for parameter in kernel.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        return kernel.to(dtype)


def _softmax(m: AttentionKernel, *qkvm: Tensor, seen: naive.Seen, **_: object) -> Tensor:
    q, k, v, mask, span = qkvm
    return naive.softmax(q, k, v, mask, m.relative_keys_CW, seen, int(span))  # type: ignore[arg-type]


def _cosformer(_: AttentionKernel, *qkvm: Tensor, seen: naive.Seen, positions: object) -> Tensor:
    q, k, v, mask, span = qkvm
    return naive.cosformer(q, k, v, mask, MAX_LENGTH, int(span), seen, positions)  # type: ignore[arg-type]


def _norm(m: AttentionKernel, *qkvm: Tensor, seen: naive.Seen, **_: object) -> Tensor:
    q, k, v, mask, _span = qkvm
    return naive.norm_linear(q, k, v, mask, m.gain_W, seen)  # type: ignore[arg-type]


def _performer(_: AttentionKernel, *qkvm: Tensor, seen: naive.Seen, **__: object) -> Tensor:
    q, k, v, mask, _span = qkvm
    return naive.performer(q, k, v, mask, seen)


def _bigbird(m: AttentionKernel, *qkvm: Tensor, seen: naive.Seen, positions: object) -> Tensor:
    q, k, v, mask, span = qkvm
    return naive.bigbird(q, k, v, mask, m.priority, 2, int(span), seen, positions)  # type: ignore[arg-type]


def _cases() -> list[DecoderCase]:
    cases = [
        DecoderCase("softmax", "softmax", SETTINGS, 1, _softmax),
        DecoderCase("relative", "softmax", replace(SETTINGS, relative_positions=3), 1, _softmax),
        DecoderCase("cosformer", "linear", SETTINGS, 1, _cosformer),
        DecoderCase("norm", "linear", replace(SETTINGS, linear_kernel="norm"), 1, _norm),
    ]
    cases += [replace(case, name=f"{case.name}-3", span=3) for case in cases[2:]]
    twins: dict[str, Twin] = {"full": _softmax, "performer": _performer, "bigbird": _bigbird}
    for kernel, twin in twins.items():
        settings = replace(SETTINGS, omni_kernel=kernel)  # type: ignore[arg-type]
        cases += [DecoderCase(f"{kernel}-{p}", "omni", settings, p, twin) for p in (1, 3)]
    return cases


DECODER_CASES = _cases()
CROSS_CASES = [case for case in DECODER_CASES if case.name != "relative"]


def whole(kernel: AttentionKernel, mask: Tensor | None, span: int) -> Attention:
    """Causal attention over a whole sequence at once."""
    return lambda q, k, v: kernel.causal(q, k, v, key_mask_BN=mask, span=span)[0]


def places(kernel: AttentionKernel, start: int, positions: int, span: int = 1) -> dict[str, Tensor]:
    """The positions of states from `start` on, for kernels that read them."""
    if not kernel.reads_positions:
        return {}
    return {"positions_1N": torch.arange(start, start + positions).repeat_interleave(span)[None]}


def in_pieces(
    kernel: AttentionKernel, sizes: Sequence[int], span: int, mask: Tensor | None = None
) -> Attention:
    """The same in several calls of so many positions each, carrying the state.

    Only the first piece is given its mask; there is no padding in the others.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state: State | None = None
        outputs, start = [], 0
        for size in sizes:
            piece = slice(start * span, (start + size) * span)
            parts = (x[:, :, piece] for x in (q, k, v))
            real = mask[:, piece] if mask is not None and start == 0 else None
            own = places(kernel, start, size, span)
            out, state = kernel.causal(*parts, key_mask_BN=real, span=span, state=state, **own)
            outputs.append(out)
            start += size
        return torch.cat(outputs, dim=2)

    return attention


def across(kernel: AttentionKernel, mask: Tensor | None, span: int, positions: Tensor) -> Attention:
    """Attention of queries at these positions to the memory of another sequence."""
    return lambda q, k, v: kernel.read(
        q, kernel.memory(k, v, key_mask_BM=mask, span=span), positions
    )

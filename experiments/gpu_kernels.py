"""Every causal attention operator on a card, up to 32,768 positions, forward and with gradients.

In bf16 autocast as in training, with as many sequences as make `TOKENS` positions, so that a card
is filled at every length. Beside ours stand torch's fused attention and the kernels of
flash-linear-attention, called as that package's own layers call them, in bf16 throughout.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from experiments.harness import note, table_of
from experiments.operator_speed import KINDS, cell
from search_spaces.settings import ModelSettings, TokenInput
from supernet.attention import build_kernel

TOKENS = 32_768
HEADS, HEAD_DIM = 16, 64
WIDTH = HEADS * HEAD_DIM
LENGTHS = (512, 2048, 8192, 32768)
ROUNDS = 9
SETTINGS = ModelSettings(input=TokenInput(vocab_size=16), max_length=TOKENS + 1, head_dim=HEAD_DIM)

Call = Callable[[], Tensor]
autocast = partial(torch.autocast, "cuda", torch.bfloat16)


@dataclass(frozen=True)
class KernelTime:
    """What one operator takes at one length.

    Attributes:
        operator: the kind with its variant, or whose kernel it is.
        length: positions of a sequence.
        forward_ms: median of `TOKENS` positions; None where it failed, which is said.
        both_ms: the same, gradients included.
    """

    operator: str
    length: int
    forward_ms: float | None
    both_ms: float | None


def kernel_times(lengths: Sequence[int] = LENGTHS, device: str = "cuda") -> list[KernelTime]:
    """Of all operators, length by length."""
    found = []
    for length in lengths:
        for name, call, leaves in _calls(length, device):
            found.append(_timed(name, length, call, leaves))
    return found


def _timed(name: str, length: int, call: Call, leaves: Sequence[Tensor]) -> KernelTime:
    try:
        with torch.no_grad():
            forward_ms = median_ms(call)
        return KernelTime(
            name, length, forward_ms, median_ms(partial(_with_gradients, call, leaves))
        )
    except RuntimeError as error:  # of memory, or of a kernel that does not take this length
        note(f"{name} at {length:,}: {str(error).splitlines()[0]}")
        return KernelTime(name, length, None, None)


def median_ms(call: Callable[[], object]) -> float:
    """Milliseconds between events on the card around a call."""
    times = []
    for _ in range(ROUNDS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times[2:]))


def _with_gradients(call: Call, leaves: Sequence[Tensor]) -> None:
    torch.autograd.grad(call().float().square().mean(), leaves)


def _calls(length: int, device: str) -> Iterator[tuple[str, Call, list[Tensor]]]:
    torch.manual_seed(0)
    batch = TOKENS // length

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16).requires_grad_()

    # As projections leave them: heads next to each other in memory.
    q, k, v = leaves = [made(batch, length, HEADS, HEAD_DIM) for _ in range(3)]
    x_BNE = made(batch, length, WIDTH)
    for kind in KINDS:
        kernel = build_kernel(kind, SETTINGS, WIDTH, 1, "decoder", WIDTH, HEADS, HEAD_DIM)
        kernel = kernel.to(device).eval()
        given = {"x_BND": x_BNE} if kernel.reads_input else {}
        yield kind, partial(_ours, kernel, leaves, given), leaves
    yield "torch: fused softmax", partial(_fused, q, k, v), leaves
    if importlib.util.find_spec("fla") is None:
        return
    gate = torch.rand(batch, length, HEADS, device=device).log().requires_grad_()
    beta = torch.rand(batch, length, HEADS, device=device, dtype=torch.bfloat16).requires_grad_()
    yield "fla: simple_gla", partial(_fla, "simple_gla", q, k, v, g=gate), leaves
    delta = partial(
        _fla, "gated_delta_rule", q, k, v, g=gate, beta=beta, use_qk_l2norm_in_kernel=True
    )
    yield "fla: gated_delta_rule", delta, leaves


def _ours(kernel: Any, leaves: Sequence[Tensor], given: dict[str, Tensor]) -> Tensor:
    with autocast():
        out: Tensor = kernel.causal(*(x.transpose(1, 2) for x in leaves), **given)[0]
    return out


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _fla(name: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    module = importlib.import_module(f"fla.ops.{name}")
    out: Tensor = getattr(module, f"chunk_{name}")(q, k, v, **options)[0]
    return out


def kernel_numbers() -> list[dict[str, Any]]:
    """As they are kept."""
    return [asdict(one) for one in kernel_times()]


def kernel_tables(numbers: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """Times by operator and length."""
    lengths = sorted({one["length"] for one in numbers})
    names = dict.fromkeys(one["operator"] for one in numbers)
    for key, title in (("forward_ms", "forward"), ("both_ms", "forward and backward")):
        cells = {(one["operator"], one["length"]): one[key] for one in numbers}
        yield table_of(
            f"Causal attention on the card, ms of {TOKENS:,} positions {title}: "
            f"{HEADS} heads of {HEAD_DIM}, bf16",
            ("operator", *(f"{length:,}" for length in lengths)),
            [(name, *(cell(cells.get((name, n))) for n in lengths)) for name in names],
        )

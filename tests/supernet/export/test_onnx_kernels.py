"""The kernels that go into graphs compute what the kernels do that networks are trained with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces.errors import UsageError
from supernet.attention.base import AttentionKernel, State
from supernet.attention.bigbird import BigBirdKernel
from supernet.attention.decay import DecayKernel
from supernet.attention.gated import GatedKernel
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
from supernet.export.onnx_kernels import traceable
from tests.supernet.attention.test_contract import at
from tests.support.decoder_attention_cases import places

HEADS, WIDTH, LONGEST, INPUT = 2, 4, 96, 6
MAKE: dict[str, Callable[[], AttentionKernel]] = {
    "softmax": lambda: SoftmaxKernel(0, HEADS * WIDTH),
    "relative keys": lambda: SoftmaxKernel(3, HEADS * WIDTH),
    "cosformer": lambda: CosformerKernel(LONGEST),
    "norm": lambda: NormLinearKernel(HEADS * WIDTH),
    "performer": PerformerKernel,
    "bigbird": lambda: BigBirdKernel(2, LONGEST),
    "bigbird, few blocks": lambda: BigBirdKernel(16, LONGEST),
    "linformer": lambda: LinformerKernel(5, LONGEST, 3),
    "window": lambda: WindowKernel(3),
    "window of one": lambda: WindowKernel(1),
    "window of all": lambda: WindowKernel(LONGEST),
    "window and class token": lambda: WindowKernel(5, global_first=True),
    "elu": EluKernel,
    "hedgehog": lambda: HedgehogKernel(HEADS * WIDTH, WIDTH),
    "decay": lambda: DecayKernel(INPUT, HEADS * WIDTH, HEADS),
    "decay_channel": lambda: DecayKernel(INPUT, HEADS * WIDTH, HEADS, per_channel=True),
    "gated delta": lambda: GatedDeltaKernel(INPUT, HEADS * WIDTH, HEADS, WIDTH),
}
DECODERS = [name for name in MAKE if name != "linformer"]
CROSSING = [name for name in DECODERS if not name.startswith(("window", "decay", "gated"))]
# Parts of 64 and more are chunks of the linear kernels; 40 positions more blocks than are seen.
CUTS = [(1,), (1, 1, 1), (40,), (39, 1), (20, 70), (7, 64, 2)]


def kernel_of(name: str) -> AttentionKernel:
    torch.manual_seed(0)
    kernel = MAKE[name]().double().eval()
    for parameter in kernel.parameters():
        nn.init.normal_(parameter, std=0.5)
    return kernel


def qkv(states: int, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shape = (3, HEADS, states, WIDTH)
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(3)]


def read_by(kernel: nn.Module, states: int) -> dict[str, Tensor]:
    """The layer's input, for kernels that read it."""
    if not isinstance(kernel, GatedKernel):
        return {}
    rng = torch.Generator().manual_seed(1)
    return {"x_BND": torch.randn(3, states, INPUT, generator=rng, dtype=torch.float64)}


def spans_of(kernel: nn.Module) -> tuple[int, ...]:
    """States at a position that a kernel takes."""
    return (1,) if isinstance(kernel, GatedKernel) else (1, 3)


def padding(states: int, span: int) -> Tensor:
    """Behind, in front, and everywhere."""
    positions = states // span
    mask = torch.ones(3, positions, dtype=torch.bool)
    mask[0, positions - positions // 3 :] = False
    mask[1, : positions // 2] = False
    mask[2] = positions == 1
    return mask.repeat_interleave(span, dim=1)


def empty(state: State) -> State:
    """The state of the same form before the first position."""
    keys = state[0].dim() == 4 and state[0].shape == state[-1].shape and len(state) == 2
    return tuple(part[:, :, :0] if keys else torch.zeros_like(part) for part in state)


@pytest.mark.parametrize("name", MAKE)
def test_whole_sequences(name: str) -> None:
    kernel = kernel_of(name)
    form = traceable(kernel)
    for span, positions in product(spans_of(kernel), (1, 5, 17, 40, 96)):
        parts, mask = qkv(positions * span), padding(positions * span, span)
        read = read_by(kernel, positions * span)
        expected = kernel(*parts, key_mask_BM=mask, span=span, **read)
        found = form(*parts, key_mask_BM=mask, span=span, **read)
        real = mask[:, None, :, None].expand_as(expected)
        with at(span, positions):
            torch.testing.assert_close(found[real], expected[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MAKE)
def test_whole_sequences_without_padding(name: str) -> None:
    kernel, parts = kernel_of(name), qkv(40)
    read = read_by(kernel, 40)
    expected = kernel(*parts, key_mask_BM=None, **read)
    torch.testing.assert_close(traceable(kernel)(*parts, key_mask_BM=None, **read), expected)


@pytest.mark.parametrize("name", DECODERS)
def test_texts_in_parts(name: str) -> None:
    kernel = kernel_of(name)
    form = traceable(kernel)
    for span, cuts in product(spans_of(kernel), CUTS):
        parts, read = qkv(sum(cuts) * span), read_by(kernel, sum(cuts) * span)
        expected, after = kernel.causal(*parts, span=span, **read)
        state, found, start = empty(after), [], 0
        for cut in cuts:
            new = [part[:, :, start * span : (start + cut) * span] for part in parts]
            own = {name: x[:, start : start + cut] for name, x in read.items()}
            own |= places(form, start, cut, span)
            out, state = form.causal(*new, span=span, state=state, **own)
            found.append(out)
            start += cut
        with at(span, cuts):
            torch.testing.assert_close(torch.cat(found, dim=2), expected, rtol=1e-9, atol=1e-9)
            for mine, theirs in zip(state, after, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", DECODERS)
def test_a_form_that_forgets_is_another_kernel(name: str) -> None:
    """What the test above would say to a state that is lost."""
    kernel, parts = kernel_of(name), qkv(12)
    read = read_by(kernel, 12)
    expected, after = kernel.causal(*parts, **read)
    last = [part[:, :, 11:] for part in parts]
    own = {name: x[:, 11:] for name, x in read.items()} | places(kernel, 11, 1)
    out, _ = traceable(kernel).causal(*last, state=empty(after), **own)
    forgets = not torch.allclose(out, expected[:, :, 11:], atol=1e-3)
    assert forgets != (name == "window of one")  # which has nothing to forget


@pytest.mark.parametrize("name", CROSSING)
def test_memories_are_the_kernels_own(name: str) -> None:
    kernel, (q, k, v) = kernel_of(name), qkv(15)
    mask, positions = padding(15, 1), torch.arange(15)[None]
    results: list[Any] = []
    for one in (kernel, traceable(kernel)):
        memory = one.memory(k, v, key_mask_BM=mask)
        results.append(one.read(q, memory, positions))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", MAKE)
def test_parameters_are_shared(name: str) -> None:
    kernel = kernel_of(name)
    mine = {id(parameter) for parameter in traceable(kernel).parameters()}
    assert mine == {id(parameter) for parameter in kernel.parameters()}


def test_a_kernel_without_a_form_is_named() -> None:
    with pytest.raises(UsageError, match="the attention kernel Identity has no form for ONNX"):
        traceable(nn.Identity())

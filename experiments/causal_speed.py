"""Causal linear attention against fused softmax attention: time and memory, forward and backward.

Shapes: B batch, H heads, N positions, D width of a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.speed_rows import Row
from supernet.attention.base import AttentionKernel
from supernet.attention.linear import CosformerKernel
from supernet.attention.softmax import SoftmaxKernel

MAX_SHARE = 0.25
MAX_EXPONENT = 1.05

WIDTH = 256  # of all heads together
HEAD_DIMS = (32, 64)
LENGTH = 4096
LENGTHS = (2048, 4096, 8192)
ROUNDS = 11


def causal_rows() -> list[Row]:
    """Time at 4,096 positions for two widths of a head, and how memory grows with the length."""
    return [*(_time_row(head_dim) for head_dim in HEAD_DIMS), *map(_memory_row, HEAD_DIMS)]


def forward_and_backward(
    kernel: AttentionKernel, length: int, head_dim: int, width: int = WIDTH
) -> Callable[[], list[Tensor]]:
    """A call of causal attention over random inputs, which returns their gradients."""
    torch.manual_seed(0)
    shape = (1, width // head_dim, length, head_dim)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    weights_BHND = torch.randn(shape)

    def call() -> list[Tensor]:
        out_BHND, _ = kernel.causal(*inputs)
        return list(torch.autograd.grad(out_BHND, inputs, weights_BHND))

    return call


def _kernels(head_dim: int, length: int) -> list[Callable[[], list[Tensor]]]:
    kernels = CosformerKernel(max(LENGTHS)), SoftmaxKernel(0, WIDTH)
    return [forward_and_backward(kernel, length, head_dim) for kernel in kernels]


def _time_row(head_dim: int) -> Row:
    calls, samples = _kernels(head_dim, LENGTH), []
    for number in range(ROUNDS + 1):
        ordered = calls if number % 2 else calls[::-1]
        seconds = {call: _seconds(call) for call in ordered}
        samples.append([seconds[call] for call in calls])
    times = np.array(samples[1:])  # the first round warms up
    share = float(np.median(times[:, 0] / times[:, 1]))
    linear, softmax = 1000 * np.median(times, axis=0)
    detail = f"{linear:.0f} and {softmax:.0f} ms at {LENGTH:,}, {ROUNDS} rounds"
    name = f"Causal linear / softmax, heads of {head_dim}"
    return Row(name, share, at_most=MAX_SHARE, detail=detail)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _memory_row(head_dim: int) -> Row:
    kernel = CosformerKernel(max(LENGTHS))
    peaks = [peak_bytes(forward_and_backward(kernel, n, head_dim)) for n in LENGTHS]
    exponent = float(np.polyfit(np.log(LENGTHS), np.log(peaks), 1)[0])
    at = ", ".join(
        f"{peak / 2**20:.0f} MiB at {n:,}" for n, peak in zip(LENGTHS, peaks, strict=True)
    )
    name = f"Memory's exponent of length, heads of {head_dim}"
    return Row(name, exponent, at_most=MAX_EXPONENT, detail=at)


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that a call holds at once, of those it allocates itself, workspaces included.

    Torch's profiler notes every allocation on the CPU; memory that was there before is not counted.
    """
    call()  # what is kept for good is allocated now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    events = sorted(trace.events(), key=lambda event: event.time_range.end)
    held = np.cumsum([event.self_cpu_memory_usage for event in events])
    return int(held.max())

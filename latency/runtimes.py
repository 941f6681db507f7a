"""A call as a server would run it: replayed as one CUDA graph, or compiled.

A network's operations are launched by the host one after the other. With small batches that takes
longer than the graphics card needs for them. A graph of CUDA holds them all, with the memory they
work in, and is launched at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from latency.timer import Call, in_precision, inference
from latency.workload import Dtype

T = TypeVar("T")
WARM_CALLS = 3  # libraries choose their kernels and set up work spaces in the first ones


@dataclass(frozen=True, eq=False)
class Replay:
    """A captured call.

    Attributes:
        graph: replayed by every call.
        result: of the capture, into whose memory every replay writes.
        kept: what the graph reads, which has to live as long.
    """

    graph: torch.cuda.CUDAGraph
    result: object
    kept: Sequence[object]

    def __call__(self) -> object:
        """Launch the graph; the result is there once the device has done it."""
        self.graph.replay()
        return self.result


def replayed(call: Call, device: str, dtype: Dtype) -> Replay:
    """Capture a call in a CUDA graph.

    Under autocast parameters are cast once, before the capture, as a server holds them; the timer's
    calls without a graph cast them anew each time, which inference mode keeps autocast from saving.

    Args:
        call: works on the same inputs every time, and reads nothing from the device.
        device: ``cuda`` or ``cuda:N``.
        dtype: as of `latency.timer.time_calls`.

    Raises:
        RuntimeError: for a call that cannot be captured.
    """
    with (
        torch.cuda.device(device),
        torch.inference_mode(False),
        torch.no_grad(),
        in_precision(device, dtype),
    ):
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            with CastParameters() as cast:
                call()
            for _ in range(WARM_CALLS - 1):
                call()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile, on streams of their own, does not matter.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = call()
    return Replay(graph, result, (call, cast.found))


def compiled(call: Call, device: str, dtype: Dtype) -> Call:
    """Compile a call as a whole, with torch's compiler and for the inputs it works on.

    Args:
        call: works on the same inputs every time.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: as of `latency.timer.time_calls`.

    Raises:
        RuntimeError: for a call that cannot be compiled.
    """

    def run() -> object:
        return call()

    # What was compiled is kept by code, and of one only for a few calls.
    run.__code__ = run.__code__.replace()
    ready: Call = torch.compile(run, dynamic=False, fullgraph=True)
    with inference(device, dtype):
        for _ in range(WARM_CALLS):
            ready()
    return ready


class CastParameters(TorchDispatchMode):
    """Notes what parameters are cast to while it is open.

    Autocast keeps that until it is left, and a graph needs it longer.

    Attributes:
        found: in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., T],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> T:
        """Run the operation and take note of it."""
        result = func(*args, **(kwargs or {}))
        casts = func is torch.ops.aten._to_copy.default
        if casts and isinstance(args[0], nn.Parameter) and isinstance(result, Tensor):
            self.found.append(result)
        return result

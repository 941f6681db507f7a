"""How much memory a call needs at most."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")
MEGABYTE = 1e6


def peak_memory_mb(make: Callable[[], Callable[[], object]], device: str) -> float:
    """The most memory in use while a call made by `make` runs, with all that it was made with.

    On CUDA this is what torch's allocator counts above what was in use before. On the CPU it is
    the bytes of all tensors alive at once: weights, inputs, results and everything in between,
    but no scratch memory inside a single operation. That is the same on every machine.

    Args:
        make: builds what is called, weights and inputs included, on the device.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        Megabytes (10^6 bytes), above 0.
    """
    if device == "cpu":
        live = LiveTensors()
        with torch.inference_mode(), live:
            call = make()
            live.start_peak()
            call()
        return live.peak_bytes / MEGABYTE
    before = torch.cuda.memory_allocated(device)
    with torch.inference_mode():
        call = make()
        call()  # libraries set up their work spaces in the first call
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
    return float(torch.cuda.max_memory_allocated(device) - before) / MEGABYTE


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of the tensors made while it is open, as long as they live.

    torch's own ``MemTracker`` sorts them by module and kind as well and needs the distributed
    package; the sum is all that is wanted here.

    Attributes:
        live_bytes: of all tensors made in here that are alive.
        peak_bytes: the largest value of `live_bytes` since `start_peak`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def start_peak(self) -> None:
        """Forget the peak so far."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(
        self,
        func: Callable[..., T],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> T:
        """Run the operation and take note of what it made."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self._note(result.untyped_storage())
        elif isinstance(result, list | tuple):
            for part in result:
                if isinstance(part, torch.Tensor):
                    self._note(part.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()

        def forget(_: Any) -> None:
            self._known.pop(key, None)
            self.live_bytes -= size

        self._known[key] = weakref.ref(storage, forget)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

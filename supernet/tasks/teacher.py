"""What a frozen network says of each token of a split, for others to be compared with.

It says the same every time. So its logits are kept on the disk, where reading them takes less time
than working them out again, and mapped into memory from then on. They are what the network said to
the last bit: what is kept changes no result.

Shapes: P predictions of a batch, C tokens of the vocabulary.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.files import room_for_copies

BYTES = 4  # of a logit, in fp32
READ_BYTES_PER_S = 1e9  # of a disk; what the system keeps in memory comes faster
WORKED_PER_S = {"cpu": 5e10}  # operations of a network
WORKED_ON_GPU_PER_S = 5e13
MOST_BYTES = 8 * 2**30

BatchT = TypeVar("BatchT")
Loaded = tuple[Any, Architecture]


class Teacher:
    """A frozen network whose outputs others are compared with.

    Args:
        load: gives the model and its network when they are first asked for.
        scratch: a folder, whose disk has room for logits; None to work them out each time.
    """

    def __init__(self, load: Callable[[], Loaded], scratch: Path | None) -> None:
        self._load = load
        self._loaded: Loaded | None = None
        self._scratch = scratch
        self._kept: list[tuple[Any, NDArray[np.float32]]] = []  # split, logits of all its batches

    def beside(
        self,
        split: Any,
        batches: Iterator[BatchT],
        says: Callable[[Any, BatchT, Architecture], Tensor],
        tokens: int,
        device: str,
        again: bool,
    ) -> Iterator[tuple[BatchT, Tensor]]:
        """Each batch of a split with what the network says of it.

        Args:
            split: that the batches are of; the same object has the same batches.
            batches: all of them.
            says: model, batch and network → logits ``(P, C)``.
            tokens: of the split, about.
            device: where to compute.
            again: whether the split will be asked for again, so that its logits are worth keeping.

        Yields:
            Batches and logits ``(P, C)``; those that were kept are on the CPU.
        """
        kept = next((logits for known, logits in self._kept if known is split), None)
        if kept is None:
            yield from self._first_time(split, batches, says, tokens if again else None, device)
            return
        position = 0
        for batch in batches:
            count = _predictions(batch)
            part = kept[position : position + count]
            yield batch, torch.from_numpy(part)
            position += count

    def _first_time(
        self,
        split: Any,
        batches: Iterator[BatchT],
        says: Callable[[Any, BatchT, Architecture], Tensor],
        tokens: int | None,
        device: str,
    ) -> Iterator[tuple[BatchT, Tensor]]:
        if self._loaded is None:
            self._loaded = self._load()
        model, network = self._loaded
        model.to(device).eval()
        parameters = sum(one.numel() for one in model.parameters())
        file: IO[bytes] | None = None
        count = width = 0
        with ExitStack() as opened:
            for batch in batches:
                logits_PC = says(model, batch, network)
                if count == 0 and self._is_kept(tokens, logits_PC, parameters):
                    file = opened.enter_context(tempfile.TemporaryFile(dir=self._scratch))
                if file is not None:
                    try:
                        logits_PC.detach().float().cpu().numpy().tofile(file)
                    except OSError:  # others have filled the disk: they are worked out each time
                        file.close()
                        file = None
                count, width = count + len(logits_PC), logits_PC.shape[1]
                yield batch, logits_PC
            if file is not None:  # it has no name, and is gone with the mapping
                file.flush()
                # A copy that is not written back: torch wants arrays that it could write to.
                mapped = np.memmap(file, np.float32, mode="c", shape=(count, width))
                self._kept.append((split, mapped))

    def _is_kept(self, tokens: int | None, logits_PC: Tensor, parameters: int) -> bool:
        if self._scratch is None or tokens is None:
            return False
        self._scratch.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._scratch).free
        return worth_keeping(
            tokens, logits_PC.shape[1], parameters, logits_PC.device.type, free_bytes=free
        )


def worth_keeping(
    tokens: int, vocabulary: int, parameters: int, device: str, free_bytes: int
) -> bool:
    """Whether reading a network's logits is cheaper than working them out, and there is room.

    A token's logits are four bytes for each token of the vocabulary, read at `READ_BYTES_PER_S`;
    working them out takes two operations for each parameter. This is arithmetic, and no
    measurement, for it has to be right within an order of magnitude only and decides no result.

    Args:
        tokens: of the split.
        vocabulary: logits of each.
        parameters: of the network.
        device: ``cpu`` or that of a graphics card.
        free_bytes: of the disk.
    """
    read_s = BYTES * vocabulary / READ_BYTES_PER_S
    worked_s = 2 * parameters / WORKED_PER_S.get(device, WORKED_ON_GPU_PER_S)
    room = room_for_copies(free_bytes, MOST_BYTES)
    return read_s < worked_s and BYTES * vocabulary * tokens <= room


def _predictions(batch: Any) -> int:
    return int(batch.targets.numel())

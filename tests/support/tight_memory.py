"""A graphics card that is too small, pretended on a CPU."""

from __future__ import annotations

from typing import Any

import torch

from search_spaces.architecture import Architecture
from supernet.training.loop import Trainer


def tighten(training: Trainer, rows: int) -> list[int]:
    """Have a training run out of memory with more rows of a batch at a time.

    It does so when a network has been computed, dropout included.

    Returns:
        The rows that were too many, as they come.
    """
    task: Any = training._task
    refused: list[int] = []

    def tight(name: str) -> Any:
        whole = getattr(task, name)

        def computed(model: Any, batch: Any, network: Architecture) -> Any:
            found = whole(model, batch, network)
            if model.training and len(batch) > rows:
                refused.append(len(batch))
                raise torch.cuda.OutOfMemoryError("2.00 GiB are wanted")
            return found

        return computed

    for name in ("predict", "states"):
        setattr(task, name, tight(name))
    return refused

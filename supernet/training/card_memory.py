"""The memory of a graphics card, and what is done where an update needs more than there is.

Torch's allocator has then given back all that it could spare. An update is done again in smaller
parts; where the smallest does not fit either, or what does not depend on the batches, a sentence
says so.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from search_spaces.errors import TooLargeError
from search_spaces.wording import mark
from supernet.tasks.base import Task
from supernet.training_costs import TrainingCosts
from supernet.training_settings import TrainingSettings

# torch 2.4 does not know it as torch.OutOfMemoryError.
OutOfMemoryError = torch.cuda.OutOfMemoryError

SMALL_CHUNK = 64
"""Tokens whose logits need little beside all else."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a training needs of a graphics card, asked for once it does not fit.

    Attributes:
        table: of its settings in a request: ``supernet`` or ``retrain``.
        costs: by arithmetic.
    """

    table: str
    costs: Callable[[], TrainingCosts]


def card_bytes(device: str) -> int | None:
    """Bytes of memory of a graphics card; None for another device."""
    if torch.device(device).type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).total_memory


def generator_states(device: str) -> list[Tensor]:
    """The states of the generators that dropout draws from."""
    states = [torch.get_rng_state()]
    if torch.device(device).type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def put_back(states: Sequence[Tensor], device: str) -> None:
    """Have dropout draw again what it drew behind `generator_states`."""
    own, *others = states
    torch.set_rng_state(own)
    for state in others:
        torch.cuda.set_rng_state(state, device)


def give_back() -> None:
    """Give back the memory of what nothing refers to any more."""
    gc.collect()
    torch.cuda.empty_cache()


def too_large(what: str, ways: Sequence[str], device: str, need: Need | None) -> TooLargeError:
    """The error of a training that does not fit, with what can be done.

    Args:
        what: does not fit, in a few words.
        ways: settings with which it needs less, such as ``recompute=true``.
        device: where.
        need: of the training, if anybody has counted it.
    """
    card = card_bytes(device)
    text = "the training does not fit into the memory of the graphics card"
    text += "" if card is None else f", {card / 1e9:.1f} GB"
    text += f": there is no room for {what}"
    if need is not None:
        costs = need.costs()
        text += (
            f"; by arithmetic it needs about {costs.memory_bytes / 1e9:.1f} GB with whole batches, "
            f"{costs.weight_bytes / 1e9:.1f} GB of them for weights, gradients and moments"
        )
    called = mark("settings")
    table = "" if need is None else f"{need.table}."
    less = " or ".join(f"{called} {table}{way}" for way in ways)
    asked = f"less ({less}), for smaller networks" if ways else "smaller networks"
    return TooLargeError(f"{text}; ask for {asked} or a larger card")


def example_ways(task: Task[Any, Any], settings: TrainingSettings) -> list[str]:
    """Settings with which an update keeps less of a single example."""
    ways = [] if settings.recompute else ["recompute=true"]
    if not task.one_each and not 0 < settings.loss_chunk <= SMALL_CHUNK:
        ways.append(f"loss_chunk={SMALL_CHUNK}")
    if task.cuts_texts:
        ways.append("segment_length=N")
    return ways


def step_ways(settings: TrainingSettings) -> list[str]:
    """Settings with which the step of the optimiser finds more room."""
    return ["ema_decay=0"] if settings.ema_decay else []

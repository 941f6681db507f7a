"""What trainings of a run need of a graphics card's memory, and how it is told."""

from __future__ import annotations

from nas.request.spec import SearchSpec
from search_spaces.architecture import Architecture
from search_spaces.costs import params
from search_spaces.space import SearchSpace
from supernet.building import supernet_params
from supernet.extraction import StandAlone
from supernet.pretrained.checkpoint import Checkpoint
from supernet.training.card_memory import Need, card_bytes
from supernet.training_costs import TrainingCosts, training_costs
from supernet.training_settings import TrainingSettings

TOO_MUCH = "batches that do not fit are done in parts, which takes longer"

TaughtBy = Checkpoint | StandAlone | None
"""The checkpoint that a search begins with, or its network."""


def supernet_need(
    space: SearchSpace, settings: TrainingSettings, gpus: int = 1, teacher: TaughtBy = None
) -> Need:
    """What training the supernet needs of each of so many cards."""
    own = None if teacher is None else teacher.architecture

    def costs() -> TrainingCosts:
        return training_costs(space, supernet_params(space), settings, gpus, teacher=own)

    return Need("supernet", costs)


def network_need(
    spec: SearchSpec,
    architecture: Architecture,
    settings: TrainingSettings,
    teacher: TaughtBy = None,
) -> Need:
    """What training a network of a request needs on its own."""
    own = None if teacher is None else teacher.architecture

    def costs() -> TrainingCosts:
        count = params(spec.space.model, spec.space.task, architecture)
        return training_costs(spec.space, count, settings, network=architecture, teacher=own)

    return Need("retrain", costs)


def supernet_text(
    space: SearchSpace,
    settings: TrainingSettings,
    card: int | None = None,
    teacher: TaughtBy = None,
) -> str:
    """What training the supernet needs of a GPU, in a sentence.

    Args:
        space: whose supernet.
        settings: the numbers.
        card: bytes that a GPU has, if that is known.
        teacher: what the search begins with.
    """
    costs = supernet_need(space, settings, teacher=teacher).costs()
    text = f"training the supernet needs about {_needed(costs, card)}"
    if costs.updates:
        text += f" and {costs.hours():.1f} hours of one A100"
    text += ", see nas space estimate"
    return text if card is None or costs.memory_bytes <= card else f"{text}; {TOO_MUCH}"


def shortage_text(
    spec: SearchSpec,
    architecture: Architecture,
    settings: TrainingSettings,
    teacher: TaughtBy = None,
) -> str | None:
    """What training a network needs, in a sentence; None where the card has it, if there is one."""
    card = card_bytes(spec.device)
    if card is None:
        return None
    costs = network_need(spec, architecture, settings, teacher).costs()
    if costs.memory_bytes <= card:
        return None
    return f"training {architecture.id} needs about {_needed(costs, card)}; {TOO_MUCH}"


def _needed(costs: TrainingCosts, card: int | None) -> str:
    needed = f"{costs.memory_bytes / 1e9:.1f}"
    if card is None:
        return f"{needed} GB on a GPU"
    return f"{needed} of the {card / 1e9:.1f} GB of this GPU"


def parts_text(parts: int) -> str:
    """That an update did not fit, and what is done about it."""
    return (
        "an update did not fit into the memory of the graphics card: each of its batches is done "
        f"in {parts} parts from here on, which takes longer; their gradients are added up, so that "
        "the result is the same but for rounding and what dropout draws"
    )

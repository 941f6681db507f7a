"""Parameters and floating-point operations of a network, without building it.

`cost` names every part of one network, `totals` gives the two sums in microseconds, and
`search_spaces.costs.genotypes` prices whole genotype matrices. All of them add up the same
formulas of `search_spaces.costs.layers`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from search_spaces.architecture import Architecture
from search_spaces.conventions import CONVENTIONS
from search_spaces.costs.model import Totals, cost_model
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName

__all__ = ["CONVENTIONS", "Cost", "Part", "cost", "flops", "params", "totals"]


@dataclass(frozen=True, slots=True)
class Part:
    """One named part of a network: its parameters and floating-point operations."""

    name: str
    params: int
    flops: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a network holds and does; the parts sum to the totals.

    Attributes:
        params: learned numbers.
        flops: floating-point operations of one forward pass, batch 1.
        convention: name of the way of counting.
        source_length: tokens of the input (or of the only sequence), without a class token.
        target_length: tokens of the target; None where there is none.
        parts: every part the convention counts, first to last.
    """

    params: int
    flops: int
    convention: str
    source_length: int
    target_length: int | None
    parts: tuple[Part, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON object."""
        return {**asdict(self), "parts": [asdict(part) for part in self.parts]}


def cost(
    settings: ModelSettings,
    task: TaskName,
    architecture: Architecture,
    convention: str = "true",
    source_length: int | None = None,
    target_length: int | None = None,
) -> Cost:
    """Parameters and operations of a network, part by part.

    Args:
        settings: the fixed part of the network (``space.model``).
        task: what it does (``space.task``).
        architecture: the searched part.
        convention: a name in `CONVENTIONS`.
        source_length: input tokens, without the class token; the only length but for translation.
            Left out: the patches of an image, what `max_length` holds, or for translation the
            convention's length (30, or `max_length` if that is less).
        target_length: translation only: target tokens.

    Raises:
        UnknownNameError: for an unknown convention.
        ArchitectureError: for stacks that do not fit the task.
        UsageError: for a length below 1, above `max_length`, or that the task does not have.
    """
    model = cost_model(settings, task, convention, source_length, target_length)
    parts = tuple(
        Part(name, tally.params, model.convention.flops(tally))
        for name, tally in model.parts(architecture)
    )
    return Cost(
        params=sum(part.params for part in parts),
        flops=sum(part.flops for part in parts),
        convention=convention,
        source_length=model.source,
        target_length=model.target,
        parts=parts,
    )


def totals(
    settings: ModelSettings,
    task: TaskName,
    architecture: Architecture,
    convention: str = "true",
    source_length: int | None = None,
    target_length: int | None = None,
) -> Totals:
    """``(params, flops)`` of a network in microseconds; arguments and errors as for `cost`."""
    model = cost_model(settings, task, convention, source_length, target_length)
    return model.totals(architecture)


def params(
    settings: ModelSettings, task: TaskName, architecture: Architecture, convention: str = "true"
) -> int:
    """Parameters of a network; arguments and errors as for `cost`."""
    return totals(settings, task, architecture, convention)[0]


def flops(
    settings: ModelSettings,
    task: TaskName,
    architecture: Architecture,
    convention: str = "true",
    source_length: int | None = None,
    target_length: int | None = None,
) -> int:
    """Floating-point operations of a network; arguments and errors as for `cost`."""
    return totals(settings, task, architecture, convention, source_length, target_length)[1]

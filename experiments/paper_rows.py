"""One line of a published table beside our own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from search_spaces.architecture import Architecture
from search_spaces.costs import cost
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName

MISSED = "MISSED"

Tolerances = tuple[float | None, float | None]


@dataclass(frozen=True)
class PaperTable:
    """How the numbers of a table are counted.

    Attributes:
        name: title of the table.
        task: what its networks do.
        convention: the way of counting, a name in `search_spaces.conventions`.
    """

    name: str
    task: TaskName
    convention: str


@dataclass(frozen=True)
class Row:
    """One network of a table.

    Attributes:
        table: where it is printed and how it is counted.
        name: of the network.
        params: ours.
        published_params: in millions, as printed.
        flops: ours, in the convention of the table.
        published_flops: in 10⁹, as printed.
        true_flops: ours, in the convention ``true``.
        tolerances: largest relative differences of parameters and FLOPs; None where a column is
            shown but cannot be expected to agree.
        extra_params: numbers that the published count holds and our network does not have.
        note: why the row is as it is.
    """

    table: PaperTable
    name: str
    params: int
    published_params: float
    flops: int
    published_flops: float
    true_flops: int
    tolerances: Tolerances
    extra_params: int = 0
    note: str = ""

    @property
    def params_difference(self) -> float:
        """Relative difference of the parameters, the extra numbers not added."""
        return self.params / (self.published_params * 1e6) - 1

    @property
    def flops_difference(self) -> float:
        """Relative difference of the FLOPs."""
        return self.flops / (self.published_flops * 1e9) - 1

    @property
    def verdict(self) -> str:
        """In two or three words whether the row is reproduced."""
        params, flops = self.tolerances
        if params is None and flops is None:
            return "not reproduced"
        if flops is not None and abs(self.flops_difference) > flops:
            return MISSED
        if params is None:
            return "FLOPs reproduced"
        if abs(self.params_difference) <= params:
            return "params reproduced" if flops is None else "reproduced"
        explained = (self.params + self.extra_params) / (self.published_params * 1e6) - 1
        return "reproduced with note" if abs(explained) <= params else MISSED

    def to_json(self) -> dict[str, Any]:
        """All numbers of the row with its differences and verdict."""
        return {
            "table": self.table.name,
            "convention": self.table.convention,
            "name": self.name,
            "params": self.params,
            "published_params_millions": self.published_params,
            "params_difference": self.params_difference,
            "flops": self.flops,
            "published_gflops": self.published_flops,
            "flops_difference": self.flops_difference,
            "true_flops": self.true_flops,
            "extra_params": self.extra_params,
            "verdict": self.verdict,
            "note": self.note,
        }


def priced(
    table: PaperTable,
    name: str,
    settings: ModelSettings,
    architecture: Architecture,
    published: tuple[float, float],
    tolerances: Tolerances,
    extra_params: int = 0,
    note: str = "",
) -> Row:
    """The row of a network: its cost in the table's convention beside the `published` numbers."""
    ours = cost(settings, table.task, architecture, table.convention)
    return Row(
        table=table,
        name=name,
        params=ours.params,
        published_params=published[0],
        flops=ours.flops,
        published_flops=published[1],
        true_flops=cost(settings, table.task, architecture, "true").flops,
        tolerances=tolerances,
        extra_params=extra_params,
        note=note,
    )

"""A measured number together with how far it can be trusted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from search_spaces.errors import DataError
from search_spaces.json_text import read_as


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one architecture, measured on one device.

    Attributes:
        metric: what was measured, for example ``latency_ms`` or ``validation_loss``.
        value: the result, finite.
        spread: how much single readings differ, in the unit of `value`, at least 0
            (0 where there was one reading); what it is exactly depends on the metric.
        count: number of readings or examples behind the value, at least 1.
        unit: unit of `value` and `spread`; empty for a plain number.
        device: where it was measured.
        seed: seed of what was random in it, or None.
        doubtful: why the value should not be believed; empty where nothing speaks against it.

    Raises:
        DataError: on construction, for numbers outside these ranges.
    """

    metric: str
    value: float
    spread: float = 0.0
    count: int = 1
    unit: str = ""
    device: str = "cpu"
    seed: int | None = None
    doubtful: str = ""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise DataError(f"a measured {self.metric} must be finite; given {self.value}")
        if not 0 <= self.spread < math.inf or self.count < 1:
            raise DataError(
                f"a measured {self.metric} needs a finite spread of at least 0 and a count of at "
                f"least 1; given {self.spread} and {self.count}"
            )

    def to_json(self) -> dict[str, Any]:
        """All fields by name; one that is not doubtful has no such field."""
        values = asdict(self)
        return values if self.doubtful else {k: v for k, v in values.items() if k != "doubtful"}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read what `to_json` wrote.

        Raises:
            DataError: naming the first field that is missing, unknown or of a wrong type.
        """
        try:
            return read_as(cls, data)
        except ValueError as error:
            raise DataError(f"no measurement: {error}") from error

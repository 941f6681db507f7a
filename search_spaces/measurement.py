"""A measured number together with how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from search_spaces.errors import DataError

_TYPES: Mapping[str, tuple[type, ...]] = {
    "metric": (str,),
    "value": (int, float),
    "spread": (int, float),
    "count": (int,),
    "unit": (str,),
    "device": (str,),
    "seed": (int, type(None)),
    "doubtful": (str,),
}
# Left out where it is empty, as by versions that knew none.
_MAY_LACK = {"doubtful"}


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
        if not isinstance(data, Mapping):
            raise DataError(f"a measurement is a JSON object, not {type(data).__name__}")
        for name in sorted((set(data) ^ set(_TYPES)) - (_MAY_LACK - set(data))):
            state = "unknown" if name in data else "missing"
            raise DataError(f"a measurement has the fields {', '.join(_TYPES)}; {name} is {state}")
        for name, types in _TYPES.items():
            if name not in data:
                continue
            if not isinstance(data[name], types) or isinstance(data[name], bool):
                raise DataError(
                    f"the field {name} of a measurement cannot be {data[name]!r}; "
                    f"allowed is {' or '.join(kind.__name__ for kind in types)}"
                )
        return cls(**data)

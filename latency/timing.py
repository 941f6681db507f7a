"""The times of one call, and what is read off them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from search_spaces.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one call.

    Attributes:
        samples_ms: milliseconds per call, one sample a round, in the order taken. Outliers are
            kept: the median does not need them gone, and the spread should show them.
    """

    samples_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Median in milliseconds."""
        return float(np.median(self.samples_ms))

    @property
    def iqr_ms(self) -> float:
        """Interquartile range in milliseconds."""
        low, high = np.quantile(self.samples_ms, [0.25, 0.75])
        return float(high - low)

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median; 0 for perfect repetition."""
        return self.iqr_ms / self.median_ms if self.median_ms > 0 else 0.0

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.samples_ms)

    def ratio(self, reference: Timing) -> float:
        """The median of the rounds' ratios to a reference timed in the same rounds.

        A round's slowness hits both, so this scatters less than the ratio of the medians.
        """
        pairs = zip(self.samples_ms, reference.samples_ms, strict=True)
        return float(np.median([mine / theirs for mine, theirs in pairs]))

    def measurement(self, device: str) -> Measurement:
        """The median as a `Measurement` of ``latency_ms``, with the range as its spread.

        Args:
            device: the label of the device's fingerprint.
        """
        return Measurement("latency_ms", self.median_ms, self.iqr_ms, self.count, "ms", device)


@dataclass(frozen=True, slots=True)
class HostShare:
    """How much of a call is the host's.

    Attributes:
        host_ms: until the call has returned, which launches its work. Waiting is in it: for what is
            read from the device, and for a place where about a thousand operations wait there. So
            it is more than the host's own work where a device has very much to do.
        total_ms: until the device has done it all.
    """

    host_ms: float
    total_ms: float

    @property
    def share(self) -> float:
        """Of the whole, at most 1: near 1 a faster device would not make the call faster."""
        return min(1.0, self.host_ms / self.total_ms)

    def to_json(self) -> dict[str, float]:
        """All fields by name."""
        return {"host_ms": round(self.host_ms, 6), "total_ms": round(self.total_ms, 6)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it is something else.
        """
        made = cls(float(data["host_ms"]), float(data["total_ms"]))
        if not 0 <= made.host_ms < math.inf or not 0 < made.total_ms < math.inf:
            raise ValueError(f"no times: {made.host_ms} and {made.total_ms} ms")
        return made


def median_copy(copies: Sequence[Timing]) -> Timing:
    """One timing for several copies of a call: each sample the median of theirs in that round."""
    rounds = zip(*(copy.samples_ms for copy in copies), strict=True)
    return Timing(tuple(float(np.median(samples)) for samples in rounds))

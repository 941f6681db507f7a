"""The times of one call, and what is read off them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def median_copy(copies: Sequence[Timing]) -> Timing:
    """One timing for several copies of a call: each sample the median of theirs in that round."""
    rounds = zip(*(copy.samples_ms for copy in copies), strict=True)
    return Timing(tuple(float(np.median(samples)) for samples in rounds))

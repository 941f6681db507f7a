"""Seeds out of several numbers."""

from __future__ import annotations

import numpy as np


def mixed_seed(*numbers: int) -> int:
    """One 63-bit seed out of several numbers, each at least 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))

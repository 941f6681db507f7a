"""The learning rate of each update."""

from __future__ import annotations

import math

from supernet.training_settings import TrainingSettings


def planned_updates(settings: TrainingSettings, num_batches: int) -> int:
    """Updates of a whole training.

    Args:
        settings: the numbers.
        num_batches: batches of one pass over the training split.
    """
    updates = math.ceil(num_batches / settings.accumulate)
    total = settings.epochs * min(updates, settings.epoch_updates or updates)
    return min(total, settings.max_updates) if settings.max_updates else total


def learning_rate(settings: TrainingSettings, update: int, total: int) -> float:
    """The rate of an update.

    Args:
        settings: the numbers.
        update: updates done before it.
        total: updates planned. Later passes may have a few batches more than the first, which the
            plan counts: the cosine stays at zero there, the square root goes on.

    Source: the inverse square root is fairseq's: that of Vaswani et al., "Attention Is All You
    Need" (2017), eq. 3, with the peak given as a number and the rate of the updates done so far. So
    the first update has the initial rate, and the peak is that of the update behind the warm-up.
    The cosine is at its peak with the last update of the warm-up.
    """
    peak, first = settings.learning_rate, settings.initial_rate
    warmup = max(1, round(settings.warmup_share * total))
    if settings.schedule == "inverse_sqrt":
        if update < warmup:
            return first + (peak - first) * update / warmup
        return peak * math.sqrt(warmup / update)
    if update < warmup:
        return first + (peak - first) * (update + 1) / warmup
    share = min(1.0, (update - warmup) / max(1, total - warmup))
    return peak * 0.5 * (1.0 + math.cos(math.pi * share))

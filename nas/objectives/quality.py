"""Quality: the validation loss with inherited weights, or what BLEU lacks to 100."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from nas.objectives.base import Objective

QualityMetric = Literal["loss", "bleu"]
BEST_BLEU = 100.0

LOSS = Objective(
    "quality", "valid_loss", unit="nats", label="validation loss", head="loss", symbol="nats"
)
# More BLEU is better, so that it is counted by what it lacks.
LACKING_BLEU = replace(
    LOSS, metric="100 - valid_bleu", unit="BLEU", label="100 − BLEU", head="100−BLEU", symbol=""
)

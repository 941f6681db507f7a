"""The stages of a run by name, for those who read one without loading what works on it."""

from __future__ import annotations

from collections.abc import Mapping

# Stage → what people call it, in order. The report itself is left out: it cannot know its own
# time, and writing it again must give the same bytes.
STAGES: Mapping[str, str] = {
    "declare": "check the request",
    "latency": "time sampled networks",
    "memory": "measure peak memory",
    "supernet": "train the supernet",
    "observe": "observe networks",
    "rank": "fit the ranker",
    "prune": "prune the space",
    "evolve": "evolve on predictions",
    "verify": "measure the best",
    "front": "find the front",
}
RETRAIN = "retrain-"
# Stages of single networks → what is done to the network.
SINGLE: Mapping[str, str] = {RETRAIN: "retrain", "attention-": "look into", "export-": "export"}


def stage_label(stage: str) -> str:
    """What people call a stage."""
    for prefix, word in SINGLE.items():
        if stage.startswith(prefix):
            return f"{word} {stage.removeprefix(prefix)}"
    return STAGES[stage]

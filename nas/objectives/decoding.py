"""What a network that goes on with a text takes behind a context: for it, a token, a second.

Users limit the one they feel: how long the first token takes after a prompt (prefill), how long
each later one (decoding), and how many tokens a second a server writes for all its users
(throughput, with a batch).
"""

from __future__ import annotations

from nas.objectives.base import Objective
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS


def _problem(what: str, space: SearchSpace) -> str | None:
    if TASKS[space.task].continues:
        return None
    return (
        f"{what} is of networks that go on with a text, but those of the space {space.name} are "
        f"for {space.task.replace('_', ' ')}: limit latency_ms instead"
    )


DECODE = Objective(
    "decode_ms",
    "decode_ms",
    unit="ms for one token of every sequence, behind the workload's context",
    label="time of a token",
    head="ms a token",
    symbol="ms",
    timed=True,
    mode="decode",
    stage="decode",
    std_name="decode_std_ms",
    upper_name="decode_upper_ms",
    problem=lambda space: _problem("decode_ms", space),
)
PREFILL = Objective(
    "prefill_ms",
    "prefill_ms",
    unit="ms to read the workload's context in one call",
    label="time of the prompt",
    head="prefill ms",
    symbol="ms",
    timed=True,
    mode="prefill",
    stage="prefill",
    std_name="prefill_std_ms",
    upper_name="prefill_upper_ms",
    problem=lambda space: _problem("prefill_ms", space),
)
THROUGHPUT = Objective(
    "tokens_per_s",
    "tokens_per_s",
    unit="tokens a second over all sequences of a batch, behind the workload's context",
    label="tokens per second",
    head="tokens/s",
    symbol="tokens/s",
    rate_of=DECODE.name,
    maximise=True,
    std_name="tokens_per_s_std",
    upper_name="tokens_per_s_lower",
    problem=lambda space: _problem("tokens_per_s", space),
)

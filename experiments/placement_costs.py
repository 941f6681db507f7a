"""What placements of kinds of attention cost: state and times at some lengths of texts.

Layers of a checkpoint have equal sizes, so that placements with as many layers of each kind cost
the same, and one of them is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.table import Table

from experiments.harness import table_of
from experiments.placement_selectors import Placement, all_placements, num_layers, placed
from latency.timer import time_calls
from nas.objectives import OBJECTIVES, counted, timed_workload
from nas.profiling.timed_work import timed_call
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS
from supernet.threads import cpu_threads

COSTS = CACHE, PREFILL, DECODE, LATENCY = "kv_cache_mb", "prefill_ms", "decode_ms", "latency_ms"
TIMED_ROUNDS = 5


def costs_at(space: SearchSpace, kinds: list[str], context: int) -> list[dict[str, Any]]:
    """What placements cost with texts of so many tokens, by how many layers there are of each kind.

    Of decoders the state behind the texts, the times to read them and to write one token more; of
    encoders the time of one text. All are timed beside each other.
    """
    layers = num_layers(space)
    every = [tuple(sorted(one)) for one in all_placements(layers, len(kinds))]
    chosen = list(dict.fromkeys(every))
    decoder = TASKS[space.task].continues
    longest = max(space.model.max_length, context + 1) if decoder else space.model.max_length
    workload = {"batch": 1, "source": context, **({"context": context} if decoder else {})}
    there = replace(space, model=replace(space.model, max_length=longest), workload=workload)
    networks = [placed(there, kinds, one) for one in chosen]
    found: list[dict[str, Any]] = [{"placement": one, "context": context} for one in chosen]
    for name in (PREFILL, DECODE) if decoder else (LATENCY,):
        work = timed_workload(there, OBJECTIVES[name].mode)
        calls = [timed_call(there, network, work, "cpu") for network in networks]
        with cpu_threads(1):
            timings = time_calls(calls, "cpu", warmup=1, repeats=TIMED_ROUNDS)
        for one, timing in zip(found, timings, strict=True):
            one[name] = timing.median_ms
    rows = there.encode(networks)
    for name, values in counted(there, rows, (CACHE,) if decoder else ()).items():
        for one, value in zip(found, values.tolist(), strict=True):
            one[name] = value
    return found


def priced(prices: list[dict[str, Any]], placement: Placement) -> dict[str, float]:
    """What a placement costs at all lengths: name and length → value."""
    alike = list(sorted(placement))
    return {
        f"{name}_{one['context']}": one[name]
        for one in prices
        if one["placement"] == alike
        for name in COSTS
        if name in one
    }


def cost_tables(kinds: list[str], costs: list[dict[str, Any]]) -> Iterator[Table]:
    """What placements cost, a table for each length."""
    for context in dict.fromkeys(one["context"] for one in costs):
        found = [one for one in costs if one["context"] == context]
        names = [name for name in COSTS if name in found[0]]
        rows = [
            [
                " + ".join(f"{one['placement'].count(n)} {kind}" for n, kind in enumerate(kinds)),
                *(f"{one[name]:.4g} ({one[name] / found[0][name]:.3f})" for name in names),
            ]
            for one in found
        ]
        heads = [OBJECTIVES[name].label for name in names]
        yield table_of(
            f"with {context:,} tokens, one thread; beside the network itself", ["", *heads], rows
        )

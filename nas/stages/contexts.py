"""The stage that times the checkpoint and the picked network by how much they have read.

Both read a prompt, and write a token behind it, in turn, for prompts of several lengths. Beside
each other the two are comparable, whatever else the machine does; a search decides by nothing of
it. Where a call takes more than `LONGEST_S` no longer prompt is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch

from latency.timer import time_calls
from latency.turns import timing
from latency.workload import BEHIND_CONTEXT, Workload
from nas.objectives import OBJECTIVES, timed_workload
from nas.objectives.cache import contexts_of
from nas.profiling.timed_work import timed_call
from nas.run.duration import SECOND, Asked, Part, Plan, counted
from nas.run.events import Event, Progress
from nas.run.layout import CONTEXTS_FILE
from nas.search.front import pick, read_front
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError

STAGE = "contexts"
ROUNDS = 9
LONGEST_S = 2.0
USUAL_S = 2.0  # of a prompt's length, reading and writing


def work(run: Run) -> Iterator[Event]:
    """Time both where it was not done yet; alone the checkpoint, where nothing is picked."""
    assert run.checkpoint is not None
    networks = [run.checkpoint.architecture]
    with suppress(UsageError):  # nothing on the front is what is picked, which retraining tells
        networks.append(pick(read_front(run.folder), run.spec.pick).architecture)
    networks = list({one.id: one for one in networks}.values())
    lines = run.folder.read_journal(CONTEXTS_FILE)
    run.folder.append(CONTEXTS_FILE, [])
    known = {(line["mode"], line["context"]): max(line["ms"].values()) for line in lines}
    lengths, done = contexts_of(run.space), 0
    for mode in BEHIND_CONTEXT:
        slowest_ms = 0.0
        for length in lengths:
            done += 1
            if slowest_ms > 1000 * LONGEST_S:
                continue
            if (mode, length) not in known:
                workload = replace(timed_workload(run.space, mode), context=length)
                ms = _timed(run, networks, workload)
                run.folder.append(CONTEXTS_FILE, [{"mode": mode, "context": length, "ms": ms}])
                known[mode, length] = max(ms.values())
            slowest_ms = known[mode, length]
            message = f"{OBJECTIVES[f'{mode}_ms'].label}, {length:,} positions"
            yield Progress(STAGE, done, len(BEHIND_CONTEXT) * len(lengths), message)


def _timed(run: Run, networks: list[Architecture], workload: Workload) -> dict[str, float]:
    """Id of a network → median milliseconds of a call."""
    device = run.computes_on
    with timing(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        calls = [timed_call(run.space, one, workload, device) for one in networks]
        found = time_calls(calls, device, repeats=ROUNDS, dtype=workload.dtype)
    return {one.id: timing.median_ms for one, timing in zip(networks, found, strict=True)}


def plan(asked: Asked) -> Plan:
    """How much there is to do, about; long prompts may be left out."""
    lengths = contexts_of(asked.spec.space)
    return Plan(
        f"2 networks, prompts of {counted(len(lengths), 'length')}",
        (Part(SECOND, USUAL_S * len(lengths)),),
    )

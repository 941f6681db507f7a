"""The stage that times the checkpoint and the picked network by how much they have read.

Both read a prompt, and write a token behind it, in turn, for prompts of several lengths. Beside
each other the two are comparable, whatever else the machine does; a search decides by nothing of
it. Lengths end where a call might take more than `LONGEST_S`, or state more than `MOST_STATE_MB`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch

from latency.timer import time_calls
from latency.turns import timing
from latency.workload import BEHIND_CONTEXT, Mode, Workload
from nas.executors.attempts import out_of_memory
from nas.objectives import OBJECTIVES, timed_workload
from nas.objectives.cache import cache_mb, contexts_of
from nas.profiling.timed_work import timed_call
from nas.run.duration import SECOND, Asked, Part, Plan, counted
from nas.run.events import Event, Note, Progress
from nas.run.layout import CONTEXTS_FILE
from nas.search.front import pick, read_front
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError

STAGE = "contexts"
ROUNDS = 9
LONGEST_S = 2.0
MOST_STATE_MB = 2000.0  # of one network in fp32, as it is timed
USUAL_S = 2.0  # of a prompt's length, reading and writing
POWER = {"decode": 1, "prefill": 2}  # of the length, that a call's time grows with at most


def work(run: Run) -> Iterator[Event]:
    """Time both where it was not done yet; alone the checkpoint, where nothing is picked."""
    run.folder.append(CONTEXTS_FILE, [])
    if run.computes_on != run.spec.device:
        yield Note(STAGE, f"nothing is timed: this process computes on {run.computes_on}")
        return
    assert run.checkpoint is not None
    networks = [run.checkpoint.architecture]
    with suppress(UsageError):  # nothing on the front is what is picked, which retraining tells
        networks.append(pick(read_front(run.folder), run.spec.pick).architecture)
    networks = list({one.id: one for one in networks}.values())
    lines = run.folder.read_journal(CONTEXTS_FILE)
    known = {(line["mode"], line["context"]): max(line["ms"].values()) for line in lines}
    for mode in BEHIND_CONTEXT:
        before: tuple[int, float] | None = None
        for length in _lengths(run):
            if before is not None and _expected_ms(mode, length, before) > 1000 * LONGEST_S:
                break
            if (mode, length) not in known:
                workload = replace(timed_workload(run.space, mode), context=length)
                try:
                    ms = _timed(run, networks, workload)
                except RuntimeError as error:  # as torch says that memory does not suffice
                    if not out_of_memory(error):
                        raise
                    yield Note(STAGE, f"there is no memory to time {length:,} positions")
                    break
                run.folder.append(CONTEXTS_FILE, [{"mode": mode, "context": length, "ms": ms}])
                known[mode, length] = max(ms.values())
            before = length, known[mode, length]
            message = f"{OBJECTIVES[f'{mode}_ms'].label}, {length:,} positions"
            yield Progress(STAGE, len(known), len(known), message)


def _lengths(run: Run) -> list[int]:
    """Those whose state, of the checkpoint, may be kept."""
    found = []
    for length in contexts_of(run.space):
        workload = {**run.space.workload, "context": length, "dtype": "float32"}
        space = replace(run.space, workload=workload)
        if float(cache_mb(space, run.checkpoint_rows)[0]) <= MOST_STATE_MB:
            found.append(length)
    return found


def _expected_ms(mode: Mode, length: int, before: tuple[int, float]) -> float:
    """What a call may take at most, by what one of a smaller length took."""
    return before[1] * float(length / before[0]) ** POWER[mode]


def _timed(run: Run, networks: list[Architecture], workload: Workload) -> dict[str, float]:
    """Id of a network → median milliseconds of a call."""
    device = run.computes_on
    with timing(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        calls = [timed_call(run.space, one, workload, device) for one in networks]
        found = time_calls(calls, device, repeats=ROUNDS, dtype=workload.dtype)
    return {one.id: timed.median_ms for one, timed in zip(networks, found, strict=True)}


def plan(asked: Asked) -> Plan:
    """How much there is to do, about; long prompts may be left out."""
    lengths = contexts_of(asked.spec.space)
    return Plan(
        f"2 networks, prompts of {counted(len(lengths), 'length')}",
        (Part(SECOND, USUAL_S * len(lengths)),),
    )

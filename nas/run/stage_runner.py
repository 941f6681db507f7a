"""Runs a stage or, when it is done, skips it.

A finished stage is recorded with the digest of what it read and the checksums of what it wrote;
an unfinished one goes on from its journal or checkpoint; one with damaged files starts anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from latency.turns import computing, give_way
from nas.run.events import Event, Note, StageFinished, StageSkipped, StageStarted
from nas.run.folder import RunFolder
from nas.run.layout import begun_file
from nas.run.opened import OpenedRun
from nas.run.stage_digest import stage_digests
from nas.run.stages import SEARCH_STAGES, Stage
from search_spaces.errors import DamagedRunError

RunT = TypeVar("RunT", bound=OpenedRun)
Work = Callable[[RunT], Iterator[Event]]
FIRST = SEARCH_STAGES[0].name  # with which every session of a search begins


def run_stage(run: RunT, stage: Stage, work: Work[RunT]) -> Iterator[Event]:
    """Do the work of a stage unless its record says that it is done; log every event."""
    for event in stage_events(run, stage, work):
        run.folder.log(event)
        yield event


def stage_events(run: RunT, stage: Stage, work: Work[RunT]) -> Iterator[Event]:
    """The same without logging, for a process that tells its events to the one that logs."""
    with computing(run.computes_on):
        for event in _events(run, stage, work):
            yield event
            give_way()


def _events(run: RunT, stage: Stage, work: Work[RunT]) -> Iterator[Event]:
    digests = stage_digests(run.folder, stage)
    problem = None
    try:
        record = run.folder.record(stage.name)
        if record is not None and record.digest in digests:
            problem = run.folder.damage(record)
            if problem is None and record.outputs.keys() == stage.outputs.keys():
                yield StageSkipped(stage.name, stage.label)
                return
        if record is not None or run.folder.begun_otherwise(stage.name, *digests):
            problem = problem or "what this stage reads has changed"
            run.folder.forget(stage.name, stage.files)
    except DamagedRunError as error:
        problem = error.marked
        run.folder.forget(stage.name, stage.files)
    before = seconds_before(run.folder, stage.name)
    if stage.needs:  # without, there is nothing it could have been begun with but the spec
        run.folder.begin(stage.name, digests[0])
    if problem is not None:
        yield Note(stage.name, f"{problem}; doing this stage again")
    yield StageStarted(stage.name, stage.label)
    started = time.perf_counter()
    try:
        yield from work(run)
    except DamagedRunError as error:
        # A journal or checkpoint of this very stage: without it the stage starts anew, once.
        yield Note(stage.name, f"{error.marked}; doing this stage again")
        run.folder.forget(stage.name, stage.files)
        yield from work(run)
    seconds = time.perf_counter() - started
    run.folder.finish(stage.name, digests[0], stage.outputs, before + seconds)
    yield StageFinished(stage.name, round(seconds, 3))


def seconds_before(folder: RunFolder, stage: str) -> float:
    """Seconds that sessions worked on a stage which were stopped in the midst of it.

    Each counts up to the last thing that it told of the stage; what came after is lost. Time for
    which nobody worked on it does not count.
    """
    if not folder.has(begun_file(stage)):
        return 0.0
    spent, begun, last = 0.0, 0.0, 0.0  # 0 where no session works on it
    for told_at, event in folder.events():
        match event:
            case StageStarted(name) | StageSkipped(name) if name in (FIRST, stage):
                spent += last - begun
                works = isinstance(event, StageStarted) and name == stage
                begun = last = told_at if works else 0.0
            case StageFinished(name) if name == stage:
                spent = begun = last = 0.0
            case _ if begun and event.stage == stage:  # others are no session of it
                last = told_at
    return spent + last - begun

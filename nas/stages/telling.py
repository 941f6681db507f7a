"""Tells how long a search will take, before it begins to work.

What there is to do follows from the request; what single steps take is measured on this machine for
a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from latency.device import usable_cores
from latency.machine import Watch, why_busy
from latency.yardstick import SpeedRecord
from nas.executors.attempts import out_of_memory
from nas.objectives import OBJECTIVES
from nas.profiling.timed_work import timing_threads
from nas.request.spec import SearchSpec
from nas.run.duration import (
    Asked,
    Duration,
    Plan,
    StageDuration,
    read_duration,
    write_duration,
)
from nas.run.events import DurationTold, Event, Note
from nas.run.folder import RunFolder
from nas.run.stages import REPORT, TRAINED, TRAINED_LABEL, search_stages
from nas.search.uniform_networks import middle
from nas.stages.base import Run
from nas.stages.calibration import calibrate
from search_spaces.errors import DamagedRunError, NasError

CHECKED = "declare"  # the stage behind which the duration is told: its data are there, and right


def tell(run: Run) -> Iterator[Event]:
    """Tell what is left of what was told of a run first; calibrates where nothing was told yet.

    A run that was begun without is not told of, and neither is one of which nothing is left.
    """
    ended = set(run.folder.finished())
    try:
        duration = read_duration(run.folder)
    except DamagedRunError as error:
        duration = Duration(reason=str(error))
    warning = ""
    if duration is None:
        if ended - {CHECKED}:
            return
        duration = _told(run, {})
        write_duration(run.folder, duration)
        warning = duration.warning
    if REPORT.name in ended:
        ended.add(TRAINED)
    left = tuple(asdict(one) for one in duration.left(ended))
    events: list[Event] = []
    if left or duration.reason:
        told = DurationTold(CHECKED, left, duration.seconds, duration.about, duration.reason)
        events.append(told)
    if warning:  # of this moment; who goes on later finds another one
        events.append(Note(CHECKED, warning))
    for event in events:
        run.folder.log(event)
        yield event


def duration_of(spec: SearchSpec, known: Mapping[str, float]) -> Duration:
    """How long a search would take in this process, without a run.

    Args:
        spec: the request.
        known: of an earlier calibration, which is not done again.

    Returns:
        What is told, a reason with the marks of `search_spaces.wording`.
    """
    with TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", spec)
        if spec.budget.threads is None:
            torch.set_num_threads(usable_cores())
        return _told(Run(folder), known)


def _told(run: Run, known: Mapping[str, float]) -> Duration:
    """The duration; or why it cannot be told.

    No search fails because its data, its workers or the memory do not let it be calibrated: what
    they lack is told, and the stage that needs it tells it again. A mistake of our own is raised.
    """
    if run.spec.evaluator is not None:
        return Duration(reason="only the evaluator knows how long its answers take")
    begun = time.perf_counter()
    try:
        stages, workers = _plans(run, asked(run)), run.executor.width
        units = dict.fromkeys(unit for _, _, plan in stages for unit in plan.units)
        watch = Watch()
        seconds = {**known, **calibrate(run, [unit for unit in units if unit not in known])}
        busy = _why_busy(run, watch)
    except Exception as error:
        why = _why(error)
        if not why:
            raise
        return Duration(reason=f"calibrating failed: {why}")
    told = tuple(
        StageDuration(
            name,
            label,
            plan.what,
            plan.seconds(seconds, workers),
            plan.most_seconds(seconds, workers),
        )
        for name, label, plan in stages
    )
    return Duration(told, seconds, time.perf_counter() - begun, workers, busy=busy)


def _why_busy(run: Run, watch: Watch) -> str:
    """What keeps the machine busy that times networks; empty where it is at rest, or another."""
    settings = run.executor.settings
    if not run.spec.timed or run.elsewhere is not None or settings.ray_address is not None:
        return ""
    return why_busy(watch, timing_threads(run.spec.device), usable_cores()) or ""


def _why(error: Exception) -> str:
    """What kept a calibration from ending; empty for a mistake of our own."""
    if out_of_memory(error):
        return "the memory does not suffice"
    if isinstance(error, NasError):
        return error.marked
    return str(error) if isinstance(error, OSError) else ""


def asked(run: Run) -> Asked:
    """What a run is asked for, whose data are opened."""
    spec, executor = run.spec, run.executor
    untimed, new, watched = {}, set(spec.timed), False
    if executor.settings.kind == "local" and spec.device_profile is None:
        rows = run.timed_rows
        reference, *sample = run.space.decode(np.concatenate([middle(run.space), rows]))
        for name in spec.timed:
            meter = run.meter(OBJECTIVES[name])
            untimed[name] = sum(not meter.known(one) for one in sample)
            new -= {name} if meter.known(reference) else set()
            header = meter.header
            watched = SpeedRecord(header.device, header.workload.dtype).read().known
    compared, whole = (task.describe()["num_valid"] for task in (run.quick_task, run.task))
    return Asked(
        spec,
        run.task.num_batches,
        untimed,
        frozenset(new),
        watched,
        run.elsewhere is not None,
        whole / compared,
    )


def _plans(run: Run, asked: Asked) -> list[tuple[str, str, Plan]]:
    """Name, label and plan of what is behind the check of the request, in order."""
    stages = [(one.name, one.label, one.name) for one in search_stages(run.spec)]
    stages += [(TRAINED, TRAINED_LABEL, "retrain"), (REPORT.name, REPORT.label, REPORT.name)]
    return [
        (name, label, plan_of(module)(asked)) for name, label, module in stages if name != CHECKED
    ]


def plan_of(stage: str) -> Callable[[Asked], Plan]:
    """What tells how much a stage does: ``plan`` of the module here that is named like it."""
    plan: Callable[[Asked], Plan] = import_module(f"nas.stages.{stage}").plan
    return plan

"""The whole of a search, in order.

Killing the process at any moment and starting again ends in the same result, see
`nas.run.stage_runner`. Importing this module does not import torch; running a search does.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from nas.executors.asking import check_named
from nas.executors.base import ExecutorSettings
from nas.executors.opening import open_executor
from nas.objectives import OBJECTIVES, TIMED
from nas.run.evaluators import Evaluator
from nas.run.events import Event, Note
from nas.run.folder import RunFolder
from nas.run.stages import Stage, search_stages
from search_spaces.errors import NasError, UsageError

if TYPE_CHECKING:
    from nas.run.stage_runner import Work
    from nas.stages.base import Run

# The stage that times without reading the files of those that time first; whatever lies between
# starts anew by itself, since it reads other times.
TIMES_LAST = "verify"


def run_search(
    folder: RunFolder,
    settings: ExecutorSettings | None = None,
    retime: bool = False,
    evaluator: Evaluator | None = None,
    tells: bool = False,
) -> Iterator[Event]:
    """Do everything that is left to do of a run, from the space to the report.

    Args:
        folder: the run.
        settings: where it is worked on; in this process if not given.
        retime: whether to forget first what was timed for it.
        evaluator: who knows the networks, where that is an object at hand.
        tells: whether to tell how long it will take, for which a new run calibrates some seconds.

    Yields:
        What happens; the same events are appended to ``events.jsonl``.

    Raises:
        UsageError: when there is nothing to time anew, and for an evaluator at hand that other
            processes would have to ask.
        NasError: when a stage fails; the run can be resumed.
    """
    from nas.run.stage_runner import run_stage
    from nas.stages.base import Run
    from nas.stages.report import report
    from nas.stages.retrain import search_ids, settle
    from nas.stages.telling import CHECKED, tell

    where = settings or ExecutorSettings()
    check_named(evaluator, where)
    with folder.locked(), open_executor(where, folder) as executor:
        run = Run(folder, executor, evaluator)
        if retime:
            yield from _forget_times(run)
        for stage in search_stages(run.spec):
            yield from run_stage(run, stage, work_of(stage))
            if tells and stage.name == CHECKED:
                yield from tell(run)
        failure: NasError | None = None
        try:
            if run.spec.evaluator is None:
                yield from executor.retrain(run, search_ids(run))
                for event in settle(run):
                    run.folder.log(event)
                    yield event
        except NasError as error:  # a training that diverged; of all else the report tells
            failure = error
        yield from report(run)
        if failure is not None:
            raise failure


def work_of(stage: Stage) -> Work[Run]:
    """What a stage of a search does: ``work`` of the module here that is named like it."""
    work: Work[Run] = import_module(f"nas.stages.{stage.name}").work
    return work


def _forget_times(run: Run) -> Iterator[Event]:
    """Forget what was timed, so that the stages that follow time it anew.

    The supernet stays, and so does the request. Killed at any moment, the run goes on without
    the option as well: what is forgotten first is what nothing else would notice.

    Raises:
        UsageError: for a search that times nothing on this device.
    """
    spec = run.spec
    if spec.evaluator is not None:
        raise UsageError(
            "--retime is for times that are taken here, and what the networks of this search cost "
            f"is told by the evaluator {spec.evaluator}: leave out --retime; to have it asked "
            "anew, search in another folder"
        )
    if not spec.needs_latency:
        names = ", ".join((*spec.objectives, *spec.limits))
        raise UsageError(
            f"--retime is for a search whose objectives or limits name {' or '.join(TIMED)}; "
            f"this one has {names}"
        )
    if run.elsewhere is not None:
        raise UsageError(
            f"--retime cannot time on {run.elsewhere}, whose profile this search predicts latency "
            "from: make the profile anew there with nas profile --retime, and search with that one"
        )
    clocks = [OBJECTIVES[name] for name in spec.timed]
    for clock in clocks:
        run.meter(clock).forget()
    stages = {stage.name: stage for stage in search_stages(spec)}
    for name in (TIMES_LAST, *(clock.stage for clock in clocks)):
        run.folder.forget(name, stages[name].files)
    kept = "" if run.device_profile is None else ", but for what the device profile tells"
    note = Note(
        clocks[0].stage, f"what was timed before is forgotten{kept}: everything is timed anew"
    )
    run.folder.log(note)
    yield note

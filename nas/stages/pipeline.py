"""The whole of a search, in order.

Killing the process at any moment and starting again ends in the same result, see
`nas.run.stage_runner`. Importing this module does not import torch; running a search does.
"""

from __future__ import annotations

from collections.abc import Iterator

from nas.executors.base import ExecutorSettings
from nas.executors.opening import open_executor
from nas.run.events import Event
from nas.run.folder import RunFolder


def run_search(
    folder: RunFolder, settings: ExecutorSettings | None = None, retime: bool = False
) -> Iterator[Event]:
    """Do everything that is left to do of a run, from the space to the report.

    Args:
        folder: the run.
        settings: where it is worked on; in this process if not given.
        retime: whether to forget first what was timed for it, see `nas.stages.retiming`.

    Yields:
        What happens; the same events are appended to ``events.jsonl``.

    Raises:
        UsageError: when there is nothing to time anew.
        NasError: when a stage fails; the run can be resumed.
    """
    from nas.run.stage_runner import run_stage
    from nas.stages.base import Run
    from nas.stages.report import report_stage
    from nas.stages.retiming import time_anew
    from nas.stages.retrain import search_ids
    from nas.stages.table import search_stages

    with folder.locked(), open_executor(settings or ExecutorSettings(), folder) as executor:
        run = Run(folder, executor)
        if retime:
            yield from time_anew(run)
        for stage in search_stages(run.spec):
            yield from run_stage(run, stage)
        yield from executor.retrain(run, search_ids(run))
        yield from run_stage(run, report_stage(folder))

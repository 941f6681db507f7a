"""The last stage: what people look at, the report and a study for Optuna's tools."""

from __future__ import annotations

from collections.abc import Iterator

from nas.report import write_report
from nas.run.events import Event, Progress
from nas.run.folder import RunFolder
from nas.run.layout import REPORT_FILE, STUDY_FILE
from nas.run.stage_runner import Stage
from nas.stages.base import Run
from nas.stages.holding import with_held
from nas.stages.verification import measured_entries


def report_stage(folder: RunFolder) -> Stage[Run]:
    """The stage that writes ``report.html`` and the study; it reads what all others wrote."""
    needs = tuple(name for name in folder.finished() if name != "report")
    return Stage("report", "Write the report", needs, (REPORT_FILE, STUDY_FILE), _report)


def _report(run: Run) -> Iterator[Event]:
    from nas.search.searchers.optuna_study import write_study

    objectives = run.spec.objectives
    write_study(
        run.folder.path / STUDY_FILE,
        run.folder.path.resolve().name,
        run.space,
        objectives,
        [
            (
                entry.architecture,
                {name: entry.value(name) for name in objectives} | dict(entry.measured),
            )
            for entry in with_held(run, measured_entries(run))
        ],
    )
    path = write_report(run.folder)
    yield Progress("report", 1, 1, str(path))

"""The last stage: what people look at, the report and a study for Optuna's tools."""

from __future__ import annotations

from collections.abc import Iterator

from nas.report import write_report
from nas.run.events import Event, Progress
from nas.run.folder import RunFolder
from nas.run.stage_runner import Stage
from nas.stages.base import STUDY_FILE, Run
from nas.stages.holding import with_held
from nas.stages.verification import measured_entries

REPORT_FILE = "report.html"


def report_stage(folder: RunFolder) -> Stage[Run]:
    """The stage that writes ``report.html`` and the study; it reads what all others wrote."""
    stages = sorted(file.stem for file in (folder.path / "stages").glob("*.json"))
    needs = tuple(name for name in stages if name != "report")
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

"""The last stage: what people look at, the report and a study for Optuna's tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nas.report import write_report
from nas.run.duration import FIT, Asked, Part, Plan
from nas.run.events import Event, Progress
from nas.run.stage_runner import run_stage
from nas.run.stages import REPORT, STUDY_FILE
from nas.stages.base import Run
from nas.stages.measured import measured_entries, with_confirmed


def report(run: Run) -> Iterator[Event]:
    """Run the stage, which reads what all others wrote."""
    needs = tuple(name for name in run.folder.finished() if name != REPORT.name)
    yield from run_stage(run, replace(REPORT, needs=needs), work)


def work(run: Run) -> Iterator[Event]:
    """Write ``report.html`` and the study."""
    from nas.search.searchers.optuna_study import write_study

    objectives = run.spec.objectives
    write_study(
        run.folder.path / STUDY_FILE,
        run.folder.path.resolve().name,
        run.domain,
        objectives,
        [
            (
                entry.network,
                {name: entry.value(name) for name in objectives} | dict(entry.measured),
            )
            for entry in with_confirmed(run, measured_entries(run))
        ],
    )
    path = write_report(run.folder)
    yield Progress("report", 1, 1, str(path))


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    return Plan("writes the page", (Part(FIT, 3),))

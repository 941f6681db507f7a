"""Shows a run while it works: bars on a terminal, lines in a log, JSON for scripts, or nothing."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from nas.console.formatting import duration
from nas.console.output import err, tell
from nas.console.tables import duration_table
from nas.run import events
from nas.run.events import Event, event_to_json, worded
from search_spaces.wording import of_commands

# Fewer characters than this are too few for long bars and the time spent.
WIDE = 100


class ProgressReporter(AbstractContextManager["ProgressReporter"]):
    """Shows nothing; what the others extend."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def show(self, event: Event) -> None:
        """Show an event."""

    def warn(self, message: str) -> None:
        """Show something that does not concern the run itself, always on stderr."""
        tell(f"note: {message}")


class JsonReporter(ProgressReporter):
    """One JSON object a line on stdout, flushed, so that a reader sees it at once."""

    def show(self, event: Event) -> None:
        """Print the event."""
        sys.stdout.write(json.dumps(event_to_json(worded(event, of_commands))) + "\n")
        sys.stdout.flush()


class LineReporter(ProgressReporter):
    """One line for each finished stage: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._labels: dict[str, str] = {}
        self._messages: dict[str, str] = {}

    def show(self, event: Event) -> None:
        """Print a line when a stage ends, was done before, or has something to say."""
        event = worded(event, of_commands)
        match event:
            case events.StageStarted(stage, label):
                self._labels[stage] = label
            case events.Progress(stage, message=message) if message:
                self._messages[stage] = message
            case events.StageFinished(stage, seconds):
                label = self._labels.get(stage, stage)
                message = self._messages.get(stage, "")
                self._line(f"{label:<28} {duration(seconds):>9}  {message}".rstrip())
            case events.StageSkipped(_, label):
                self._line(f"{label:<28} {'done':>9}  in an earlier session")
            case events.DurationTold():
                self._console.print(duration_table(event))
            case events.Note(message=message, loud=loud):
                self._line(f"{'WARNING' if loud else 'note'}: {message}")
            case events.EvaluationFailed():
                self._line(f"note: {failure_text(event)}")
            case _:
                pass

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class BarReporter(ProgressReporter):
    """A progress bar with time left for each stage; finished bars stay, with the time taken."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        wide = console.width >= WIDE
        message = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24 if wide else 8),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[message]}", style="dim", markup=False, table_column=message),
            console=console,
            expand=True,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Start, move or finish the bar of the event's stage."""
        event = worded(event, of_commands)
        match event:
            case events.StageStarted(stage, label, total):
                self._start(stage, label, total)
            case events.Progress(stage, done, total, message):
                self._bars.update(self._task(stage), completed=done, total=total or None)
                if message:  # else the last words stay
                    self._bars.update(self._task(stage), message=message)
            case events.FrontUpdated(stage, points, volume):
                message = f"{len(points)} on the front, hypervolume {volume:.3f}"
                self._bars.update(self._task(stage), message=message)
            case events.StageFinished(stage):
                self._finish(self._task(stage))
            case events.StageSkipped(stage, label):
                self._start(stage, label, 1)
                self._bars.update(self._task(stage), message="done in an earlier session")
                self._finish(self._task(stage))
            case events.DurationTold():
                self._console.print(duration_table(event))
            case events.Note(message=message, loud=loud):
                self._note(message, loud)
            case events.EvaluationFailed():
                self.warn(failure_text(event))
            case _:
                pass

    def warn(self, message: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(f"note: {message}", "yellow"), soft_wrap=True)

    def _note(self, message: str, loud: bool) -> None:
        if loud:
            self._console.print(Text(f"WARNING: {message}", "bold red"), soft_wrap=True)
        else:
            self.warn(message)

    def _start(self, stage: str, label: str, total: int | None) -> None:
        if stage in self._tasks:  # a stage that is done anew keeps its line
            self._bars.reset(self._tasks[stage], total=total, message="")
        else:
            self._tasks[stage] = self._bars.add_task(label, total=total, message="")

    def _task(self, stage: str) -> TaskID:
        if stage not in self._tasks:
            self._start(stage, stage, None)
        return self._tasks[stage]

    def _finish(self, task: TaskID) -> None:
        total = self._bars.tasks[self._bars.task_ids.index(task)].total or 1
        self._bars.update(task, completed=total, total=total)
        self._bars.stop_task(task)


def failure_text(event: events.EvaluationFailed) -> str:
    """One line about a network that could not be evaluated."""
    tries = "once" if event.tries == 1 else f"{event.tries} times"
    return (
        f"network {event.architecture_id} could not be evaluated ({event.kind}, tried {tries}): "
        f"{event.reason}; the search goes on without it"
    )


def choose_reporter(quiet: bool, json_lines: bool) -> ProgressReporter:
    """The screen for these options and for what stderr is connected to."""
    if json_lines:
        return JsonReporter()
    if quiet:
        return ProgressReporter()
    console = err()
    return BarReporter(console) if console.is_terminal else LineReporter(console)

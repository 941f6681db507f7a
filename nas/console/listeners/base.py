"""The contract of a logger, and the listener that passes a run's events on to one.

A logger is a guest of the search: whatever goes wrong in it is told once, and the search goes on.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import Literal

from nas.console.listeners.results import NOTHING, Results, stage_results
from nas.run import events
from nas.run.events import Event
from nas.run.folder import RunFolder

LONGEST_REASON = 300  # characters

Outcome = Literal["finished", "failed", "stopped"]


class Logger(ABC):
    """Keeps numbers and texts of one run; may raise whatever its library raises."""

    @abstractmethod
    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Keep numbers.

        Args:
            values: name → number; names are of letters, digits and ``_-./``.
            step: an epoch or another count, from 0.
        """

    @abstractmethod
    def text(self, name: str, markdown: str) -> None:
        """Keep a text, in place of an earlier one of that name."""

    @abstractmethod
    def file(self, folder: Path, name: str) -> None:
        """Keep the file of that name, which may have ``/`` in it, of the run folder."""

    @abstractmethod
    def close(self, outcome: Outcome) -> None:
        """Keep everything for good and say how the process's work on the run ended."""


class Listener(AbstractContextManager["Listener"]):
    """Passes events on to a logger until that fails.

    The logger is opened with the first thing that is worth keeping, so that a request that is
    refused at once leaves nothing behind.

    Args:
        name: of the logger, for the warning.
        folder: of the run.
        open_logger: makes the logger.
        warn: shows one line to the user.
    """

    def __init__(
        self,
        name: str,
        folder: RunFolder,
        open_logger: Callable[[], Logger],
        warn: Callable[[str], None],
    ) -> None:
        self._name = name
        self._folder = folder
        self._open = open_logger
        self._warn = warn
        self._logger: Logger | None = None
        self._failed = False
        self._fronts = 0

    def hear(self, event: Event) -> None:
        """Keep what is worth keeping of an event."""
        if not self._failed:
            self._attempt(lambda: self._keep(self._worth(event)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logger, self._logger = self._logger, None
        if logger is not None:
            self._attempt(lambda: logger.close(_outcome(kind)))

    def _worth(self, event: Event) -> Results:
        """What to keep of an event."""
        match event:
            case events.Progress(stage, done, values=values) if values:
                return Results([(done, {f"{stage}/{name}": v for name, v in values.items()})])
            case events.FrontUpdated(_, points, hypervolume):
                self._fronts += 1
                values = {"front/hypervolume": hypervolume, "front/networks": float(len(points))}
                return Results([(self._fronts, values)])
            case events.StageFinished(stage, seconds):
                results = stage_results(self._folder, stage)
                seconds_of = (0, {f"seconds/{stage}": seconds})
                return Results([seconds_of, *results.series], results.texts, results.files)
            case events.StageSkipped(stage):  # perhaps nobody listened when it was done
                return stage_results(self._folder, stage)
            case _:
                return NOTHING

    def _keep(self, results: Results) -> None:
        if results is NOTHING:
            return
        if self._logger is None:
            self._logger = self._open()
        for step, values in results.series:
            self._logger.numbers(values, step)
        for name, markdown in results.texts.items():
            self._logger.text(name, markdown)
        for file in results.files:
            self._logger.file(self._folder.path, file)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do something with the logger; tell of its first failure."""
        try:
            with redirect_stdout(sys.stderr):  # stdout is for results, and may be JSON
                action()
        except Exception as error:
            if not self._failed:
                self._failed = True
                reason = shorten(str(error) or type(error).__name__, LONGEST_REASON)
                self._warn(f"logging to {self._name} failed, the run goes on without it: {reason}")


def _outcome(kind: type[BaseException] | None) -> Outcome:
    if kind is None:
        return "finished"
    return "failed" if issubclass(kind, Exception) else "stopped"

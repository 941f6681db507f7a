"""Which loggers there are, and how they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import typer

from nas.console.listeners.base import Listener, Logger
from nas.console.listeners.mlflow import MlflowLogger
from nas.console.listeners.tensorboard import TensorBoardLogger
from nas.console.options import completing
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError

TENSORBOARD = "tensorboard"
MLFLOW = "mlflow"


@dataclass(frozen=True, slots=True)
class Target:
    """A place to log to.

    Attributes:
        name: ``tensorboard`` or ``mlflow``.
        uri: of MLflow's tracking server or store; None leaves MLflow's own default.
    """

    name: str
    uri: str | None = None

    def listener(self, folder: RunFolder, warn: Callable[[str], None]) -> Listener:
        """The listener that logs a run there; `warn` shows one line to the user."""
        return Listener(self.name, folder, lambda: self._logger(folder), warn)

    def _logger(self, folder: RunFolder) -> Logger:
        if self.name == TENSORBOARD:
            return TensorBoardLogger(folder)
        return MlflowLogger(folder, self.uri)


def read_target(text: str) -> Target:
    """``tensorboard``, ``mlflow`` or ``mlflow=URI``.

    Raises:
        UsageError: for anything else, and when the package behind it is not installed.
    """
    name, equals, uri = (part.strip() for part in text.partition("="))
    known = name == MLFLOW and bool(uri or not equals)
    if not known and (name != TENSORBOARD or equals):
        raise UsageError(f"--log takes {TENSORBOARD}, {MLFLOW} or {MLFLOW}=URI; given {text!r}")
    if find_spec(name) is None:
        raise UsageError(
            f"--log {name} needs the package {name}, which is not installed: install nas-service "
            f"with its extra {name}, in a checkout by pip install --editable '.[{name}]'"
        )
    return Target(name, uri or None)


def read_logs(given: Iterable[str]) -> tuple[Target, ...]:
    """``["mlflow=http://host"]`` → where to log, each place once.

    Raises:
        UsageError: for a logger there is not, or one whose package is not installed.
    """
    return tuple(dict.fromkeys(read_target(text) for text in given))


complete_log = completing(TENSORBOARD, MLFLOW, f"{MLFLOW}=")
LOG: Any = typer.Option(
    [],
    "--log",
    metavar="tensorboard|mlflow",
    help="Log the run there too, with mlflow=URI to a server or store of your choice; needs the "
    "extra of that name. Repeatable.",
    autocompletion=complete_log,
)

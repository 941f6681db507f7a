"""Opens the executor that was asked for; only then is its library loaded."""

from __future__ import annotations

import importlib.util

from nas.executors.base import Executor, ExecutorSettings
from nas.executors.local import LocalExecutor
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError


def open_executor(settings: ExecutorSettings, folder: RunFolder) -> Executor:
    """The executor for a run.

    Args:
        settings: which one.
        folder: the run; workers' logs and what they do at the moment are kept in ``workers``.

    Raises:
        UsageError: when its library is not installed.
    """
    if settings.kind == "local":
        return LocalExecutor(settings)
    check_installed()
    from nas.executors.ray import RayExecutor

    return RayExecutor(settings, folder)


def check_installed(option: str = "--executor ray") -> None:
    """Refuse an option that needs Ray without it.

    Raises:
        UsageError: saying how to get it.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            f"{option} needs the package ray, which is not installed; "
            "install it with: pip install 'nas-service[ray]'"
        )

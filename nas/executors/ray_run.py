"""A run as a worker of a Ray cluster sees it that writes into the run folder itself."""

from __future__ import annotations

from pathlib import Path

from nas.run_folder import SPEC_FILE, RunFolder
from nas.stages.base import Run
from search_spaces.errors import UsageError


def shared_run(path: str | Path) -> Run:
    """Open a run folder that lies on a disk all machines see.

    Raises:
        UsageError: when it is not there.
    """
    if not (Path(path) / SPEC_FILE).exists():
        raise UsageError(
            f"a worker does not see the run folder {path}: put it on a disk that every machine of "
            "the cluster sees under the same path"
        )
    return Run(RunFolder.open(Path(path)))

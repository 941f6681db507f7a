"""The only reader of a run on disk: for the command, the service, the report, and for you.

``nas.results.open(RUN)`` gives tables, see `nas.results.tables`; `nas.results.reader` reads a whole
run, `nas.results.state` how far it is, and `nas.results.networks` opens networks with weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nas.results.tables import RunResults


def open(run: str | Path) -> RunResults:
    """Read a run, finished or not, as tables.

    Args:
        run: its folder, or its name in ``runs``.

    Raises:
        UsageError: when there is no such run.
        DamagedRunError: for a file of the run that cannot be read, naming it.
    """
    from nas.results.tables import RunResults  # brings everything along that reads runs

    return RunResults(run)

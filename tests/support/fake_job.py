"""A job with made-up results as a process: what ``NAS_RUNNER=tests.support.fake_job`` runs.

It takes a moment for each step, so that a page that follows it has something to show.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from nas.run.events import Progress, StageFinished, StageStarted
from nas.run.folder import RunFolder
from service.worker.job_process import DONE, end_with_parent
from tests.support.service_cases import do_job

STEPS = 10


def main(arguments: list[str]) -> None:
    path, kind, pick, _ = arguments
    end_with_parent()
    step_s = float(os.environ.get("FAKE_JOB_S", "1")) / STEPS
    folder = RunFolder.open(Path(path))
    with folder.locked():
        folder.log(StageStarted("supernet", "Train the supernet", STEPS))
        for step in range(1, STEPS + 1):
            threading.Event().wait(step_s)
            folder.log(Progress("supernet", step, STEPS, f"loss {2 / step:.3f}"))
        folder.log(StageFinished("supernet", STEPS * step_s))
        if not (folder.path / "pareto.json").exists() or kind != "search":
            do_job(folder, kind, pick)
    print(DONE)


if __name__ == "__main__":
    main(sys.argv[1:])

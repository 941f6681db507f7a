"""`--retime`: a search forgets what was timed for it, and all that followed from it."""

from __future__ import annotations

from collections.abc import Iterator

from nas.run.events import Event, Note
from nas.stages.base import Run
from nas.stages.table import search_stages
from search_spaces.errors import UsageError

# The first stage that times, and the one that times without reading that one's files; whatever
# lies between starts anew by itself, since it reads other times.
TIMING = ("verify", "latency")


def time_anew(run: Run) -> Iterator[Event]:
    """Forget what was timed, so that the stages that follow time it anew.

    The supernet stays, and so does the request. Killed at any moment, the run goes on without
    the option as well: what is forgotten first is what nothing else would notice.

    Raises:
        UsageError: for a search that times nothing on this device.
    """
    spec = run.spec
    if not spec.needs_latency:
        names = ", ".join((*spec.objectives, *spec.limits))
        raise UsageError(
            "--retime is for a search whose objectives or limits name latency_ms; this one has "
            f"{names}"
        )
    if run.elsewhere is not None:
        raise UsageError(
            f"--retime cannot time on {run.elsewhere}, whose profile this search predicts latency "
            "from: make the profile anew there with nas profile --retime, and search with that one"
        )
    run.meter().forget()
    stages = {stage.name: stage for stage in search_stages(spec)}
    for name in TIMING:
        run.folder.forget(name, stages[name].files)
    kept = "" if run.carried is None else ", but for what the device profile tells"
    note = Note("latency", f"what was timed before is forgotten{kept}: everything is timed anew")
    run.folder.log(note)
    yield note

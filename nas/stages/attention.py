"""The stage of a network that measures what its omni layers look at."""

from __future__ import annotations

from collections.abc import Iterator

from nas.results.networks import check_inherits, open_network
from nas.run.events import Event, Progress
from nas.run.folder import RunFolder, supernet_gone
from nas.run.layout import SUPERNET_FILE, attention_file
from nas.run.omni_views import OmniViews, Weights, check_omni, views_stage
from nas.run.stage_runner import run_stage
from nas.run.stages import ATTENTION, RETRAIN
from nas.search.front import FrontEntry, pick, read_front
from nas.stages.base import Run
from search_spaces.errors import UsageError
from supernet.extraction import Supernet
from supernet.omni_shares import omni_shares

EXAMPLES = 64
MAPS = 3


def measure_views(folder: RunFolder, how: str) -> Iterator[Event]:
    """Measure the omni layers of a network on the front, and write the report anew.

    Args:
        folder: the run.
        how: ``knee``, ``best`` or an id, see `nas.search.front.pick`.

    Raises:
        UsageError: when the run has no front yet, no such network, or no weights of it any more,
            or when the network has no layer to look into.
    """
    from nas.stages.report import report

    run = Run(folder)
    with folder.locked():
        entry = pick(read_front(folder), how)
        check_omni(entry.architecture, run.space.model.omni_span)
        stage = views_stage(folder, entry.id)
        retrained = RETRAIN + entry.id in stage.needs
        yield from run_stage(run, stage, lambda run: _measure(run, entry, retrained))
        yield from report(run)


def _measure(run: Run, entry: FrontEntry, retrained: bool) -> Iterator[Event]:
    model, weights = _weights(run, entry, retrained)
    task = run.task.with_valid(EXAMPLES)
    layers, maps = omni_shares(task, model.to("cpu"), entry.architecture, MAPS)
    views = OmniViews(entry.id, weights, min(EXAMPLES, _examples(run)), layers, maps)
    run.folder.write_json(attention_file(entry.id), views.to_json())
    yield Progress(ATTENTION + entry.id, 1, 1, f"{len(layers)} layers, {weights} weights")


def _weights(run: Run, entry: FrontEntry, retrained: bool) -> tuple[Supernet, Weights]:
    if retrained:
        return open_network(run.folder, entry.id, "cpu").model, "trained from scratch"
    check_inherits(run.folder, entry.id)
    if not run.folder.has(SUPERNET_FILE):
        raise UsageError(supernet_gone(run.folder.path))
    return run.supernet, "inherited"


def _examples(run: Run) -> int:
    return int(run.task.describe()["num_valid"])

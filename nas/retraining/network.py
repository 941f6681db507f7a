"""A network of the front with weights of its own."""

from __future__ import annotations

from pathlib import Path

from nas.run.opened import OpenedRun
from nas.search.front import FrontEntry
from supernet.building import build_network
from supernet.extraction import StandAlone
from supernet.training.checkpoint import load


def load_weights(run: OpenedRun, entry: FrontEntry, file: Path) -> StandAlone:
    """A network with the weights of a file, on the run's device.

    Raises:
        DamagedRunError: when they cannot be read.
    """
    network = build_network(run.space.model, run.space.task, entry.architecture)
    network.network.load_state_dict(load(file)["model"])
    network.network.to(run.spec.device)
    return network

"""Networks of a run that could not be evaluated.

Such a network has a line in a journal like any other, with ``failed`` in the place of its quality.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.executors.base import Failure
from nas.run.folder import RunFolder
from nas.run.layout import OBSERVATIONS_FILE, VERIFICATION_FILE
from search_spaces.errors import NasError
from search_spaces.files import read_lines
from search_spaces.genotypes import Network
from search_spaces.json_text import parse_json

FAILED = "failed"


@dataclass(frozen=True)
class FailedNetwork:
    """A network that could not be evaluated."""

    network: Network
    failure: Failure


def failed(line: Mapping[str, Any]) -> bool:
    """Whether the line is that of a network which could not be evaluated."""
    return FAILED in line


def read_failed(folder: RunFolder) -> tuple[FailedNetwork, ...]:
    """The networks of a run that could not be evaluated, each once.

    A line that cannot be read is left to those who need it.
    """
    found = {}
    for name in (OBSERVATIONS_FILE, VERIFICATION_FILE):
        for line in read_lines(folder.path / name):
            if b'"failed"' not in line:  # most are not, and parsing them takes long
                continue
            try:
                values = parse_json(line.decode())
                network = folder.spec.domain.network(values["architecture"])
                found[network.id] = FailedNetwork(network, Failure.from_json(values[FAILED]))
            except (ValueError, LookupError, TypeError, NasError):
                continue
    return tuple(found.values())

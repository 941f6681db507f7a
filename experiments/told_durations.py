"""Does a search take as long as it told before it began?

``python -m experiments.told_durations --space digits recall --preset smoke``

Each shipped space is searched by ``nas search --space NAME`` as it stands, on generated data where
its own are not built in. What its stages were told to take, by a calibration of seconds on this
machine, stands beside what they took. The machine should be at rest: what other work makes slow
after the calibration was not told. What was searched before under ``--work`` is not done again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.harness import Options, Study, table_of
from experiments.own_data import (
    DURATION_HEADS,
    duration_cells,
    durations,
    searched,
    times_taken,
)
from nas.request.spec import SYNTHETIC
from nas.results.state import read_state
from nas.run.folder import RunFolder
from search_spaces.data_keys import RECALL
from search_spaces.loading import load_space, space_names
from supernet.data.sources import SOURCES

MOST_OFF = 1.5  # times longer or shorter than told


def measure(options: Options) -> dict[str, Any]:
    """Search each space.

    Raises:
        NasError: for a space that is not there, and a search that fails.
    """
    rows = []
    built_in = {RECALL, *(name for name, source in SOURCES.items() if not source.needs_path)}
    for name in options.space or space_names():
        words = ["--space", name, "--preset", options.preset, "--objectives", options.objectives]
        words += ["--seed", f"{options.seed}"]
        if load_space(name).data.get("dataset") not in built_in:
            words += ["--data", SYNTHETIC]
        run = RunFolder.open(searched(words, Path(options.work) / f"{name}-{options.preset}"))
        state = read_state(run, thorough=False)
        rows.append({"space": name, "data": run.spec.dataset} | durations(run, state))
    return {"preset": options.preset, "rows": rows}


def show(numbers: Mapping[str, Any]) -> Iterator[Table]:
    """A row for each space."""
    rows = [
        (row["space"], row["data"], *duration_cells(row["stages"]), f"{row['minutes_taken']:g}")
        for row in numbers["rows"]
    ]
    title = f"searches with the preset {numbers['preset']}"
    yield table_of(title, ("space", "data", *DURATION_HEADS, "whole"), rows)


def met(numbers: Mapping[str, Any]) -> bool:
    """Whether each took no more than 1.5 times as long as it told, and no less than 1/1.5."""
    times = [times_taken(row["stages"]) for row in numbers["rows"]]
    return all(one is not None and 1 / MOST_OFF <= one <= MOST_OFF for one in times)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", nargs="+", metavar="NAME", help="default: all that are shipped")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--objectives", default="quality,latency_ms")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--work", default="runs/told_durations", help="where runs are kept")


STUDY = Study(
    "told_durations",
    "Does a search take as long as it told before it began?",
    add_options,
    measure,
    show,
    met,
    example="--space digits recall --preset smoke",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

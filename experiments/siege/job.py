"""The job that workers do under siege: it counts, like `experiments.instant_job`, as its seed says.

The seed is the one part of a request that reaches the run's folder and means nothing to a job that
only counts, so it chooses how long a job takes and what it leaves behind.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from experiments.instant_job import end_with_parent, work
from nas.run.layout import SPEC_FILE

QUICK, FRONT, LONG, ENDLESS, LARGE, BULKY, BULKY_ENDLESS = range(1, 8)

STEP_S = {LONG: 1.0, ENDLESS: 6.0, BULKY_ENDLESS: 6.0}
NETWORKS = {FRONT: 40, LARGE: 20_000}
BALLAST = {BULKY: 4_000_000, BULKY_ENDLESS: 4_000_000}
NAMES = ("quality", "flops")


def leave_results(folder: Path, networks: int) -> None:
    """Write the observations of so many networks and their front, with made-up qualities."""
    # Imported late: most jobs leave nothing, and are to be done in no time.
    import numpy as np

    from nas.objectives import OBJECTIVES
    from nas.objectives.size import network_costs
    from nas.run.layout import FRONT_FILE, OBSERVATIONS_FILE
    from nas.search.front import FrontEntry, build_front
    from search_spaces.files import write_atomically
    from search_spaces.loading import load_space
    from search_spaces.variation import sample_distinct

    space = load_space("digits")
    rows = sample_distinct(space, np.random.default_rng(networks), networks)
    params, flops = network_costs(space, rows).T.tolist()
    lines, entries = [], []
    for network, size, work_done in zip(space.decode(rows), params, flops, strict=True):
        quality = round(3.0 / float(np.log(size)) - 0.2, 6)
        line = {"id": network.id, "architecture": network.to_json(), "quality": quality}
        lines.append(json.dumps({**line, "valid_accuracy": 1 - quality}))
        measured = {"quality": quality, "params": size, "flops": work_done, "valid_accuracy": 0.9}
        entries.append(FrontEntry(network.id, network, measured, {"quality": quality}))
    write_atomically(folder / OBSERVATIONS_FILE, "\n".join(lines) + "\n")
    front = build_front(entries, [OBJECTIVES[name] for name in NAMES], [10.0, 1e9], {})
    write_atomically(folder / FRONT_FILE, json.dumps(front.to_json()))


def main() -> None:
    """Run as a worker runs it."""
    end_with_parent()
    folder = Path(sys.argv[1])
    seed = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))["seed"]
    if seed in NETWORKS:
        leave_results(folder, NETWORKS[seed])
    if seed in BALLAST and not (folder / "ballast.bin").exists():
        (folder / "ballast.bin").write_bytes(os.urandom(BALLAST[seed]))
    sys.exit(work(folder, STEP_S.get(seed, 0.0)))


if __name__ == "__main__":
    main()

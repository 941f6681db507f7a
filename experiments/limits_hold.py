"""Does a limit on latency hold when the winner is measured afresh?

``python -m experiments.limits_hold --searches 20``

One supernet is trained and one sample of networks observed; neither knows of limits, so every
search takes them over and does the rest itself: predicting, pruning, evolving, verifying. Each
search has a random limit between the 10th and the 60th percentile of the sampled latencies. After
all of them the winners, and all other networks of the fronts, are timed in new sessions beside
the reference network, which tells by how much the machine was faster or slower. What a search
would have reported that believes a single measurement is timed along with them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from experiments.harness import Options, Study, note, table_of
from nas.console.formatting import NOTHING
from nas.objectives import LATENCY, QUALITY, objective
from nas.profiling.latency_meter import LatencyMeter
from nas.request.presets import budget_for
from nas.request.spec import SearchSpec, build_spec
from nas.run.folder import RunFolder
from nas.run.stage_digest import stage_digest
from nas.run.stage_runner import run_stage
from nas.run.stages import Stage, search_stages
from nas.search.front import FrontEntry, best_entries, pick, read_front
from nas.stages.base import Run
from nas.stages.measured import measured_entries
from nas.stages.pipeline import work_of
from search_spaces.errors import NasError
from search_spaces.loading import dump_space, load_space

KEPT = 20  # searches, from which on the numbers are kept
PERCENTILES = (10.0, 60.0)
TOLERANCE = 1.03
FRESH_SESSIONS = 15
SHARED = ("supernet", "observe")
GROUPS = {
    "winners": "winners",
    "fronts": "networks of all fronts",
    "single": "winners if a single measurement were believed",
}
# How good the networks are does not matter here, so the supernet is trained for seconds.
SETTINGS = {"supernet.epochs": "12"}


@dataclass(frozen=True)
class Winner:
    """A network that a search reported, and what it took afterwards.

    Attributes:
        id: of the architecture.
        limit: in ms, of the search.
        reported: ms.
        fresh: ms, the median of new sessions.
        loss: with inherited weights, on the validation split; less than a limit allows is paid
            for with this.
    """

    id: str
    limit: float
    reported: float
    fresh: float
    loss: float

    @property
    def holds(self) -> bool:
        """Whether it is within its limit plus 3 %."""
        return self.fresh <= TOLERANCE * self.limit

    def to_json(self) -> dict[str, Any]:
        """Its numbers, and whether it holds."""
        return asdict(self) | {"holds": self.holds}


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        limit: in ms.
        front: its result.
        winner: of the best quality there.
        single: the winner if a single measurement were believed.
    """

    limit: float
    front: tuple[FrontEntry, ...]
    winner: FrontEntry
    single: FrontEntry


def measure(options: Options) -> dict[str, Any]:
    """Run the searches, then time what they found."""
    folder = Path(tempfile.mkdtemp(prefix="limits_hold-"))
    # Times of earlier searches must not help.
    os.environ["NAS_CACHE_DIR"] = str(folder / "cache")
    try:
        found, meter = search(options, folder)
        groups = timed_afresh(meter, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "searches": options.searches,
        "device": meter.header.device.label,
        "load_average": os.getloadavg()[0],
        "tolerance": TOLERANCE,
        "fresh_sessions": FRESH_SESSIONS,
        **{name: [one.to_json() for one in group] for name, group in groups.items()},
    }


def search(options: Options, folder: Path) -> tuple[list[Searched], LatencyMeter]:
    """What searches under random limits found, and the meter of their device."""
    space_name, preset, seed = options.space, options.preset, options.seed
    searches = options.searches
    base = RunFolder.create(folder / "base", limited_spec(space_name, preset, seed, {}))
    run = Run(base)
    for stage in search_stages(base.spec):
        if stage.name in ("declare", "latency", *SHARED):
            work(run, stage)
    times = [one.value for one in run.measured_costs()[LATENCY].values()]
    rng = np.random.default_rng(seed)
    found = []
    for number in range(searches):
        limit = float(np.percentile(times, rng.uniform(*PERCENTILES)))
        spec = limited_spec(space_name, preset, seed, {LATENCY: limit})
        text = f"search {number + 1} of {searches}: limit {limit:.4g} ms"
        try:
            found.append(search_beside(RunFolder.create(folder / str(number), spec), base, limit))
        except NasError as error:  # nothing is sure to hold, and nothing is reported
            text += f", no winner: {error}"
        note(text)
    return found, LatencyMeter(run.spec, run.device_profile)


def limited_spec(space_name: str, preset: str, seed: int, limits: dict[str, float]) -> SearchSpec:
    """A search of a shipped space for quality and latency."""
    space = load_space(space_name)
    return build_spec(
        space_toml=dump_space(space),
        dataset=space.data["dataset"],
        objectives=(QUALITY, LATENCY),
        limits=limits,
        preset=preset,
        budget=budget_for(space, preset, SETTINGS),
        seed=seed,
    )


def search_beside(folder: RunFolder, base: RunFolder, limit: float) -> Searched:
    """Do a search, but for what it takes over from another one."""
    run = Run(folder)
    for stage in search_stages(folder.spec):
        if stage.name in SHARED:
            take_over(folder, base, stage)
        work(run, stage)
    front = read_front(folder)
    objectives = [objective(name, run.spec.quality) for name in run.spec.objectives]
    single_ones = [replace(entry, doubtful={}) for entry in measured_entries(run)]
    believed = best_entries(single_ones, objectives, run.spec.limits) or list(front.entries)
    single = min(believed, key=lambda entry: (entry.measured[QUALITY], entry.id))
    return Searched(limit, front.entries, pick(front, "best"), single)


def take_over(folder: RunFolder, base: RunFolder, stage: Stage) -> None:
    """Give a run the files of a stage that would come out the same."""
    for name in stage.outputs:
        target = folder.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(base.path / name, target)
    folder.finish(stage.name, stage_digest(folder, stage), stage.outputs, 0.0)


def work(run: Run, stage: Stage) -> None:
    """Do a stage."""
    for _ in run_stage(run, stage, work_of(stage)):
        pass


def timed_afresh(meter: LatencyMeter, found: Sequence[Searched]) -> dict[str, list[Winner]]:
    """The networks of each of `GROUPS`, timed in new sessions."""
    networks = {
        entry.id: entry.architecture
        for one in found
        for entry in (*one.front, one.winner, one.single)
    }
    values = meter.time_afresh(list(networks.values()), FRESH_SESSIONS)
    fresh = {key: float(np.median(ms)) for key, ms in zip(networks, values, strict=True)}

    def winner(entry: FrontEntry, limit: float) -> Winner:
        measured = entry.measured
        return Winner(entry.id, limit, measured[LATENCY], fresh[entry.id], measured[QUALITY])

    return {
        "winners": [winner(one.winner, one.limit) for one in found],
        "fronts": [winner(entry, one.limit) for one in found for entry in one.front],
        "single": [winner(one.single, one.limit) for one in found],
    }


def tables(content: Mapping[str, Any]) -> list[Table]:
    """The winners, and how many of each group hold."""
    winners = [
        (
            one["id"],
            *(f"{one[name]:.4g}" for name in ("limit", "reported", "fresh")),
            f"{one['fresh'] / one['limit']:.3f}",
            "yes" if one["holds"] else "NO",
        )
        for one in content["winners"]
    ]
    counts = []
    for field, name in GROUPS.items():
        shares = [one["fresh"] / one["limit"] for one in content[field]]
        held = sum(one["holds"] for one in content[field])
        numbers = (NOTHING,) * 3
        if shares:
            loss = np.mean([one["loss"] for one in content[field]])
            numbers = f"{max(shares):.3f}", f"{np.median(shares):.3f}", f"{loss:.4f}"
        counts.append((name, f"{held} of {len(shares)}", *numbers))
    heads = ("winner", "limit ms", "reported ms", "fresh ms", "fresh / limit", "within 3 %")
    title = f"{content['device']}, load average {content['load_average']:.1f}"
    return [
        table_of(title, heads, winners),
        table_of("fresh / limit", ("networks", "hold", "worst", "median", "mean loss"), counts),
    ]


def show(content: Mapping[str, Any]) -> Iterator[Table | str]:
    """The winners and how many hold."""
    winners, counts = tables(content)
    yield winners
    if len(content["winners"]) < content["searches"]:
        missing = content["searches"] - len(content["winners"])
        yield f"{missing} searches found no network sure to hold"
    for name, held, worst, median, loss in zip(*(c.cells for c in counts.columns), strict=True):
        yield (
            f"{held} {name} hold; the worst takes {worst} limits, the median {median}; "
            f"mean loss {loss}"
        )


def met(content: Mapping[str, Any]) -> bool:
    """Whether every reported winner is within its limit plus 3 %, and there are some."""
    return bool(content["winners"]) and all(one["holds"] for one in content["winners"])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a study of many searches."""
    parser.add_argument("--space", default="digits", help="default: %(default)s")
    parser.add_argument("--preset", default="quick", help="default: %(default)s")
    parser.add_argument("--searches", type=int, default=20, help=f"kept in results/ from {KEPT} on")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")


STUDY = Study(
    "limits_hold",
    "Does a limit on latency hold when the winner is measured afresh?",
    add_options,
    measure,
    show,
    met,
    lambda options: "limits_hold" if options.searches >= KEPT else None,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

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
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nas.objectives import LATENCY, QUALITY, objective
from nas.profiling.latency_meter import LatencyMeter
from nas.request.presets import budget_for
from nas.request.spec import SearchSpec, build_spec
from nas.run.folder import RunFolder
from nas.run.stage_runner import run_stage, stage_digest
from nas.run.stages import Stage, search_stages
from nas.search.front import FrontEntry, best_entries, pick, read_front
from nas.stages.base import Run
from nas.stages.measured import measured_entries
from nas.stages.pipeline import work_of
from search_spaces.errors import NasError
from search_spaces.files import write_atomically
from search_spaces.loading import dump_space, load_space

RESULTS = Path(__file__).parent / "results" / "limits_hold.json"
PIPED_WIDTH = 120  # columns, where there is no terminal to ask
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


@dataclass(frozen=True)
class Study:
    """All searches.

    Attributes:
        winners: one for each search.
        fronts: all networks of all fronts.
        single: winners of the same searches if a single measurement were believed.
    """

    winners: tuple[Winner, ...]
    fronts: tuple[Winner, ...]
    single: tuple[Winner, ...]

    @property
    def holds(self) -> bool:
        """Whether every reported winner is within its limit plus 3 %, and there are some."""
        return bool(self.winners) and all(winner.holds for winner in self.winners)

    def to_json(self, device: str) -> dict[str, Any]:
        """The numbers for ``results/``."""
        return {
            "device": device,
            "load_average": os.getloadavg()[0],
            "tolerance": TOLERANCE,
            "fresh_sessions": FRESH_SESSIONS,
            **{
                name: [asdict(one) | {"holds": one.holds} for one in getattr(self, name)]
                for name in ("winners", "fronts", "single")
            },
        }


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


def study(
    space_name: str, preset: str, searches: int, seed: int, folder: Path
) -> tuple[Study, str]:
    """Run the searches, then time what they found.

    Returns:
        The study and the label of the device.
    """
    base = RunFolder.create(folder / "base", limited_spec(space_name, preset, seed, {}))
    run = Run(base)
    for stage in search_stages(base.spec):
        if stage.name in ("declare", "latency", *SHARED):
            work(run, stage)
    times = [one.value for one in run.timed().values()]
    rng = np.random.default_rng(seed)
    found = []
    for number in range(searches):
        limit = float(np.percentile(times, rng.uniform(*PERCENTILES)))
        spec = limited_spec(space_name, preset, seed, {LATENCY: limit})
        told = f"search {number + 1} of {searches}: limit {limit:.4g} ms"
        try:
            found.append(search_beside(RunFolder.create(folder / str(number), spec), base, limit))
        except NasError as error:  # nothing is sure to hold, and nothing is reported
            told += f", no winner: {error}"
        print(told, file=sys.stderr)
    meter = LatencyMeter(run.spec, run.carried)
    return _timed_afresh(meter, found), meter.header.device.label


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


def _timed_afresh(meter: LatencyMeter, found: Sequence[Searched]) -> Study:
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

    return Study(
        tuple(winner(one.winner, one.limit) for one in found),
        tuple(winner(entry, one.limit) for one in found for entry in one.front),
        tuple(winner(one.single, one.limit) for one in found),
    )


def tables(content: Mapping[str, Any]) -> list[Table]:
    """The winners, and how many hold, of the numbers in ``results/``."""
    title = f"{content['device']}, load average {content['load_average']:.1f}"
    winners = Table(title=title, title_justify="left")
    for heading in ("winner", "limit ms", "reported ms", "fresh ms", "fresh / limit", "within 3 %"):
        winners.add_column(heading, justify="left" if heading == "winner" else "right")
    for one in content["winners"]:
        numbers = (f"{one[name]:.4g}" for name in ("limit", "reported", "fresh"))
        word = "yes" if one["holds"] else "NO"
        winners.add_row(one["id"], *numbers, f"{one['fresh'] / one['limit']:.3f}", word)
    counts = Table(title="fresh / limit", title_justify="left")
    for heading in ("networks", "hold", "worst", "median", "mean loss"):
        counts.add_column(heading, justify="left" if heading == "networks" else "right")
    for field, name in GROUPS.items():
        shares = [one["fresh"] / one["limit"] for one in content[field]]
        held = sum(one["holds"] for one in content[field])
        loss = np.mean([one["loss"] for one in content[field]])
        counts.add_row(
            name,
            f"{held} of {len(shares)}",
            f"{max(shares):.3f}",
            f"{np.median(shares):.3f}",
            f"{loss:.4f}",
        )
    return [winners, counts]


def show(content: Mapping[str, Any], console: Console) -> None:
    """Print the winners and how many hold."""
    winners, counts = tables(content)
    console.print(winners)
    if len(content["winners"]) < content["searches"]:
        missing = content["searches"] - len(content["winners"])
        console.print(f"{missing} searches found no network sure to hold")
    for name, held, worst, median, loss in zip(*(c.cells for c in counts.columns), strict=True):
        console.print(
            f"{held} {name} hold; the worst takes {worst} limits, the median {median}; "
            f"mean loss {loss}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; exit code 1 when a winner breaks its limit."""
    about = "Time the winners of searches under random latency limits afresh."
    options = parser_of("limits_hold", about).parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="limits_hold-"))
    # Times of earlier searches must not help.
    os.environ["NAS_CACHE_DIR"] = str(folder / "cache")
    try:
        result, device = study(
            options.space, options.preset, options.searches, options.seed, folder
        )
    except NasError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report({"searches": options.searches, **result.to_json(device)}, options, show, RESULTS)
    return 0 if result.holds else 1


def report(
    data: dict[str, Any],
    options: argparse.Namespace,
    shown: Callable[[dict[str, Any], Console], None],
    results: Path,
) -> None:
    """Print the numbers of a study, and keep them where there are enough."""
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        shown(data, Console(width=None if sys.stdout.isatty() else PIPED_WIDTH))
    if options.searches >= KEPT:
        write_atomically(results, json.dumps(data, indent=1) + "\n")


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """The options of a study of many searches."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        epilog=f"With {KEPT} searches or more the numbers also go to results/{name}.json.",
    )
    parser.add_argument("--space", default="digits", help="default: %(default)s")
    parser.add_argument("--preset", default="quick", help="default: %(default)s")
    parser.add_argument("--searches", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())

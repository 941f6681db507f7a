"""Are timings believed that were taken while other work disturbed them, and what do they decide?

``python -m experiments.timing_noise --searches 20``

A second process burns every core at random times, in bursts of 0.1 to 20 s with pauses as long.
Beside it searches with random limits on latency are run, each with a cache of its own, so that each
times all of its networks, and profiles are made. Then the noise ends, and everything that was timed
is timed again in quiet sessions. Told are: how many of the timings that were accepted are more than
10 % from the quiet value, whether the winners keep their limits, what was marked as doubtful, and
the time that waiting and repeating took.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.limits_hold import (
    PERCENTILES,
    SHARED,
    TOLERANCE,
    limited_spec,
    parser_of,
    report,
    search_beside,
    work,
)
from latency.device import usable_cores
from latency.machine import wait_for_quiet
from latency.profile import ENDING, profile_id, profiles_dir, read_profile, sibling
from latency.workload import Workload
from nas.objectives import LATENCY
from nas.profiling.device_profile import CarriedProfile
from nas.profiling.latency_meter import LatencyMeter
from nas.profiling.profile_device import ProfileRequest, profile_device
from nas.run.folder import RunFolder
from nas.run.stages import search_stages
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.errors import NasError

RESULTS = Path(__file__).parent / "results" / "timing_noise.json"
BURST_S = (0.1, 20.0)
OFF = 0.10
MOST_OFF = 0.01
QUIET_SESSIONS = 7
PROFILE_SAMPLES = 20
TRIES = 3


@dataclass(frozen=True)
class Timing:
    """One network as it was timed beside the noise.

    Attributes:
        id: of the architecture.
        where: ``search N``, ``held N`` or ``profile N``.
        ms: as it was accepted, or as it is doubtful.
        doubtful: whether it was marked so.
        quiet_ms: what it took when nothing disturbed; 0 until that was measured.
    """

    id: str
    where: str
    ms: float
    doubtful: bool
    quiet_ms: float = 0.0

    @property
    def off(self) -> float:
        """Relative distance from the quiet value."""
        return abs(self.ms / self.quiet_ms - 1)


@dataclass(frozen=True)
class Searched:
    """One search beside the noise.

    Attributes:
        limit: in ms.
        winner: id of the picked network; empty where none was sure to hold.
        reported: ms of it.
        quiet_ms: what it took when nothing disturbed.
        seconds: that the search took, without the stages that all share.
        waited_s: of them for a quiet machine.
        repeated: sessions of the timer that did not count.
        error: why there is no winner, although the search was gone on with twice, as it told to.
    """

    limit: float
    winner: str
    reported: float
    quiet_ms: float
    seconds: float
    waited_s: float
    repeated: int
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether the winner is within its limit plus 3 %."""
        return bool(self.winner) and self.quiet_ms <= TOLERANCE * self.limit


# -- noise --------------------------------------------------------------------------------------


def schedule(seed: int) -> Iterator[tuple[float, float]]:
    """Pauses and bursts in seconds, without end, both log-uniform."""
    rng = random.Random(seed)
    low, high = (math.log(value) for value in BURST_S)
    while True:
        yield math.exp(rng.uniform(low, high)), math.exp(rng.uniform(low, high))


def burn(seed: int) -> None:
    """Burn one core at the times of the schedule, until stdin is closed, as by a parent's end."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    moment = time.monotonic()
    for pause, burst in schedule(seed):
        moment += pause
        time.sleep(max(0.0, moment - time.monotonic()))
        moment += burst
        while time.monotonic() < moment:
            sum(number * number for number in range(20_000))


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


@contextmanager
def noise(seed: int) -> Iterator[None]:
    """Processes that burn all cores at the same random times."""
    command = [sys.executable, "-m", "experiments.timing_noise", "--burn", str(seed)]
    burners = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(usable_cores())]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


# -- the study ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """Everything that was timed, and every search.

    Attributes:
        device: its label.
        searches: in order.
        timings: of all searches and profiles.
        quiet_seconds: what a search took without noise.
    """

    device: str
    searches: tuple[Searched, ...]
    timings: tuple[Timing, ...]
    quiet_seconds: float

    @property
    def accepted(self) -> list[Timing]:
        """What was not marked as doubtful."""
        return [one for one in self.timings if not one.doubtful]

    @property
    def share_off(self) -> float:
        """Share of accepted timings more than 10 % from the quiet value."""
        return float(np.mean([one.off > OFF for one in self.accepted]))

    @property
    def holds(self) -> bool:
        """Whether the marks are met."""
        return self.share_off <= MOST_OFF and all(one.holds for one in self.searches)

    def to_json(self) -> dict[str, Any]:
        """The numbers for ``results/``."""
        return {
            "device": self.device,
            "cores": usable_cores(),
            "share_off": self.share_off,
            "accepted": len(self.accepted),
            "doubtful": len(self.timings) - len(self.accepted),
            "worst_off": max((one.off for one in self.accepted), default=0.0),
            "quiet_seconds": self.quiet_seconds,
            "searches": [asdict(one) | {"holds": one.holds} for one in self.searches],
            "off": [asdict(one) for one in self.accepted if one.off > OFF],
        }


def study(space: str, preset: str, searches: int, profiles: int, seed: int, folder: Path) -> Study:
    """Search and profile beside the noise, then time everything again without it."""
    os.environ["NAS_CACHE_DIR"] = str(folder / "quiet")
    base = RunFolder.create(folder / "base", limited_spec(space, preset, seed, {}))
    run = Run(base)
    for stage in search_stages(base.spec):
        if stage.name in ("declare", "latency", *SHARED):
            work(run, stage)
    times = [one.value for one in run.timed().values()]
    rng = np.random.default_rng(seed)
    limits = [float(np.percentile(times, rng.uniform(*PERCENTILES))) for _ in range(searches)]
    started = time.monotonic()
    search_beside(
        RunFolder.create(
            folder / "without", limited_spec(space, preset, seed, {LATENCY: limits[0]})
        ),
        base,
        limits[0],
    )
    quiet_seconds = time.monotonic() - started
    networks: dict[str, Architecture] = {}
    found: list[Searched] = []
    timings: list[Timing] = []
    with noise(seed):
        for number, limit in enumerate(limits):
            os.environ["NAS_CACHE_DIR"] = str(folder / f"cache-{number}")
            spec = limited_spec(space, preset, seed, {LATENCY: limit})
            mine = RunFolder.create(folder / str(number), spec)
            found.append(_searched(mine, base, limit))
            timings += _timings(mine, number, networks)
            _say(f"search {number + 1} of {searches}: {found[-1]}")
        for number in range(profiles):
            made = _profiled(base, seed + number, folder / f"profile-{number}.json")
            timings += _of_profile(made, number, networks)
            _say(f"profile {number + 1} of {profiles}")
    os.environ["NAS_CACHE_DIR"] = str(folder / "quiet")
    wait_for_quiet(60.0, usable_cores(), usable_cores())
    meter = LatencyMeter(run.spec, run.carried)
    values = meter.time_afresh(list(networks.values()), QUIET_SESSIONS)
    quiet = {key: float(np.median(ms)) for key, ms in zip(networks, values, strict=True)}
    return Study(
        meter.header.device.label,
        tuple(replace(one, quiet_ms=quiet.get(one.winner, 0.0)) for one in found),
        tuple(replace(one, quiet_ms=quiet[one.id]) for one in timings),
        quiet_seconds,
    )


def _searched(folder: RunFolder, base: RunFolder, limit: float) -> Searched:
    started = time.monotonic()
    winner, reported, error = "", 0.0, ""
    for _ in range(TRIES):
        try:
            made = search_beside(folder, base, limit)
            winner, reported, error = made.winner.id, made.winner.measured[LATENCY], ""
            break
        except NasError as problem:  # it says to go on with it
            error = str(problem)
    notes = [
        event["details"]
        for event in folder.read_journal("events.jsonl", mend=False)
        if event["event"] == "Note" and "repeated" in event["details"]
    ]
    return Searched(
        limit,
        winner,
        reported,
        0.0,
        round(time.monotonic() - started, 1),
        round(sum(note["waited_s"] for note in notes), 1),
        sum(note["repeated"] for note in notes),
        error,
    )


def _timings(folder: RunFolder, number: int, networks: dict[str, Architecture]) -> list[Timing]:
    """What a search took from the timer: its own files, and the cache that was its own."""
    found: dict[tuple[str, str], Timing] = {}
    files = {"search": [folder.path / "latency" / "profile.jsonl"], "held": []}
    for file in sorted(profiles_dir().glob(f"*{ENDING}")):
        held = sibling(file.with_name(f"{profile_id(file)}{ENDING}"), "held")
        files["held" if file == held else "search"].append(file)
    for where, paths in files.items():
        for path in paths:
            for key, (architecture, one) in read_profile(path).entries.items():
                networks[key] = architecture
                timing = Timing(key, f"{where} {number}", one.value, bool(one.doubtful))
                found[where, key] = timing
    return list(found.values())


def _profiled(base: RunFolder, seed: int, out: Path) -> CarriedProfile:
    space = base.spec.space
    request = ProfileRequest(
        space,
        "cpu",
        None,
        (Workload.from_mapping(space.workload),),
        PROFILE_SAMPLES,
        seed,
        base.spec.budget.threads,
    )
    *_, made = profile_device(request, out)
    assert isinstance(made, CarriedProfile)
    return made


def _of_profile(
    made: CarriedProfile, number: int, networks: dict[str, Architecture]
) -> list[Timing]:
    (workload,) = made.workloads
    found = []
    for one in workload.measured:
        networks[one.architecture.id] = one.architecture
        doubtful = bool(one.latency.doubtful)
        found.append(Timing(one.architecture.id, f"profile {number}", one.latency.value, doubtful))
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- telling ------------------------------------------------------------------------------------


def tables(made: dict[str, Any]) -> list[Table]:
    """The searches of a results file."""
    table = Table(title=f"{made['device']}, {made['cores']} cores", title_justify="left")
    heads = ("limit ms", "reported ms", "quiet ms", "quiet / limit", "seconds", "waited s", "again")
    for head in ("winner", *heads):
        table.add_column(head, justify="left" if head == "winner" else "right")
    for one in made["searches"]:
        ratio = one["quiet_ms"] / one["limit"]
        numbers = [f"{one[name]:.4g}" for name in ("limit", "reported", "quiet_ms")]
        spent = [f"{one['seconds']:.0f}", f"{one['waited_s']:.0f}", str(one["repeated"])]
        table.add_row(one["winner"] or "none", *numbers, f"{ratio:.3f}", *spent)
    return [table]


def show(made: dict[str, Any], console: Console) -> None:
    """Print the searches, the marks and whether they are met."""
    console.print(*tables(made))
    for one in made["searches"]:
        if one["error"]:
            console.print(f"no winner: {one['error']}", markup=False)
    searches, holds = len(made["searches"]), sum(one["holds"] for one in made["searches"])
    seconds = float(np.median([one["seconds"] for one in made["searches"]]))
    waited = float(np.median([one["waited_s"] for one in made["searches"]]))
    console.print(
        f"{made['accepted']} timings were accepted, {len(made['off'])} of them more than 10 % from "
        f"the quiet value: {made['share_off']:.2%} (at most 1 %); the worst is "
        f"{made['worst_off']:.1%} off; {made['doubtful']} were marked as doubtful"
    )
    console.print(f"{holds} of {searches} winners are within their limit plus 3 %")
    console.print(
        f"a search took {seconds:.0f} s in the median, {waited:.0f} s of them waiting; without "
        f"noise {made['quiet_seconds']:.0f} s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; exit code 1 when a mark is missed."""
    options = _parser().parse_args(arguments)
    if options.burn is not None:
        burn(options.burn)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="timing_noise-"))
    try:
        made = study(
            options.space,
            options.preset,
            options.searches,
            options.profiles,
            options.seed,
            folder,
        )
    except NasError as error:
        _say(f"error: {error}")
        return error.exit_code
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(made.to_json(), options, show, RESULTS)
    return 0 if made.holds else 1


def _parser() -> argparse.ArgumentParser:
    about = "Search and profile while a second process burns every core at random times."
    parser = parser_of("timing_noise", about)
    parser.add_argument("--profiles", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--burn", type=int, metavar="SEED", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

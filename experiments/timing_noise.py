"""Are timings believed that were taken while other work disturbed them, and what do they decide?

``python -m experiments.timing_noise --searches 20``

First a search runs while every core is free, and its networks are timed for about a minute. Then a
second process burns every core at random times, in bursts of 0.1 to 20 s with pauses as long.
Beside it searches with random limits on latency are run, each with times of its own, so that each
times all of its networks, and profiles are made. Then the noise ends, and everything that was timed
is timed again in quiet sessions, in three processes, of whose values the middle one counts: where
its tensors come to lie makes a small network some per cent faster for as long as a process lasts.
Told are: how many of the timings that were accepted are more than
10 % from the quiet value, whether the winners keep their limits, what was marked as doubtful, and
the time that waiting and repeating took.

What a search keeps in the user's cache is not only the times of networks but also how fast the
machine has been (`latency.yardstick`). The searches beside the noise find that, as all searches do
on a machine that was used before and was at rest for a minute of it; the marks are for them. The
last few searches (``--first``) find nothing: each is the first one on a machine that was never
quiet. They are told apart, without a mark, and as many are run as end in time.
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
from rich.table import Table

from experiments import limits_hold
from experiments.harness import Options, Study, note, processes, table_of
from experiments.limits_hold import (
    PERCENTILES,
    SHARED,
    TOLERANCE,
    limited_spec,
    search_beside,
    work,
)
from latency.device import usable_cores
from latency.machine import wait_for_quiet
from latency.timings import ENDING, read_timings, sibling, timings_dir, timings_id
from latency.workload import Workload
from latency.yardstick import KNOWN_SESSIONS, speeds_dir
from nas.objectives import LATENCY
from nas.profiling.device_profile import DeviceProfile
from nas.profiling.latency_meter import LatencyMeter
from nas.profiling.profile_device import ProfileRequest, profile_device
from nas.run.folder import RunFolder
from nas.run.layout import EVENTS_FILE, profile_file
from nas.run.stages import search_stages
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.errors import NasError

BURST_S = (0.1, 20.0)
OFF = 0.10
MOST_OFF = 0.01
QUIET_SESSIONS = 5
QUIET_PROCESSES = 3
FIRST_UNTIL_S = 22 * 60.0  # since the start; the quiet sessions are to end within half an hour
PROFILE_SAMPLES = 20
TRIES = 3


@dataclass(frozen=True)
class Timing:
    """One network as it was timed beside the noise.

    Attributes:
        id: of the architecture.
        where: ``search N``, ``held search N``, ``profile N``, ``first N`` or ``held first N``.
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
            burner.communicate()


# -- the study ----------------------------------------------------------------------------------


def measure(options: Options) -> dict[str, Any]:
    """Search and profile beside the noise, then time everything again without it."""
    if options.burn is not None:
        burn(options.burn)
        sys.exit(0)
    folder = Path(tempfile.mkdtemp(prefix="timing_noise-"))
    try:
        return study(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def numbers_of(
    device: str,
    searches: Sequence[Searched],
    timings: Sequence[Timing],
    quiet_seconds: float,
    first: tuple[Sequence[Searched], Sequence[Timing]] = ((), ()),
) -> dict[str, Any]:
    """What is kept of all searches, of all that was timed, and of a search without noise.

    Args:
        device: its label.
        searches: that knew the machine.
        timings: of them, and of profiles.
        quiet_seconds: of a search without noise.
        first: searches that knew nothing, and their timings.
    """
    return {
        "device": device,
        "cores": usable_cores(),
        "quiet_seconds": quiet_seconds,
        **_shares(searches, timings),
        "first": _shares(*first),
    }


def _shares(searches: Sequence[Searched], timings: Sequence[Timing]) -> dict[str, Any]:
    accepted = [one for one in timings if not one.doubtful]
    off = [one for one in accepted if one.off > OFF]
    caches: dict[str, list[float]] = {}
    for one in accepted:
        caches.setdefault(one.where, []).append(round(one.ms / one.quiet_ms, 4))
    return {
        "share_off": len(off) / max(1, len(accepted)),
        "accepted": len(accepted),
        "doubtful": len(timings) - len(accepted),
        "worst_off": max((one.off for one in accepted), default=0.0),
        "searches": [asdict(one) | {"holds": one.holds} for one in searches],
        "off": [asdict(one) for one in off],
        "to_quiet": {where: sorted(ratios) for where, ratios in caches.items()},
    }


def met(made: dict[str, Any]) -> bool:
    """Whether at most one accepted timing in a hundred is off, and all winners hold."""
    return (
        bool(made["accepted"])
        and made["share_off"] <= MOST_OFF
        and all(one["holds"] for one in made["searches"])
    )


def study(options: Options, folder: Path) -> dict[str, Any]:
    """All of it, in a folder."""
    space, preset, seed, searches = options.space, options.preset, options.seed, options.searches
    began = time.monotonic()
    use_cache(folder, "quiet")
    base = RunFolder.create(folder / "base", limited_spec(space, preset, seed, {}))
    run = Run(base)
    for stage in search_stages(base.spec):
        if stage.name in ("declare", "latency", *SHARED):
            work(run, stage)
    times = [one.value for one in run.measured_costs()[LATENCY].values()]
    rng = np.random.default_rng(seed)
    limits = [float(np.percentile(times, rng.uniform(*PERCENTILES))) for _ in range(searches)]
    limits_first = [
        float(np.percentile(times, rng.uniform(*PERCENTILES))) for _ in range(options.first)
    ]
    started = time.monotonic()
    search_beside(
        RunFolder.create(
            folder / "without", limited_spec(space, preset, seed, {LATENCY: limits[0]})
        ),
        base,
        limits[0],
    )
    quiet_seconds = time.monotonic() - started
    meter = LatencyMeter(run.spec, run.device_profile)
    meter.time_afresh(run.space.decode(run.timed_rows[: len(times)]), KNOWN_SESSIONS)
    note(f"the machine is known after {time.monotonic() - began:.0f} s")
    networks: dict[str, Architecture] = {}

    def beside(name: str, limit: float) -> tuple[Searched, list[Timing]]:
        spec = limited_spec(space, preset, seed, {LATENCY: limit})
        mine = RunFolder.create(folder / name.replace(" ", "-"), spec)
        made = _searched(mine, base, limit)
        note(f"{name}: {made}")
        return made, _timings(mine, name, networks)

    found: list[Searched] = []
    found_first: list[Searched] = []
    timings: list[Timing] = []
    timings_first: list[Timing] = []
    with noise(seed):
        for number, limit in enumerate(limits):
            use_cache(folder, f"cache-{number}")
            made, taken = beside(f"search {number}", limit)
            found.append(made)
            timings += taken
        for number in range(options.profiles):
            profile = _profiled(base, seed + number, folder / f"profile-{number}.json")
            timings += _of_profile(profile, number, networks)
            note(f"profile {number}")
        for number, limit in enumerate(limits_first):
            if time.monotonic() - began > FIRST_UNTIL_S:
                break
            use_cache(folder, f"first-{number}", alone=True)
            made, taken = beside(f"first {number}", limit)
            found_first.append(made)
            timings_first += taken
    use_cache(folder, "quiet")
    wait_for_quiet(60.0, usable_cores(), usable_cores())
    again = [_quiet_times(base.path, list(networks.values())) for _ in range(QUIET_PROCESSES)]
    quiet = dict(zip(networks, np.median(again, axis=0).tolist(), strict=True))
    apart = np.ptp(again, axis=0) / np.min(again, axis=0)
    note(
        f"quiet values of a network lie {np.median(apart):.1%} apart in the median, "
        f"{apart.max():.1%} at most"
    )

    def judged(
        searches: Sequence[Searched], timings: Sequence[Timing]
    ) -> tuple[list[Searched], list[Timing]]:
        winners = [replace(one, quiet_ms=quiet.get(one.winner, 0.0)) for one in searches]
        return winners, [replace(one, quiet_ms=quiet[one.id]) for one in timings]

    label = meter.header.device.label
    first = judged(found_first, timings_first)
    return numbers_of(label, *judged(found, timings), quiet_seconds, first)


def _quiet_times(base: Path, networks: list[Architecture]) -> list[float]:
    """Milliseconds of networks, in a process of its own."""
    with processes(1) as pool:
        return pool.submit(timed_quietly, base, networks).result()


def timed_quietly(base: Path, networks: list[Architecture]) -> list[float]:
    """The medians of networks over quiet sessions, in milliseconds."""
    run = Run(RunFolder.open(base))
    values = LatencyMeter(run.spec, run.device_profile).time_afresh(networks, QUIET_SESSIONS)
    return [float(np.median(ms)) for ms in values]


def use_cache(folder: Path, name: str, alone: bool = False) -> None:
    """A cache of that name; how fast the machine has been is shared by all that are not `alone`."""
    cache = folder / name
    os.environ["NAS_CACHE_DIR"] = str(cache)
    if not alone and not cache.exists():
        cache.mkdir()
        (folder / "speed").mkdir(exist_ok=True)
        speeds_dir().symlink_to(folder / "speed")


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
        for event in folder.read_journal(EVENTS_FILE)
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


def _timings(folder: RunFolder, name: str, networks: dict[str, Architecture]) -> list[Timing]:
    """What a search took from the timer: its own files, and the cache that was its own."""
    found: dict[tuple[str, str], Timing] = {}
    files = {name: [folder.path / profile_file("latency")], f"held {name}": []}
    for file in sorted(timings_dir().glob(f"*{ENDING}")):
        held = sibling(file.with_name(f"{timings_id(file)}{ENDING}"), "held")
        files[f"held {name}" if file == held else name].append(file)
    for where, paths in files.items():
        for path in paths:
            if not path.exists():  # a search that ended before it had timed its sample
                continue
            for key, (architecture, one) in read_timings(path).entries.items():
                networks[key] = architecture
                found[where, key] = Timing(key, where, one.value, bool(one.doubtful))
    return list(found.values())


def _profiled(base: RunFolder, seed: int, out: Path) -> DeviceProfile:
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
    assert isinstance(made, DeviceProfile)
    return made


def _of_profile(
    made: DeviceProfile, number: int, networks: dict[str, Architecture]
) -> list[Timing]:
    (workload,) = made.workloads
    found = []
    for one in workload.measured:
        networks[one.architecture.id] = one.architecture
        doubtful = bool(one.latency.doubtful)
        found.append(Timing(one.architecture.id, f"profile {number}", one.latency.value, doubtful))
    return found


# -- telling ------------------------------------------------------------------------------------


def tables(made: dict[str, Any]) -> list[Table]:
    """The searches."""
    heads = ("limit ms", "reported ms", "quiet ms", "quiet / limit", "seconds", "waited s", "again")
    rows = [
        (
            one["winner"] or "none",
            *(f"{one[name]:.4g}" for name in ("limit", "reported", "quiet_ms")),
            f"{one['quiet_ms'] / one['limit']:.3f}",
            f"{one['seconds']:.0f}",
            f"{one['waited_s']:.0f}",
            one["repeated"],
        )
        for one in made["searches"]
    ]
    return [table_of(f"{made['device']}, {made['cores']} cores", ("winner", *heads), rows)]


def show(made: dict[str, Any]) -> Iterator[Table | str]:
    """The searches, the marks and whether they are met."""
    yield from tables(made)
    yield from (f"no winner: {one['error']}" for one in made["searches"] if one["error"])
    searches, holds = len(made["searches"]), sum(one["holds"] for one in made["searches"])
    seconds = float(np.median([one["seconds"] for one in made["searches"]]))
    waited = float(np.median([one["waited_s"] for one in made["searches"]]))
    yield (
        f"{made['accepted']} timings were accepted, {len(made['off'])} of them more than 10 % from "
        f"the quiet value: {made['share_off']:.2%} (at most 1 %); the worst is "
        f"{made['worst_off']:.1%} off; {made['doubtful']} were marked as doubtful"
    )
    yield f"{holds} of {searches} winners are within their limit plus 3 %"
    # Files of before 2026-11-24 tell of the accepted timings that are off, and of no others.
    if ratios := [ratio for cache in made.get("to_quiet", {}).values() for ratio in cache]:
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
        yield f"accepted / quiet is {middle:.3f} in the median, {low:.3f} to {high:.3f} in 90 %"
    if "first" in made:
        yield from _of_first(made["first"])
    yield (
        f"a search took {seconds:.0f} s in the median, {waited:.0f} s of them waiting; without "
        f"noise {made['quiet_seconds']:.0f} s"
    )


def _of_first(made: dict[str, Any]) -> Iterator[str]:
    """What came of the searches that knew nothing of the machine, where there were any."""
    if searches := made["searches"]:
        holds = sum(one["holds"] for one in searches)
        yield (
            f"on a machine that was never quiet {holds} of {len(searches)} winners are within "
            f"their limit plus 3 %, and {made['share_off']:.1%} of {made['accepted']} timings are "
            f"more than 10 % off, the worst {made['worst_off']:.1%}"
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of a study of many searches, and how many profiles are made."""
    limits_hold.add_options(parser)
    parser.add_argument("--profiles", type=int, default=4, help="default: %(default)s")
    parser.add_argument(
        "--first",
        type=int,
        default=4,
        help="on a machine that was never quiet; default: %(default)s",
    )
    parser.add_argument("--burn", type=int, metavar="SEED", help=argparse.SUPPRESS)


STUDY = Study(
    "timing_noise",
    "Are timings believed that other work disturbed, and what do they decide?",
    add_options,
    measure,
    show,
    met,
    lambda options: "timing_noise" if options.searches >= limits_hold.KEPT else None,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

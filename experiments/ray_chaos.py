"""Kill workers, drivers and whole nodes of a Ray cluster with ``kill -9``, and compare the fronts.

``python -m experiments.ray_chaos --times 30 --seed 0`` starts a Ray cluster of two nodes on this
machine and runs a small search undisturbed, in one process and without Ray. Then it runs the same
search through Ray again and again, and each time kills something at a random moment: a worker's
process, the process of the search, or a node with all that runs on it. After the death of the
search's own process ``nas resume`` goes on, by either executor. It prints a table, and ends with
exit code 1 unless each run ends in the same ``pareto.json`` and the same retrained networks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import Options, Study, note
from experiments.kill_stages import NAS, events_of, run_to_end
from nas.executors.board import read_workers
from nas.run.layout import FRONT_FILE, result_file

REQUEST = (
    *("--space", "digits", "--preset", "smoke", "--objectives", "quality,flops", "--threads", "1"),
    *("--set", "supernet.epochs=2", "--set", "observations=48", "--set", "rounds.first=24"),
    *("--set", "retrain.epochs=2"),
)
TARGETS = ("worker", "driver", "node")
LOOK_EVERY_S = 0.01


@dataclass(frozen=True)
class Kill:
    """What is to be killed, when, and by what the run goes on.

    Attributes:
        target: ``worker``, ``driver`` or ``node``.
        event: after so many events of the run.
        pause_s: and so many seconds more.
        resumed_by: the executor of ``nas resume``, if that is needed.
    """

    target: str
    event: int
    pause_s: float
    resumed_by: str


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        kill: what was asked for.
        stage: in which stage it died, or ``after the end``.
        killed: whether there was anything to kill.
        evaluations: networks that the run asked workers for.
        redone: evaluations that workers did more than once, or that were lost with one.
        equal: whether the results are those of the undisturbed run.
        seconds: until the run had ended.
    """

    kill: Kill
    stage: str
    killed: bool
    evaluations: int
    redone: int
    equal: bool
    seconds: float


class Nodes:
    """A head, on which searches run, and a second node that may die.

    Args:
        folder: where Ray keeps its files; its path is short, since sockets lie in it.
    """

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._settings: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
        head = {**self._settings, "include_dashboard": False, "temp_dir": folder}
        # `Cluster` notes its address in the folder of all clusters, and takes that to be there.
        Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray").mkdir(exist_ok=True)
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._add()

    def _add(self) -> None:
        self._second = self._cluster.add_node(**self._settings)

    def kill(self) -> None:
        """End the second node at once."""
        for process in self._second.all_processes["raylet"]:
            process.process.kill()

    def mend(self) -> None:
        """Put a new node in the place of one that was killed."""
        if not all(one.process.poll() is None for one in self._second.all_processes["raylet"]):
            self._cluster.remove_node(self._second, allow_graceful=False)
            self._add()

    def close(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()


@contextmanager
def nodes() -> Iterator[Nodes]:
    """A cluster for a while."""
    with tempfile.TemporaryDirectory(prefix="nas-ray-", ignore_cleanup_errors=True) as folder:
        made = Nodes(folder)
        try:
            yield made
        finally:
            made.close()


def plan(rng: np.random.Generator, times: int, num_events: int) -> list[Kill]:
    """Kills at random moments, each target as often as the others."""
    return [
        Kill(
            TARGETS[number % len(TARGETS)],
            int(rng.integers(1, num_events)),
            round(float(rng.uniform(0, 0.05)), 3),
            str(rng.choice(["ray", "local"])),
        )
        for number in range(times)
    ]


def through(executor: str, address: str) -> list[str]:
    """The options of an executor."""
    if executor == "local":
        return []
    # One process trains: with more the weights differ in their last bits from those without Ray.
    options = ["--workers", "2", "--train-workers", "1"]
    return ["--executor", "ray", "--ray-address", address, *options]


def work(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def disturb(cluster: Nodes, request: Sequence[str], run: Path, kill: Kill) -> tuple[str, bool]:
    """Run a search, kill what is to be killed, and see the run to its end.

    Returns:
        The stage it was in, and whether there was something to kill.
    """
    options = through("ray", cluster.address)
    process = work([*NAS, "search", *request, "--out", str(run), "--quiet", *options])
    while process.poll() is None and len(events_of(run)) < kill.event:
        time.sleep(LOOK_EVERY_S)
    time.sleep(kill.pause_s)
    seen = events_of(run)
    stage = seen[-1]["stage"] if seen and process.poll() is None else "after the end"
    killed = False
    while process.poll() is None and not killed:  # perhaps no worker has started yet
        killed = _kill(cluster, process, run, kill.target)
        time.sleep(LOOK_EVERY_S)
    _, error = process.communicate()
    if kill.target == "driver" and killed:
        options = through(kill.resumed_by, cluster.address)
        process = work([*NAS, "resume", str(run), "--quiet", *options])
        _, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"{kill}: the run failed in {stage}: {error.decode()}")
    return stage, killed


def _kill(cluster: Nodes, process: subprocess.Popen[bytes], run: Path, target: str) -> bool:
    if target == "driver":
        process.kill()
    elif target == "node":
        cluster.kill()
    else:
        workers = [one for one in read_workers(run) if one.pid and one.doing != "ended"]
        if not workers:
            return False
        busy = [one for one in workers if one.doing == "evaluating"]
        try:
            os.kill((busy or workers)[0].pid, signal.SIGKILL)
        except ProcessLookupError:  # it had just ended by itself
            return False
    return True


def results(run: Path) -> list[Any]:
    """The front and the retrained networks."""
    files = [run / FRONT_FILE, *sorted(run.glob(result_file("*")))]
    return [json.loads(file.read_text("utf-8")) for file in files]


def evaluations(run: Path) -> tuple[int, int]:
    """Networks evaluated by workers, and how often one was evaluated or lost once more."""
    done: Counter[str] = Counter()
    for log in run.glob("workers/worker-*.log"):
        for line in log.read_text("utf-8").splitlines():
            words = line.split()
            if "evaluated" in words:
                done[words[1]] += 1
            elif words[1] == "lost:" and words[2].endswith(":") and len(words[2]) == 13:
                done[words[2][:-1]] += 1
    return len(done), sum(done.values()) - len(done)


def measure(options: Options) -> list[dict[str, Any]]:
    """Run all searches and compare."""
    request = [*REQUEST, "--seed", str(options.seed)]
    found = []
    with tempfile.TemporaryDirectory() as folder, nodes() as cluster:
        calm = Path(folder) / "calm"
        run_to_end([*NAS, "search", *request, "--out", str(calm), "--quiet"])
        wanted, events = results(calm), events_of(calm)
        rng = np.random.default_rng(options.seed)
        for number, kill in enumerate(plan(rng, options.times, len(events))):
            cluster.mend()
            run = Path(folder) / f"run-{number}"
            started = time.perf_counter()
            stage, killed = disturb(cluster, request, run, kill)
            seconds = round(time.perf_counter() - started, 1)
            equal = results(run) == wanted
            found.append(Outcome(kill, stage, killed, *evaluations(run), equal, seconds))
            note(row(number, found[-1]))
    return [asdict(one) for one in found]


def row(number: int, one: Outcome) -> str:
    """A line of the table."""
    resumed = one.kill.resumed_by if one.kill.target == "driver" and one.killed else "-"
    what = one.kill.target if one.killed else "nothing left to kill"
    return (
        f"{number + 1:>3}  {what:<20}  event {one.kill.event:>3}  {one.stage:<22}  resumed by "
        f"{resumed:<5}  redone {one.redone:>2} of {one.evaluations:>2}  "
        f"{'equal' if one.equal else 'DIFFERENT':<9}  {one.seconds:>5.1f} s"
    )


def show(found: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each run, and how many were the same."""
    for number, one in enumerate(found):
        yield row(number, Outcome(**(one | {"kill": Kill(**one["kill"])})))
    num_killed, num_equal = sum(one["killed"] for one in found), sum(one["equal"] for one in found)
    yield f"{len(found)} runs, something was killed in {num_killed}; same results: {num_equal}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the table there as JSON")


STUDY = Study(
    "ray_chaos",
    "Does a search through Ray end in the same front, whoever is killed?",
    add_options,
    measure,
    show,
    lambda found: all(one["equal"] for one in found),
    lambda options: options.out,
    example="--times 30 --seed 0",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

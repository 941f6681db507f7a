"""How evaluation grows with the workers of a Ray on this machine, and what the executor costs.

``python -m experiments.scaling`` trains two supernets for a moment and evaluates networks with
them, in this process and by workers with one thread each:

* networks whose evaluation takes long by 1, 2 and 4 workers: the throughput, and its ratio to that
  many times the throughput of one worker; beside it the ratio of as many processes that evaluate
  the same networks without Ray, which is what this machine has to give;
* 1,000 small networks in this process and by one worker: whether all numbers agree to the last
  bit, and what an evaluation through Ray takes besides evaluating.

What else the machine does decides a lot, so the load before each measurement is printed with it,
and each is made several times in turns; the median counts. It ends with exit code 1 when numbers
differ, the ratio falls below 0.9 up to the number of physical cores, or an evaluation costs 10 ms
more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import Options, Study, end_with_parent, note
from experiments.trainings import train_supernet
from nas.executors.base import Executor, ExecutorSettings, Outcome
from nas.executors.local import LocalExecutor
from nas.executors.opening import open_executor
from nas.run.folder import RunFolder
from nas.run.layout import worker_log
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.variation import sample_distinct

SETTINGS = {"threads": "1", "supernet.epochs": "1", "supernet.check_every": "1"}
LONG, SHORT = ("multi30k", "synthetic"), ("digits", "digits")  # spaces and data
LEAST_RATIO, MOST_OVERHEAD_MS = 0.9, 10.0
PATIENCE_S = 300.0  # of processes for each other before they begin


@dataclass(frozen=True)
class Throughput:
    """Evaluations by a number of workers.

    Attributes:
        workers: how many.
        evaluations: that they shared.
        seconds: for all of them.
        ratio: of the throughput to so many times that of the smallest number of workers.
        apart_ratio: the same of processes without Ray.
        load: of the machine before.
    """

    workers: int
    evaluations: int
    seconds: float
    ratio: float
    apart_ratio: float
    load: float


def trained(path: Path, name: str, dataset: str, valid_examples: int) -> Run:
    """A run whose supernet has been trained for an epoch."""
    settings = SETTINGS | {"valid_examples": str(valid_examples)}
    return train_supernet(name, settings, path, "smoke", dataset)


def networks_of(run: Run, count: int) -> list[Architecture]:
    """So many networks of its space."""
    return run.space.decode(sample_distinct(run.space, np.random.default_rng(0), count))


def timed(
    executor: Executor, run: Run, networks: Sequence[Architecture]
) -> tuple[float, list[Outcome]]:
    """Seconds of evaluating networks, with everything loaded before, and the outcomes."""
    workers = executor.settings.workers or 1
    list(executor.evaluate(run, networks[: 2 * workers]))
    started = time.perf_counter()
    found = [one for one in executor.evaluate(run, networks) if not isinstance(one, str)]
    return time.perf_counter() - started, found


def through_ray(
    run: Run, networks: Sequence[Architecture], workers: int
) -> tuple[float, list[Outcome]]:
    """The same by so many workers."""
    settings = ExecutorSettings("ray", cpus_per_worker=1, workers=workers)
    with open_executor(settings, run.folder) as executor:
        return timed(executor, run, networks)


def apart(run: Run, networks: Sequence[Architecture], processes: int) -> float:
    """Seconds of the same by so many processes that know nothing of each other."""
    context = multiprocessing.get_context("spawn")
    ready, reports = context.Barrier(processes, timeout=PATIENCE_S), context.Queue()
    parts = [networks[number::processes] for number in range(processes)]
    started = [
        context.Process(target=_evaluate_apart, args=(run.folder.path, part, ready, reports))
        for part in parts
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise SystemExit("a process that evaluates without Ray failed; what it wrote stands above")
    return max(float(reports.get()) for _ in started)


def _evaluate_apart(path: Path, networks: Sequence[Architecture], ready: Any, reports: Any) -> None:
    end_with_parent()
    run, executor = Run(RunFolder.open(path)), LocalExecutor()
    list(executor.evaluate(run, networks[:2]))
    ready.wait()
    started = time.perf_counter()
    list(executor.evaluate(run, networks))
    reports.put(time.perf_counter() - started)


def throughputs(
    run: Run, counts: Sequence[int], per_worker: int, repeats: int = 1
) -> list[Throughput]:
    """Evaluations by each number of workers: of several measurements the one with the median ratio.

    The first number is what the others are held to, within one round.
    """
    rounds = [_round(run, counts, per_worker) for _ in range(repeats)]
    columns = zip(*rounds, strict=True)
    return [sorted(column, key=lambda one: one.ratio)[repeats // 2] for column in columns]


def _round(run: Run, counts: Sequence[int], per_worker: int) -> list[Throughput]:
    found: list[Throughput] = []
    apart_s: list[float] = []
    for workers in counts:
        networks, load = networks_of(run, per_worker * workers), os.getloadavg()[0]
        apart_s.append(apart(run, networks, workers))
        seconds, _ = through_ray(run, networks, workers)
        first_s = found[0].seconds if found else seconds
        ratios = first_s / seconds, apart_s[0] / apart_s[-1]  # each has its part of the work
        found.append(Throughput(workers, len(networks), seconds, *ratios, load))
        note(_row(found[-1]))
    return found


def _row(one: Throughput) -> str:
    return (
        f"{one.workers} workers: {one.evaluations} evaluations in {one.seconds:.2f} s, "
        f"{one.evaluations / one.seconds:.1f} a second, {one.ratio:.2f} of linear "
        f"(without Ray {one.apart_ratio:.2f}; load before: {one.load:.1f})"
    )


def physical_cores(cpuinfo: Path = Path("/proc/cpuinfo")) -> int:
    """Physical cores of this machine; all that are seen where it does not tell."""
    text = cpuinfo.read_text("utf-8") if cpuinfo.exists() else ""
    wanted = ("physical id", "core id")
    lines = [line.split(":", 1) for line in text.splitlines() if line.startswith(wanted)]
    values = [value.strip() for _, value in lines]
    return len(set(zip(values[::2], values[1::2], strict=False))) or os.cpu_count() or 1


def measure(options: Options) -> dict[str, Any]:
    """Measure everything.

    Returns:
        ``cores``: physical ones; ``throughputs`` by number of workers; of small networks their
        number ``evaluations``, the mean ms of one in this process (``local_ms``) and through Ray
        by one worker (``ray_ms``), the part of it in which the worker evaluates (``worker_ms``),
        how many agree to the last bit (``equal``) and the ``load`` before.
    """
    counts = [int(text) for text in options.workers.split(",")]
    count = options.evaluations
    with tempfile.TemporaryDirectory() as name:
        long_run = trained(Path(name) / "long", *LONG, 128)
        found = throughputs(long_run, counts, options.per_worker, options.repeats)
        run = trained(Path(name) / "short", *SHORT, 64)
        networks, load = networks_of(run, count), os.getloadavg()[0]
        local_s, wanted = timed(LocalExecutor(), run, networks)
        ray_s, got = through_ray(run, networks, 1)
        worker_s = evaluating_s(run.folder.path, count)
    return {
        "cores": physical_cores(),
        "throughputs": [asdict(one) for one in found],
        "evaluations": count,
        "local_ms": 1000 * local_s / count,
        "ray_ms": 1000 * ray_s / count,
        "worker_ms": 1000 * worker_s / count,
        "equal": sum(one == other for one, other in zip(wanted, got, strict=True)),
        "load": load,
    }


def met(found: Mapping[str, Any]) -> bool:
    """Whether the ratios, the cost of an evaluation and the numbers are as they should be."""
    ratios = [one["ratio"] for one in found["throughputs"] if one["workers"] <= found["cores"]]
    return (
        min(ratios, default=1.0) >= LEAST_RATIO
        # Of one measurement: two, one after the other, differ by what else the machine does.
        and found["ray_ms"] - found["worker_ms"] < MOST_OVERHEAD_MS
        and bool(found["equal"] == found["evaluations"])
    )


def show(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each number of workers, and one of the small networks."""
    yield from (f"median  {_row(Throughput(**one))}" for one in found["throughputs"])
    overhead = found["ray_ms"] - found["worker_ms"]
    yield (
        f"{found['evaluations']} small networks: {found['local_ms']:.2f} ms each in this process, "
        f"{found['ray_ms']:.2f} ms through Ray, {overhead:.2f} of them not for evaluating; "
        f"{found['equal']} equal to the last bit (load before: {found['load']:.1f}; "
        f"{found['cores']} physical cores)"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, the least first")
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--per-worker", type=int, default=60, help="long evaluations of a worker")
    parser.add_argument("--repeats", type=int, default=3, help="of the long evaluations")
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON")


STUDY = Study(
    "scaling",
    "How does evaluation grow with the workers of a Ray, and what does the executor cost?",
    add_options,
    measure,
    show,
    met,
    lambda options: options.out,
)


def evaluating_s(run: Path, count: int) -> float:
    """Seconds of the last so many evaluations of a run's only worker, as it measured them."""
    lines = (run / worker_log("worker-0")).read_text("utf-8").splitlines()
    seconds = [float(line.split()[-2]) for line in lines if " evaluated in " in line]
    return sum(seconds[-count:])


if __name__ == "__main__":
    sys.exit(STUDY.main())

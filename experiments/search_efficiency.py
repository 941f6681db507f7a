"""How many real evaluations does each searcher need?

``python -m experiments.search_efficiency --space digits``

One supernet of the space is trained. Quality is what networks inherit from it, cost their FLOPs;
both are real, nothing is predicted by a surrogate that the searchers could profit from. Every
searcher runs with ten seeds. The reference is the front of everything that anybody evaluated: a
large random sample, a long genetic search on real evaluations that starts from its front, and all
runs. Hypervolume is measured as is usual in the field: objectives scaled so that the reference
front reaches from 0 to 1, up to the point 1.1, and given as a share of the reference front's.

A run that is stopped goes on where it was: evaluations and finished searches are kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

from experiments.harness import RESULTS, Options, Study, note, table_of
from experiments.trainings import Oracle, oracle, read_known, train_supernet, write_known
from nas.search.evolution import EvolutionSettings, evolve
from nas.search.pareto import hypervolume, non_dominated
from nas.search.searchers.base import Searcher, search
from nas.search.searchers.one_shot import OneShot
from nas.search.searchers.optuna_study import OptunaSearcher
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.loading import load_space
from search_spaces.operators import distinct, largest, sample_distinct, smallest
from search_spaces.space import Genotypes

Floats = NDArray[np.float64]

LEVELS = (0.9, 0.95, 0.98, 0.99)
FIRST = 32
# A search of RankNAS is planned for its size, so each size is a search of its own.
ONE_SHOT_SIZES = (48, 96, 192, 384, 768)
VERIFIED_SHARE = 0.25
TARGETS = {"random": 10.0, "nsga2": 4.0, "ranknas": 2.0}


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        sample: random networks; the searches at random are orders of it.
        generations: of the genetic search for the reference, 100 networks each.
        budgets: evaluations by searcher.
        settings: numbers of the supernet's preset that are other ones here.
    """

    sample: int
    generations: int
    budgets: Mapping[str, int]
    settings: Mapping[str, str]


SIZES = {
    "digits": Sizes(6000, 40, {"rank-evolve": 320, "nsga2": 2400, "tpe": 240}, {}),
    "listops": Sizes(
        6000, 40, {"rank-evolve": 320, "nsga2": 2400, "tpe": 240}, {"valid_examples": "96"}
    ),
}


@dataclass(frozen=True)
class Job:
    """One search."""

    space: str
    work: str
    searcher: str
    seed: int
    size: int

    @property
    def key(self) -> str:
        """Name of its file."""
        return f"{self.searcher}-{self.size}-{self.seed}"


def sample_of(space: str, count: int) -> Genotypes:
    """The large random sample."""
    return sample_distinct(load_space(space), np.random.default_rng(99), count)


def evaluate_part(work: str, rows: Genotypes) -> dict[bytes, float]:
    """Evaluate a part of the sample."""
    asked = oracle(work)
    asked(rows)
    return asked.fresh


def build(job: Job, asked: Oracle) -> Searcher:
    """The searcher of a job."""
    space, problem = asked.space, asked.problem
    rng = np.random.default_rng([job.seed, 77])
    match job.searcher:
        case "rank-evolve":
            rows = sample_distinct(space, rng, FIRST)
            start = distinct(np.concatenate([largest(space), smallest(space), rows]))[:FIRST]
            settings = RankEvolveSettings(budget=job.size, patience=0)
            return RankEvolve(problem, start, settings, job.seed)
        case "ranknas":
            verified = round(VERIFIED_SHARE * job.size)
            rows = sample_distinct(space, rng, job.size - verified)
            return OneShot(problem, rows, verified, job.seed)
        case "nsga2" | "tpe" as sampler:
            return OptunaSearcher(problem, sampler, job.size, job.seed)
    raise ValueError(job.searcher)


def run_job(job: Job) -> tuple[Job, Genotypes, dict[bytes, float]]:
    """One search: the networks in the order they were evaluated."""
    asked = oracle(job.work)
    searcher = build(job, asked)
    for _ in search(searcher, asked):
        pass
    return job, searcher.rows, asked.fresh


def jobs_of(space: str, work: str, seeds: int) -> Iterator[Job]:
    """All searches but the random ones, which are orders of the sample."""
    for seed in range(seeds):
        for name, size in SIZES[space].budgets.items():
            yield Job(space, work, name, seed, size)
        for size in ONE_SHOT_SIZES:
            yield Job(space, work, "ranknas", seed, size)


def evaluate_all(space: str, work: Path, seeds: int, workers: int) -> None:
    """Sample, genetic reference and all searches; what is there is not done again."""
    sizes = SIZES[space]
    known = read_known(work)
    rows = sample_of(space, sizes.sample)
    missing = np.array([row for row in rows if row.tobytes() not in known], dtype=np.int16)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        parts = np.array_split(missing, max(1, -(-len(missing) // 100))) if len(missing) else []
        done = [pool.submit(evaluate_part, str(work), part) for part in parts]
        for future in done:
            known |= future.result()
            write_known(work, known)
        note(f"{space}: {len(rows):,} random networks evaluated")
        todo = [
            job
            for job in jobs_of(space, str(work), seeds)
            if not (work / f"{job.key}.npy").exists()
        ]
        for job, order, fresh in pool.map(run_job, todo):
            known |= fresh
            write_known(work, known)
            np.save(work / f"{job.key}.npy", order)
            note(f"{job.key}: {len(order)} evaluations")


def evolve_reference(space: str, work: Path) -> None:
    """A long genetic search on real evaluations, from the front of all that was evaluated."""
    asked = oracle(str(work))
    rows = np.array([np.frombuffer(key, dtype=np.int16) for key in asked.known])
    points = asked.problem.points(rows, asked(rows))
    start = rows[non_dominated(points.objectives)]
    settings = EvolutionSettings(population=100, generations=SIZES[space].generations)
    for _ in evolve(
        asked.space, lambda rows: asked.problem.points(rows, asked(rows)), settings, 5, start=start
    ):
        pass
    write_known(work, asked.known)
    note(f"{space}: {len(asked.known):,} networks evaluated in all")


def trajectories(space: str, work: Path, seeds: int) -> dict[str, list[Floats]]:
    """Searcher → for each of its runs the points in the order they were evaluated."""
    asked = oracle(str(work))
    found: dict[str, list[Floats]] = {"random": []}
    rows = sample_of(space, SIZES[space].sample)
    points = asked.problem.points(rows, asked(rows)).objectives
    for seed in range(seeds):
        found["random"].append(points[np.random.default_rng(seed).permutation(len(points))])
    for job in jobs_of(space, str(work), seeds):
        order = np.load(work / f"{job.key}.npy")
        name = f"ranknas {job.size}" if job.searcher == "ranknas" else job.searcher
        found.setdefault(name, []).append(asked.problem.points(order, asked(order)).objectives)
    return found


def needed(measure: Measure, runs: Mapping[str, Sequence[Floats]]) -> dict[str, Any]:
    """Searcher → level → evaluations that each run needed."""
    table: dict[str, Any] = {}
    for level in LEVELS:
        for name, orders in runs.items():
            if not name.startswith("ranknas"):
                reach = [measure.first_reach(points, level) for points in orders]
                table.setdefault(name, {})[level] = reach
        sized = [orders for name, orders in runs.items() if name.startswith("ranknas")]
        reach = [_one_shot_reach(measure, list(same), level) for same in zip(*sized, strict=True)]
        table.setdefault("ranknas", {})[level] = reach
    return table


def _one_shot_reach(measure: Measure, by_size: list[Floats], level: float) -> float:
    """The smallest planned search that ends at this share or above."""
    sizes = [len(points) for points in by_size if measure.share(points) >= level]
    return float(min(sizes)) if sizes else np.inf


def curves(measure: Measure, runs: Mapping[str, Sequence[Floats]]) -> dict[str, Any]:
    """Searcher → evaluations, and the shares of every run there."""
    lines: dict[str, Any] = {}
    for name, orders in runs.items():
        if name.startswith("ranknas"):
            line = lines.setdefault("ranknas", {"evaluations": [], "shares": []})
            line["evaluations"].append(int(np.median([len(points) for points in orders])))
            line["shares"].append([measure.share(points) for points in orders])
        else:
            most = min(len(points) for points in orders)
            steps = np.unique(np.geomspace(8, most, 40).astype(int)).tolist()
            shares = [[measure.share(points[:n]) for points in orders] for n in steps]
            lines[name] = {"evaluations": steps, "shares": shares}
    return lines


def words(count: float) -> str:
    """A number of evaluations, or a cross where the budget did not do."""
    return f"{count:.0f}" if np.isfinite(count) else "×"


def longest(lines: Mapping[str, Any]) -> dict[str, float]:
    """Searcher → evaluations of a whole search; of RankNAS's the largest planned."""
    return {name: float(max(line["evaluations"])) for name, line in lines.items()}


def factor(reach: Sequence[float], whole: float, best: float) -> str:
    """How many times as many evaluations as the best searcher's, or at least how many."""
    if not np.isfinite(best):
        return "–"
    middle = float(np.median(reach))
    return f"{middle / best:.1f}" if np.isfinite(middle) else f"over {whole / best:.1f}"


def show(content: Mapping[str, Any]) -> Iterator[Table]:
    """Medians, ranges and ratios."""
    table = {
        name: {
            float(level): [np.inf if n is None else n for n in reach] for level, reach in by.items()
        }
        for name, by in content["needed"].items()
    }
    best = float(np.median(table["rank-evolve"][LEVELS[-1]]))
    whole = longest(content["curves"])
    rows = []
    for name, by_level in table.items():
        cells = []
        for level in LEVELS:
            low, middle, high = np.quantile(by_level[level], [0.0, 0.5, 1.0], method="higher")
            cells.append(f"{words(middle)} ({words(low)}–{words(high)})")
        target = TARGETS.get(name)
        verdict = "" if target is None else f", target {target:g}"
        times = factor(by_level[LEVELS[-1]], whole[name], best)
        rows.append((name, *cells, times + verdict))
    title = f"{content['space']}: real evaluations to a share of the reference hypervolume"
    heads = ("searcher", *(f"{level:.0%}" for level in LEVELS), "at 99 % to rank-evolve")
    yield table_of(title, heads, rows)


def measure(options: Options) -> dict[str, Any]:
    """Search, measure and draw the figure."""
    work = Path(options.work) / options.space
    work.mkdir(parents=True, exist_ok=True)
    train_supernet(options.space, SIZES[options.space].settings, work)
    evaluate_all(options.space, work, options.seeds, options.workers)
    evolve_reference(options.space, work)
    asked = oracle(str(work))
    rows = np.array([np.frombuffer(key, dtype=np.int16) for key in asked.known])
    extent = Measure.of(asked.problem.points(rows, asked(rows)).objectives)
    runs = trajectories(options.space, work, options.seeds)
    lines = curves(extent, runs)
    draw(options.space, lines, RESULTS / f"search_efficiency_{options.space}.svg")
    finite = {
        name: {
            str(level): [None if np.isinf(n) else n for n in reach] for level, reach in by.items()
        }
        for name, by in needed(extent, runs).items()
    }
    content = {"space": options.space, "seeds": options.seeds, "evaluated": len(rows)}
    return content | {"needed": finite, "curves": lines}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", choices=list(SIZES), default="digits")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--work", default="runs/search_efficiency", help="supernet, evaluations")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)


STUDY = Study(
    "search_efficiency",
    "How many real evaluations does each searcher need?",
    add_options,
    measure,
    show,
    results=lambda options: f"search_efficiency_{options.space}",
    width=140,
)


# -- hypervolume by the extent of a reference front, as the field measures it ------------------

# Objectives are scaled so that the reference front reaches from 0 to 1; this is the far corner.
MARGIN = 1.1


@dataclass(frozen=True, eq=False)
class Measure:
    """Hypervolume as a share of the reference front's."""

    low: Floats
    extent: Floats
    whole: float

    @classmethod
    def of(cls, points: Floats) -> Self:
        """The measure whose reference is the front of these points ``(N, 2)``."""
        front = points[non_dominated(points)]
        measure = cls(front.min(axis=0), np.ptp(front, axis=0), 1.0)
        return cls(measure.low, measure.extent, measure.share(front))

    def share(self, points: Floats) -> float:
        """Of points ``(N, 2)``."""
        scaled = (points - self.low) / self.extent
        return hypervolume(scaled, np.full(2, MARGIN)) / self.whole

    def first_reach(self, points: Floats, level: float) -> float:
        """How many of the points, in order, it takes to this share; infinity if all do not."""
        if self.share(points) < level:
            return np.inf
        low, high = 1, len(points)
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.share(points[:middle]) >= level else (middle + 1, high)
            )
        return low


# -- the figure ---------------------------------------------------------------------------------

COLOURS = {
    "rank-evolve": "#0072b2",
    "ranknas": "#009e73",
    "nsga2": "#d55e00",
    "tpe": "#cc79a7",
    "random": "#777777",
}


def draw(space: str, lines: Mapping[str, Any], path: Path) -> None:
    """Median share of the reference hypervolume by evaluations, with the range of all seeds.

    Args:
        space: for the title.
        lines: searcher → ``evaluations`` (K,) and ``shares`` (K, seeds).
        path: an SVG file.
    """
    with mpl.rc_context({"svg.hashsalt": "efficiency"}):  # the same picture, the same bytes
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes = figure.subplots()
        for name, line in lines.items():
            shares = np.array(line["shares"])
            middle, low, high = (
                np.quantile(shares, quantile, axis=1) for quantile in (0.5, 0.0, 1.0)
            )
            colour = COLOURS[name]
            marker = "o" if name == "ranknas" else None
            axes.plot(line["evaluations"], 1 - middle, color=colour, label=name, marker=marker)
            axes.fill_between(line["evaluations"], 1 - high, 1 - low, color=colour, alpha=0.15)
        axes.axhline(0.01, color="black", linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("networks really evaluated")
        axes.set_ylabel("share of the reference hypervolume missed")
        axes.set_title(f"{space}: median of the seeds, and their range")
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(STUDY.main())

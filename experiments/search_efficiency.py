"""How many real evaluations does each searcher need?

``python -m experiments.search_efficiency --space digits``

One supernet of the space is trained. Quality is what networks inherit from it, cost their FLOPs;
both are real, nothing is predicted by a surrogate that the searchers could profit from. Opponents
are those of `experiments.searchers`, the best that could be built: each is told the exact costs,
all but random search and RankNAS begin with both ends of the space, and of several sizes of a
method the best counts. The reference is the front of all that is evaluated here: a large random
sample, a long genetic search on real evaluations from the front of all opponents, and all runs; how
many of its networks only rank-evolve found is printed. What others left in the work folder has no
part in it. Hypervolume is measured as is usual in the field: objectives scaled so that the
reference front reaches from 0 to 1, up to the point 1.1, and given as a share of the reference
front's.

The marks are how many times as many evaluations as rank-evolve an opponent needs at least, in the
median, to the highest share. An opponent whose budget ended before that shows nothing.

A run that is stopped goes on where it was: evaluations and finished searches are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from experiments.harness import RESULTS, Options, Study, add_workers, done_in, note, table_of
from experiments.searchers import (
    SEARCHERS,
    Floats,
    Measure,
    SearchTask,
    as_json,
    cell,
    followed,
    keep_rows,
    median,
    numbers,
)
from experiments.trainings import Oracle, oracle, read_known, train_supernet, write_known
from nas.search.evolution import EvolutionSettings, evolve
from nas.search.pareto import non_dominated
from nas.search.searchers.one_shot import OneShot
from search_spaces.loading import load_space
from search_spaces.space import Genotypes
from search_spaces.variation import distinct, sample_distinct

LEVELS = (0.9, 0.95, 0.98, 0.99)
# A search of RankNAS is planned for its size, so each size is a search of its own.
ONE_SHOT_SIZES = (48, 96, 192, 384, 768)
VERIFIED_SHARE = 0.25
REFERENCE_FILE = "reference.npy"
TARGETS = {"random": 10.0, "evolution": 4.0, "nsga2": 4.0, "gp": 1.5, "ranknas": 2.0}
# Evaluations of a search, by searcher.
BUDGETS = {
    "rank-evolve": 320,
    "evolution": 2400,
    "nsga2": 2400,
    "tpe": 240,
    "gp": 100,
    "local": 2400,
    "regularised": 2400,
}


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        sample: random networks; the searches at random are orders of it.
        generations: of the genetic search for the reference, 100 networks each.
        settings: numbers of the supernet's preset that are other ones here.
    """

    sample: int
    generations: int
    settings: Mapping[str, str]


SIZES = {
    "digits": Sizes(6000, 40, {}),
    "listops": Sizes(6000, 40, {"valid_examples": "96"}),
}


@dataclass(frozen=True)
class Job:
    """One search."""

    work: str
    searcher: str
    setting: str
    seed: int
    size: int

    @property
    def key(self) -> str:
        """Name of its file."""
        return f"{self.searcher}{self.setting}-{self.size}-{self.seed}"


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the random sample."""

    work: str
    rows: Genotypes


def sample_of(space: str, count: int) -> Genotypes:
    """The large random sample."""
    return sample_distinct(load_space(space), np.random.default_rng(99), count)


def evaluated(part: Part) -> dict[bytes, float]:
    """Evaluate a part of the sample."""
    asked = oracle(part.work)
    asked(part.rows)
    return asked.fresh


def run_job(job: Job) -> tuple[Genotypes, dict[bytes, float]]:
    """One search: the networks in the order they were evaluated, and what is new."""
    asked = oracle(job.work)
    task = SearchTask(asked.problem, asked)
    if job.searcher == "ranknas":
        verified = round(VERIFIED_SHARE * job.size)
        rng = np.random.default_rng([job.seed, 77])
        first = sample_distinct(asked.space, rng, job.size - verified)
        return followed(OneShot(asked.problem, first, verified, job.seed), task), asked.fresh
    return SEARCHERS[job.searcher][job.setting](task, job.size, job.seed), asked.fresh


def jobs_of(work: Path, options: Options) -> list[Job]:
    """All searches but the random ones, which are orders of the sample."""
    return [
        Job(str(work), name, setting, seed, size)
        for seed in range(options.seeds)
        for name, setting, size in (
            *((n, setting, BUDGETS[n]) for n in options.searcher for setting in SEARCHERS[n]),
            *(("ranknas", "", size) for size in ONE_SHOT_SIZES),
        )
    ]


def asked_by(jobs: Sequence[Job]) -> list[Genotypes]:
    """What finished searches evaluated."""
    return [np.load(Path(job.work) / f"{job.key}.npy") for job in jobs]


def others_of(jobs: Sequence[Job]) -> list[Job]:
    """Those of the opponents."""
    return [job for job in jobs if job.searcher != "rank-evolve"]


def evaluate_all(space: str, work: Path, jobs: Sequence[Job], workers: int) -> None:
    """Sample and all searches; what is there is not done again."""
    known = read_known(work)
    rows = sample_of(space, SIZES[space].sample)
    missing = np.array([row for row in rows if row.tobytes() not in known], dtype=np.int16)
    parts = np.array_split(missing, max(1, -(-len(missing) // 100))) if len(missing) else []
    sampled = [Part(str(work), part) for part in parts]
    for _, fresh in done_in("local", evaluated, sampled, workers):
        known |= fresh
        write_known(work, known)
    note(f"{space}: {len(rows):,} random networks evaluated")
    todo = [job for job in jobs if not (work / f"{job.key}.npy").exists()]
    for job, (order, fresh) in done_in("local", run_job, todo, workers):
        known |= fresh
        write_known(work, known)
        keep_rows(work / f"{job.key}.npy", order)
        note(f"{job.key}: {len(order)} evaluations")


def evolve_reference(space: str, work: Path, jobs: Sequence[Job]) -> None:
    """A long genetic search on real evaluations, from the front of all that others evaluated."""
    asked = oracle(str(work))
    rows = np.concatenate([sample_of(space, SIZES[space].sample), *asked_by(others_of(jobs))])
    rows = distinct(rows)
    points = asked.problem.points(rows, asked(rows))
    start = rows[non_dominated(points.objectives)]
    settings = EvolutionSettings(population=100, generations=SIZES[space].generations)
    scores = SearchTask(asked.problem, asked).scores
    found = [one.genotypes for one in evolve(asked.space, scores, settings, 5, start=start)]
    np.save(work / REFERENCE_FILE, np.concatenate(found))
    write_known(work, asked.known)
    note(f"{space}: {len(asked.known):,} networks evaluated in all")


# Searcher → setting → for each of its runs the points in the order they were evaluated.
Runs = Mapping[str, Mapping[str, Sequence[Floats]]]


def trajectories(space: str, asked: Oracle, jobs: Sequence[Job], seeds: int) -> Runs:
    """All runs; a size of RankNAS is a setting."""
    task = SearchTask(asked.problem, asked)
    points = task.points(sample_of(space, SIZES[space].sample))
    orders = [np.random.default_rng(seed).permutation(len(points)) for seed in range(seeds)]
    found: dict[str, dict[str, list[Floats]]] = {"random": {"": [points[o] for o in orders]}}
    for job, rows in zip(jobs, asked_by(jobs), strict=True):
        setting = str(job.size) if job.searcher == "ranknas" else job.setting
        found.setdefault(job.searcher, {}).setdefault(setting, []).append(task.points(rows))
    return found


def evaluated_by(space: str, work: Path, jobs: Sequence[Job]) -> Genotypes:
    """What these searches, the sample and the search for the reference evaluated."""
    around = [sample_of(space, SIZES[space].sample), np.load(work / REFERENCE_FILE)]
    return distinct(np.concatenate(around + asked_by(jobs)))


def found_alone(space: str, work: Path, front: Genotypes, jobs: Sequence[Job]) -> int:
    """Networks of a front that nobody but rank-evolve evaluated."""
    known = {row.tobytes() for row in evaluated_by(space, work, others_of(jobs))}
    return sum(row.tobytes() not in known for row in front)


def best_runs(measure: Measure, runs: Runs) -> dict[str, tuple[str, Sequence[Floats]]]:
    """Searcher → its best setting and the runs with it; without RankNAS."""
    best = {
        name: measure.best_setting(by, LEVELS) for name, by in runs.items() if name != "ranknas"
    }
    return {name: (setting, runs[name][setting]) for name, setting in best.items()}


def needed(measure: Measure, runs: Runs) -> dict[str, Any]:
    """Searcher → level → evaluations that each run needed."""
    table: dict[str, Any] = {
        name: {level: [measure.first_reach(points, level) for points in orders] for level in LEVELS}
        for name, (_, orders) in best_runs(measure, runs).items()
    }
    sized = list(zip(*runs.get("ranknas", {}).values(), strict=True))
    if sized:
        table["ranknas"] = {
            level: [_one_shot_reach(measure, same, level) for same in sized] for level in LEVELS
        }
    return table


def _one_shot_reach(measure: Measure, by_size: Sequence[Floats], level: float) -> float:
    """The smallest planned search that ends at this share or above."""
    sizes = [len(points) for points in by_size if measure.share(points) >= level]
    return float(min(sizes)) if sizes else np.inf


def curves(measure: Measure, runs: Runs) -> dict[str, Any]:
    """Searcher → evaluations, and the shares of every run there."""
    lines: dict[str, Any] = {}
    for name, (_, orders) in best_runs(measure, runs).items():
        most = min(len(points) for points in orders)
        steps = np.unique(np.geomspace(8, most, 40).astype(int)).tolist()
        shares = [[measure.share(points[:n]) for points in orders] for n in steps]
        lines[name] = {"evaluations": steps, "shares": shares}
    for orders in runs.get("ranknas", {}).values():
        line = lines.setdefault("ranknas", {"evaluations": [], "shares": []})
        line["evaluations"].append(int(np.median([len(points) for points in orders])))
        line["shares"].append([measure.share(points) for points in orders])
    return lines


def longest(lines: Mapping[str, Any]) -> dict[str, float]:
    """Searcher → evaluations of a whole search; of RankNAS's the largest planned."""
    return {name: float(max(line["evaluations"])) for name, line in lines.items()}


@dataclass(frozen=True)
class Factor:
    """How many times as many evaluations as rank-evolve's a searcher needs to the highest share.

    Attributes:
        times: at least so many, where the searcher did not get there; 0 where rank-evolve did not.
        reached: whether both got there.
        target: the mark; None where there is none.
    """

    times: float
    reached: bool
    target: float | None

    @property
    def met(self) -> bool:
        """Whether the mark is met; one that is not shown is not."""
        return self.target is None or self.times >= self.target

    def __str__(self) -> str:
        text = f"{'' if self.reached else 'over '}{self.times:.1f}" if self.times else "–"
        if self.target is None:
            return text
        text += f", target {self.target:g}"
        return text if self.met else f"{text}: {'missed' if self.reached else 'not shown'}"


def factors(content: Mapping[str, Any]) -> dict[str, Factor]:
    """That of each searcher."""
    level = str(LEVELS[-1])
    middles = {name: median(numbers(by[level])) for name, by in content["needed"].items()}
    best, whole = middles.get("rank-evolve", np.inf), longest(content["curves"])
    return {
        name: Factor(
            min(middle, whole[name]) / best,
            bool(np.isfinite(middle) and np.isfinite(best)),
            TARGETS.get(name),
        )
        for name, middle in middles.items()
    }


def met(content: Mapping[str, Any]) -> bool:
    """Whether every opponent with a mark needs as many times as many evaluations."""
    return all(found.met for found in factors(content).values())


def show(content: Mapping[str, Any]) -> Iterator[Table | str]:
    """Medians, ranges and ratios."""
    found = factors(content)
    rows = []
    for name, by_level in content["needed"].items():
        cells = [cell(numbers(by_level[str(level)])) for level in LEVELS]
        label = f"{name} {content.get('settings', {}).get(name, '')}".strip()
        rows.append((label, *cells, str(found[name])))
    title = f"{content['space']}: real evaluations to a share of the reference hypervolume"
    heads = ("searcher", *(f"{level:.0%}" for level in LEVELS), "at 99 % to rank-evolve")
    yield table_of(title, heads, rows)
    if "alone" in content:
        yield f"{content['alone']} networks of the reference front only rank-evolve found."


def measure(options: Options) -> dict[str, Any]:
    """Search, measure and draw the figure."""
    work = Path(options.work) / options.space
    work.mkdir(parents=True, exist_ok=True)
    train_supernet(options.space, SIZES[options.space].settings, work)
    jobs = jobs_of(work, options)
    evaluate_all(options.space, work, jobs, options.workers)
    evolve_reference(options.space, work, jobs)
    asked = oracle(str(work))
    rows = evaluated_by(options.space, work, jobs)
    points = SearchTask(asked.problem, asked).points(rows)
    extent = Measure.of(points)
    runs = trajectories(options.space, asked, jobs, options.seeds)
    lines = curves(extent, runs)
    draw(options.space, lines, RESULTS / f"search_efficiency_{options.space}.svg")
    return {
        "space": options.space,
        "seeds": options.seeds,
        "evaluated": len(rows),
        "alone": found_alone(options.space, work, rows[non_dominated(points)], jobs),
        "settings": {name: setting for name, (setting, _) in best_runs(extent, runs).items()},
        "needed": {
            name: {str(level): as_json(reach) for level, reach in by.items()}
            for name, by in needed(extent, runs).items()
        },
        "curves": lines,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", choices=list(SIZES), default="digits")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--searcher",
        nargs="+",
        choices=list(BUDGETS),
        default=list(BUDGETS),
        help="beside random search and RankNAS (default: all)",
    )
    parser.add_argument("--work", default="runs/search_efficiency", help="supernet, evaluations")
    add_workers(parser)


STUDY = Study(
    "search_efficiency",
    "How many real evaluations does each searcher need?",
    add_options,
    measure,
    show,
    met,
    results=lambda options: f"search_efficiency_{options.space}",
    width=140,
)


# -- the figure ---------------------------------------------------------------------------------

COLOURS = {
    "rank-evolve": "#0072b2",
    "ranknas": "#009e73",
    "nsga2": "#d55e00",
    "evolution": "#e69f00",
    "tpe": "#cc79a7",
    "gp": "#56b4e9",
    "local": "#8c564b",
    "regularised": "#000000",
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

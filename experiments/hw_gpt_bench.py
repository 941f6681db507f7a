"""Searchers and the latency predictor on HW-GPT-Bench, whose numbers others measured.

``python -m experiments.hw_gpt_bench --data DIR``

`DIR` holds ``hwgpt_SCALE.npz``, a table of networks with their latencies, and
``perplexity_SCALE_mlp.npz``, the weights of the benchmark's perplexity surrogate. Sizes, layers and
devices come from these files.

Searches go through the whole space and not only through the table, because a random table holds
hardly two networks that differ in one gene. The quality of any network is what the benchmark's
surrogate says, a sum of products that numpy does; it is checked against the table. For latency
there is no such surrogate, so it is fitted to the whole table by least squares on relative errors:
for each width, with and without biases, a constant and a time for each pair of FFN ratio and heads
that a layer may have. What it is off on a tenth of the table that it was not fitted to is printed.
These latencies are exact costs, told to every searcher as `experiments.searchers` says.
``rank-evolve-timed`` knows the latencies of 60 random networks and then those of the networks that
it evaluates, and predicts the others.

The reference front is that of all networks that any searcher of that device asked for and of a long
genetic search that starts there; how many of its networks only rank-evolve had found is printed.
Finished searches are kept in the work folder, so that a study that was stopped goes on.

The latency predictor is fitted to few rows of the table and tested on all others, beside a linear
model, a Gaussian process and boosted trees on eleven plain features. Errors are in percent. How
many of the few timings it names as unlike the others is printed too.

Source: Sukthanker et al., HW-GPT-Bench, NeurIPS 2024, data sets and benchmarks.

N: networks; S: positions of a genotype; L: layers.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from experiments import searchers
from experiments.harness import (
    Options,
    Study,
    add_executor,
    done_in,
    note,
    table_of,
)
from experiments.searchers import (
    FIRST,
    Floats,
    Measure,
    Search,
    SearchTask,
    as_json,
    at_random,
    cell,
    keep_rows,
    median,
    numbers,
    rank_evolve_of,
)
from latency.predictor import LatencyPredictor
from nas.run.evaluators.table import read_columns, table_rows
from nas.search.evolution import EvolutionSettings, Scores, evolve
from nas.search.external_costs import ExternalCosts
from nas.search.pareto import non_dominated
from nas.search.searchers.base import Problem, search
from search_spaces.encoding import cost_terms, encode_features
from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.genes import Gene, GeneSpace
from search_spaces.genotypes import Genotypes
from search_spaces.variation import distinct, largest, sample_distinct, smallest

PER_LAYER = ("mlp_ratio", "num_heads")
LEVELS = (90, 95, 97, 98, 99)
TIMED = (20, 60, 100)
FIRST_TIMED = 60
MOST_EVALUATIONS = 300  # of rank-evolve to the last level
# Evaluations of a search that `--evaluations` says nothing about.
BUDGETS = {
    "rank-evolve": 320,
    "rank-evolve-timed": 320,
    "random": 10_000,
    "evolution": 10_000,
    "nsga2": 2_400,
    "tpe": 240,
    "gp": 100,
    "local": 10_000,
    "regularised": 10_000,
}
REFERENCE = EvolutionSettings(population=200, generations=300)
# The surrogate is the benchmark's, with its coding of networks, if it is no further off than this.
MOST_OFF = 0.05
# A measurement is broken that is this many times its like, up or down.
BROKEN = 3.0


# -- the benchmark ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bench:
    """A scale of the benchmark.

    Attributes:
        space: its networks: ``embed_dim``, ``num_layers``, ``bias``, and ``mlp_ratio`` and
            ``num_heads`` of each layer.
        rows: ``(N, S)``, those of the table.
        latencies: device → ``(N,)`` measured, in the authors' units.
        weights: of the perplexity surrogate, by name.
        digest: of both files.
    """

    space: GeneSpace
    rows: Genotypes
    latencies: Mapping[str, Floats]
    weights: Mapping[str, Floats]
    digest: str

    def perplexity(self, rows: Genotypes) -> Floats:
        """What the surrogate says of rows ``(N, S)``, ``(N,)``."""
        codes = []
        there = self.space.active(rows)
        # One-hot, by gene: width, layers, ratio and heads of each layer, bias (with, without).
        for name in ("embed_dim", "num_layers", "mlp_ratio", "num_heads", "bias"):
            for column in self.space.columns[name]:
                choices = np.arange(self.space.num_choices[column])
                chosen = (rows[:, column, None] == choices) & there[:, column, None]
                codes.append(chosen[:, ::-1] if name == "bias" else chosen)
        values = np.concatenate(codes, axis=1).astype(np.float64)
        count = len(self.weights) // 2
        for number in range(1, count + 1):
            values = values @ self.weights[f"fc{number}.weight"].T
            values = values + self.weights[f"fc{number}.bias"]
            values = np.maximum(values, 0) if number < count else values
        return np.asarray(values[:, 0], dtype=np.float64)


def read_bench(folder: Path, scale: str) -> Bench:
    """Read table and surrogate of a scale.

    Raises:
        DataError: for a file that is missing, damaged or lacks an array, for weights that do not
            fit the table's sizes, and where the surrogate does not say what the table says.
    """
    table, mlp = folder / f"hwgpt_{scale}.npz", folder / f"perplexity_{scale}_mlp.npz"
    columns = read_columns(table)
    needed = ("embed_dim", "num_layers", "bias", "mlp_ratio", "num_heads", "perplexity")
    for name in needed:
        if name not in columns or columns[name].ndim != 1 + (name in PER_LAYER):
            raise DataError(f"{table}: there is no array {name!r} of the benchmark's form")
    devices = [name for name in columns if name.startswith("latency_")]
    if not devices:
        raise DataError(f"{table}: there is no array latency_DEVICE")
    layers = int(columns["num_layers"].max())
    space = GeneSpace(
        f"hwgpt-{scale}",
        (
            _sizes("embed_dim", columns["embed_dim"]),
            _sizes("num_layers", columns["num_layers"]),
            Gene("bias", (0, 1)),
            _sizes("mlp_ratio", columns["mlp_ratio"], "num_layers"),
            _sizes("num_heads", columns["num_heads"], "num_layers"),
        ),
    )
    if columns["mlp_ratio"].shape[1] != layers:
        raise DataError(f"{table}: mlp_ratio has not the {layers} columns of num_layers")
    rows = table_rows(space, columns, table)
    weights = {
        name: np.asarray(values, dtype=np.float64) for name, values in read_columns(mlp).items()
    }
    digest = hashlib.sha256(table.read_bytes() + mlp.read_bytes()).hexdigest()[:12]
    latencies = {
        name.removeprefix("latency_"): columns[name].astype(np.float64) for name in devices
    }
    bench = Bench(space, rows, latencies, weights, digest)
    try:
        said = bench.perplexity(rows)
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{mlp}: the weights do not fit the networks of {table}: {error}"
        ) from error
    off = float(np.mean(np.abs(said / columns["perplexity"] - 1)))
    if not off <= MOST_OFF:
        raise DataError(f"{mlp}: the surrogate is off by {off:.1%} on average on {table}")
    note(f"{space.name}: {len(rows):,} networks; the surrogate is off by {off:.3%} on average")
    return bench


def _sizes(name: str, values: NDArray[Any], per_layer: str | None = None) -> Gene:
    found = sorted({int(value) for value in np.unique(values)} - ({0} if per_layer else set()))
    return Gene(name, tuple(found), per_layer=per_layer)


class TableLatency:
    """Latency of any network, as the table of a device says.

    Args:
        bench: the scale.
        device: whose latencies.
        kept: which rows of the table it is fitted to, ``(N,)``; all if not given.
    """

    def __init__(self, bench: Bench, device: str, kept: NDArray[np.bool_] | None = None) -> None:
        self._space, ms = bench.space, bench.latencies[device]
        terms = self._terms(bench.rows)
        good = sound(bench, device) if kept is None else kept & sound(bench, device)
        weights = 1 / ms[good]
        self._times = np.linalg.lstsq(terms[good] * weights[:, None], ms[good] * weights)[0]
        self._least = float(ms[good].min()) / 2

    def __call__(self, rows: Genotypes) -> Floats:
        """Latency of rows ``(N, S)``, ``(N,)``, in the table's unit."""
        return np.maximum(self._terms(rows) @ self._times, self._least)

    def _terms(self, rows: Genotypes) -> Floats:
        """For each width and bias a constant and the number of layers of each form."""
        space, columns = self._space, self._space.columns
        ratios, heads = rows[:, columns["mlp_ratio"]], rows[:, columns["num_heads"]]
        there = space.active(rows)[:, columns["mlp_ratio"]]
        kinds = int(space.num_choices[columns["num_heads"][0]])
        forms = ratios * kinds + heads
        most = int(space.num_choices[columns["mlp_ratio"][0]]) * kinds
        counts = [np.ones(len(rows))]
        counts += [((forms == form) & there).sum(axis=1) for form in range(most)]
        (width,), (bias,) = columns["embed_dim"], columns["bias"]
        group = rows[:, width] * 2 + rows[:, bias]
        groups = range(2 * int(space.num_choices[width]))
        return np.column_stack([count * (group == one) for one in groups for count in counts])


def sound(bench: Bench, device: str) -> NDArray[np.bool_]:
    """Which measurements are not broken, ``(N,)``: near the median of their width and bias."""
    ms, columns = bench.latencies[device], bench.space.columns
    group = bench.rows[:, columns["embed_dim"][0]] * 2 + bench.rows[:, columns["bias"][0]]
    groups, place = np.unique(group, return_inverse=True)
    usual = np.array([np.median(ms[group == one]) for one in groups])[place]
    finite: NDArray[np.bool_] = np.isfinite(ms) & (ms > 0)
    return finite & (ms < BROKEN * usual) & (ms > usual / BROKEN)


# -- searching ----------------------------------------------------------------------------------


@cache
def task_of(bench: Bench, device: str) -> SearchTask:
    """The search on a device."""
    cost = TableLatency(bench, device)

    def scores(rows: Genotypes) -> Scores:
        return Scores(cost(rows)[:, None], np.zeros(len(rows)))

    worst = np.concatenate([largest(bench.space), smallest(bench.space), bench.rows])
    reference = np.array([bench.perplexity(worst).max(), cost(worst).max()]) * 1.1
    return SearchTask(Problem(bench.space, scores, reference, limited=False), bench.perplexity)


def rank_evolve_timed(task: SearchTask, budget: int, seed: int) -> Genotypes:
    """The product's own searcher where latencies are known of timed networks alone.

    It begins with `FIRST_TIMED` timed networks, which it knows the quality of none of; every
    network that it evaluates is timed then.
    """
    space = task.problem.space
    assert isinstance(space, GeneSpace)
    costs = ExternalCosts(space, {}, ("quality", "latency_ms"), {})

    def timed_too(rows: Genotypes) -> ExternalCosts:
        ms = task.problem.costs(rows).objectives[:, 0]
        return costs.learnt(rows, [{"latency_ms": float(value)} for value in ms])

    first = sample_distinct(space, np.random.default_rng([seed, 78]), FIRST_TIMED)
    costs = timed_too(first)
    problem = Problem(space, lambda rows: costs.score(rows), task.problem.reference)
    searcher = rank_evolve_of(SearchTask(problem, task.quality), budget, seed)
    for rows, _ in search(searcher, task.quality):
        costs = timed_too(rows)
    return searcher.rows


SEARCHERS: Mapping[str, Mapping[str, Search]] = {
    "rank-evolve": searchers.SEARCHERS["rank-evolve"],
    "rank-evolve-timed": {"": rank_evolve_timed},
} | dict(searchers.SEARCHERS)


@dataclass(frozen=True)
class Job:
    """One search."""

    data: str
    scale: str
    device: str
    searcher: str
    setting: str
    budget: int
    seed: int

    def key(self, digest: str) -> str:
        """Name of the file that keeps its rows."""
        name = f"{self.searcher}{self.setting}"
        return "-".join([digest, self.device, name, str(self.budget), str(self.seed)])


@cache
def opened(data: str, scale: str) -> Bench:
    """The benchmark in this process."""
    return read_bench(Path(data), scale)


def rows_of(job: Job) -> Genotypes:
    """The networks that a search asks for, in order."""
    with threadpool_limits(1):
        task = task_of(opened(job.data, job.scale), job.device)
        return SEARCHERS[job.searcher][job.setting](task, job.budget, job.seed)


def jobs_of(options: Options, device: str) -> list[Job]:
    """All searches of a device, the longest settings of a searcher beside each other."""
    return [
        Job(
            str(options.data),
            options.scale,
            device,
            name,
            setting,
            options.evaluations or BUDGETS[name],
            seed,
        )
        for name in options.searcher
        for setting in SEARCHERS[name]
        for seed in range(options.seeds)
    ]


def search_all(bench: Bench, jobs: Sequence[Job], options: Options) -> None:
    """Do what the work folder does not hold yet; every search is kept as it ends."""
    work = Path(options.work)
    if jobs:
        work.mkdir(parents=True, exist_ok=True)
    left = [job for job in jobs if not kept_in(work, job, bench).exists()]
    for job, rows in done_in(options.executor, rows_of, left, options.workers, options.ray_address):
        keep_rows(kept_in(work, job, bench), rows)
        setting = f" {job.setting}" if job.setting else ""
        note(f"{job.device}: {job.searcher}{setting} seed {job.seed}: {len(rows)} evaluations")


def kept_in(work: Path, job: Job, bench: Bench) -> Path:
    """The file of a search."""
    return work / f"{job.key(bench.digest)}.npy"


def searched(bench: Bench, device: str, options: Options) -> dict[str, Any]:
    """Searcher → level → evaluations that each seed needed, and ``share``."""
    task = task_of(bench, device)
    runs: dict[str, dict[str, list[Genotypes]]] = {}
    for job in jobs_of(options, device):
        rows = np.load(kept_in(Path(options.work), job, bench), allow_pickle=False)
        runs.setdefault(job.searcher, {}).setdefault(job.setting, []).append(rows)
    front = _reference(task, runs, options.reference)
    measure = Measure.of(task.points(front))
    return {name: _best(measure, task, settings) for name, settings in runs.items()}


def _reference(
    task: SearchTask, runs: Mapping[str, Mapping[str, Sequence[Genotypes]]], generations: int
) -> Genotypes:
    """Front of all that was asked for and of a long genetic search from there."""
    asked = {
        name: np.concatenate([rows for found in settings.values() for rows in found])
        for name, settings in runs.items()
    }
    settings = EvolutionSettings(REFERENCE.population, generations)
    ours = [rows for name, rows in asked.items() if name.startswith("rank-evolve")]
    others = [rows for name, rows in asked.items() if not name.startswith("rank-evolve")]
    start = distinct(np.concatenate([task.ends, at_random(task, 2000, 1), *others]))
    start = start[non_dominated(task.points(start))]
    found = list(evolve(task.problem.space, task.scores, settings, 5, start=start))
    known_rows = np.concatenate([start, *(generation.genotypes for generation in found)])
    rows = distinct(np.concatenate([known_rows, *ours]))
    front: Genotypes = rows[non_dominated(task.points(rows))]
    known = {row.tobytes() for row in known_rows}
    alone = sum(row.tobytes() not in known for row in front)
    note(f"the reference front has {len(front)} networks, {alone} of which only rank-evolve found")
    return front


def _best(
    measure: Measure, task: SearchTask, settings: Mapping[str, Sequence[Genotypes]]
) -> dict[str, Any]:
    """The numbers of the setting that got furthest."""
    points = {setting: [task.points(rows) for rows in runs] for setting, runs in settings.items()}
    best = measure.best_setting(points, [level / 100 for level in (95, 97, 99)])
    result: dict[str, Any] = {
        str(level): as_json([measure.first_reach(p, level / 100) for p in points[best]])
        for level in LEVELS
    }
    result["share"] = [measure.share(p) for p in points[best]]
    return result | ({"setting": best} if best else {})


# -- latency ------------------------------------------------------------------------------------


def plain_features(space: GeneSpace, rows: Genotypes) -> Floats:
    """Eleven numbers anybody would think of, ``(N, 11)``."""
    columns, there = space.columns, space.active(rows)

    def values(name: str) -> Floats:
        choices = np.array(space.gene(name).choices, dtype=np.float64)
        found: Floats = (choices[rows[:, columns[name]]] * there[:, columns[name]]).sum(axis=1)
        return found

    width, depth, bias = values("embed_dim"), values("num_layers"), values("bias")
    ratio, heads = values("mlp_ratio"), values("num_heads")
    products = [width * depth, width * ratio, width * heads, width**2 * depth, width**2 * ratio]
    return np.column_stack([width, depth, bias, ratio, heads, ratio / depth, *products])


def _linear(x: Floats, ms: Floats, asked: Floats) -> Floats:
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(x, ms)
    return np.asarray(model.predict(asked))


def _gaussian(x: Floats, ms: Floats, asked: Floats) -> Floats:
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(3.0, (0.1, 1e3)) + WhiteKernel(1e-2, (1e-6, 1))
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    model = make_pipeline(StandardScaler(), process)
    with warnings.catch_warnings():
        # A strength at the end of its range is an answer like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(x, ms).predict(asked))


def _trees(x: Floats, ms: Floats, asked: Floats) -> Floats:
    model = lightgbm.LGBMRegressor(
        n_estimators=200,
        learning_rate=0.06,
        num_leaves=8,
        min_child_samples=3,
        n_jobs=1,
        verbose=-1,
    )
    return np.asarray(model.fit(x, ms).predict(asked))


PLAIN = {"linear": _linear, "Gaussian process": _gaussian, "boosted trees": _trees}


def timed(bench: Bench, device: str, seeds: int) -> dict[str, Any]:
    """Number of timed networks → errors in percent on all others, means over the draws.

    ``best_plain`` is the smallest median error of a plain model, ``plain`` that of each; ``odd``
    the timings that the predictor named.
    """
    ms_all = bench.latencies[device]
    usable = np.flatnonzero(np.isfinite(ms_all) & (ms_all > 0))
    rows, ms = bench.rows[usable], ms_all[usable]
    features, plain = encode_features(bench.space, rows), plain_features(bench.space, rows)
    terms = cost_terms(bench.space)
    result: dict[str, Any] = {}
    for size in (size for size in TIMED if size < len(rows)):
        errors: dict[str, list[tuple[float, float]]] = {}
        odd = 0
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(rows))
            train, test = order[:size], order[size:]
            predictor = LatencyPredictor.fit(features[train], ms[train], terms=terms)
            odd += int(predictor.unexpected().sum())
            said = {"": predictor.mean(features[test])}
            for name, model in PLAIN.items():
                said[name] = model(plain[train], ms[train], plain[test])
            for name, values in said.items():
                off = 100 * np.abs(values / ms[test] - 1)
                errors.setdefault(name, []).append((float(np.median(off)), float(np.mean(off))))
        means = {name: np.mean(found, axis=0).tolist() for name, found in errors.items()}
        median, mean = means.pop("")
        others = {name: found[0] for name, found in means.items()}
        result[str(size)] = {
            "median": median,
            "mean": mean,
            "best_plain": min(others.values()),
            "plain": others,
            "odd": odd / seeds,
        }
    return result


# -- the study ------------------------------------------------------------------------------------


def measure(options: Options) -> dict[str, Any]:
    """All numbers, as `--json` prints them."""
    if options.seeds < 1 or (options.evaluations is not None and options.evaluations < FIRST + 8):
        raise UsageError(
            f"a study needs a seed and at least {FIRST + 8} evaluations; given {options.seeds} and "
            f"{options.evaluations}"
        )
    bench = read_bench(options.data, options.scale)
    devices = options.device or list(bench.latencies)
    for device in devices:
        if device not in bench.latencies:
            raise UnknownNameError(
                f"there is no device {device!r}; the table has {', '.join(bench.latencies)}"
            )
    found: dict[str, Any] = {"search": {}, "latency": {}}
    search_all(bench, [job for device in devices for job in jobs_of(options, device)], options)
    with threadpool_limits(1):
        for device in devices:
            broken = int((~sound(bench, device)).sum())
            part = np.random.default_rng(0).random(len(bench.rows)) < 0.9
            held = ~part & sound(bench, device)
            off = TableLatency(bench, device, part)(bench.rows[held])
            error = np.median(np.abs(off / bench.latencies[device][held] - 1)) if held.any() else 0
            note(
                f"{device}: the latency of others is off by {error:.2%} in the median; "
                f"{broken} measurements are broken"
            )
            found["latency"][device] = timed(bench, device, options.seeds)
            if options.searcher:
                found["search"][device] = searched(bench, device, options)
    return found


def show(content: Mapping[str, Any]) -> Iterator[Table]:
    """Medians and ranges of the evaluations, and errors of predictors."""
    for device, by_name in content["search"].items():
        rows = []
        for name, found in by_name.items():
            cells = [cell(numbers(found[str(level)])) for level in LEVELS]
            label = f"{name} {found['setting']}" if "setting" in found else name
            least, most = min(found["share"]), max(found["share"])
            rows.append((label, *cells, f"{least:.2%} to {most:.2%}"))
        heads = ("searcher", *(f"{level} %" for level in LEVELS), "share at the end")
        yield table_of(
            f"{device}: evaluations to a share of the hypervolume, median and range", heads, rows
        )
    rows = [
        (device, size, *(f"{found[k]:.2f}" for k in ("median", "mean", "best_plain", "odd")))
        for device, sizes in content["latency"].items()
        for size, found in sizes.items()
    ]
    heads = ("device", "timed", "median %", "mean %", "best plain median %", "named")
    yield table_of("latency predictor on all other networks", heads, rows)


def met(content: Mapping[str, Any]) -> bool:
    """Whether rank-evolve gets to the last level in time on every device that was searched."""
    ours = [
        numbers(found[str(LEVELS[-1])])
        for by_name in content["search"].values()
        for name, found in by_name.items()
        if name.startswith("rank-evolve")
    ]
    return all(median(reach) <= MOST_EVALUATIONS for reach in ours)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="the benchmark's files"
    )
    parser.add_argument("--scale", default="s", help="of the networks, as in the files' names")
    parser.add_argument("--device", nargs="+", metavar="NAME", help="default: all of the table")
    parser.add_argument(
        "--searcher",
        nargs="*",
        choices=list(SEARCHERS),
        default=list(SEARCHERS),
        help="those to compare (default: all); without a name latency is predicted alone",
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N")
    parser.add_argument(
        "--evaluations",
        type=int,
        metavar="N",
        help="of each search (default: "
        + ", ".join(f"{name} {count}" for name, count in BUDGETS.items())
        + ")",
    )
    parser.add_argument("--work", default="runs/hw_gpt_bench", help="where searches are kept")
    add_executor(parser)
    parser.add_argument(
        "--reference",
        type=int,
        default=REFERENCE.generations,
        metavar="N",
        help="generations of 200 networks of the search for the reference front",
    )


STUDY = Study(
    "hw_gpt_bench",
    "Searchers and latency predictor on HW-GPT-Bench",
    add_options,
    measure,
    show,
    met,
    example="--data DIR --device a100 P100 --searcher rank-evolve random --seeds 3",
)


if __name__ == "__main__":
    sys.exit(STUDY.main())

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
These latencies are exact costs, told to every searcher: to ours before it asks, to samplers of
Optuna, which have no way to know a cost before, with the answer.

The reference front is that of all networks that any searcher of that device asked for and of a long
genetic search that starts there; how many of its networks only rank-evolve had found is printed.
Hypervolume as in `experiments.search_efficiency`. Finished searches are kept in the work folder.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

from experiments.harness import Options, Study, note, table_of
from experiments.search_efficiency import Measure
from latency.predictor import LatencyPredictor
from nas.run.evaluators.table import read_columns, table_rows
from nas.search.evolution import EvolutionSettings, Scores, evolve
from nas.search.pareto import crowding_distance, non_dominated, non_dominated_ranks
from nas.search.searchers.base import Problem, search
from nas.search.searchers.optuna_study import OptunaSearcher
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.encoding import cost_terms, encode_features
from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.genes import Gene, GeneSpace
from search_spaces.genotypes import Genotypes
from search_spaces.operators import (
    distinct,
    largest,
    mutate,
    neighbours,
    sample,
    sample_distinct,
    smallest,
)

Floats = NDArray[np.float64]

PER_LAYER = ("mlp_ratio", "num_heads")
LEVELS = (90, 95, 97, 98, 99)
TIMED = (20, 60, 100)
FIRST = 32
POPULATIONS = (16, 32, 50, 100)
AGING = 50
# Evaluations of a search that `--evaluations` says nothing about.
BUDGETS = {
    "rank-evolve": 320,
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
    usual = np.array([np.median(ms[group == one]) for one in group])
    finite: NDArray[np.bool_] = np.isfinite(ms) & (ms > 0)
    return finite & (ms < BROKEN * usual) & (ms > usual / BROKEN)


# -- searching ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Task:
    """What is searched on one device."""

    problem: Problem
    perplexity: Callable[[Genotypes], Floats]

    def points(self, rows: Genotypes) -> Floats:
        """Perplexity and latency of rows, ``(N, 2)``."""
        return self.problem.points(rows, self.perplexity(rows)).objectives

    @property
    def ends(self) -> Genotypes:
        """The largest and the smallest network."""
        space = self.problem.space
        return distinct(np.concatenate([largest(space), smallest(space)]))


def task_of(bench: Bench, device: str) -> Task:
    """The search on a device."""
    cost = TableLatency(bench, device)

    def scores(rows: Genotypes) -> Scores:
        return Scores(cost(rows)[:, None], np.zeros(len(rows)))

    worst = np.concatenate([largest(bench.space), smallest(bench.space), bench.rows])
    reference = np.array([bench.perplexity(worst).max(), cost(worst).max()]) * 1.1
    return Task(Problem(bench.space, scores, reference), bench.perplexity)


def rank_evolve(task: Task, budget: int, seed: int) -> Genotypes:
    """The product's own searcher."""
    space = task.problem.space
    rows = sample_distinct(space, np.random.default_rng([seed, 77]), FIRST)
    start = distinct(np.concatenate([task.ends, rows]))[:FIRST]
    settings = RankEvolveSettings(budget=budget, patience=0)
    searcher = RankEvolve(task.problem, start, settings, seed)
    for _ in search(searcher, task.perplexity):
        pass
    return searcher.rows


def at_random(task: Task, budget: int, seed: int) -> Genotypes:
    """Random networks."""
    return sample_distinct(task.problem.space, np.random.default_rng(seed), budget)


def evolution(task: Task, budget: int, seed: int, population: int) -> Genotypes:
    """The product's evolution on real evaluations, from the ends and random networks."""
    settings = EvolutionSettings(population, -(-budget // population))
    scores = partial(_scores, task)
    found = list(evolve(task.problem.space, scores, settings, seed, start=task.ends))
    rows: Genotypes = np.concatenate([generation.genotypes for generation in found])[:budget]
    return rows


def _scores(task: Task, rows: Genotypes) -> Scores:
    return task.problem.points(rows, task.perplexity(rows))


def sampler(task: Task, budget: int, seed: int, name: str) -> Genotypes:
    """A sampler of Optuna, from the ends; NSGA-II with a population of 50."""
    searcher = OptunaSearcher(task.problem, name, budget, seed, start=task.ends)  # type: ignore[arg-type]
    for _ in search(searcher, task.perplexity):
        pass
    return searcher.rows


def local_search(task: Task, budget: int, seed: int) -> Genotypes:
    """Pareto local search from the ends: the neighbours of each network of the front, in turns.

    Source: Paquete et al., Pareto local optimum sets, 2004.
    """
    space, rng = task.problem.space, np.random.default_rng(seed)
    rows, looked = task.ends, set[bytes]()
    while len(rows) < budget:
        front = rows[non_dominated(task.points(rows))]
        left = [row for row in front if row.tobytes() not in looked]
        if not left:
            break
        row = left[int(rng.integers(len(left)))]
        looked.add(row.tobytes())
        around = neighbours(space, row)
        rows = distinct(np.concatenate([rows, around[rng.permutation(len(around))]]))
    return rows[:budget]


def regularised(task: Task, budget: int, seed: int) -> Genotypes:
    """Aging evolution of the youngest 50 networks; a parent is the best of ten by rank, then room.

    Source: Real et al., Regularized evolution for image classifier architecture search, 2019, with
    non-dominated ranks in the place of accuracy.
    """
    space, rng = task.problem.space, np.random.default_rng(seed)
    rows = distinct(np.concatenate([task.ends, sample(space, rng, AGING)]))
    points, known = task.points(rows), {row.tobytes() for row in rows}
    rate = 1 / len(space.slots)
    while len(rows) < budget:
        young = points[-AGING:]
        ranks = non_dominated_ranks(young)
        place = np.lexsort((-crowding_distance(young, ranks), ranks)).argsort()
        rivals = rng.integers(len(young), size=10)
        parent = rows[-len(young) :][rivals[place[rivals].argmin()]][None]
        child = mutate(space, parent, rate, rng)
        if child.tobytes() in known:
            child = mutate(space, parent, min(1.0, 4 * rate), rng)
        if child.tobytes() not in known:
            known.add(child.tobytes())
            rows = np.concatenate([rows, child])
            points = np.concatenate([points, task.points(child)])
    return rows[:budget]


Search = Callable[[Task, int, int], Genotypes]
# Searcher → its settings, of which the best counts → the search.
SEARCHERS: Mapping[str, Mapping[str, Search]] = {
    "rank-evolve": {"": rank_evolve},
    "random": {"": at_random},
    "evolution": {str(size): partial(evolution, population=size) for size in POPULATIONS},
    "nsga2": {"": partial(sampler, name="nsga2")},
    "tpe": {"": partial(sampler, name="tpe")},
    "gp": {"": partial(sampler, name="gp")},
    "local": {"": local_search},
    "regularised": {"": regularised},
}


def searched(bench: Bench, device: str, options: Options, work: Path) -> dict[str, Any]:
    """Searcher → level → evaluations that each seed needed, and ``share``."""
    task = task_of(bench, device)
    runs: dict[str, dict[str, list[Genotypes]]] = {}
    for name in options.searcher:
        budget = options.evaluations or BUDGETS[name]
        for setting, run in SEARCHERS[name].items():
            for seed in range(options.seeds):
                key = "-".join([bench.digest, device, f"{name}{setting}", str(budget), str(seed)])
                rows = _kept(work / f"{key}.npy", partial(run, task, budget, seed))
                runs.setdefault(name, {}).setdefault(setting, []).append(rows)
                note(f"{device}: {name} {setting} seed {seed}: {len(rows)} evaluations")
    front = _reference(task, runs, options.reference)
    measure = Measure.of(task.points(front))
    return {name: _best(measure, task, settings) for name, settings in runs.items()}


def _kept(path: Path, make: Callable[[], Genotypes]) -> Genotypes:
    """The rows in a file, which is written when it is not there."""
    if not path.exists():
        rows = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npy")
        np.save(part, rows)
        part.replace(path)
    kept: Genotypes = np.load(path, allow_pickle=False)
    return kept


def _reference(
    task: Task, runs: Mapping[str, Mapping[str, Sequence[Genotypes]]], generations: int
) -> Genotypes:
    """Front of all that was asked for and of a long genetic search from there."""
    asked = {
        name: np.concatenate([rows for found in settings.values() for rows in found])
        for name, settings in runs.items()
    }
    settings = EvolutionSettings(REFERENCE.population, generations)
    others = [rows for name, rows in asked.items() if name != "rank-evolve"]
    start = distinct(np.concatenate([task.ends, at_random(task, 2000, 1), *others]))
    start = start[non_dominated(task.points(start))]
    found = list(evolve(task.problem.space, partial(_scores, task), settings, 5, start=start))
    known_rows = np.concatenate([start, *(generation.genotypes for generation in found)])
    rows = distinct(np.concatenate([known_rows, asked.get("rank-evolve", known_rows[:0])]))
    front: Genotypes = rows[non_dominated(task.points(rows))]
    known = {row.tobytes() for row in known_rows}
    alone = sum(row.tobytes() not in known for row in front)
    note(f"the reference front has {len(front)} networks, {alone} of which only rank-evolve found")
    return front


def _best(
    measure: Measure, task: Task, settings: Mapping[str, Sequence[Genotypes]]
) -> dict[str, Any]:
    """The numbers of the setting that got furthest: by median evaluations, then by share."""
    found = []
    for setting, runs in settings.items():
        points = [task.points(rows) for rows in runs]
        reach = {level: [measure.first_reach(p, level / 100) for p in points] for level in LEVELS}
        shares = [measure.share(p) for p in points]
        order = [float(np.median(reach[level])) for level in (99, 97, 95)]
        result: dict[str, Any] = {
            str(level): [None if np.isinf(n) else int(n) for n in numbers]
            for level, numbers in reach.items()
        }
        result["share"] = shares
        if setting:
            result["setting"] = setting
        found.append(((*order, -float(np.median(shares))), result))
    return min(found, key=lambda pair: pair[0])[1]


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
                found["search"][device] = searched(bench, device, options, Path(options.work))
    return found


def show(numbers: Mapping[str, Any]) -> Iterator[Table]:
    """Medians of the evaluations, and errors of predictors."""
    for device, searchers in numbers["search"].items():
        rows = []
        for name, found in searchers.items():
            middles = [
                float(np.median([np.inf if n is None else n for n in found[str(level)]]))
                for level in LEVELS
            ]
            words = [f"{middle:.0f}" if np.isfinite(middle) else "×" for middle in middles]
            label = f"{name} {found['setting']}" if "setting" in found else name
            low, high = min(found["share"]), max(found["share"])
            rows.append((label, *words, f"{low:.2%} to {high:.2%}"))
        heads = ("searcher", *(f"{level} %" for level in LEVELS), "share at the end")
        yield table_of(f"{device}: evaluations to a share of the hypervolume, medians", heads, rows)
    rows = [
        (device, size, *(f"{found[k]:.2f}" for k in ("median", "mean", "best_plain", "odd")))
        for device, sizes in numbers["latency"].items()
        for size, found in sizes.items()
    ]
    heads = ("device", "timed", "median %", "mean %", "best plain median %", "named")
    yield table_of("latency predictor on all other networks", heads, rows)


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
    example="--data DIR --device a100 P100 --searcher rank-evolve random --seeds 3",
)


if __name__ == "__main__":
    sys.exit(STUDY.main())

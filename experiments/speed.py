"""What elasticity costs, how fast networks decode, and how many networks evolution scores.

Each measurement has a mark that it must keep, and whatever is compared takes turns in one run, so
that a busy machine slows both sides:

* A training step of the supernet (its largest network: forward, backward, AdamW) against the step
  of a fixed network of the same shape and weights, which `experiments.plain_networks`
  writes from torch's own layers.
* Candidates a second of `nas.search.evolution.evolve` on one core, everything included: breeding,
  encoding, ranker, latency predictor, costs, limits and sorting.
* Decoding: beam search against a decoder out of torch's layers, and whether a token takes longer
  the later it comes (`experiments.network_speed`).
* Causal linear attention against softmax: time and memory (`experiments.network_speed`).
* Every attention operator by itself, and where linear ones overtake softmax, for information
  (`experiments.operator_speed`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from threadpoolctl import threadpool_limits

from experiments.harness import Options, Study, table_of
from experiments.network_speed import (
    Row,
    StepRatio,
    beam_rows,
    causal_rows,
    position_rows,
    step_ratio,
    translation_step_ratio,
)
from experiments.operator_speed import operator_numbers, operator_tables
from latency.predictor import LatencyPredictor
from nas.objectives import LATENCY, QUALITY
from nas.objectives.size import network_costs
from nas.request.presets import budget_for
from nas.search.evolution import EvolutionSettings, evolve
from nas.search.ranking import PairwiseLinear, PairwiseTrees, Ranker
from nas.search.scoring import CostScorer, Scorer
from search_spaces.architecture import AttentionKind
from search_spaces.encoding import cost_terms, encode_features, feature_names
from search_spaces.loading import load_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample

MAX_RATIO = 1.10
MIN_CANDIDATES = 20_000.0

# Of omnidirectional layers there is no plain form; and the largest network has none.
ATTENTION: tuple[AttentionKind, ...] = ("softmax", "linear")

SPACES = ("digits", "cifar10", "listops")
TRANSLATION_SPACE = "multi30k"
OBJECTIVES = ((QUALITY, "flops"), (QUALITY, LATENCY))
OBSERVATIONS = 160
TIMED = 40
GENERATIONS = 40
REPEATS = 3


# -- evolution --------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvolutionSpeed:
    """Candidates a second on one core.

    Attributes:
        ranker: that scored them.
        objectives: of the search; a limit on parameters comes on top.
        features: columns of a candidate.
        candidates: scored in one run.
        per_second: the median of the runs.
    """

    ranker: str
    objectives: str
    features: int
    candidates: int
    per_second: float


def rankers() -> list[Ranker]:
    """One unfitted ranker of each sort that a search chooses from."""
    linear = [PairwiseLinear(), PairwiseLinear(interactions=True)]
    return [*linear, PairwiseTrees()] if PairwiseTrees.available() else [*linear]


def evolution_speed(
    space: SearchSpace, ranker: Ranker, objectives: Sequence[str], population: int
) -> EvolutionSpeed:
    """Run whole evolutions as a search does, after fitting the predictors to made-up values.

    Args:
        space: where to search.
        ranker: to be fitted here; what it learns does not change how long it takes.
        objectives: names, as on the command line.
        population: of each generation.
    """
    scorer = _scorer(space, ranker, objectives)
    settings = EvolutionSettings(population=population, generations=GENERATIONS)
    rates = []
    for seed in range(REPEATS):
        start, count = time.perf_counter(), 0
        for generation in evolve(
            space, lambda rows: scorer.score(space.translate(rows, space)), settings, seed
        ):
            count += len(generation.genotypes)
        rates.append(count / (time.perf_counter() - start))
    return EvolutionSpeed(
        ranker=ranker.name,
        objectives=",".join(objectives),
        features=len(feature_names(space)),
        candidates=count,
        per_second=statistics.median(rates),
    )


def _scorer(space: SearchSpace, ranker: Ranker, objectives: Sequence[str]) -> Scorer:
    """What a search scores with; half of the networks keep its limit."""
    rng = np.random.default_rng(0)
    rows = sample(space, rng, OBSERVATIONS)
    features = encode_features(space, rows)
    params, operations = network_costs(space, rows).T
    ranker.fit(features, 1 / np.log(params) + rng.normal(0, 0.001, OBSERVATIONS))
    predictors = {}
    if LATENCY in objectives:
        ms = (1 + operations / operations.mean()) * rng.lognormal(0, 0.02, OBSERVATIONS)
        predictors[LATENCY] = LatencyPredictor.fit(
            features[:TIMED], ms[:TIMED], terms=cost_terms(space)
        )
    limits = {"params": float(np.median(params))}
    return Scorer(ranker, CostScorer(space, predictors, objectives, limits))


# -- sequences --------------------------------------------------------------------------------


def sequence_rows(seconds: float) -> tuple[Row, ...]:
    """What a translation network costs in training and decoding, and causal attention.

    Args:
        seconds: for each comparison that takes turns as long as it is given.
    """
    step = translation_step_ratio(load_space(TRANSLATION_SPACE), seconds)
    detail = (
        f"{step.elastic_ms:.0f} and {step.plain_ms:.0f} ms, {step.rounds} rounds, "
        f"quartiles {step.low:.3f} to {step.high:.3f}"
    )
    name = f"Training step, {TRANSLATION_SPACE}: elastic / fixed"
    training = Row(name, step.ratio, at_most=MAX_RATIO, detail=detail)
    return (training, *beam_rows(seconds), *position_rows(), *causal_rows())


# -- the study --------------------------------------------------------------------------------


def measure(options: Options) -> dict[str, Any]:
    """All measurements and whether each mark holds."""
    space = load_space(options.space)
    population = budget_for(space, "quick", {}).evolution.population
    with threadpool_limits(1):
        evolutions = [
            evolution_speed(space, ranker, objectives, population)
            for objectives in OBJECTIVES
            for ranker in rankers()
        ]
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        steps = [step_ratio(space, kind, options.seconds) for kind in ATTENTION]
        rows = sequence_rows(options.seconds)
        operators = operator_numbers()
    finally:
        torch.set_num_threads(before)
    return {
        "space": space.name,
        "cores": os.cpu_count(),
        "threads": options.threads,
        **numbers_of(steps, evolutions, rows),
        "operators": operators,
    }


def numbers_of(
    steps: Sequence[StepRatio], evolutions: Sequence[EvolutionSpeed], rows: Sequence[Row]
) -> dict[str, Any]:
    """The measurements as they are kept, the bounds, and whether all rows keep them."""
    return {
        "steps": [asdict(step) for step in steps],
        "evolutions": [asdict(one) for one in evolutions],
        "rows": [row.to_json() for row in rows],
        "bounds": {"step_ratio": MAX_RATIO, "candidates": MIN_CANDIDATES},
        "kept": {
            "step_ratio": all(step.ratio <= MAX_RATIO for step in steps),
            "candidates": all(one.per_second >= MIN_CANDIDATES for one in evolutions),
            "sequences": all(row.passed for row in rows),
        },
    }


def show(speed: dict[str, Any]) -> Iterator[Table | str]:
    """All tables and whether the marks are kept."""
    where = f"{speed['threads']} of {speed['cores']} cores"
    yield table_of(
        f"Training step of the largest network: {speed['space']}, {where}",
        ("attention", "batch", "elastic ms", "fixed ms", "ratio", "quartiles", "rounds"),
        [
            (
                step["attention"],
                step["batch"],
                f"{step['elastic_ms']:.2f}",
                f"{step['plain_ms']:.2f}",
                f"{step['ratio']:.3f}",
                f"{step['low']:.3f} to {step['high']:.3f}",
                step["rounds"],
            )
            for step in speed["steps"]
        ],
    )
    yield f"at most {MAX_RATIO:.2f}: {_verdict(speed['kept']['step_ratio'])}\n"
    yield table_of(
        f"Evolution: {speed['space']}, 1 of {speed['cores']} cores",
        ("ranker", "objectives", "features", "candidates", "a second"),
        [
            (
                one["ranker"],
                one["objectives"],
                f"{one['features']:,}",
                f"{one['candidates']:,}",
                f"{round(one['per_second']):,}",
            )
            for one in speed["evolutions"]
        ],
    )
    yield f"at least {MIN_CANDIDATES:,.0f}: {_verdict(speed['kept']['candidates'])}\n"
    yield table_of(
        f"Translation and causal attention, {where}",
        ("measured", "value", "mark", "passed", "details"),
        [
            (
                row["name"],
                f"{row['value']:.3f}",
                row["mark"],
                _verdict(row["passed"]) if row["mark"] else "",
                row["detail"],
            )
            for row in speed["rows"]
        ],
    )
    if "operators" in speed:  # results from before there were several have none
        yield from operator_tables(speed["operators"])


def _verdict(kept: bool) -> str:
    return "holds" if kept else "DOES NOT HOLD"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", choices=SPACES, default="digits", help="default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch, evolution apart; default: %(default)s"
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="per timed comparison; default: %(default)s"
    )


STUDY = Study(
    "speed",
    "What does elasticity cost, and how fast do networks decode and candidates get scored?",
    add_options,
    measure,
    show,
    lambda speed: all(speed["kept"].values()),
    example="--space digits --threads 2",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

"""What elasticity costs, how fast networks decode, and how many networks evolution scores.

Each measurement has a mark that it must keep, and whatever is compared takes turns in one run, so
that a busy machine slows both sides:

* A training step of the supernet (its largest network: forward, backward, AdamW) against the step
  of a fixed network of the same shape and weights, which `experiments.plain_network` and
  `experiments.plain_translation` write from torch's own layers.
* Candidates a second of `nas.search.evolution.evolve` on one core, everything included: breeding,
  encoding, ranker, latency predictor, costs, limits and sorting.
* Decoding: beam search against a decoder out of torch's layers, and whether a token takes longer
  the later it comes (`experiments.decoding_speed`).
* Causal linear attention against softmax: time and memory (`experiments.causal_speed`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from experiments.causal_speed import causal_rows
from experiments.decoding_speed import beam_rows, position_rows
from experiments.speed_rows import Row
from experiments.step_ratio import StepRatio, step_ratio, translation_step_ratio
from latency.predictor import LatencyPredictor
from nas.objectives import LATENCY, QUALITY
from nas.objectives.size import network_costs
from nas.run.presets import budget_for
from nas.search.evolution import EvolutionSettings, evolve
from nas.search.ranking import PairwiseLinear, PairwiseTrees, Ranker
from nas.search.scoring import CostScorer, Scorer
from search_spaces.architecture import AttentionKind
from search_spaces.encoding import encode_features, feature_names
from search_spaces.errors import NasError
from search_spaces.loading import load_space
from search_spaces.operators import sample
from search_spaces.space import SearchSpace

MAX_RATIO = 1.10
MIN_CANDIDATES = 20_000.0

# Of omnidirectional layers there is no plain form; and the largest network has none.
ATTENTION: tuple[AttentionKind, ...] = ("softmax", "linear")

PIPED_WIDTH = 120  # columns, where there is no terminal to ask
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
        predictors[LATENCY] = LatencyPredictor.fit(features[:TIMED], ms[:TIMED])
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


# -- command ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """Everything measured, and where.

    Attributes:
        space: name of the space.
        cores: of the machine.
        threads: that training used; evolution used one.
        steps: a comparison for each attention kind.
        evolutions: one for each sort of ranker.
        rows: of translation networks and causal attention.
    """

    space: str
    cores: int | None
    threads: int
    steps: tuple[StepRatio, ...]
    evolutions: tuple[EvolutionSpeed, ...]
    rows: tuple[Row, ...]

    @property
    def kept(self) -> dict[str, bool]:
        """Whether each bound holds in all rows."""
        return {
            "step_ratio": all(step.ratio <= MAX_RATIO for step in self.steps),
            "candidates": all(s.per_second >= MIN_CANDIDATES for s in self.evolutions),
            "sequences": all(row.passed for row in self.rows),
        }

    def to_json(self) -> dict[str, Any]:
        """The numbers, the bounds and whether they hold."""
        bounds = {"step_ratio": MAX_RATIO, "candidates": MIN_CANDIDATES}
        rows = [row.to_json() for row in self.rows]
        return {**asdict(self), "rows": rows, "bounds": bounds, "kept": self.kept}


def measure(space: SearchSpace, threads: int, seconds: float) -> Speed:
    """All measurements; the numbers of threads are put back afterwards."""
    population = budget_for(space, "quick", {}).evolution.population
    with threadpool_limits(1):
        evolutions = [
            evolution_speed(space, ranker, objectives, population)
            for objectives in OBJECTIVES
            for ranker in rankers()
        ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        steps = tuple(step_ratio(space, kind, seconds) for kind in ATTENTION)
        rows = sequence_rows(seconds)
    finally:
        torch.set_num_threads(before)
    return Speed(space.name, os.cpu_count(), threads, steps, tuple(evolutions), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every mark is kept."""
    options = _parser().parse_args(arguments)
    try:
        speed = measure(load_space(options.space), options.threads, options.seconds)
    except NasError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(speed.to_json(), indent=2))
    else:
        print_tables(speed, Console(width=None if sys.stdout.isatty() else PIPED_WIDTH))
    return 0 if all(speed.kept.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed",
        description="Time training steps, evolution, decoding and causal attention, with marks.",
        epilog="example: python -m experiments.speed --space digits --threads 2",
    )
    parser.add_argument("--space", choices=SPACES, default="digits", help="default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch, evolution apart; default: %(default)s"
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="per timed comparison; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser


def print_tables(speed: Speed, console: Console) -> None:
    """All tables and whether the marks are kept."""
    console.print(_step_table(speed))
    console.print(f"at most {MAX_RATIO:.2f}: {_verdict(speed.kept['step_ratio'])}\n")
    console.print(_evolution_table(speed))
    console.print(f"at least {MIN_CANDIDATES:,.0f}: {_verdict(speed.kept['candidates'])}\n")
    console.print(_row_table(speed))


def _verdict(kept: bool) -> str:
    return "holds" if kept else "DOES NOT HOLD"


def _step_table(speed: Speed) -> Table:
    where = f"{speed.threads} of {speed.cores} cores"
    table = Table(title=f"Training step of the largest network: {speed.space}, {where}")
    for heading in ("attention", "batch", "elastic ms", "fixed ms", "ratio", "quartiles", "rounds"):
        table.add_column(heading, justify="left" if heading == "attention" else "right")
    for step in speed.steps:
        times = f"{step.elastic_ms:.2f}", f"{step.plain_ms:.2f}", f"{step.ratio:.3f}"
        spread = f"{step.low:.3f} to {step.high:.3f}"
        table.add_row(step.attention, str(step.batch), *times, spread, str(step.rounds))
    return table


def _evolution_table(speed: Speed) -> Table:
    table = Table(title=f"Evolution: {speed.space}, 1 of {speed.cores} cores")
    for heading in ("ranker", "objectives", "features", "candidates", "a second"):
        table.add_column(heading, justify="left" if heading[0] in "ro" else "right")
    for run in speed.evolutions:
        numbers = run.features, run.candidates, round(run.per_second)
        table.add_row(run.ranker, run.objectives, *(f"{number:,}" for number in numbers))
    return table


def _row_table(speed: Speed) -> Table:
    table = Table(title=f"Translation and causal attention, {speed.threads} of {speed.cores} cores")
    for heading in ("measured", "value", "mark", "passed", "details"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for row in speed.rows:
        passed = _verdict(row.passed) if row.mark else ""
        table.add_row(row.name, f"{row.value:.3f}", row.mark, passed, row.detail)
    return table


if __name__ == "__main__":
    sys.exit(main())

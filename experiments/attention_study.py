"""Does it pay to mix kinds of attention, and where?

``python -m experiments.attention_study --space listops``

The mFormer paper's question on data that can be run here. One supernet of the whole space is
trained. Four spaces are then searched with it, by the same number of real evaluations: softmax
only, linear only, omni only, and all kinds mixed; for quality against FLOPs, and against latency
under two workloads, predicted from 60 networks that are timed. From each space the best network,
and the best one with at most a third of the largest network's FLOPs, are trained from scratch with
three seeds and tested.

Evaluations, timings and trainings are kept in the work folder and not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from experiments.harness import Options, Study, add_workers, processes, table_of
from experiments.search_efficiency import SIZES
from experiments.searchers import FIRST, Floats, Measure
from experiments.trainings import Oracle, oracle, train_supernet, trained, untrained
from latency.predictor import LatencyPredictor
from latency.timer import time_calls
from latency.workload import Workload
from nas.objectives.size import network_costs
from nas.profiling.timed_work import timed_call
from nas.run.folder import RunFolder
from nas.search.evolution import Scores
from nas.search.pareto import non_dominated
from nas.search.searchers.base import Problem, search
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.architecture import Architecture
from search_spaces.encoding import cost_terms, encode_features
from search_spaces.files import write_atomically
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import distinct, largest, sample_distinct, smallest
from supernet.tasks.evaluation import score
from supernet.tasks.opening import open_task
from supernet.training.checkpoint import CheckpointFolder

KINDS: Mapping[str, tuple[str, ...]] = {
    "softmax only": ("softmax",),
    "linear only": ("linear",),
    "omni only": ("omni",),
    "mixed": ("softmax", "linear", "omni"),
}
WORKLOADS = {
    "listops": (Workload(8, 128), Workload(8, 512)),
    "digits": (Workload(1, 16), Workload(32, 16)),
}
BUDGET = 240
TIMED, ROUNDS = 60, 9
SEEDS = (1, 2, 3)
SMALL = 1 / 3

Costs = Callable[[Genotypes], Floats]


@dataclass(frozen=True)
class Training:
    """One network trained from scratch."""

    work: str
    network: Architecture
    seed: int
    epochs: int

    @property
    def file(self) -> Path:
        """Its result."""
        name = f"{self.network.id}-{self.seed}-{self.epochs}.json"
        return Path(self.work) / "trained" / name


def restricted(space: SearchSpace, kinds: Sequence[str]) -> SearchSpace:
    """The space with these kinds of attention alone."""
    return space.restrict({"encoder.attention": kinds})


def costs_of(asked: Oracle, work: Path, space: str, timed: bool) -> dict[str, Costs]:
    """What a network costs, by name of the cost; rows are those of the whole space."""
    costs: dict[str, Costs] = {"FLOPs": lambda rows: network_costs(asked.space, rows)[:, 1:]}
    for workload in WORKLOADS[space] if timed else ():
        costs[f"ms at {workload.label}"] = predicted_ms(asked.space, workload, work)
    return costs


def predicted_ms(space: SearchSpace, workload: Workload, work: Path) -> Costs:
    """Rows ``(N, S)`` → predicted milliseconds ``(N, 1)``."""
    predictor = fitted(space, workload, work)
    return lambda rows: predictor.mean(encode_features(space, rows))[:, None]


def fitted(space: SearchSpace, workload: Workload, work: Path) -> LatencyPredictor:
    """A latency predictor from networks timed here, or from the file of an earlier call."""
    file = work / f"latency-{workload.digest[:8]}.json"
    if not file.exists():
        rows = sample_distinct(space, np.random.default_rng(3), TIMED)
        rows = distinct(np.concatenate([largest(space), smallest(space), rows]))
        calls = [timed_call(space, network, workload, "cpu") for network in space.decode(rows)]
        times = [t.median_ms for t in time_calls(calls, "cpu", warmup=1, repeats=ROUNDS)]
        made = LatencyPredictor.fit(encode_features(space, rows), times, terms=cost_terms(space))
        write_atomically(file, json.dumps(made.to_json()))
    return LatencyPredictor.from_json(json.loads(file.read_text(encoding="utf-8")))


def searched(
    asked: Oracle,
    space: SearchSpace,
    costs: Costs,
    seed: int,
    budget: int = BUDGET,
    first: int = FIRST,
) -> Genotypes:
    """The rows, of the whole space, that a search of a part of it evaluated, `first` at random."""
    whole = asked.space

    def priced(rows: Genotypes) -> Scores:
        return Scores(costs(space.translate(rows, whole)), np.zeros(len(rows)))

    most = costs(largest(whole))[0]
    problem = Problem(space, priced, np.array([asked.problem.reference[0], *most]))
    rows = sample_distinct(space, np.random.default_rng([seed, 5]), first)
    start = distinct(np.concatenate([largest(space), smallest(space), rows]))[:first]
    searcher = RankEvolve(problem, start, RankEvolveSettings(budget, patience=0), seed)

    def evaluated(rows: Genotypes) -> Floats:
        found = []
        for row in space.translate(rows, whole):
            found.append(asked(row[None]))
            asked.keep()  # one may take as long as a training
        return np.concatenate(found)

    for _ in search(searcher, evaluated):
        pass
    return space.translate(searcher.rows, whole)


def train(job: Training) -> dict[str, Any]:
    """Train a network from scratch as a search would, and test it; once for all."""
    if not job.file.exists():
        torch.set_num_threads(1)
        spec = RunFolder.open(Path(job.work) / "run").spec
        space, settings = spec.space, replace(spec.budget.retrain, epochs=job.epochs)
        task = open_task(space, spec.dataset, spec.data, spec.seed)
        network = untrained(space, job.network, settings, job.seed)
        digest = f"{job.network.id}:{job.seed}:{asdict(settings)}"
        folder = CheckpointFolder(job.file.with_suffix(""), digest)
        trained(network, job.network, task, settings, job.seed, folder=folder)
        found = score(task, network.network, job.network, task.open_test())
        write_atomically(job.file, json.dumps(dict(found.values)))
        shutil.rmtree(folder.path)
    result: dict[str, Any] = json.loads(job.file.read_text(encoding="utf-8"))
    return result


def winners(asked: Oracle, rows: Genotypes) -> dict[str, Genotypes]:
    """The best network, and the best small one, ``(1, S)`` each."""
    qualities, flops = asked(rows), network_costs(asked.space, rows)[:, 1]
    small = np.flatnonzero(flops <= SMALL * network_costs(asked.space, largest(asked.space))[0, 1])
    best, cheap = int(np.argmin(qualities)), int(small[np.argmin(qualities[small])])
    return {"best": rows[best : best + 1], "small": rows[cheap : cheap + 1]}


def fronts_table(
    asked: Oracle, found: Mapping[str, Mapping[str, Genotypes]], costs: Mapping[str, Costs]
) -> list[dict[str, Any]]:
    """For each cost and space: its front and the share of the common front's hypervolume."""
    table = []
    for cost, by_space in found.items():
        points = {
            name: np.column_stack([asked(rows), costs[cost](rows)])
            for name, rows in by_space.items()
        }
        measure = Measure.of(np.concatenate(list(points.values())))
        for name, mine in points.items():
            front = mine[non_dominated(mine)]
            table.append(
                {
                    "cost": cost,
                    "space": name,
                    "hypervolume": measure.share(mine),
                    "front": sorted(front.tolist()),
                }
            )
    return table


def trained_table(
    asked: Oracle, by_space: Mapping[str, Genotypes], work: Path, epochs: int, workers: int
) -> list[dict[str, Any]]:
    """The winners of each space, trained from scratch; one that wins twice is trained once."""
    table = []
    with processes(workers) as pool:
        won = [
            (name, which, row, asked.space.decode(row)[0])
            for name, rows in by_space.items()
            for which, row in winners(asked, rows).items()
        ]
        distinct_networks = {network.id: network for *_, network in won}
        waiting = {
            network_id: [
                pool.submit(train, Training(str(work), network, seed, epochs)) for seed in SEEDS
            ]
            for network_id, network in distinct_networks.items()
        }
        for name, which, row, network in won:
            accuracy = [future.result()["accuracy"] for future in waiting[network.id]]
            table.append(
                {
                    "space": name,
                    "which": which,
                    "id": network.id,
                    "architecture": network.to_json(),
                    "flops": float(network_costs(asked.space, row)[0, 1]),
                    "inherited_loss": float(asked(row)[0]),
                    "test_accuracy": accuracy,
                }
            )
    return table


def tables(content: Mapping[str, Any]) -> list[Table]:
    """Both tables of the numbers."""
    fronts = content["fronts"]
    shares = {(row["cost"], row["space"]): f"{row['hypervolume']:.3f}" for row in fronts}
    costs = dict.fromkeys(row["cost"] for row in fronts)
    accuracies = [np.array(row["test_accuracy"]) for row in content["winners"]]
    return [
        table_of(
            "hypervolume of each space's front, as a share of the common front's",
            ("cost", *KINDS),
            [(cost, *(shares[cost, name] for name in KINDS)) for cost in costs],
        ),
        table_of(
            f"winners from scratch, {len(SEEDS)} seeds",
            ("space", "winner", "FLOPs", "inherited loss", "test accuracy", "± seeds"),
            [
                (
                    row["space"],
                    f"{row['which']} {row['id']}",
                    f"{row['flops']:.3g}",
                    f"{row['inherited_loss']:.3f}",
                    f"{accuracy.mean():.4f}",
                    f"{accuracy.std(ddof=1):.4f}",
                )
                for row, accuracy in zip(content["winners"], accuracies, strict=True)
            ],
        ),
    ]


def measure(options: Options) -> dict[str, Any]:
    """Search the four spaces and train the winners."""
    work = Path(options.work) / options.space
    train_supernet(options.space, SIZES[options.space].settings, work)
    asked = oracle(str(work))
    costs = costs_of(asked, work, options.space, timed=not options.untimed)
    found: dict[str, dict[str, Genotypes]] = {}
    for cost, price in costs.items():
        for name, kinds in KINDS.items():
            part = restricted(asked.space, kinds)
            found.setdefault(cost, {})[name] = searched(asked, part, price, seed=0)
    fronts = fronts_table(asked, found, costs)
    epochs = options.epochs or RunFolder.open(work / "run").spec.budget.retrain.epochs
    trained = trained_table(asked, found["FLOPs"], work, epochs, options.workers)
    return {"space": options.space, "fronts": fronts, "epochs": epochs, "winners": trained}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", choices=list(WORKLOADS), default="listops")
    parser.add_argument("--work", default="runs/search_efficiency", help="supernet, evaluations")
    add_workers(parser)
    parser.add_argument("--epochs", type=int, help="from scratch, in place of the run's")
    parser.add_argument(
        "--untimed", action="store_true", help="FLOPs alone, on a machine that does other work"
    )


STUDY = Study(
    "attention_study",
    "Does mixing kinds of attention pay?",
    add_options,
    measure,
    tables,
    results=lambda options: f"attention_study_{options.space}",
    width=140,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

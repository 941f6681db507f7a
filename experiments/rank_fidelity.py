"""How well do inherited scores rank networks?

``python -m experiments.rank_fidelity --space digits``

Networks drawn from a space are trained from scratch, twice each with independent seeds; the
agreement of the two (Kendall's tau) is the *noise ceiling*, beyond which no ranking can be
confirmed. Then supernets are trained by several strategies, and their inherited validation losses
are compared with both trainings. Finished trainings are kept in a journal and not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import kendalltau, spearmanr

from experiments.harness import (
    RESULTS,
    Options,
    Study,
    done_jobs,
    journaled,
    note,
    positive,
    table_of,
)
from nas.request.presets import budget_for
from nas.search.ranking.agreement import tau_interval
from search_spaces.architecture import Architecture
from search_spaces.costs import params
from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct
from supernet.building import build_network, build_supernet
from supernet.tasks.evaluation import evaluate
from supernet.tasks.opening import open_task
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork, build_sampler
from supernet.training_settings import TrainingSettings

Floats = NDArray[np.float64]

SAMPLE_SEED = 2026
SCRATCH_SEEDS = (11, 12)
SUPERNET_SEEDS = (21, 22, 23)
TOP = 5
CEILING_SHARE = 0.85
MIN_CEILING = 0.75
NEVER = 1_000_000

# Each strategy is the shipped supernet training with these settings changed; `epochs_share`
# stretches or shortens it, `separate` gives every attention kind projections of its own.
PLAIN = {
    "sampling": "sandwich",
    "num_random": 2,
    "distillation": 0.0,
    "ema_decay": 0.0,
    "learning_rate": 5e-3,
}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "shipped": {},
    "uniform, 1": {**PLAIN, "sampling": "uniform", "num_random": 1},
    "uniform, 4": {**PLAIN, "sampling": "uniform", "num_random": 4},
    "fair, 4": {**PLAIN, "sampling": "fair", "num_random": 4},
    "sandwich": PLAIN,
    "sandwich, distilled": {**PLAIN, "distillation": 0.5},
    "sandwich, 1 random": {**PLAIN, "num_random": 1},
    "sandwich, 4 random": {**PLAIN, "num_random": 4},
    "sandwich, averaged": {**PLAIN, "ema_decay": 0.99},
    "sandwich, separate weights": {**PLAIN, "separate": True},
    "sandwich, half the epochs": {**PLAIN, "epochs_share": 0.5},
    "sandwich, twice the epochs": {**PLAIN, "epochs_share": 2.0},
    "sandwich, half the rate": {**PLAIN, "learning_rate": 2.5e-3},
    "sandwich, a quarter of the rate": {**PLAIN, "learning_rate": 1.25e-3},
    "sandwich, small batches": {**PLAIN, "batch_size": 32, "epochs_share": 2 / 3},
    "sandwich, unsmoothed": {**PLAIN, "label_smoothing": 0.0},
}


@dataclass(frozen=True)
class Job:
    """One training: a single network (`network`) or a supernet (None)."""

    key: str
    space: str
    settings: TrainingSettings
    seed: int
    num_networks: int
    network: int | None
    separate: bool = False


def networks_of(space: SearchSpace, count: int) -> list[Architecture]:
    """The networks that are compared."""
    rows = sample_distinct(space, np.random.default_rng(SAMPLE_SEED), count)
    return space.decode(rows)


def run_job(job: Job) -> dict[str, Any]:
    """Train and return validation losses: one, or one per network for a supernet."""
    torch.set_num_threads(1)
    space = load_space(job.space)
    if job.separate:
        model = replace(space.model, share_attention_weights=False)
        space = replace(space, model=model)
    task = open_task(space, str(space.data["dataset"]), None, 0)
    networks = networks_of(space, job.num_networks)
    started = time.perf_counter()
    torch.manual_seed(job.seed)
    if job.network is None:
        supernet = build_supernet(space, job.settings.dropout)
        sampler = build_sampler(space, job.settings, job.seed)
        trainer = Trainer(supernet, sampler, networks[:1], task, job.settings, seed=job.seed)
        scored = networks
    else:
        network = networks[job.network]
        fixed = build_network(space.model, space.task, network, job.settings.dropout)
        single = SingleNetwork(network)
        trainer = Trainer(fixed.network, single, [network], task, job.settings, seed=job.seed)
        scored = [network]
    for _ in trainer.run():
        pass
    seconds = time.perf_counter() - started
    results = [evaluate(task, trainer.model, network, task.valid) for network in scored]
    return {
        "key": job.key,
        "losses": [result.loss for result in results],
        "accuracies": [result.accuracy for result in results],
        "seconds": round(seconds, 2),
    }


# -- statistics -------------------------------------------------------------------------------


def tau(a: Floats, b: Floats) -> float:
    """Kendall's tau-b."""
    return float(kendalltau(a, b).statistic)


def top_regret(scores: Floats, losses: Floats) -> float:
    """How much worse the best of the five best-scored networks is than the best of all."""
    return float(losses[np.argsort(scores)[:TOP]].min() - losses.min())


def agreement(scores: Floats, truths: Floats) -> dict[str, Any]:
    """Mean agreement of scores ``(N,)`` with independent trainings ``(R, N)``, with intervals."""
    interval = tau_interval(scores, truths)
    assert interval is not None, "losses of different networks differ"
    rho = np.mean([spearmanr(scores, truth).statistic for truth in truths])
    return {
        "kendall_tau": float(np.mean([tau(scores, truth) for truth in truths])),
        "interval": list(interval),
        "spearman": float(rho),
        "top5_regret": float(np.mean([top_regret(scores, truth) for truth in truths])),
    }


# -- the experiment ---------------------------------------------------------------------------


def jobs_for(arguments: Options) -> tuple[list[Job], list[Job]]:
    """The trainings from scratch and those of supernets."""
    space = load_space(arguments.space)
    budget = budget_for(space, "quick", {})
    plain: dict[str, Any] = {"check_every": NEVER, "stop_tau": 2.0}
    scratch = replace(budget.retrain, **plain, epochs=arguments.epochs)
    tag = f"{space.digest[:8]}/{arguments.networks}"
    singles = [
        Job(
            f"{tag}/scratch/{scratch}/{seed}/{i}",
            arguments.space, scratch, seed * 1000 + i, arguments.networks, i,
        )
        for seed in SCRATCH_SEEDS
        for i in range(arguments.networks)
    ]  # fmt: skip
    supernets = []
    for name in arguments.strategies:
        changes = {**plain, **STRATEGIES[name]}
        separate = bool(changes.pop("separate", False))
        changes["epochs"] = round(budget.supernet.epochs * changes.pop("epochs_share", 1.0))
        settings = replace(budget.supernet, **changes)
        supernets += [
            Job(
                f"{tag}/supernet/{separate}/{settings}/{seed}",
                arguments.space, settings, seed, arguments.networks, None, separate,
            )
            for seed in SUPERNET_SEEDS[: arguments.supernet_seeds]
        ]  # fmt: skip
    return singles, supernets


def measure(arguments: Options) -> dict[str, Any]:
    """Train what the journal does not have yet, and compare.

    Raises:
        UsageError: for a strategy there is not, or too few networks.
    """
    names = list(STRATEGIES) if arguments.strategies == "all" else arguments.strategies.split(";")
    arguments.strategies = ["shipped", *(n.strip() for n in names if n.strip() != "shipped")]
    unknown = [name for name in arguments.strategies if name not in STRATEGIES]
    if unknown or arguments.networks < 30:
        raise UsageError(f"unknown strategies {unknown}, or fewer than 30 networks")
    singles, supernets = jobs_for(arguments)
    done = done_jobs(arguments.journal)
    trainings = journaled(run_job, singles + supernets, done, arguments.journal, arguments.workers)
    for number, result in enumerate(trainings, start=1):
        note(f"training {number}: {result['key']}")
    shape = (len(SCRATCH_SEEDS), arguments.networks)
    truths = np.array([done[job.key]["losses"][0] for job in singles]).reshape(shape)
    space = load_space(arguments.space)
    networks = networks_of(space, arguments.networks)
    size = np.array([params(space.model, space.task, n) for n in networks], dtype=np.float64)
    rows: dict[str, Any] = {"parameter count": agreement(-size, truths)}
    per_strategy = arguments.supernet_seeds
    for number, name in enumerate(arguments.strategies):
        mine = supernets[number * per_strategy : (number + 1) * per_strategy]
        runs = [agreement(np.array(done[job.key]["losses"]), truths) for job in mine]
        taus = [run["kendall_tau"] for run in runs]
        middle = runs[int(np.argsort(taus)[len(taus) // 2])]
        seconds = float(np.median([done[job.key]["seconds"] for job in mine]))
        rows[name] = {**middle, "all_taus": taus, "seconds": seconds}
    ceiling = agreement(truths[0], truths[1:])
    return {
        "space": arguments.space,
        "networks": arguments.networks,
        "scratch_epochs": arguments.epochs,
        "cores": os.cpu_count(),
        "ceiling": ceiling,
        "best_accuracy": max(done[job.key]["accuracies"][0] for job in singles),
        "rows": rows,
    }


def tables(result: Mapping[str, Any]) -> list[Table]:
    """The table of the numbers."""
    ceiling = result["ceiling"]["kendall_tau"]
    heads = ("score", "τ-b", "95 %", "τ / ceiling", "ρ", "top-5 regret", "τ by seed", "s")
    rows = [
        (
            name,
            f"{row['kendall_tau']:.3f}",
            "{:.2f} … {:.2f}".format(*row["interval"]),
            f"{row['kendall_tau'] / ceiling:.2f}",
            f"{row['spearman']:.3f}",
            f"{row['top5_regret']:.4f}",
            " ".join(f"{value:.3f}" for value in row.get("all_taus", [])),
            f"{row['seconds']:.0f}" if "seconds" in row else "",
        )
        for name, row in {"noise ceiling": result["ceiling"], **result["rows"]}.items()
    ]
    title = f"{result['networks']} networks of {result['space']}, from scratch twice"
    return [table_of(title, heads, rows)]


def met(result: Mapping[str, Any]) -> bool:
    """Whether ceiling and shipped strategy reach their marks."""
    ceiling = result["ceiling"]["kendall_tau"]
    shipped = result["rows"]["shipped"]["kendall_tau"]
    return bool(ceiling >= MIN_CEILING and shipped >= CEILING_SHARE * ceiling)


def show(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """The table, and whether the marks are reached."""
    yield from tables(result)
    ceiling = result["ceiling"]["kendall_tau"]
    shipped = result["rows"]["shipped"]["kendall_tau"]
    yield (
        f"ceiling {ceiling:.3f} (wanted ≥ {MIN_CEILING}), shipped {shipped:.3f} = "
        f"{shipped / ceiling:.2f} of it (wanted ≥ {CEILING_SHARE}): "
        f"{'reached' if met(result) else 'MISSED'}; {result['cores']} cores"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", default="digits")
    parser.add_argument("--networks", type=int, default=40, help="at least 30")
    parser.add_argument("--epochs", type=int, default=30, help="of each training from scratch")
    parser.add_argument("--workers", type=positive, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--supernet-seeds", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument(
        "--strategies", default="shipped", help="'all' or names: " + "; ".join(STRATEGIES)
    )
    parser.add_argument("--journal", type=Path, default=RESULTS / "rank_fidelity.jsonl")


STUDY = Study(
    "rank_fidelity",
    "How well do inherited scores rank networks?",
    add_options,
    measure,
    show,
    met,
    lambda options: options.journal.with_name(f"rank_fidelity_{Path(options.space).stem}.json"),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

"""Supernets and networks that the studies train, and real qualities, each evaluated once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from experiments.harness import note, processes
from nas.executors.base import Failure, check_finite
from nas.objectives import QUALITIES, QUALITY, QualityMetric
from nas.objectives.size import network_costs
from nas.request.presets import budget_for
from nas.request.spec import build_spec
from nas.run.folder import RunFolder
from nas.run.stage_runner import run_stage
from nas.run.stages import search_stages
from nas.search.evolution import Scores
from nas.search.searchers.base import Problem
from nas.stages.base import Run
from nas.stages.pipeline import work_of
from search_spaces.architecture import Architecture
from search_spaces.errors import EvaluationError
from search_spaces.loading import dump_space, load_space
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import largest
from supernet.building import build_network
from supernet.extraction import StandAlone, Supernet
from supernet.tasks.base import Task
from supernet.training.checkpoint import CheckpointFolder
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork
from supernet.training_settings import TrainingSettings

Floats = NDArray[np.float64]

RUN = "run"


class Oracle:
    """Real qualities of networks, with what they cost.

    Args:
        work: where `train_supernet` left the supernet.

    Attributes:
        space: the networks.
        known: row → quality of all that was evaluated, earlier or here.
        fresh: those of them that were evaluated here.
        problem: what a searcher is asked to solve, with FLOPs for cost.
    """

    def __init__(self, work: Path) -> None:
        torch.set_num_threads(1)
        threadpool_limits(1)  # several oracles share the cores
        self._work, self._run = work, Run(RunFolder.open(work / RUN))
        self.space = self._run.space
        self.known = read_known(work)
        self.fresh: dict[bytes, float] = {}
        largest_flops = float(network_costs(self.space, largest(self.space))[0, 1])
        guessing = QUALITIES[self._run.spec.quality].of_guessing(self._run.task.guessing_loss)
        reference = np.array([guessing, largest_flops])
        self.problem = Problem(self.space, self._costs, reference, limited=False)

    def _costs(self, rows: Genotypes) -> Scores:
        return Scores(network_costs(self.space, rows)[:, 1:], np.zeros(len(rows)))

    def __call__(self, rows: Genotypes) -> Floats:
        """Qualities ``(N,)`` of rows ``(N, S)``."""
        return np.array([self._quality(row) for row in rows])

    def evaluate(self, rows: Genotypes, workers: int) -> None:
        """Evaluate rows ``(N, S)`` by so many processes, and keep each in their order."""
        new = [row for row in rows if row.tobytes() not in self.known]
        if workers == 1:
            for row in new:
                self(row[None])
                self.keep()
            return
        with processes(workers) as pool:
            jobs = [(str(self._work), row) for row in new]
            for row, quality in zip(new, pool.map(_quality_of, jobs), strict=True):
                self.known[row.tobytes()] = self.fresh[row.tobytes()] = quality
                self.keep()

    def keep(self) -> None:
        """Write what was evaluated so far, for `read_known`."""
        write_known(self._work, self.known)

    def _quality(self, row: Genotypes) -> float:
        key = row.tobytes()
        if key not in self.known:
            network = self.space.decode(row[None])[0]
            self.known[key] = self.fresh[key] = self._evaluated(network)
        return self.known[key]

    def _evaluated(self, network: Architecture) -> float:
        """Without executor: an oracle whose network cannot be evaluated is no oracle."""
        outcome = check_finite(self._run.quality(network))
        if isinstance(outcome, Failure):
            raise EvaluationError(f"network {network.id} cannot be evaluated: {outcome.reason}")
        return outcome[QUALITY]


@cache
def oracle(work: str) -> Oracle:
    """The oracle of this process."""
    return Oracle(Path(work))


def _quality_of(job: tuple[str, NDArray[np.int16]]) -> float:
    """A row's quality, by the oracle of a process of its own."""
    work, row = job
    quality: float = oracle(work)(row[None]).item()
    return quality


def train_supernet(
    space: str | SearchSpace,
    settings: Mapping[str, str],
    work: Path,
    preset: str = "quick",
    dataset: str | None = None,
    data: str | None = None,
    quality: QualityMetric = "loss",
) -> Run:
    """The run of a space whose supernet is trained, now or earlier.

    Args:
        space: of the networks, or the name of a shipped one.
        settings: numbers that are other ones than the preset's.
        work: the folder to leave it in.
        preset: whose training it is.
        dataset: in place of the space's own.
        data: a folder of prepared data.
        quality: what networks are compared by.
    """
    chosen = load_space(space) if isinstance(space, str) else space
    spec = build_spec(
        space_toml=dump_space(chosen),
        dataset=dataset or str(chosen.data["dataset"]),
        data=data,
        quality=quality,
        objectives=("quality", "flops"),
        preset=preset,
        budget=budget_for(chosen, preset, settings),
    )
    run = Run(RunFolder.create(work / RUN, spec))
    for stage in search_stages(spec):
        if stage.name in ("declare", "supernet"):
            for _ in run_stage(run, stage, work_of(stage)):
                pass
    return run


def read_known(work: Path) -> dict[bytes, float]:
    """Everything evaluated so far: row → quality."""
    file = work / "evaluated.npz"
    if not file.exists():
        return {}
    with np.load(file) as data:
        rows, values = data["rows"], data["qualities"].tolist()
        return {row.tobytes(): value for row, value in zip(rows, values, strict=True)}


def write_known(work: Path, known: Mapping[bytes, float]) -> None:
    """Keep everything evaluated so far."""
    rows = np.array([np.frombuffer(key, dtype=np.int16) for key in known])
    fresh = work / "evaluated.part.npz"
    np.savez(fresh, rows=rows, qualities=np.array(list(known.values())))
    fresh.replace(work / "evaluated.npz")


# -- networks from scratch ----------------------------------------------------------------------


def untrained(
    space: SearchSpace, architecture: Architecture, settings: TrainingSettings, seed: int
) -> StandAlone:
    """The network as it is before training; the seed decides its weights."""
    torch.manual_seed(seed)
    return build_network(space.model, space.task, architecture, settings.dropout)


def trained(
    network: StandAlone,
    architecture: Architecture,
    task: Task[object, object],
    settings: TrainingSettings,
    seed: int,
    name: str = "",
    folder: CheckpointFolder | None = None,
) -> Supernet:
    """Train a network to the end and give it its final weights.

    Args:
        network: see `untrained`.
        architecture: of it.
        task: with what it learns.
        settings: of the training.
        seed: of the order of the examples.
        name: told with the losses of every epoch; nothing is told without one.
        folder: keeps checkpoints, from which a training that was killed goes on.
    """
    model = network.network
    trainer = Trainer(
        model, SingleNetwork(architecture), [architecture], task, settings, seed=seed, folder=folder
    )
    for report in trainer.run():
        losses = "".join(f", validation {loss:.4f}" for loss in report.probe_losses)
        if name:
            note(f"{name} {report.epoch}: loss {report.train_loss:.4f}{losses}")
    model.load_state_dict(trainer.final_weights())
    return model

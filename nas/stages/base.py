"""What the stages of a run share, and what a stage is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latency.profile import read_profile
from nas.device_profile import CarriedProfile, read_device_profile
from nas.evaluator import compared_on, inherited_quality, trained_supernet, use_threads
from nas.events import Event
from nas.executors.base import Executor, Meter, Outcome
from nas.executors.local import LocalExecutor
from nas.holding import MEASURED_STDS, PREDICTED_STDS
from nas.objectives import BEST_BLEU, LATENCY, MEMORY, QUALITY
from nas.outcomes import failed
from nas.run_folder import DEVICE_PROFILE_FILE, RunFolder
from nas.scoring import CostScorer, Scorer, network_costs, read_costs, read_scorer
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, NasError
from search_spaces.loading import parse_space
from search_spaces.operators import largest, sample_distinct, smallest
from search_spaces.space import Genotypes, SearchSpace
from supernet.extraction import Supernet
from supernet.tasks.base import Task
from supernet.tasks.opening import open_task
from supernet.training.checkpoint import dumped, load

Floats = NDArray[np.float64]

DATA_FILE = "data.json"
PROFILE_FILE = "latency/profile.jsonl"
PREDICTOR_FILE = "latency/predictor.json"
MEMORY_FILE = "memory/observed.jsonl"
MEMORY_PREDICTOR_FILE = "memory/predictor.json"
OBSERVATIONS_FILE = "observations.jsonl"
VERIFICATION_FILE = "verification.jsonl"
HOLDING_FILE = "holding.jsonl"
POPULATION_FILE = "population.jsonl"
STUDY_FILE = "optuna.journal"

# What each stage draws its random numbers from, beside the run's seed.
OBSERVE, PROBES, RANK, PRUNE = 1, 2, 3, 4


class Run:
    """A run folder with the things its stages share, each loaded when first asked for.

    Args:
        folder: the run.
        executor: where its networks are evaluated and timed; in this process if not given.
    """

    def __init__(self, folder: RunFolder, executor: Executor | None = None) -> None:
        self.folder = folder
        self.executor = executor or LocalExecutor()
        self.spec = folder.spec
        self.space = folder.spec.space
        use_threads(self.spec)

    def rng(self, purpose: int) -> np.random.Generator:
        """Random numbers of one purpose."""
        return np.random.default_rng([self.spec.seed, purpose])

    @cached_property
    def task(self) -> Task[Any, Any]:
        """What is learnt, with its training and validation split.

        Raises:
            DataError: when the data are not those the run began with.
        """
        spec = self.spec
        task = open_task(self.space, spec.dataset, spec.data, spec.seed)
        if (self.folder.path / DATA_FILE).exists():
            known = self.folder.read_json(DATA_FILE)
            if known.get("digest") != task.digest:
                raise DataError(
                    f"the data set {spec.data or spec.dataset} has changed since this run began; "
                    "put the old data back, or start a new run in another folder"
                )
        return task

    @cached_property
    def quick_task(self) -> Task[Any, Any]:
        """The same, with as many validation examples as networks are compared on."""
        return compared_on(self.task, self.spec)

    @cached_property
    def sampled_rows(self) -> Genotypes:
        """Networks to begin with, and to time: the ends of the space and a random sample."""
        rows = sample_distinct(self.space, self.rng(OBSERVE), self.spec.budget.observations)
        ends = np.concatenate([largest(self.space), smallest(self.space)])
        _, first = np.unique(np.concatenate([ends, rows]), axis=0, return_index=True)
        return np.concatenate([ends, rows])[np.sort(first)][: len(rows)]

    @cached_property
    def observed_rows(self) -> Genotypes:
        """The networks that were observed, in order; without those that failed."""
        lines = [line for line in self.observations().values() if not failed(line)]
        return self.space.encode([Architecture.from_json(line["architecture"]) for line in lines])

    @cached_property
    def supernet(self) -> Supernet:
        """The trained supernet."""
        return trained_supernet(self.spec, self._trained_weights())

    @cached_property
    def costs(self) -> CostScorer:
        """What networks cost."""
        return read_costs(self.folder, self._stds)

    @cached_property
    def scorer(self) -> Scorer:
        """The fitted predictors."""
        return read_scorer(self.folder, self._stds)

    @property
    def _stds(self) -> float:
        """Deviations that are added to predicted costs before they are held against a limit."""
        return MEASURED_STDS if self.elsewhere is None else PREDICTED_STDS

    @cached_property
    def reference(self) -> list[float]:
        """A network that guesses and costs as much as the largest: nothing worse is of use."""
        top = largest(self.space)
        params, flops = network_costs(self.space, top)[0]
        chance = math.log(self.task.num_outcomes)
        values = {
            QUALITY: BEST_BLEU if self.spec.quality == "bleu" else chance,
            "params": float(params),
            "flops": float(flops),
        }
        measured = {LATENCY: self.timed(), MEMORY: self.memory_mb()}
        for name in {LATENCY, MEMORY} & set(self.spec.objectives):
            known = measured[name].get(self.space.decode(top)[0].id)
            values[name] = float(self.costs.predict(top)[name][0]) if known is None else known
        return [values[name] for name in self.spec.objectives]

    @cached_property
    def pruned(self) -> SearchSpace:
        """The space that is searched."""
        file = self.folder.path / "pruned_space.toml"
        return parse_space(file.read_text(encoding="utf-8"), str(file))

    @cached_property
    def carried(self) -> CarriedProfile | None:
        """The device profile that the search was given, with the workload it is for.

        Raises:
            DataError: when the run's copy of it is gone or changed.
        """
        if self.spec.device_profile is None:
            return None
        file = self.folder.path / DEVICE_PROFILE_FILE
        try:
            profile = read_device_profile(file)
        except NasError as error:
            raise DataError(f"{error}; put the profile back that the search was given") from error
        if profile.digest != self.spec.device_profile:
            raise DataError(f"{file} is not the profile that the search was given; put it back")
        return profile

    @cached_property
    def elsewhere(self) -> str | None:
        """The name of the device whose latency counts, if it is not this one."""
        if self.carried is None or self.carried.device == self.executor.device(self.spec):
            return None
        return self.carried.name

    def meter(self) -> Meter:
        """Times networks of the space."""
        return self.executor.meter(self.spec, self.carried)

    def observations(self) -> dict[str, dict[str, Any]]:
        """The journal of observations by architecture id, failures among them."""
        return {line["id"]: line for line in self.folder.read_journal(OBSERVATIONS_FILE)}

    def timed(self) -> dict[str, float]:
        """Milliseconds of the networks that were timed for the predictor, by id."""
        if not self.spec.needs_latency:
            return {}
        profile = read_profile(self.folder.path / PROFILE_FILE)
        return {key: measurement.value for key, (_, measurement) in profile.entries.items()}

    def memory_mb(self) -> dict[str, float]:
        """Peak memory of the networks that were measured for the predictor, by id."""
        return {line["id"]: line[MEMORY] for line in self.folder.read_journal(MEMORY_FILE)}

    def qualities(self) -> Floats:
        """The observed qualities, less is better, one for each of `observed_rows`."""
        known = self.observations()
        networks = self.space.decode(self.observed_rows)
        return np.array([known[network.id][QUALITY] for network in networks], dtype=np.float64)

    def quality(self, network: Architecture) -> dict[str, float]:
        """What the validation split says of a network with inherited weights, in this process."""
        return inherited_quality(
            self.quick_task, self.supernet, network, self.spec.quality, self.spec.device
        )

    def prepare(self) -> None:
        """Load what `quality` needs."""
        _ = self.quick_task, self.supernet

    @property
    def data_digest(self) -> str:
        """Digest of the data that the run began with."""
        return str(self.folder.read_json(DATA_FILE)["digest"])

    def weights(self) -> bytes:
        """The trained supernet's weights, as a checkpoint."""
        return dumped({"weights": self._trained_weights()})

    def _trained_weights(self) -> dict[str, Any]:
        weights: dict[str, Any] = load(self.folder.path / "supernet" / "last.pt")["weights"]
        return weights

    def evaluate(self, networks: Sequence[Architecture]) -> Iterator[Outcome]:
        """What networks are worth with inherited weights, in their order, see `Executor`."""
        return self.executor.evaluate(self, networks)


def size_text(space: SearchSpace) -> str:
    """How many networks a space holds, for a line on the screen."""
    return f"{space.size:,}" if space.size < 10**12 else f"{space.size:.2e}"


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline.

    Attributes:
        name: as in ``stages/<name>.json``.
        label: for people.
        needs: earlier stages whose files it reads.
        outputs: files it writes, relative to the run folder; they are all there when it ends.
        work: does it.
        scratch: files and folders it leaves only while it is unfinished.
        reads: files it reads, where they are there, that no stage writes but the user.
    """

    name: str
    label: str
    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: Callable[[Run], Iterator[Event]]
    scratch: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that goes when the stage has to start anew."""
        return (*self.outputs, *self.scratch)

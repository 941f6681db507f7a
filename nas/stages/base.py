"""What the stages of a run share, and what a stage is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latency.predictor import LatencyPredictor
from latency.profile import read_profile
from nas.evaluator import LatencyMeter, inherited_quality, use_threads
from nas.events import Event
from nas.objectives import QUALITY
from nas.ranking import ranker_from_json
from nas.run_folder import RunFolder
from nas.scoring import Scorer
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, DivergedError
from search_spaces.loading import parse_space
from search_spaces.operators import largest, sample_distinct, smallest
from search_spaces.space import Genotypes, SearchSpace
from supernet.building import build_supernet
from supernet.extraction import Supernet
from supernet.tasks.base import Task
from supernet.tasks.opening import open_task
from supernet.training.checkpoint import load

Floats = NDArray[np.float64]

DATA_FILE = "data.json"
PROFILE_FILE = "latency/profile.jsonl"
PREDICTOR_FILE = "latency/predictor.json"
OBSERVATIONS_FILE = "observations.jsonl"
VERIFICATION_FILE = "verification.jsonl"
POPULATION_FILE = "population.jsonl"

# What each stage draws its random numbers from, beside the run's seed.
OBSERVE, PROBES, RANK, PRUNE = 1, 2, 3, 4


class Run:
    """A run folder with the things its stages share, each loaded when first asked for."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
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
        count = self.spec.budget.valid_examples
        return self.task.first_valid(count) if count else self.task

    @cached_property
    def observed_rows(self) -> Genotypes:
        """The networks to observe: the ends of the space and a random sample."""
        rows = sample_distinct(self.space, self.rng(OBSERVE), self.spec.budget.observations)
        ends = np.concatenate([largest(self.space), smallest(self.space)])
        _, first = np.unique(np.concatenate([ends, rows]), axis=0, return_index=True)
        return np.concatenate([ends, rows])[np.sort(first)][: len(rows)]

    @cached_property
    def supernet(self) -> Supernet:
        """The trained supernet."""
        model = build_supernet(self.space)
        model.load_state_dict(load(self.folder.path / "supernet" / "last.pt")["weights"])
        return model.to(self.spec.device).eval()

    @cached_property
    def scorer(self) -> Scorer:
        """The fitted predictors."""
        latency = None
        if self.spec.needs_latency:
            latency = LatencyPredictor.from_json(self.folder.read_json(PREDICTOR_FILE))
        ranker = ranker_from_json(self.folder.read_json("ranker/ranker.json"))
        return Scorer(self.space, ranker, latency, self.spec.objectives, self.spec.limits)

    @cached_property
    def pruned(self) -> SearchSpace:
        """The space that is searched."""
        file = self.folder.path / "pruned_space.toml"
        return parse_space(file.read_text(encoding="utf-8"), str(file))

    def meter(self) -> LatencyMeter:
        """Times networks of the space."""
        return LatencyMeter(self.spec)

    def observations(self) -> dict[str, dict[str, Any]]:
        """The journal of observations by architecture id."""
        return {line["id"]: line for line in self.folder.read_journal(OBSERVATIONS_FILE)}

    def timed(self) -> dict[str, float]:
        """Milliseconds of the networks that were timed for the predictor, by id."""
        if not self.spec.needs_latency:
            return {}
        profile = read_profile(self.folder.path / PROFILE_FILE)
        return {key: measurement.value for key, (_, measurement) in profile.entries.items()}

    def qualities(self) -> Floats:
        """The observed qualities, less is better, one for each of `observed_rows`."""
        known = self.observations()
        networks = self.space.decode(self.observed_rows)
        return np.array([known[network.id][QUALITY] for network in networks], dtype=np.float64)

    def quality(self, network: Architecture) -> dict[str, float]:
        """What the validation split says of a network with inherited weights.

        Raises:
            DivergedError: when the loss is not a number.
        """
        values = inherited_quality(
            self.quick_task, self.supernet, network, self.spec.quality, self.spec.device
        )
        if not all(math.isfinite(value) for value in values.values()):
            raise DivergedError(
                f"the validation loss of network {network.id} is not a number; the supernet has "
                "diverged: lower supernet.learning_rate"
            )
        return values


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
    """

    name: str
    label: str
    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: Callable[[Run], Iterator[Event]]
    scratch: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that goes when the stage has to start anew."""
        return (*self.outputs, *self.scratch)

"""A run with its executor, as all stages use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latency.timings import read_timings
from nas.executors.base import Executor, Meter, Outcome
from nas.executors.local import LocalExecutor
from nas.objectives import OBJECTIVES, QUALITIES, QUALITY, Objective, rates
from nas.objectives.latency_limits import MEASURED_STDS, PREDICTED_STDS
from nas.profiling.device_profile import DeviceProfile, read_device_profile
from nas.results.failures import failed
from nas.run.folder import RunFolder
from nas.run.layout import (
    DEVICE_PROFILE_FILE,
    OBSERVATIONS_FILE,
    PRUNED_SPACE_FILE,
    measured_file,
    profile_file,
)
from nas.run.opened import OBSERVE, OpenedRun
from nas.search.scoring import CostScorer, Scorer, read_costs, read_scorer
from nas.search.uniform_networks import cheapest_rows
from search_spaces.architecture import Architecture
from search_spaces.counts import power_of_ten
from search_spaces.errors import NasError
from search_spaces.loading import parse_space
from search_spaces.operators import distinct, largest, sample_distinct, smallest
from search_spaces.space import Genotypes, SearchSpace

Floats = NDArray[np.float64]


class KnownCost(NamedTuple):
    """A cost of a network, and why it should not be believed, if anything speaks against it."""

    value: float
    doubtful: str = ""


class Run(OpenedRun):
    """A run with its executor and the things its stages share, each loaded when first asked for.

    Args:
        folder: the run.
        executor: where its networks are evaluated and timed; in this process if not given.
    """

    def __init__(self, folder: RunFolder, executor: Executor | None = None) -> None:
        super().__init__(folder)
        self.executor = executor or LocalExecutor()

    @property
    def computes_on(self) -> str:
        """The device that this process computes on: not that of an executor's workers."""
        return self.executor.computes_on(self.spec)

    @cached_property
    def sampled_rows(self) -> Genotypes:
        """Networks to begin with, and to time: the ends of the space and a random sample.

        With limits the cheapest network of every attention kind is among them, so that a limit
        which was let through is kept by a network that is observed.
        """
        rows = sample_distinct(self.space, self.rng(OBSERVE), self.spec.budget.observations)
        ends = [largest(self.space), smallest(self.space)]
        ends += [cheapest_rows(self.space)] if self.spec.limits else []
        if self.checkpoint is not None:
            ends.insert(0, self.space.encode([self.checkpoint.architecture]))
        return distinct(np.concatenate([*ends, rows]))[: len(rows)]

    @cached_property
    def observed_rows(self) -> Genotypes:
        """The networks that were observed, in order; without those that failed."""
        lines = [line for line in self.observations().values() if not failed(line)]
        return self.space.encode([Architecture.from_json(line["architecture"]) for line in lines])

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
        """A network that guesses and costs as much as the largest: nothing worse is of use.

        One value for each objective, as people read it.
        """
        top = largest(self.space)
        values = {name: float(value[0]) for name, value in self.costs.predict(top).items()}
        values[QUALITY] = QUALITIES[self.spec.quality].of_guessing(self.task.guessing_loss)
        identity = self.space.decode(top)[0].id
        for name, known in self.measured_costs().items():
            if identity in known and not known[identity].doubtful:
                values[name] = known[identity].value
        values |= rates(values, self.spec.objectives, self.space)
        return [values[name] for name in self.spec.objectives]

    @cached_property
    def pruned(self) -> SearchSpace:
        """The space that is searched."""
        file = self.folder.path / PRUNED_SPACE_FILE
        return parse_space(file.read_text(encoding="utf-8"), str(file))

    @cached_property
    def device_profile(self) -> DeviceProfile | None:
        """The device profile that the search was given, with the workload it is for.

        Raises:
            NasError: when the run's copy of it is gone or changed.
        """
        if self.spec.device_profile is None:
            return None
        file = self.folder.path / DEVICE_PROFILE_FILE
        try:
            profile = read_device_profile(file)
        except NasError as error:
            raise NasError(f"{error}; put the profile back that the search was given") from error
        if profile.digest != self.spec.device_profile:
            raise NasError(f"{file} is not the profile that the search was given; put it back")
        return profile

    @cached_property
    def elsewhere(self) -> str | None:
        """The name of the device whose latency counts, if it is not this one."""
        if self.device_profile is None or self.device_profile.device == self.executor.device(
            self.spec
        ):
            return None
        return self.device_profile.name

    def meter(self, cost: Objective) -> Meter:
        """Times networks of the space for an objective."""
        return self.executor.meter(self.spec, self.device_profile, cost.mode)

    def observations(self) -> dict[str, dict[str, Any]]:
        """The journal of observations by architecture id, failures among them."""
        return {line["id"]: line for line in self.folder.read_journal(OBSERVATIONS_FILE)}

    def measured_costs(self) -> dict[str, dict[str, KnownCost]]:
        """What was timed or measured for predictors: objective needed → network's id → value."""
        found: dict[str, dict[str, KnownCost]] = {}
        for one in OBJECTIVES.values():
            if not self.spec.needs(one.name):
                continue
            if one.timed:
                profile = read_timings(self.folder.path / profile_file(one.stage))
                found[one.name] = {
                    key: KnownCost(time.value, time.doubtful)
                    for key, (_, time) in profile.entries.items()
                }
            elif one.measure is not None:
                lines = self.folder.read_journal(measured_file(one.stage))
                found[one.name] = {line["id"]: KnownCost(line[one.name]) for line in lines}
        return found

    def qualities(self) -> Floats:
        """The observed qualities, less is better, one for each of `observed_rows`."""
        known = self.observations()
        networks = self.space.decode(self.observed_rows)
        return np.array([known[network.id][QUALITY] for network in networks], dtype=np.float64)

    def evaluate(self, networks: Sequence[Architecture]) -> Iterator[Outcome]:
        """What networks are worth, in their order, see `Executor`."""
        return self.executor.evaluate(self, networks)


def size_text(space: SearchSpace) -> str:
    """How many networks a space holds, for a line on the screen."""
    return f"{space.size:,}" if space.size < 10**12 else power_of_ten(space.size)

"""A run with its executor, as all stages use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from latency.timings import read_timings
from nas.executors.asking import batch_of
from nas.executors.attempts import time_limit
from nas.executors.base import Answered, Executor, Meter, Outcome, in_order
from nas.executors.local import LocalExecutor
from nas.objectives import OBJECTIVES, QUALITIES, QUALITY, Objective, rates
from nas.objectives.latency_limits import MEASURED_STDS, PREDICTED_STDS
from nas.profiling.device_profile import DeviceProfile, read_device_profile
from nas.results.failures import FAILED, failed
from nas.run.evaluators import Evaluator, Question, version_of
from nas.run.evaluators.offered import OfferedCosts
from nas.run.evaluators.opening import EvaluatorName
from nas.run.events import Note
from nas.run.folder import RunFolder
from nas.run.layout import (
    DATA_FILE,
    DEVICE_PROFILE_FILE,
    OBSERVATIONS_FILE,
    PRUNED_SPACE_FILE,
    measured_file,
    profile_file,
)
from nas.run.opened import BESIDE, OBSERVE, OpenedRun
from nas.search.external_costs import ExternalCosts
from nas.search.scoring import CostScorer, Scorer, read_costs, read_scorer
from nas.search.uniform_networks import cheapest_rows
from search_spaces.architecture import Architecture
from search_spaces.counts import power_of_ten
from search_spaces.errors import DataError, EvaluationError, NasError
from search_spaces.genes import GeneSpace
from search_spaces.genotypes import Genotypes, GenotypeSpace, Network
from search_spaces.variation import (
    distinct,
    half_alike,
    largest,
    neighbours,
    sample_distinct,
    smallest,
)

Floats = NDArray[np.float64]

# How much worse than the worst of the first networks one is that is of no use.
MARGIN = 1.1


class KnownCost(NamedTuple):
    """A cost of a network, and why it should not be believed, if anything speaks against it."""

    value: float
    doubtful: str = ""


class Run(OpenedRun):
    """A run with its executor and the things its stages share, each loaded when first asked for.

    Args:
        folder: the run.
        executor: where its networks are evaluated and timed; in this process if not given.
        evaluator: of others, where one knows the networks and is at hand; otherwise the one that
            the spec names is opened.
    """

    def __init__(
        self,
        folder: RunFolder,
        executor: Executor | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        super().__init__(folder)
        self.executor = executor or LocalExecutor()
        self._given = evaluator

    @property
    def computes_on(self) -> str:
        """The device that this process computes on: not that of an executor's workers."""
        return self.executor.computes_on(self.spec)

    @cached_property
    def sampled_rows(self) -> Genotypes:
        """Networks to begin with: the ends of the space and a random sample.

        With limits the cheapest network of every attention kind is among them, and that of which
        least is counted, so that a limit which was let through is kept by a network that is
        observed.
        """
        rows = sample_distinct(self.domain, self.rng(OBSERVE), self.spec.budget.observations)
        return distinct(np.concatenate([self.ends, rows]))[: len(rows)]

    @cached_property
    def timed_rows(self) -> Genotypes:
        """Networks to time, or to measure on the device: ends and a sample, see `half_alike`."""
        first, count = len(distinct(self.ends)), self.spec.budget.latency_samples
        rows = self.sampled_rows
        every = np.concatenate([rows[:first], half_alike(self.space, rows[first:]), rows])
        return distinct(every)[:count]

    @property
    def ends(self) -> Genotypes:
        """The checkpoint itself first, where there is one."""
        ends = [self.checkpoint_rows, largest(self.domain), smallest(self.domain)]
        if self.spec.limits and self.spec.evaluator is None:
            ends.append(cheapest_rows(self.space))
            least = [OBJECTIVES[name].ends for name in self.spec.limits]
            ends += [find(self.space) for find in least if find is not None]
        return np.concatenate(ends)

    @property
    def checkpoint_rows(self) -> Genotypes:
        """The checkpoint that the search begins with ``(1, S)``; no row without one."""
        return self.domain.encode([] if self.checkpoint is None else [self.checkpoint.architecture])

    @cached_property
    def observed_rows(self) -> Genotypes:
        """The networks that were observed, in order; without those that failed."""
        return self.rows_of([one for one in self.observations().values() if not failed(one)])

    def rows_of(self, lines: Sequence[Mapping[str, Any]]) -> Genotypes:
        """The networks of lines of a journal."""
        return self.domain.encode([self.domain.network(line["architecture"]) for line in lines])

    @property
    def first_rows(self) -> Genotypes:
        """The networks that a search begins with.

        Around a checkpoint up to a half of them are its own network with another kind of attention
        in a single layer: what that costs tells better than as many networks at random which
        layers to change together (experiments/LOG.md, 2026-11-24).
        """
        first, rows = self.spec.budget.rounds.first, self.sampled_rows
        if self.checkpoint is not None:
            beside = neighbours(self.space, rows[0], "attention")
            drawn = self.rng(BESIDE).permutation(len(beside))[: first // 2]
            rows = distinct(np.concatenate([self.ends, beside[drawn], rows]))
        return rows[:first]

    @cached_property
    def unobserved_costs(self) -> CostScorer:
        """What networks cost as far as it is known before any is observed."""
        if self.offered is None:
            return read_costs(self.folder, self._stds)
        assert isinstance(self.domain, GeneSpace)
        spec = self.spec
        return ExternalCosts(self.domain, {}, spec.objectives, spec.limits, offered=self.offered.of)

    @cached_property
    def costs(self) -> CostScorer:
        """What networks cost."""
        lines = [line for line in self.observations().values() if not failed(line)]
        return self.unobserved_costs.learnt(self.rows_of(lines), lines)

    @cached_property
    def scorer(self) -> Scorer:
        """The fitted predictors."""
        return read_scorer(self.folder, self.costs)

    @cached_property
    def evaluator(self) -> Evaluator | None:
        """Who tells what networks are worth, where that is somebody else.

        Raises:
            NasError: when it is not there, or not what it was when the run began.
        """
        name = self.spec.evaluator
        if name is None:
            return None
        assert isinstance(self.domain, GeneSpace)
        found = self._given or EvaluatorName.read(name).open(self.domain, self.spec.costs)
        batch_of(found)
        return found

    @cached_property
    def offered(self) -> OfferedCosts | None:
        """The costs that an evaluator of others tells without evaluating.

        Raises:
            EvaluationError: when they cannot be told.
            DataError: when they are not what they were when the run began.
        """
        if self.evaluator is None:
            return None
        seconds = self.executor.settings.timeout_s
        costs = self.spec.costs
        found = OfferedCosts(self.evaluator, self.domain, costs, lambda: time_limit(seconds))
        if self.folder.has(DATA_FILE):
            self._check_same(found)
        return found

    def external_data(self, offered: OfferedCosts) -> dict[str, Any]:
        """What is kept of an evaluator, so that another one in its place is noticed."""
        costs = {name: values.tolist() for name, values in offered.of(self.first_rows[:2]).items()}
        digest = version_of(getattr(self.evaluator, "digest", None))
        return {"evaluator": self.spec.evaluator, "digest": digest, "costs": costs}

    def _check_same(self, offered: OfferedCosts) -> None:
        known, now = self.folder.read_json(DATA_FILE), self.external_data(offered)
        known["digest"] = version_of(known.get("digest"))
        if known != now:
            name = next(name for name in now if known.get(name) != now[name])
            raise DataError(
                f"the evaluator {self.spec.evaluator} is not what it was when this run began: its "
                f"{name} was {known.get(name)} and is {now[name]}; put the old one back, or start "
                "a new run in another folder"
            )

    @property
    def _stds(self) -> float:
        """Deviations that are added to predicted costs before they are held against a limit."""
        return MEASURED_STDS if self.elsewhere is None else PREDICTED_STDS

    @cached_property
    def reference(self) -> list[float]:
        """A network that guesses and costs as much as the largest: nothing worse is of use.

        One value for each objective, as people read it.
        """
        if self.spec.evaluator is not None:
            return self._first_worst
        top = largest(self.space)
        values = {name: float(value[0]) for name, value in self.costs.predict(top).items()}
        values[QUALITY] = QUALITIES[self.spec.quality].of_guessing(self.task.guessing_loss)
        identity = self.space.decode(top)[0].id
        for name, known in self.measured_costs().items():
            if identity in known and not known[identity].doubtful:
                values[name] = known[identity].value
        values |= rates(values, self.spec.objectives, self.space)
        return [values[name] + OBJECTIVES[name].margin for name in self.spec.objectives]

    @cached_property
    def _first_worst(self) -> list[float]:
        """A little worse than the worst of the first networks, in each objective.

        Raises:
            EvaluationError: when none of them could be evaluated.
        """
        lines = self._first_lines()
        worst = [max(line[name] for line in lines) for name in self.spec.objectives]
        quality = quality_range([line[QUALITY] for line in lines])
        return [quality.worst, *(MARGIN * value for value in worst[1:])]

    @cached_property
    def origin(self) -> float:
        """The quality from which hypervolumes are measured: 0, if none is below.

        Qualities that an evaluator tells may be of any sign.
        """
        if self.spec.evaluator is None:
            return 0.0
        return quality_range([line[QUALITY] for line in self._first_lines()]).origin

    def _first_lines(self) -> list[dict[str, Any]]:
        known = self.observations()
        ids = [network.id for network in self.domain.decode(self.first_rows)]
        lines = [known[one] for one in ids if one in known and not failed(known[one])]
        if not lines:
            raise EvaluationError(
                f"none of the first {len(ids)} networks could be evaluated: "
                f"{next(iter(known.values()))[FAILED]['reason'] if known else 'none was asked for'}"
            )
        return lines

    @cached_property
    def pruned(self) -> GenotypeSpace:
        """The space that is searched."""
        file = self.folder.path / PRUNED_SPACE_FILE
        return self.spec.parsed(file.read_text(encoding="utf-8"), str(file))

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
        networks = self.domain.decode(self.observed_rows)
        return np.array([known[network.id][QUALITY] for network in networks], dtype=np.float64)

    def outcomes(self, stage: str, networks: Sequence[Network]) -> Iterator[Outcome | Note]:
        """What networks are worth, in their order, see `Executor`; and notes on what was lost."""
        answers = self.evaluate(stage, networks)
        yield from in_order(
            one for item in answers for one in ([item] if isinstance(item, Note) else item)
        )

    def evaluate(self, stage: str, networks: Sequence[Network]) -> Iterator[list[Answered] | Note]:
        """The same as it becomes known, with the places of those that became known together.

        Those of networks of this project come in their order.
        """
        if self.evaluator is not None:
            for told in self.executor.ask(self, networks):
                yield Note(stage, told) if isinstance(told, str) else told
            return
        own = [network for network in networks if isinstance(network, Architecture)]
        place = 0
        for item in self.executor.evaluate(self, own):
            if isinstance(item, str):
                yield Note(stage, item)
                continue
            yield [(place, item)]
            place += 1

    def questions(self, networks: Sequence[Network]) -> list[Question]:
        """What an evaluator of others is asked."""
        assert self.offered is not None
        known = self.offered.of(self.domain.encode(networks))
        return [
            Question(
                network.id,
                network.to_json(),
                {name: float(values[place]) for name, values in known.items()},
            )
            for place, network in enumerate(networks)
        ]


class QualityRange(NamedTuple):
    """A quality that is of no use, and one from which hypervolumes are measured."""

    worst: float
    origin: float


def quality_range(qualities: Sequence[float]) -> QualityRange:
    """The range of qualities of any sign, of which some are known."""
    low, high = min(qualities), max(qualities)
    spread = (high - low) or abs(high) or 1.0
    return QualityRange(high + (MARGIN - 1) * spread, 0.0 if low >= 0 else low - spread)


def size_text(space: GenotypeSpace) -> str:
    """How many networks a space holds, for a line on the screen."""
    return f"{space.size:,}" if space.size < 10**12 else power_of_ten(space.size)

"""What single steps of a search take on this machine, found in seconds by doing a few of each.

Nothing of it reaches the search: networks, weights and numbers drawn are its own, the states of
torch's generators are put back, and nothing is written. Whatever takes long is done on a part and
multiplied. How large the network is that will be chosen nobody knows yet: it is taken to be the
geometric mean of drawn ones and the largest plain one, or the baseline that was given.

Other work on the machine comes in spells and only ever slows: the steps are done in rounds, and of
each the fastest counts. Where it comes and goes all the time, timings take longer until they are
believed (`latency.acceptance`): between the steps a network is timed, to see whether it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latency import acceptance
from latency.timer import MIN_SAMPLE_S, Call, inference, is_long, time_calls
from latency.turns import computing
from latency.workload import Dtype
from nas.objectives import OBJECTIVES, exact, timed_workload
from nas.profiling.timed_work import network_cost, session_rounds, timed_call
from nas.run.duration import (
    CHECK,
    CHOSEN_UPDATE,
    DISTIL_UPDATE,
    EVALUATION,
    FIT,
    GENERATION,
    MEASUREMENT,
    OWN_UPDATE,
    PLAIN_UPDATE,
    SCORE,
    SECOND,
    TIMING,
    UNEVEN,
    UPDATE,
)
from nas.run.evaluator import validation_quality
from nas.run.layer_distillation import inputs_of
from nas.run.opened import OpenedRun
from nas.run.pace import (
    MOST_UPDATES,
    TYPICAL,
    USUAL,
    Clock,
    operations,
    typical_seconds,
    update_seconds,
)
from nas.search.evolution import EvolutionSettings, Scores, evolve
from nas.search.ranking import Ensemble
from nas.search.uniform_networks import middle
from search_spaces.architecture import Architecture
from search_spaces.encoding import encode_features
from search_spaces.plain import plain_rows
from search_spaces.variation import largest, sample_distinct
from supernet.beam_search import BeamSettings
from supernet.building import build_network, build_supernet
from supernet.extraction import Supernet
from supernet.inheritance.local import LocalDistillation
from supernet.tasks.evaluation import evaluate, score
from supernet.threads import cpu_threads, each_with
from supernet.training.sampling import SingleNetwork, build_sampler

ENOUGH_S = 0.5  # of an evaluation
MOST_ROUNDS, LONG_S = 3, 15.0  # no other round follows one that took so long
CALM = 1.25  # times as fast as before: so much faster, a step is done once more
NETWORKS = 4  # drawn, whose mean stands for all that a search looks at
EXAMPLES = 16  # that are evaluated first; four times as many while that takes no time
MOST_FITTED = 64  # networks; fitting takes in proportion to them, about
LEAST_FITTED = 8
# How often a network is timed to see whether the machine is uneven, and seconds for it in all.
BEATS, LEAST_BEATS, BEATING_S = 3, 6, 3.0
SHORT = BeamSettings(max_length_factor=1.0, max_length_offset=0)
SHORT_GREEDY = replace(SHORT, beam_size=1)
"""Untrained networks never end a sentence; trained ones end it after about the source's length."""


def calibrate(
    run: OpenedRun, units: Collection[str], clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Seconds of each of the units of `nas.run.duration` that a search needs.

    Args:
        run: the run, whose data are opened.
        units: that are asked for.
        clock: seconds that only grow.
    """
    cards = [] if run.computes_on == "cpu" else range(torch.cuda.device_count())
    found: dict[str, float] = {}
    steps, beats_ms = [unit for unit in units if unit != UNEVEN], list[float]()
    with computing(run.computes_on), torch.random.fork_rng(devices=cards):
        for _ in range(MOST_ROUNDS):
            torch.manual_seed(0)
            begun = clock()
            bench = _Bench(run, clock, beats_ms)
            now = {}
            for unit in steps:
                now[unit] = bench.measured(unit)
                if UNEVEN in units and sum(beats_ms) * (1 + BEATS) < 1e3 * BEATING_S:
                    bench.beat()
            calm = bool(found) and all(found[unit] <= CALM * now[unit] for unit in steps)
            found = {unit: min(now[unit], found.get(unit, math.inf)) for unit in steps}
            if calm or clock() - begun > LONG_S:
                break
    return found | ({UNEVEN: float(_uneven(beats_ms))} if UNEVEN in units else {})


def _uneven(beats_ms: Sequence[float]) -> bool:
    """Whether a network usually takes longer than in fast moments, which timings then wait for."""
    if len(beats_ms) < LEAST_BEATS:
        return False
    near, fastest = acceptance.TOLERANCES.near, acceptance.UNIT_FASTEST / acceptance.UNIT_SESSIONS
    fast_ms = float(np.mean(sorted(beats_ms)[: math.ceil(fastest * len(beats_ms))]))
    return bool(np.median(beats_ms) > (1 + near) * fast_ms)


class _Bench:
    """A run's networks and data, to try steps on.

    Args:
        run: whose.
        clock: seconds that only grow.
        beats_ms: of this bench and those before it, see `beat`.
    """

    def __init__(self, run: OpenedRun, clock: Clock, beats_ms: list[float]) -> None:
        self._beats_ms = beats_ms
        self._run, self._spec, self._clock = run, run.spec, clock
        self._space, self._device = run.space, run.computes_on
        self._budget = run.spec.budget
        self._rng = np.random.default_rng(0)
        self._models: dict[str, Supernet] = {}
        self._calls: dict[str, tuple[Call, Dtype, float]] = {}
        self._fit_s = 0.0

    def measured(self, unit: str) -> float:
        """Seconds of a unit."""
        name, _, part = unit.partition(": ")
        ways: Mapping[str, Callable[[str], float]] = {
            UPDATE: lambda _: self._update(),
            DISTIL_UPDATE: lambda _: self._distillation(),
            OWN_UPDATE: lambda _: self._own_s,
            PLAIN_UPDATE: lambda _: self._plain_s,
            CHOSEN_UPDATE: lambda _: math.sqrt(self._own_s * self._plain_s),
            CHECK: lambda _: self._check_s,
            EVALUATION: lambda _: self._evaluation(),
            SCORE: lambda _: self._score(),
            TIMING: self._timing,
            MEASUREMENT: self._measurement,
            FIT: lambda _: self._fit(),
            GENERATION: lambda _: self._generation(),
            SECOND: lambda _: 1.0,
        }
        return ways[name](part)

    def beat(self) -> None:
        """Note how many milliseconds a network takes just now."""
        call, dtype, _ = self._timed(self._spec.timed[0])
        (beat,) = time_calls(
            [call], self._device, dtype=dtype, warmup=1, repeats=BEATS, clock=self._clock
        )
        self._beats_ms.append(beat.median_ms)

    def _took(self, work: Callable[[], object]) -> float:
        begun = self._clock()
        work()
        return self._clock() - begun

    @cached_property
    def _drawn(self) -> list[Architecture]:
        """Networks of the space, at random."""
        return self._space.decode(sample_distinct(self._space, self._rng, NETWORKS))

    @cached_property
    def _plain(self) -> Architecture:
        """What the winner is held against, as far as its size is known: the largest."""
        given = self._spec.baseline
        if isinstance(given, dict):
            return Architecture.from_json(given)
        rows = plain_rows(self._space)
        rows = rows if len(rows) else largest(self._space)
        params = exact(self._space, rows, ("params",))["params"]
        return self._space.decode(rows[[int(np.argmax(params))]])[0]

    @cached_property
    def _supernet(self) -> Supernet:
        """With random weights, on the device."""
        return build_supernet(self._space, self._budget.supernet.dropout).to(self._device)

    def _model(self, network: Architecture) -> Supernet:
        """What a network is observed with."""
        if not self._spec.trains_alone:
            return self._supernet
        if network.id not in self._models:
            made = build_network(self._space.model, self._space.task, network)
            self._models[network.id] = made.network.to(self._device)
        return self._models[network.id]

    def _update(self) -> float:
        settings = self._budget.supernet
        sampler = build_sampler(self._space, settings, 0)
        return update_seconds(
            self._supernet,
            sampler,
            self._run.quick_task,
            settings,
            self._device,
            self._clock,
            partial(operations, self._space),
            teacher=self._run.teacher,
        )

    def _distillation(self) -> float:
        """Seconds of an update of all kinds in all layers; with random weights it takes as long."""
        assert self._run.checkpoint is not None  # who else has the stage
        inputs = inputs_of(self._run, self._device)
        sizes: list[int] = []

        def measured(update: int) -> Tensor:
            found = inputs(update)
            sizes.append(found.numel())
            return found

        local = LocalDistillation(
            self._space,
            self._supernet.state_dict(),
            self._run.checkpoint,
            measured,
            updates=MOST_UPDATES + 2,  # what comes behind the last one never comes
            learning_rate=self._budget.distil.learning_rate,
            device=self._device,
        )
        updates = each_with(self._budget.supernet.threads, local.run())
        if next(updates, None) is None:  # which warms up; none, where there is nothing to learn
            return 0.0
        spent: list[float] = []
        while len(spent) < MOST_UPDATES and sum(spent) < ENOUGH_S:
            spent.append(self._took(lambda: next(updates)))
        many = inputs_of(self._run, "cpu")
        every = (many(update).numel() for update in range(TYPICAL))
        return typical_seconds(spent, sizes[-len(spent) :], every)

    @cached_property
    def _own_s(self) -> float:
        return self._own_updates(self._drawn[:-1])

    @cached_property
    def _plain_s(self) -> float:
        return self._own_updates([self._plain])

    def _own_updates(self, networks: Sequence[Architecture]) -> float:
        settings = self._budget.retrain
        found: list[float] = []
        for network in networks:
            if sum(found) >= ENOUGH_S:  # an update takes so long that one network has to do
                break
            made = build_network(self._space.model, self._space.task, network, settings.dropout)
            found.append(
                update_seconds(
                    made.network,
                    SingleNetwork(network),
                    self._run.quick_task,
                    settings,
                    self._device,
                    self._clock,
                    teacher=self._run.teacher,
                )
            )
        return float(np.mean(found)) * self._usual(networks, len(found))

    def _usual(self, networks: Sequence[Architecture], tried: int) -> float:
        """How many times as dear as the first of some networks the usual one of the space is.

        1 where all were tried, or where there is but one: what takes long, so that few are, takes
        time in proportion to operations.
        """
        if tried == len(networks):
            return 1.0
        return self._usual_operations / operations(self._space, networks[:tried])

    @cached_property
    def _usual_operations(self) -> float:
        rows = sample_distinct(self._space, np.random.default_rng(0), USUAL)
        return operations(self._space, self._space.decode(rows))

    def _per_split(self, work: Callable[[Any, Architecture], object]) -> float:
        """Seconds that something takes with a network on the examples networks are compared on."""
        with cpu_threads(self._budget.supernet.threads):
            return self._whole_split(work)

    def _whole_split(self, work: Callable[[Any, Architecture], object]) -> float:
        task = self._run.quick_task
        whole = int(task.describe()["num_valid"])
        count, seconds = min(EXAMPLES, whole), 0.0
        first, *others = self._drawn
        work(task.with_valid(count), first)  # warms up
        while True:
            part = task.with_valid(count)
            seconds = self._took(lambda part=part: work(part, first))  # type: ignore[misc]
            if count == whole or 4 * seconds > ENOUGH_S / 2:
                break
            count = min(4 * count, whole)
        others = others if seconds < ENOUGH_S else []
        every = [seconds, *(self._took(lambda one=one: work(part, one)) for one in others)]  # type: ignore[misc]
        return float(np.mean(every)) * self._usual(self._drawn, len(every)) * whole / count

    @cached_property
    def _check_s(self) -> float:
        return self._per_split(
            lambda task, one: evaluate(task, self._model(one), one, task.valid, device=self._device)
        )

    def _evaluation(self) -> float:
        metric = self._spec.quality
        if metric != "bleu":  # what quality is beside the loss follows from the same predictions
            return self._check_s
        return self._per_split(
            lambda task, one: validation_quality(
                task, self._model(one), one, metric, self._device, SHORT_GREEDY
            )
        )

    def _score(self) -> float:
        if self._space.task != "translation":
            return self._check_s
        return self._per_split(
            lambda task, one: score(
                task, self._model(one), one, task.valid, device=self._device, beam=SHORT
            )
        )

    def _timing(self, name: str) -> float:
        """Seconds that a session of the timer spends on a network, which is built for it."""
        call, dtype, built_s = self._timed(name)
        with inference(self._device, dtype):
            call_s = self._took(call)
        if name == self._spec.timed[0] and self._beats_ms:  # which come at many moments
            call_s = min(call_s, min(self._beats_ms) / 1e3)
        rounds = session_rounds(self._budget.timing_rounds)
        before_s = 0.0 if is_long(call_s) else call_s
        return built_s + call_s + rounds * (before_s + max(call_s, MIN_SAMPLE_S))

    def _timed(self, name: str) -> tuple[Call, Dtype, float]:
        """What is timed of a typical network, and seconds of building it and of a first call."""
        if name not in self._calls:
            workload = timed_workload(self._space, OBJECTIVES[name].mode)
            (typical,) = self._space.decode(middle(self._space))
            begun = self._clock()
            call = timed_call(self._space, typical, workload, self._device)
            with inference(self._device, workload.dtype):
                call()
            self._calls[name] = call, workload.dtype, self._clock() - begun
        return self._calls[name]

    def _measurement(self, name: str) -> float:
        workload = timed_workload(self._space, None)
        (typical,) = self._space.decode(middle(self._space))
        return self._took(lambda: network_cost(name, self._space, typical, workload, self._device))

    # -- searching ----------------------------------------------------------------------------

    @cached_property
    def _ranker(self) -> Ensemble:
        """Fitted to networks whose quality follows from their parameters, about."""
        rows = sample_distinct(self._space, self._rng, self._fitted)
        sizes = np.log(exact(self._space, rows, ("params",))["params"])
        losses = self._rng.normal(scale=0.1, size=len(rows)) - sizes
        features = encode_features(self._space, rows)
        few = slice(LEAST_FITTED)
        Ensemble().fit(features[few], losses[few])  # loads what it is fitted with
        ranker = Ensemble()
        self._fit_s = self._took(lambda: ranker.fit(features, losses))
        return ranker

    @property
    def _fitted(self) -> int:
        return min(self._budget.observations, MOST_FITTED, self._space.size)

    def _fit(self) -> float:
        _ = self._ranker
        return self._fit_s * self._budget.observations / self._fitted

    def _generation(self) -> float:
        ranker, space = self._ranker, self._space

        def scores(rows: Any) -> Scores:
            costs = exact(space, rows, ("params", "flops"))
            points = [ranker.predict(encode_features(space, rows)), costs["flops"]]
            return Scores(np.stack(points, axis=1), np.zeros(len(rows)))

        settings = EvolutionSettings(population=self._budget.evolution.population, generations=3)
        done: list[Any] = []
        seconds = self._took(lambda: done.extend(evolve(space, scores, settings, 0)))
        return seconds / max(1, len(done))

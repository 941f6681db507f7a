"""How fast this machine trains and evaluates networks of a space, found in seconds by doing so."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch

from nas.objectives import exact
from nas.request.fitted_space import Pace
from nas.request.presets import budget_for
from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from search_spaces.variation import largest
from supernet.building import build_supernet
from supernet.extraction import Supernet
from supernet.tasks.base import Task
from supernet.tasks.evaluation import evaluate
from supernet.tasks.opening import open_task
from supernet.threads import cpu_threads
from supernet.training.loop import Trainer
from supernet.training.sampling import ArchitectureSampler, SingleNetwork, build_sampler
from supernet.training_settings import TrainingSettings

Clock = Callable[[], float]

ENOUGH_S, MOST_UPDATES = 0.5, 12  # of training
FEW = 6  # updates, which are so long that they take time as their networks take operations
USUAL = 200  # networks that tell how many operations one takes in the mean
EXAMPLES = 16  # that are evaluated
GAIN = 0.9  # more threads have to be faster by this
TYPICAL = 100  # batches that tell how large one is in the mean
UNEVEN = 1.25  # times the smallest batch: from there on their sizes are told apart


def measure_pace(space: SearchSpace, data: Path, device: str) -> Pace:
    """Train and evaluate a few networks for a moment.

    Args:
        space: whose preset ``quick`` says how large an update is.
        data: a folder made by `nas data prepare`.
        device: where, ``cpu`` or ``cuda``.

    Raises:
        DataError: when the data are damaged or do not fit the space.
    """
    settings = budget_for(space, "quick", {}).supernet
    task = open_task(space, data.name, str(data), seed=0)
    few = task.with_valid(EXAMPLES)
    (most,) = space.decode(largest(space))
    paces = [_pace(space, task, few, settings, most, device, n) for n in _threads(device)]
    best = paces[0]
    for pace in paces[1:]:
        if pace.update_s < GAIN * best.update_s:
            best = pace
    return best


def _threads(device: str) -> list[int]:
    """Numbers of threads that are worth a try."""
    every = torch.get_num_threads()
    return [1, every] if device == "cpu" and every > 1 else [every]


def _pace(
    space: SearchSpace,
    task: Task[Any, Any],
    few: Task[Any, Any],
    settings: TrainingSettings,
    most: Architecture,
    device: str,
    threads: int,
) -> Pace:
    model = build_supernet(space, settings.dropout)
    with cpu_threads(threads):
        update_s = update_seconds(
            model,
            build_sampler(space, settings, 0),
            few,
            settings,
            device,
            cost=partial(operations, space),
        )
        largest_s = update_seconds(model, SingleNetwork(most), few, settings, device)
        begun = time.perf_counter()
        evaluate(few, model, most, few.valid, device=device)
        example_s = (time.perf_counter() - begun) / EXAMPLES
    # A drawn network takes the share of the largest that it takes in training.
    share = min(1.0, update_s / largest_s)
    return Pace(update_s, largest_s, share * example_s, task.num_batches(settings), threads)


def operations(space: SearchSpace, networks: Sequence[Architecture]) -> float:
    """The mean operations of networks, in FLOPs."""
    return float(exact(space, space.encode(networks), ("flops",))["flops"].mean())


class _EnoughError(Exception):
    """So many updates were timed; the training ends."""


class Stopwatch:
    """Draws as another sampler does and takes the time; then it ends the training.

    Args:
        sampler: that draws.
        clock: seconds that only grow.
        read: how much has been read of the data; every update has read the same if not given.
    """

    def __init__(
        self, sampler: ArchitectureSampler, clock: Clock, read: Callable[[], int] | None = None
    ) -> None:
        self._sampler, self._clock = sampler, clock
        self._times: list[float] = []
        self._drawn: list[list[Architecture]] = []
        self._reads: list[int] = []
        self._read = read or (lambda: len(self._times))

    def draw(self) -> list[Architecture]:
        """The networks of the next update, whose batch has been read.

        Raises:
            _EnoughError: when no more have to be timed.
        """
        self._times.append(self._clock())
        self._reads.append(self._read())
        spent = self._times[1:]  # the first update warms up
        if len(spent) > MOST_UPDATES or (len(spent) > 1 and spent[-1] - spent[0] >= ENOUGH_S):
            raise _EnoughError
        self._drawn.append(self._sampler.draw())
        return self._drawn[-1]

    def timed(
        self, cost: Callable[[Sequence[Architecture]], float] | None = None
    ) -> list[tuple[float, int, float]]:
        """Seconds, sizes and costs of updates: of those that were timed, but for the slowest.

        Slow for its size and, where few were timed, for its cost: other work on the machine comes
        in spells.

        Args:
            cost: of the networks of an update; 1 if not given, and where many were timed.
        """
        spent = [after - before for before, after in pairwise(self._times[1:])]
        sizes = [after - before for before, after in pairwise(self._reads)]
        costs = [1.0] * len(spent)
        if cost is not None and len(spent) < FEW:
            costs = [cost(networks) for networks in self._drawn[1:]]
        found = sorted(
            zip(spent, sizes, costs, strict=False), key=lambda one: one[0] / (one[1] * one[2])
        )
        return found[:-1] or found


def typical_seconds(seconds: Sequence[float], sizes: Sequence[int], every: Iterable[int]) -> float:
    """Seconds of an update with a batch of mean size.

    A batch holds texts of like lengths, so that one may hold ten times as many tokens as another,
    and a handful of updates says little of the others. Time grows with the tokens, about.

    Args:
        seconds: of some updates.
        sizes: of their batches, in the same order.
        every: the sizes of many batches, the first of which are looked at where they are uneven.
    """
    if max(sizes) <= UNEVEN * min(sizes):
        return statistics.fmean(seconds)
    return sum(seconds) / sum(sizes) * statistics.fmean(islice(every, TYPICAL))


def update_seconds(
    model: Supernet,
    sampler: ArchitectureSampler,
    task: Any,
    settings: TrainingSettings,
    device: str,
    clock: Clock = time.perf_counter,
    cost: Callable[[Sequence[Architecture]], float] | None = None,
    **options: Any,
) -> float:
    """Seconds of an update of a training, its batches included.

    Where an update takes long few are timed, and what was drawn for them may be several times as
    large as networks are in the mean: their seconds are then told by their costs.

    Args:
        model: that is trained; its weights change.
        sampler: of its networks.
        task: to learn from.
        settings: the numbers.
        device: where.
        clock: seconds that only grow.
        cost: of networks, in what their time is in proportion to; all cost the same if not given.
        **options: further arguments of `Trainer`.
    """
    read = 0

    def batches(*given: Any, **named: Any) -> Iterator[Any]:
        nonlocal read
        for batch in task.batches(*given, **named):
            read += task.inputs(batch).numel()
            yield batch

    watched = copy.copy(task)
    watched.batches = batches
    watch = Stopwatch(sampler, clock, lambda: read)
    endless = replace(
        settings,
        epochs=MOST_UPDATES + 2,
        max_updates=0,
        check_every=MOST_UPDATES + 3,
        checkpoint_updates=0,
        stop_loss=0.0,
    )
    trainer = Trainer(model, watch, [], watched, endless, seed=0, device=device, **options)
    with suppress(_EnoughError):
        for _ in trainer.run():
            pass
    seconds, sizes, costs = zip(*watch.timed(cost), strict=True)
    some = task.batches(settings, seed=0, epoch=0, device="cpu")
    every = (settings.accumulate * task.inputs(batch).numel() for batch in some)
    found = typical_seconds(seconds, sizes, every)
    if cost is None or len(seconds) >= FEW - 1:
        return found
    usual = [network for _ in range(USUAL) for network in sampler.draw()]
    return found * cost(usual) / statistics.fmean(costs)

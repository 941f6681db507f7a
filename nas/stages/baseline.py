"""The stage that chooses what the winner is held against: what one would train without a search.

Its networks are trained like the winner after the search, and are no part of the front. They are
the plain networks of the space (see `search_spaces.plain`), the checkpoint that the search began
with, which then is trained on as long as the winner, or the one that was given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np

from nas.objectives import OBJECTIVES, Objective
from nas.objectives.base import Floats
from nas.objectives.latency_limits import keeps
from nas.objectives.size import network_costs
from nas.request.spec import CHECKPOINT, PLAIN
from nas.run.duration import Asked, Part, Plan, counted
from nas.run.events import Event, Note, Progress
from nas.run.layout import BASELINES_FILE
from nas.search.doubtful import disturbances
from nas.search.front import NEAREST, Baseline, FrontEntry, pick
from nas.stages.base import Run
from nas.stages.front import found_front
from nas.stages.halve import candidates
from nas.stages.measured import exact_costs, measured_entries, predicted_values, with_confirmed
from nas.stages.measured_cost import measured_cost, measuring
from nas.stages.timing import run_meter, timing_parts
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.genotypes import Genotypes
from search_spaces.plain import alone, plain_rows

STAGE = "baseline"
# One that breaks limits when it is measured makes room for one that should cost so much less there.
CHEAPER, TRIES = 0.9, 4


def work(run: Run) -> Iterator[Event]:
    """Choose the networks and measure what they cost."""
    given = run.spec.baseline
    if isinstance(given, dict):
        (own,) = yield from _with_costs(run, [Architecture.from_json(given)])
        found = [Baseline(own, ("own",))]
    elif given == CHECKPOINT:
        assert run.checkpoint is not None
        (begun,) = yield from _with_costs(run, [run.checkpoint.architecture])
        found = [Baseline(begun, ("checkpoint",))]
    else:
        rows = plain_rows(run.space)
        rows = rows[run.costs.score(rows).violations == 0]
        largest = yield from _largest(run, rows)
        found = [] if largest is None else [Baseline(largest, ("largest",))]
        found = yield from _with_nearest(run, rows, found)
    run.folder.write_json(BASELINES_FILE, [one.to_json() for one in found])
    if not found:
        yield Note(STAGE, "no plain network of the space keeps the limits")
    yield Progress(STAGE, len(found), len(found), ", ".join(one.entry.id for one in found))


def _largest(run: Run, rows: Genotypes) -> Generator[Event, None, FrontEntry | None]:
    """The plain network with the most parameters, then FLOPs, that keeps the limits."""
    params, flops = network_costs(run.space, rows).T
    rows = rows[np.lexsort((-flops, -params))]
    limits = run.spec.limits
    for _ in range(TRIES):
        if not len(rows):
            return None
        (entry,) = yield from _with_costs(run, run.space.decode(rows[:1]))
        broken = [
            name
            for name, limit in limits.items()
            if not keeps(entry.measured, entry.predicted, {name: limit}, entry.doubtful)
        ]
        if not broken:
            return entry
        expected = run.costs.predict(rows)
        costs = [OBJECTIVES[name].minimised(expected[name]) for name in broken]
        rows = rows[np.all([values <= CHEAPER * values[0] for values in costs], axis=0)]
    return None


def _with_nearest(
    run: Run, rows: Genotypes, found: list[Baseline]
) -> Generator[Event, None, list[Baseline]]:
    """What was found, and for each that may win the plain network nearest to its first cost.

    Only the one of the winner is trained, and nobody knows yet which that is.
    """
    front = found_front(run)
    try:
        ids = candidates(front, run.spec.pick, run.spec.retrain)
    except UsageError:  # nothing on the front is what the request picks, which retraining tells
        return found
    if not len(rows):
        return found
    name = run.spec.objectives[1]
    costs = run.costs.score(rows).objectives[:, 0]
    params = network_costs(run.space, rows)[:, 0]
    nearest: dict[str, Architecture] = {}
    for candidate in ids:
        cost = pick(front, candidate).minimised(name)
        best = np.lexsort((-params, _distances(costs, cost)))[:1]
        (network,) = run.space.decode(rows[best])
        nearest[network.id] = network
    known = [
        replace(one, roles=(*one.roles, NEAREST)) if one.entry.id in nearest else one
        for one in found
    ]
    others = [network for network in nearest.values() if network.id not in _ids(found)]
    entries = (yield from _with_costs(run, others)) if others else []
    return [*known, *(Baseline(entry, (NEAREST,)) for entry in entries)]


def _distances(costs: Floats, cost: float) -> Floats:
    """How far costs ``(N,)`` are from one: by their ratio to it, and from nought as they are."""
    if cost == 0:
        return np.abs(costs)
    nearer = np.minimum(costs, cost) / np.maximum(costs, cost)
    return (1.0 - nearer).round(6)


def _ids(found: list[Baseline]) -> set[str]:
    return {one.entry.id for one in found}


def _with_costs(
    run: Run, networks: Sequence[Architecture]
) -> Generator[Event, None, list[FrontEntry]]:
    """Networks with all that their costs are measured and predicted to be; of any sizes."""
    measured: dict[str, dict[str, float]] = {}
    for network in networks:
        space = run.space if run.space.contains(network) else alone(run.space, network)
        measured[network.id] = exact_costs(run, space.encode([network]), space)[0]
    doubtful: dict[str, dict[str, str]] = {network.id: {} for network in networks}
    here = run.elsewhere is None
    for cost in [one for one in OBJECTIVES.values() if here and run.spec.needs(one.name)]:
        if cost.timed or cost.measure is not None:
            values = yield from _measured_here(run, cost, networks)
            for identity, (value, doubt) in values.items():
                measured[identity][cost.name] = value
                doubtful[identity] |= {cost.name: doubt} if doubt else {}
    entries = []
    for network in networks:
        inside = run.space.contains(network)
        predicted = predicted_values(run, run.space.encode([network]))[0] if inside else {}
        entry = FrontEntry(
            network.id, network, measured[network.id], predicted, doubtful[network.id]
        )
        entries.append(entry.with_rates((*run.spec.objectives, *run.spec.limits), run.domain))
    return entries


def _measured_here(
    run: Run, cost: Objective, networks: Sequence[Architecture]
) -> Generator[Event, None, dict[str, tuple[float, str]]]:
    """Id → a cost and why it is doubtful; of what was measured before as it was then.

    A doubtful time is taken anew whenever it is asked for, and would come out another one; and what
    was timed in more sessions goes before a single one.
    """
    asked = {network.id for network in networks}
    values = {
        one.id: (one.measured[cost.name], one.doubtful.get(cost.name, ""))
        for one in with_confirmed(run, measured_entries(run))
        if one.id in asked and cost.name in one.measured
    }
    others = [network for network in networks if network.id not in values]
    if not cost.timed:
        values |= {one.id: (measured_cost(run, cost.name, one), "") for one in others}
    elif others:
        timed = run_meter(run, cost).measure(others)
        yield from disturbances(STAGE, timed)
        for network, time in zip(others, timed.values, strict=True):
            values[network.id] = time.value, time.doubtful
    return values


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    number = num_baselines(asked)
    # The largest, or what was given, and then those nearest to each that may win, of which one is
    # trained.
    calls = [1, asked.spec.retrain] if number > 1 else [1] * number
    number = sum(calls)
    parts: list[Part] = []
    for name in asked.timed:
        for together in calls:
            parts += timing_parts(asked, OBJECTIVES[name], together)
    parts += [measuring(name, number) for name in asked.measured]
    return Plan(f"{counted(number, 'network')} to compare with", tuple(parts))


def num_baselines(asked: Asked) -> int:
    """How many networks the winner is held against at most."""
    given = asked.spec.baseline
    if given is None:
        return 0
    return min(2, len(plain_rows(asked.spec.space))) if given == PLAIN else 1

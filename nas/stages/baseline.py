"""The stage that chooses what the winner is held against: what one would train without a search.

Its networks are trained like the winner after the search, and are no part of the front. They are
the plain networks of the space (see `search_spaces.plain`), or the one that was given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np

from nas.objectives import OBJECTIVES
from nas.objectives.latency_limits import keeps
from nas.objectives.size import network_costs
from nas.run.duration import Asked, Part, Plan, counted
from nas.run.events import Event, Note, Progress
from nas.run.layout import BASELINES_FILE
from nas.search.doubtful import disturbances
from nas.search.front import NEAREST, Baseline, FrontEntry, pick
from nas.stages.base import Run
from nas.stages.front import found_front
from nas.stages.halve import candidates
from nas.stages.measured import exact_costs, predicted_values
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
        own = yield from _with_costs(run, Architecture.from_json(given))
        found = [Baseline(own, ("own",))]
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
        entry = yield from _with_costs(run, run.space.decode(rows[:1])[0])
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
    known = {one.entry.id: one for one in found}
    for candidate in ids:
        far = np.abs(np.log(costs / pick(front, candidate).minimised(name))).round(6)
        best = np.lexsort((-params, far))[:1]
        (network,) = run.space.decode(rows[best])
        before = known.get(network.id)
        if before is None:
            known[network.id] = Baseline((yield from _with_costs(run, network)), (NEAREST,))
        elif NEAREST not in before.roles:
            known[network.id] = replace(before, roles=(*before.roles, NEAREST))
    return list(known.values())


def _with_costs(run: Run, network: Architecture) -> Generator[Event, None, FrontEntry]:
    """A network with all that its costs are measured and predicted to be; of any sizes.

    What the front knows of it stands: a doubtful time would come out another one.
    """
    there = next((one for one in found_front(run).entries if one.id == network.id), None)
    inside = run.space.contains(network)
    space = run.space if inside else alone(run.space, network)
    rows = space.encode([network])
    measured = exact_costs(run, rows, space)[0]
    doubtful: dict[str, str] = {}
    here = run.elsewhere is None
    for one in [one for one in OBJECTIVES.values() if here and run.spec.needs(one.name)]:
        if there is not None and one.name in there.measured:
            measured[one.name] = there.measured[one.name]
            if one.name in there.doubtful:
                doubtful[one.name] = there.doubtful[one.name]
        elif one.timed:
            timed = run_meter(run, one).measure([network])
            yield from disturbances(STAGE, timed)
            (time,) = timed.values
            measured[one.name] = time.value
            doubtful |= {one.name: time.doubtful} if time.doubtful else {}
        elif one.measure is not None:
            measured[one.name] = measured_cost(run, one.name, network)
    predicted = predicted_values(run, rows)[0] if inside else {}
    entry = FrontEntry(network.id, network, measured, predicted, doubtful)
    return entry.with_rates((*run.spec.objectives, *run.spec.limits), run.domain)


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    number = num_baselines(asked)
    if number > 1:  # each that may win has one of its own, of which one is trained
        number += asked.spec.retrain - 1
    parts: list[Part] = []
    for name in asked.timed:
        for _ in range(number):  # one after the other
            parts += timing_parts(asked, OBJECTIVES[name], 1)
    parts += [measuring(name, number) for name in asked.measured]
    return Plan(f"{counted(number, 'network')} to compare with", tuple(parts))


def num_baselines(asked: Asked) -> int:
    """How many networks the winner is held against at most."""
    given = asked.spec.baseline
    if given is None:
        return 0
    return 1 if isinstance(given, dict) else min(2, len(plain_rows(asked.spec.space)))

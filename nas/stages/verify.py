"""The stage that measures the best candidates."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nas.executors.base import Failure, Outcome
from nas.objectives import OBJECTIVES, QUALITY, Objective
from nas.objectives.latency_limits import SESSIONS, keeps
from nas.profiling.latency_meter import CONFIRMATIONS
from nas.request.picks import saves, saving_of
from nas.request.spec import SearchSpec
from nas.results.failures import failed
from nas.run.duration import Asked, Plan
from nas.run.events import ArchitectureMeasured, Event, Note, Progress
from nas.run.folder import resuming
from nas.run.layout import HOLDING_FILE, POPULATION_FILE, VERIFICATION_FILE
from nas.search.doubtful import disturbances, predictions_off, reason
from nas.search.evolution import Generation, archive
from nas.search.front import FrontEntry, best_entries, limit_text
from nas.search.pareto import constrained_ranks, spread_by_cost
from nas.stages.base import KnownCost, Run
from nas.stages.measured import (
    exact_costs,
    journal_entry,
    measured_entries,
    predicted_values,
    read_confirmed,
    recorded,
    with_confirmed,
)
from nas.stages.measured_cost import measured_cost, measuring
from nas.stages.observe import evaluating
from nas.stages.outcomes import abort_stage, to_event, too_many_failures, values_of
from nas.stages.timing import after_confirming, run_meter, timing_parts
from search_spaces.architecture import Architecture
from search_spaces.errors import NasError
from search_spaces.genotypes import Genotypes, Network
from search_spaces.measurement import Measurement

# A time further from its prediction is taken again before it is believed.
MOST_STDS, LEAST_ODD = 3.0, 0.1
# Networks that save as much as is picked, which are looked for with half of all measurements.
SAVING_WANTED, SAVING_SHARE = 3, 1 / 2


def work(run: Run) -> Iterator[Event]:
    """Really measure the best candidates, in order, until enough keep the limits.

    Under a limit on a time, and where a saving of one is picked, those on the front are timed
    again, see `nas.objectives.latency_limits`; the next candidates take the places of those that
    break a limit, and of those that cannot be evaluated.

    Raises:
        DivergedError, EvaluationError: when so many of them fail that it makes no sense to go on.
    """
    candidates = _candidates(run)
    predicted = _predictions(run, candidates)
    lines = {line["id"]: line for line in run.folder.read_journal(VERIFICATION_FILE)}
    wanted = min(run.spec.budget.verified, len(candidates))
    position = 0
    while True:
        batch = _next(run, candidates, lines, position, wanted)
        if not batch:
            yield from _confirm_front(run)
            kept = _num_kept(run, [lines[c.id] for c in candidates[:position]])
            if kept >= wanted or position >= len(candidates):
                break
            continue
        missing = [candidate for candidate in batch if candidate.id not in lines]
        for line, event in _verified(run, missing, [predicted[one.id] for one in missing]):
            if event is not None:
                yield event
            if line is None:
                continue
            lines[line["id"]] = line
            journals = (VERIFICATION_FILE, HOLDING_FILE)
            problem = too_many_failures(lines.values(), run.spec.trains_alone)
            abort_stage(run.folder, "verify", journals, problem)
            done = min(len(lines), wanted)
            yield Progress("verify", done, wanted)
        position += len(batch)
    _check_doubts(run)
    told = (journal_entry(run, line) for line in lines.values() if not failed(line))
    # An evaluator of others may call a cost of its own like a time.
    if run.spec.needs_latency and (off := predictions_off(told)):
        yield Note("verify", off, loud=True)
    for name in (VERIFICATION_FILE, HOLDING_FILE):
        if not (run.folder.path / name).exists():
            run.folder.append(name, [])


def _check_doubts(run: Run) -> None:
    """Let no run end without a front for the only reason that nothing could be timed reliably.

    Raises:
        NasError: after the doubtful measurements were forgotten, so that resuming takes them anew.
    """
    entries = with_confirmed(run, measured_entries(run))
    limits = run.spec.limits
    kept = [one for one in entries if keeps(one.measured, one.predicted, limits, one.doubtful)]
    doubted = {name: [one for one in entries if name in one.doubtful] for name in limits}
    doubted = {name: unsure for name, unsure in doubted.items() if unsure}
    if kept or not doubted:
        return
    name, unsure = next(iter(doubted.items()))
    for file in (VERIFICATION_FILE, HOLDING_FILE):
        run.folder.forget("verify", (file,))
    raise NasError(
        f"no network is known to keep {limit_text(name, limits[name])}, since {len(unsure)} could "
        f"not be timed reliably ({reason(unsure[0].doubtful)}): keep other work away from the "
        f"device and go on with {resuming(run.folder.path)}"
    )


def _confirm_front(run: Run) -> Iterator[Event]:
    """Time networks again until the times of all of the front, and of the checkpoint, are sure.

    Nothing is done where no time decides, or where it cannot be timed.

    A network that turns out to break the limit, or to be slower than it seemed, makes room for
    others; so this goes on until all of the front has been timed in sessions. A network whose
    single measurement is doubtful gets its chance here.
    """
    clocks = _deciding(run.spec)
    if not clocks or run.elsewhere is not None:
        return
    begun = {network.id for network in run.domain.decode(run.checkpoint_rows)}
    objectives = [run.spec.objective(name) for name in run.spec.objectives]
    while True:
        confirmed = read_confirmed(run)
        measured = measured_entries(run)
        entries = [_given_a_chance(e, clocks, confirmed.get(e.id, {})) for e in measured]
        entries = with_confirmed(run, entries)
        front = best_entries(entries, objectives, run.spec.limits)
        ids = begun | {entry.id for entry in front}
        unsure_of = {
            name: [e for e in entries if e.id in ids and name not in confirmed.get(e.id, {})]
            for name in clocks
        }
        clock = next((name for name in clocks if unsure_of[name]), None)
        if clock is None:
            return
        unsure = unsure_of[clock]
        yield Progress("verify", 0, len(unsure), "on the front, timed again")
        meter = run_meter(run, OBJECTIVES[clock])
        timed = meter.in_sessions([entry.architecture for entry in unsure])
        yield from disturbances("verify", timed)
        # One line for all: which are timed next follows from whole rounds only.
        pairs = list(zip(unsure, timed.values, strict=True))
        line = {"networks": [value.to_json(entry.id, clock) for entry, value in pairs]}
        run.folder.append(HOLDING_FILE, [line])
        for entry, value in pairs:
            yield ArchitectureMeasured("verify", entry.id, value.values(clock))


def _deciding(spec: SearchSpec) -> list[str]:
    """The timed objectives on which it depends what is picked, or what may be."""
    names = set(spec.limits) | ({spec.objectives[1]} if saving_of(spec.pick) is not None else set())
    return [name for name in spec.timed if name in {OBJECTIVES[n].rate_of or n for n in names}]


def _given_a_chance(
    entry: FrontEntry, clocks: Sequence[str], confirmed: Collection[str]
) -> FrontEntry:
    """The entry without doubts about limited times that sessions have not judged yet."""
    open_ones = [name for name in clocks if name not in confirmed]
    left = {name: why for name, why in entry.doubtful.items() if name not in open_ones}
    return replace(entry, doubtful=left)


@dataclass(frozen=True)
class Candidate:
    """A network that may be measured.

    Attributes:
        quality: observed, or else predicted.
        cost: the first one, predicted, see `Objective.minimised`.
    """

    id: str
    network: Network
    row: Genotypes
    quality: float
    cost: float


def _candidates(run: Run) -> list[Candidate]:
    """Networks that nothing dominates as far as is known, so that the first are spread over all.

    With several costs they are also spread over the front of each, see `spread_by_cost`.

    Before all others comes the checkpoint that the search begins with, beside which they stand, and
    where a saving is picked without one, the best network.
    Those that were observed count with their real quality, those that only were evolved with the
    predicted one. Costs that take a measurement are predicted.
    """
    rows, qualities = run.observed_rows, run.qualities()
    if run.spec.ranks:
        lines = run.folder.read_journal(POPULATION_FILE)
        evolved = archive([Generation.from_json(line) for line in lines])
        found = run.pruned.translate(evolved.genotypes, run.domain)
        known = {row.tobytes() for row in rows} | _failed_rows(run)
        new = [row.tobytes() not in known for row in found]
        rows = np.concatenate([rows, found[new]])
        qualities = np.concatenate([qualities, evolved.objectives[new, 0]])
    costs = run.costs.score(rows)
    points = np.column_stack([qualities, costs.objectives])
    best = np.flatnonzero(constrained_ranks(points, costs.violations) == 0)
    order = best[spread_by_cost(points[best])]
    first, saving = run.checkpoint_rows, saving_of(run.spec.pick) is not None
    if saving and not len(first):
        order = np.concatenate([order[[points[order, 0].argmin()]], order])
    chosen = [
        Candidate(network.id, network, rows[i : i + 1], points[i, 0], points[i, 1])
        for i, network in zip(order, run.domain.decode(rows[order]), strict=True)
    ]
    if len(first):
        (network,), cost = run.domain.decode(first), run.costs.score(first).objectives[0, 0]
        chosen.insert(0, Candidate(network.id, network, first, math.nan, cost))
    return list({one.id: one for one in chosen}.values())


def _next(
    run: Run,
    candidates: list[Candidate],
    lines: Mapping[str, Mapping[str, Any]],
    position: int,
    wanted: int,
) -> list[Candidate]:
    """Those to measure together next, of which some may be moved forward; none if enough are kept.

    Args:
        run: the search.
        candidates: in the order in which they are measured, changed in place.
        lines: of the journal, by id.
        position: how many candidates were measured.
        wanted: how many are to keep the limits.
    """
    size = wanted - _num_kept(run, [lines[one.id] for one in candidates[:position]])
    if size > 0 and (aimed := _aimed(run, candidates, lines, position, wanted)):
        ids = {one.id for one in aimed}
        others = [one for one in candidates[position:] if one.id not in ids]
        candidates[position:] = [*aimed, *others]
        size = min(size, len(aimed))
    return candidates[position : position + max(0, size)]


def _aimed(
    run: Run,
    candidates: Sequence[Candidate],
    lines: Mapping[str, Mapping[str, Any]],
    position: int,
    wanted: int,
) -> list[Candidate]:
    """Those to measure next where a saving is picked, so that it has something to choose from.

    Points that are spread over a front leave gaps, in one of which what is wanted may lie; and
    where costs are predicted, those that just save enough by that often do not. So predictions are
    corrected by what was measured so far, until enough networks really save as much.

    Args:
        run: the search.
        candidates: the first is what the saving counts from.
        lines: of the journal, by id.
        position: how many candidates were measured.
        wanted: how many are to be measured at most.

    Returns:
        The best of those that should save enough; none where no saving is picked, where enough were
        found, and where as many were looked for as `SAVING_SHARE` allows.
    """
    times, cost = saving_of(run.spec.pick), run.spec.objective(run.spec.objectives[1])
    if times is None:
        return []
    whole, *others = candidates
    if not position:
        return [whole, *best_savers(others, whole.cost, times)]
    known = {one.id: one for one in _costs_measured(run, lines, candidates[:position], cost)}
    most = max(SAVING_WANTED, int(SAVING_SHARE * wanted))
    if whole.id not in known or position > most:
        return []
    own = known.pop(whole.id)
    if len(best_savers(list(known.values()), own.cost, times)) >= SAVING_WANTED:
        return []
    predicted = {one.id: one.cost for one in candidates}
    off = [
        (own.cost / one.cost) / (whole.cost / predicted[one.id])
        for one in known.values()
        if own.cost and one.cost and whole.cost and predicted[one.id]
    ]
    share = float(np.median(off)) if off else 1.0
    return best_savers(candidates[position:], whole.cost, times, share)


def _costs_measured(
    run: Run,
    lines: Mapping[str, Mapping[str, Any]],
    candidates: Sequence[Candidate],
    cost: Objective,
) -> Iterator[Candidate]:
    """Candidates with the first cost as it was measured, but for those that are doubtful."""
    for one in candidates:
        if failed(lines[one.id]):
            continue
        entry = journal_entry(run, lines[one.id]).with_rates([cost.name], run.domain)
        if cost.name not in entry.doubtful:
            quality = entry.minimised(QUALITY)
            yield replace(one, quality=quality, cost=entry.minimised(cost.name))


def best_savers(
    candidates: Sequence[Candidate], whole: float, times: float, share: float = 1.0
) -> list[Candidate]:
    """The `SAVING_WANTED` best of those that save so much, best first.

    Args:
        candidates: with costs as values of which less is better.
        whole: the cost that they are to save of.
        times: how many times less it is to be.
        share: of what they seem to save that they really do.
    """
    enough = [one for one in candidates if saves(one.cost, whole, times / share)]
    return sorted(enough, key=lambda one: (one.quality, one.id))[:SAVING_WANTED]


def _failed_rows(run: Run) -> set[bytes]:
    """The networks that could not be observed: nothing is known of them but that."""
    lines = [line for line in run.observations().values() if failed(line)]
    return {row.tobytes() for row in run.rows_of(lines)}


def _predictions(run: Run, candidates: Sequence[Candidate]) -> dict[str, dict[str, float]]:
    """What the predictors say of all candidates, by id.

    The last bits depend on how many are predicted together, and which are missing together on
    where a stage was interrupted, which shall end in the same bytes.
    """
    if not candidates:
        return {}
    rows = np.concatenate([candidate.row for candidate in candidates])
    told = predicted_values(run, rows)
    return {one.id: values for one, values in zip(candidates, told, strict=True)}


def _verified(
    run: Run, candidates: Sequence[Candidate], predicted: Sequence[Mapping[str, float]]
) -> Iterator[tuple[dict[str, Any] | None, Event | None]]:
    """Measure candidates and journal each; what was measured before is taken from there.

    Args:
        run: the search.
        candidates: those without a line in the journal.
        predicted: of each candidate.

    Yields:
        A line of the journal, and what happened, if anything was measured just now; or a note
        alone.
    """
    if not candidates:
        return
    rows = np.concatenate([candidate.row for candidate in candidates])
    networks = [candidate.network for candidate in candidates]
    known = run.observations()
    cost_values = exact_costs(run, rows)
    times: list[dict[str, Measurement]] = [{} for _ in networks]
    untimed: dict[str, set[str]] = {}
    for name in run.spec.timed if run.elsewhere is None else ():
        own = [network for network in networks if isinstance(network, Architecture)]
        values, untimed[name], notes = _times(run, name, own, predicted)
        for note in notes:
            yield None, note
        for one, value in zip(times, values, strict=True):
            one[name] = value
    known_costs = {} if run.elsewhere is not None else run.measured_costs()
    costs = [
        _measured_costs(run, network, time, untimed, known_costs)
        for network, time in zip(networks, times, strict=True)
    ]
    missing = [network for network in networks if network.id not in known]
    outcomes = run.outcomes("verify", missing)
    for index, network in enumerate(networks):
        line = {
            "id": network.id,
            "architecture": network.to_json(),
            "predicted": predicted[index],
        }
        before = known.get(network.id)
        outcome: Outcome | Note = next(outcomes) if before is None else recorded(before)
        while isinstance(outcome, Note):
            yield None, outcome
            outcome = next(outcomes)
        if isinstance(outcome, Failure):
            event: Event | None = to_event("verify", network, outcome)
            line |= values_of(outcome)
        else:
            measured, fresh = costs[index]
            fresh = fresh if before else {**outcome, **fresh}
            event = ArchitectureMeasured("verify", network.id, fresh) if fresh else None
            line["measured"] = {**outcome, **measured, **cost_values[index]}
            doubtful = {name: t.doubtful for name, t in times[index].items() if t.doubtful}
            line |= {"doubtful": doubtful} if doubtful else {}
        run.folder.append(VERIFICATION_FILE, [line])
        yield line, event


def _measured_costs(
    run: Run,
    network: Network,
    times: Mapping[str, Measurement],
    untimed: Mapping[str, Collection[str]],
    known: Mapping[str, Mapping[str, KnownCost]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Costs of a network that take a measurement, and those of them measured just now."""
    costs = {name: time.value for name, time in times.items()}
    fresh = {name: value for name, value in costs.items() if network.id in untimed[name]}
    for name in [name for name in known if OBJECTIVES[name].measure is not None]:
        if network.id in known[name]:
            costs[name] = known[name][network.id].value
        else:
            assert isinstance(network, Architecture)
            costs[name] = fresh[name] = measured_cost(run, name, network)
    return costs, fresh


def _times(
    run: Run,
    name: str,
    networks: Sequence[Architecture],
    predicted: Sequence[Mapping[str, float]],
) -> tuple[Sequence[Measurement], set[str], list[Note]]:
    """A time of each network, the ids of those that had to be timed for it, and notes on that.

    One that deviates from its prediction by more than that is unsure is timed again.

    Raises:
        DataError: when the run's other networks were timed on another device.
    """
    meter = run_meter(run, OBJECTIVES[name])
    untimed = {network.id for network in networks if not meter.known(network)}
    timed = meter.measure(networks)
    notes = list(disturbances("verify", timed))
    values = list(timed.values)
    odd = [i for i, one in enumerate(values) if _unexpected(one, predicted[i], name)]
    if odd:
        again = meter.confirm([networks[i] for i in odd])
        notes += disturbances("verify", again)
        values = after_confirming(values, odd, again)
    return values, untimed, notes


def _unexpected(time: Measurement, predicted: Mapping[str, float], name: str) -> bool:
    """Whether an accepted time is further from its prediction than that is unsure."""
    middle, std = predicted[name], predicted[OBJECTIVES[name].std_name]
    most = max(MOST_STDS * std, LEAST_ODD * middle)
    return not time.doubtful and abs(time.value - middle) > most


def _num_kept(run: Run, lines: Sequence[Mapping[str, Any]]) -> int:
    """How many of the verified networks keep the limits, as far as is known.

    Doubtful ones count by their value here: where other work disturbs the timing it disturbs that
    of the next candidates as well, and asking for ever more of them would find nothing.
    """
    entries = with_confirmed(run, [journal_entry(run, line) for line in lines if not failed(line)])
    return sum(keeps(one.measured, one.predicted, run.spec.limits) for one in entries)


def plan(asked: Asked) -> Plan:
    """How much there is to do at most: what was observed before is not evaluated again.

    Where a time decides, half of the networks count as those on the front.
    """
    spec, number = asked.spec, asked.spec.budget.verified
    parts, what = evaluating(asked, number)
    for name in asked.timed:
        parts += timing_parts(asked, OBJECTIVES[name], number, confirmations=CONFIRMATIONS)
        if name in _deciding(spec):
            parts += timing_parts(asked, OBJECTIVES[name], number / 2, SESSIONS)
        if saving_of(spec.pick) is not None:
            parts += int(SAVING_SHARE * number / SAVING_WANTED) * timing_parts(
                asked, OBJECTIVES[name], 0
            )
    for name in asked.measured:
        parts.append(measuring(name, number))
    return Plan(f"up to {what}", tuple(parts))

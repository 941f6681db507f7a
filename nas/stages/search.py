"""The stages that search: prune, evolve, verify, front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latency.profile import read_profile
from nas.events import ArchitectureMeasured, Event, FrontUpdated, Note, Progress
from nas.evolution import EvolutionSettings, Generation, archive, evolve
from nas.front import FRONT_FILE, FrontEntry, build_front
from nas.objectives import BEST_BLEU, COSTS, LATENCY, QUALITY, objective
from nas.pareto import crowding_distance
from nas.pruning import PruningSettings, prune
from nas.ranking import ReportCard
from nas.scoring import network_costs
from nas.stages.base import (
    POPULATION_FILE,
    PROFILE_FILE,
    PRUNE,
    VERIFICATION_FILE,
    Run,
    size_text,
)
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from search_spaces.files import write_atomically
from search_spaces.loading import dump_space
from search_spaces.measurement import Measurement
from search_spaces.operators import largest
from search_spaces.space import Genotypes


def prune_space(run: Run) -> Iterator[Event]:
    """Cut the choices that good networks do without."""
    scorer = run.scorer
    card = ReportCard.from_json(run.folder.read_json("ranker/report_card.json"))
    rows = run.observed_rows
    objectives = scorer.score(rows).objectives
    # Quality stands first; costs of networks that were not timed stay predicted.
    objectives[:, 0] = run.qualities()
    result = prune(
        run.space,
        scorer.score,
        card,
        rows,
        objectives,
        seed=run.spec.seed * 16 + PRUNE,
        settings=PruningSettings(min_pairwise_accuracy=run.spec.budget.min_pairwise_accuracy),
    )
    write_atomically(run.folder.path / "pruned_space.toml", dump_space(result.space))
    run.folder.write_json("pruning.json", result.to_json())
    if result.refused:
        yield Note("prune", result.refused)
    cuts = "1 choice" if len(result.cuts) == 1 else f"{len(result.cuts)} choices"
    message = f"{cuts} cut, {size_text(result.space)} of {size_text(run.space)} networks remain"
    yield Progress("prune", 1, 1, message)


def evolve_population(run: Run) -> Iterator[Event]:
    """Evolve networks on predictions."""
    budget = run.spec.budget.evolution
    settings = EvolutionSettings(
        population=budget.population,
        generations=budget.generations,
        mutation_rate=budget.mutation_rate,
    )
    scorer, space = run.scorer, run.pruned
    done = [Generation.from_json(line) for line in run.folder.read_journal(POPULATION_FILE)]
    generations = evolve(
        space,
        lambda rows: scorer.score(space.translate(rows, run.space)),
        settings,
        run.spec.seed,
        done,
    )
    scored = sum(len(generation.genotypes) for generation in done)
    for generation in generations:
        run.folder.append(POPULATION_FILE, [generation.to_json()])
        scored += len(generation.genotypes)
        message = f"{scored:,} networks scored"
        yield Progress("evolve", generation.number, settings.generations, message)


def verify(run: Run) -> Iterator[Event]:
    """Really measure the best candidates, in order, until enough keep the limits."""
    candidates = _candidates(run)
    lines = {line["id"]: line for line in run.folder.read_journal(VERIFICATION_FILE)}
    wanted = min(run.spec.budget.verified, len(candidates))
    position = 0
    while position < len(candidates):
        kept = sum(_keeps_limits(run, lines.get(c.id)) for c in candidates[:position])
        if kept >= wanted:
            break
        batch = candidates[position : position + wanted - kept]
        missing = [candidate for candidate in batch if candidate.id not in lines]
        for line, fresh in _verified(run, missing):
            lines[line["id"]] = line
            if fresh:
                yield ArchitectureMeasured("verify", line["id"], fresh)
            done = min(len(lines), wanted)
            yield Progress("verify", done, wanted)
        position += len(batch)
    if not (run.folder.path / VERIFICATION_FILE).exists():
        run.folder.append(VERIFICATION_FILE, [])


def find_front(run: Run) -> Iterator[Event]:
    """Put everything that was measured together and keep what nothing dominates."""
    objectives = [objective(name, run.spec.quality) for name in run.spec.objectives]
    front = build_front(_measured(run), objectives, _reference(run), run.spec.limits)
    run.folder.write_json(FRONT_FILE, front.to_json())
    points = tuple(dict(entry.measured) for entry in front.entries)
    yield FrontUpdated("front", points, front.hypervolume)
    yield Progress("front", 1, 1, f"{len(front.entries)} networks")


@dataclass(frozen=True)
class _Candidate:
    id: str
    architecture: Architecture
    row: Genotypes


def _candidates(run: Run) -> list[_Candidate]:
    """The evolved networks that nothing dominates in prediction, roomiest first."""
    lines = run.folder.read_journal(POPULATION_FILE)
    best = archive([Generation.from_json(line) for line in lines])
    rows = run.pruned.translate(best.genotypes, run.space)
    order = np.argsort(-crowding_distance(best.objectives), kind="stable")
    networks = run.space.decode(rows)
    return [_Candidate(networks[i].id, networks[i], rows[i : i + 1]) for i in order]


def _predicted(run: Run, rows: Genotypes) -> list[dict[str, float]]:
    values = run.scorer.predict(rows)
    names = [name for name in values if name not in COSTS]
    return [{name: float(values[name][i]) for name in names} for i in range(len(rows))]


def _cost_values(run: Run, rows: Genotypes) -> list[dict[str, int]]:
    return [{"params": int(p), "flops": int(f)} for p, f in network_costs(run.space, rows)]


def _verified(
    run: Run, candidates: Sequence[_Candidate]
) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Measure candidates and journal each; what was measured before is taken from there.

    Yields:
        A line of the journal, and what of it was measured just now.
    """
    if not candidates:
        return
    rows = np.concatenate([candidate.row for candidate in candidates])
    networks = [candidate.architecture for candidate in candidates]
    known = run.observations()
    times, untimed = _times(run, networks)
    predicted, cost_values = _predicted(run, rows), _cost_values(run, rows)
    for index, network in enumerate(networks):
        before, time = known.get(network.id), times[index]
        fresh = {} if before else run.quality(network)
        measured = inherited(before or fresh)
        if time is not None:
            measured[LATENCY] = time.value
            fresh |= {LATENCY: time.value} if network.id in untimed else {}
        line = {
            "id": network.id,
            "architecture": network.to_json(),
            "predicted": predicted[index],
            "measured": measured | cost_values[index],
        }
        run.folder.append(VERIFICATION_FILE, [line])
        yield line, fresh


def _times(
    run: Run, networks: Sequence[Architecture]
) -> tuple[Sequence[Measurement | None], set[str]]:
    """The latency of each network, and the ids of those that had to be timed for it.

    Raises:
        DataError: when the run's other networks were timed on another device.
    """
    if not run.spec.needs_latency:
        return [None] * len(networks), set()
    meter = run.meter()
    other = read_profile(run.folder.path / PROFILE_FILE).header.difference(meter.header)
    if other is not None:
        raise DataError(
            f"the networks of this run were timed elsewhere: {other}; go on with the run there, "
            "or start a new one here"
        )
    untimed = {network.id for network in networks if not meter.known(network)}
    return meter.measure(networks), untimed


def _keeps_limits(run: Run, line: Mapping[str, Any] | None) -> bool:
    limits_ = run.spec.limits.items()
    return line is not None and all(line["measured"][name] <= most for name, most in limits_)


def _measured(run: Run) -> list[FrontEntry]:
    """Every network all of whose objectives were really measured."""
    verified = run.folder.read_journal(VERIFICATION_FILE)
    entries = {line["id"]: _front_entry(line) for line in verified}
    times = run.timed()
    rows = [i for i, n in enumerate(run.space.decode(run.observed_rows)) if n.id not in entries]
    if run.spec.needs_latency:
        networks = run.space.decode(run.observed_rows)
        rows = [i for i in rows if networks[i].id in times]
    if rows:
        chosen = run.observed_rows[rows]
        known = run.observations()
        networks = run.space.decode(chosen)
        details = zip(networks, _predicted(run, chosen), _cost_values(run, chosen), strict=True)
        for network, predicted, cost_values in details:
            line = known[network.id]
            measured = inherited(line)
            if network.id in times:
                measured[LATENCY] = times[network.id]
            measured |= cost_values
            entries[network.id] = FrontEntry(network.id, network, measured, predicted)
    return list(entries.values())


def inherited(line: Mapping[str, Any]) -> dict[str, float]:
    """What was measured of a network with inherited weights, out of its line in the journal."""
    return {name: value for name, value in line.items() if name not in ("id", "architecture")}


def _front_entry(line: Mapping[str, Any]) -> FrontEntry:
    architecture = Architecture.from_json(line["architecture"])
    return FrontEntry(line["id"], architecture, line["measured"], line["predicted"])


def _reference(run: Run) -> list[float]:
    """A network that guesses and costs as much as the largest: nothing worse is of use."""
    top = largest(run.space)
    params, flops = network_costs(run.space, top)[0]
    values = {
        QUALITY: BEST_BLEU if run.spec.quality == "bleu" else math.log(run.task.num_outcomes),
        "params": float(params),
        "flops": float(flops),
    }
    if run.spec.needs_latency:
        values[LATENCY] = run.timed()[run.space.decode(top)[0].id]
    return [values[name] for name in run.spec.objectives]

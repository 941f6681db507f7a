"""Everything that a run has measured of its networks so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nas.executors.base import Failure, Outcome
from nas.objectives import OBJECTIVES, exact
from nas.objectives.latency_limits import ConfirmedLatency
from nas.results.failures import FAILED, failed
from nas.run.layout import HOLDING_FILE, VERIFICATION_FILE
from nas.search.front import FrontEntry, confirmed_by_id, in_sessions
from nas.stages.base import KnownCost, Run
from search_spaces.genotypes import Genotypes, GenotypeSpace


def measured_entries(run: Run) -> list[FrontEntry]:
    """Every network all of whose objectives were measured, as far as they can be."""
    verified = run.folder.read_journal(VERIFICATION_FILE)
    entries = {line["id"]: journal_entry(run, line) for line in verified if not failed(line)}
    costs = run.measured_costs()
    networks = run.domain.decode(run.observed_rows)
    rows = [i for i, network in enumerate(networks) if network.id not in entries]
    if run.elsewhere is None:
        rows = [i for i in rows if all(networks[i].id in known for known in costs.values())]
    if rows:
        chosen = run.observed_rows[rows]
        known = run.observations()
        networks = run.domain.decode(chosen)
        details = zip(
            networks, predicted_values(run, chosen), exact_costs(run, chosen), strict=True
        )
        for network, predicted, cost_values in details:
            line = known[network.id]
            measured = observed_values(line) | cost_values
            entries[network.id] = FrontEntry(network.id, network, measured, predicted)
    return [_with_costs(entry, costs) for entry in entries.values()]


def with_confirmed(run: Run, entries: Sequence[FrontEntry]) -> list[FrontEntry]:
    """The entries, with what the sessions said so far, see `in_sessions`."""
    names = (*run.spec.objectives, *run.spec.limits)
    return in_sessions(entries, read_confirmed(run), names, run.domain)


def read_confirmed(run: Run) -> dict[str, dict[str, ConfirmedLatency]]:
    """What was timed in sessions so far: architecture id → timed objective → what they said."""
    return confirmed_by_id(run.folder.read_journal(HOLDING_FILE))


def _with_costs(entry: FrontEntry, known: Mapping[str, Mapping[str, KnownCost]]) -> FrontEntry:
    """The entry with what was measured for predictors; what verification measured goes first."""
    there = {name: values[entry.id] for name, values in known.items() if entry.id in values}
    values = {name: one.value for name, one in there.items()}
    doubts = {
        name: one.doubtful
        for name, one in there.items()
        if one.doubtful and name not in entry.measured
    }
    return replace(
        entry, measured={**values, **entry.measured}, doubtful={**entry.doubtful, **doubts}
    )


def recorded(line: Mapping[str, Any]) -> Outcome:
    """What came of a network, out of its line in the journal."""
    return Failure.from_json(line[FAILED]) if failed(line) else observed_values(line)


def observed_values(line: Mapping[str, Any]) -> dict[str, float]:
    """What was observed of a network, out of its line in the journal."""
    return {name: value for name, value in line.items() if name not in ("id", "architecture")}


def journal_entry(run: Run, line: Mapping[str, Any]) -> FrontEntry:
    """A network that was verified, out of its line in the journal."""
    network = run.domain.network(line["architecture"])
    return FrontEntry(
        line["id"], network, line["measured"], line["predicted"], line.get("doubtful", {})
    )


def predicted_values(run: Run, rows: Genotypes) -> list[dict[str, float]]:
    """What the predictors say of each of the networks ``(N, S)``, by name."""
    values = run.scorer.predict(rows)
    names = [name for name in values if name not in run.costs.exact]
    return [{name: float(values[name][i]) for name in names} for i in range(len(rows))]


def exact_costs(
    run: Run, rows: Genotypes, space: GenotypeSpace | None = None
) -> list[dict[str, float]]:
    """What is counted of each of the networks ``(N, S)``, by name.

    Args:
        run: the run.
        rows: the networks.
        space: of the rows; the run's own if not given.
    """
    found = exact(space or run.domain, rows, (*run.spec.objectives, *run.spec.limits))
    if not found:
        return [{} for _ in rows]
    columns = [
        [int(value) if OBJECTIVES[name].whole else float(value) for value in values]
        for name, values in found.items()
    ]
    return [dict(zip(found, values, strict=True)) for values in zip(*columns, strict=True)]

"""The stage that measures the peak memory of sampled networks."""

from __future__ import annotations

from collections.abc import Iterator

from latency.predictor import LatencyPredictor
from nas.objectives import MEMORY
from nas.run.events import ArchitectureMeasured, Event, Progress
from nas.run.layout import MEMORY_FILE, MEMORY_PREDICTOR_FILE
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.encoding import encode_features


def work(run: Run) -> Iterator[Event]:
    """Measure a sample of networks and fit the predictor, or take both from a profile."""
    if run.carried is not None:
        (workload,) = run.carried.workloads
        run.folder.forget("memory", (MEMORY_FILE,))
        measured = [(one.architecture, one.peak_memory_mb) for one in workload.measured]
        run.folder.append(MEMORY_FILE, [_line(*one) for one in measured])
        run.folder.write_json(MEMORY_PREDICTOR_FILE, workload.memory.to_json())
        yield Progress("memory", len(measured), len(measured), "from the profile")
        return
    rows = run.sampled_rows[: run.spec.budget.latency_samples]
    networks = run.space.decode(rows)
    known = run.memory_mb()
    for number, network in enumerate(networks, start=1):
        if network.id not in known:
            known[network.id] = memory_of(run, network)
            run.folder.append(MEMORY_FILE, [_line(network, known[network.id])])
            yield ArchitectureMeasured("memory", network.id, {MEMORY: known[network.id]})
        yield Progress("memory", number, len(networks))
    predictor = LatencyPredictor.fit(
        encode_features(run.space, rows),
        [known[network.id] for network in networks],
        baselines={"depth": run.space.depths(rows, run.space.stacks[-1])},
        seed=run.spec.seed,
    )
    run.folder.write_json(MEMORY_PREDICTOR_FILE, predictor.to_json())
    report = predictor.report
    message = f"{report.chosen}, error {report.mape:.1%}"
    yield Progress("memory", len(networks), len(networks), message)


def memory_of(run: Run, network: Architecture) -> float:
    """The peak memory of a network at the space's workload on the run's device, in megabytes."""
    return round(run.executor.memory_mb(run.spec, network), 6)


def _line(network: Architecture, megabytes: float) -> dict[str, object]:
    return {"id": network.id, "architecture": network.to_json(), MEMORY: megabytes}

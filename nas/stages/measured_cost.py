"""A cost that is measured on the device once for each network of a sample, and predicted else."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives import Objective, timed_workload
from nas.profiling.fitting import fit_predictor
from nas.run.duration import MEASUREMENT, Part
from nas.run.events import ArchitectureMeasured, Event, Progress
from nas.run.layout import measured_file, predictor_file
from nas.stages.base import Run
from search_spaces.architecture import Architecture


def measure_sample(run: Run, cost: Objective) -> Iterator[Event]:
    """Measure a sample of networks and fit the predictor, or take both from a profile."""
    name, stage, journal = cost.name, cost.stage, measured_file(cost.stage)
    if run.device_profile is not None:
        workload = run.device_profile.of(timed_workload(run.space, cost.mode))
        run.folder.forget(stage, (journal,))
        measured = [(one.architecture, one.cost(name)) for one in workload.measured]
        run.folder.append(journal, [_line(network, name, value) for network, value in measured])
        run.folder.write_json(predictor_file(stage), workload.predictor(name).to_json())
        yield Progress(stage, len(measured), len(measured), "from the profile")
        return
    rows = run.timed_rows
    networks = run.space.decode(rows)
    known = {key: one.value for key, one in run.measured_costs()[name].items()}
    for number, network in enumerate(networks, start=1):
        if network.id not in known:
            known[network.id] = measured_cost(run, name, network)
            run.folder.append(journal, [_line(network, name, known[network.id])])
            yield ArchitectureMeasured(stage, network.id, {name: known[network.id]})
        yield Progress(stage, number, len(networks))
    values = [known[network.id] for network in networks]
    predictor = fit_predictor(run.space, rows, values, run.spec.seed)
    run.folder.write_json(predictor_file(stage), predictor.to_json())
    report = predictor.report
    message = f"{report.chosen}, error {report.mape:.1%}"
    yield Progress(stage, len(networks), len(networks), message)


def measured_cost(run: Run, name: str, network: Architecture) -> float:
    """A cost of a network at the space's workload on the run's device."""
    return round(run.executor.measure(run.spec, name, network), 6)


def _line(network: Architecture, name: str, value: float) -> dict[str, object]:
    return {"id": network.id, "architecture": network.to_json(), name: value}


def measuring(name: str, number: float) -> Part:
    """What measuring a cost of so many networks takes."""
    return Part(f"{MEASUREMENT}: {name}", number)

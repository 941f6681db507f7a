"""A time of networks: a sample is timed, or taken from a device profile, and the rest predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from latency.acceptance import (
    MOST_UNIT_SESSIONS,
    UNIT_SESSIONS,
    UNIT_SPACING_S,
    most_sessions,
    patience_s,
    wanted_sessions,
)
from latency.device import DeviceFingerprint
from latency.predictor import LatencyPredictor, believed
from latency.timings import open_timings, read_timings
from nas.executors.base import Meter
from nas.objectives import Objective, timed_workload
from nas.objectives.latency_limits import Timed
from nas.profiling.device_profile import DeviceProfile
from nas.profiling.fitting import fit_predictor
from nas.profiling.latency_meter import CONFIRMATIONS
from nas.profiling.timed_work import (
    YARDSTICK_COPIES,
    num_sessions,
    reference_copies,
    session_rounds,
)
from nas.run.duration import SECOND, TIMING, Asked, Part, Plan, counted
from nas.run.events import ArchitectureMeasured, Event, Note, Progress
from nas.run.layout import predictor_file, profile_file
from nas.search.doubtful import disturbances, predictor_off, unlike_the_others
from nas.search.uniform_networks import middle
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from search_spaces.measurement import Measurement
from search_spaces.space import Genotypes

DOUBTFUL_WEIGHT = 0.1
# Of the minute in which a device has shown how fast it is, the shares that go by on the whole where
# its speed looks even, and where it comes and goes.
UNWATCHED = (1 / 3, 2 / 3)


def run_meter(run: Run, cost: Objective) -> Meter:
    """What times further networks of a run whose sample was timed.

    Raises:
        DataError: when the sample was timed on another device.
    """
    meter = run.meter(cost)
    known = read_timings(run.folder.path / profile_file(cost.stage)).header
    if (other := known.difference(meter.header)) is not None:
        raise DataError(
            f"the networks of this run were timed elsewhere: {other}; go on with the run there, "
            "or start a new one here"
        )
    return meter


def time_sample(run: Run, cost: Objective) -> Iterator[Event]:
    """Time a sample of networks and fit the predictor, or take both from a profile."""
    if run.device_profile is not None:
        yield from _take_profile(run, cost, run.device_profile)
        return
    stage = cost.stage
    meter = run.meter(cost)
    rows = run.timed_rows
    networks = run.space.decode(rows)
    fresh = [network for network in networks if not meter.known(network)]
    yield Progress(stage, 0, len(networks), f"{len(fresh)} to time, the rest known")
    timed = meter.measure(networks)
    yield from disturbances(stage, timed, predicted=False)
    measured, predictor = list(timed.values), _fitted(run, rows, timed.values)
    if odd := _odd(predictor, measured):
        again = meter.confirm([networks[i] for i in odd])
        yield from disturbances(stage, again, predicted=False)
        measured = after_confirming(measured, odd, again)
        predictor = _fitted(run, rows, measured)
    if note := unlike_the_others(stage, _unlike(predictor, networks, measured), len(networks)):
        yield note
    path = run.folder.path / profile_file(stage)
    path.unlink(missing_ok=True)  # of a run cut short; the device's own profile has it all
    open_timings(path, meter.header).record(list(zip(networks, measured, strict=True)))
    new = {network.id for network in fresh}
    for network, value in zip(networks, measured, strict=True):
        if network.id in new:
            yield ArchitectureMeasured(stage, network.id, {cost.name: value.value})
    run.folder.write_json(predictor_file(stage), predictor.to_json())
    report = predictor.report
    if off := predictor_off(report.mape, what=cost.label):
        yield Note(stage, off, loud=True)
    message = f"{report.chosen}, error {report.mape:.1%}"
    yield Progress(stage, len(networks), len(networks), message)


def after_confirming(
    measured: Sequence[Measurement], odd: Sequence[int], again: Timed[Measurement]
) -> list[Measurement]:
    """What was measured once some of it was timed again, all in the unit that was found then.

    Args:
        measured: of some networks.
        odd: the numbers of those that were timed again.
        again: what was found of them, in that order.
    """
    factor = again.shorter
    found = [replace(one, value=one.value * factor, spread=one.spread * factor) for one in measured]
    for number, value in zip(odd, again.values, strict=True):
        found[number] = value
    return found


def _odd(predictor: LatencyPredictor, measured: Sequence[Measurement]) -> list[int]:
    """Numbers of the accepted networks that take otherwise than the others let expect."""
    fitted = np.flatnonzero(believed(measured))
    odd = [int(number) for number in fitted[predictor.unexpected()]]
    return [number for number in odd if not measured[number].doubtful]


def _unlike(
    predictor: LatencyPredictor, networks: Sequence[Architecture], measured: Sequence[Measurement]
) -> list[tuple[str, float, float]]:
    """Id, measured and expected ms of the networks that stay odd."""
    assert predictor.held_out_ms is not None
    fitted = np.flatnonzero(believed(measured))
    expected = dict(zip(fitted.tolist(), predictor.held_out_ms.tolist(), strict=True))
    odd = _odd(predictor, measured)
    return [(networks[i].id, measured[i].value, expected[i]) for i in odd]


def _fitted(run: Run, rows: Genotypes, measured: Sequence[Measurement]) -> LatencyPredictor:
    """The predictor of what was timed."""
    kept = believed(measured)
    values = [value for value, keep in zip(measured, kept, strict=True) if keep]
    weights = [DOUBTFUL_WEIGHT if value.doubtful else 1.0 for value in values]
    times = [value.value for value in values]
    return fit_predictor(run.space, rows[kept], times, run.spec.seed, weights)


def _take_profile(run: Run, cost: Objective, device_profile: DeviceProfile) -> Iterator[Event]:
    """Leave the profile's measurements and its predictor where a timed run leaves its own."""
    stage, known = cost.stage, device_profile.of(timed_workload(run.space, cost.mode))
    path = run.folder.path / profile_file(stage)
    path.unlink(missing_ok=True)
    measured = [(one.architecture, one.latency) for one in known.measured]
    open_timings(path, device_profile.header(known.workload)).record(measured)
    run.folder.write_json(predictor_file(stage), known.latency.to_json())
    if run.elsewhere is not None:
        why = _difference(device_profile, run.executor.device(run.spec))
        text = f"{cost.label} is predicted for {run.elsewhere} and not measured: {why}"
        yield Note(stage, text)
    report = known.latency.report
    message = f"{len(measured)} from the profile, {report.chosen}, error {report.mape:.1%}"
    yield Progress(stage, len(measured), len(measured), message)


def _difference(device_profile: DeviceProfile, device: DeviceFingerprint | None) -> str:
    if device is None:
        return "no worker offers its device for timing"
    here, there = device.to_json(), device_profile.device.to_json()
    names = [name for name in here | there if here.get(name) != there.get(name)]
    return (
        f"this device differs in {', '.join(names)} (here {_values(here, names)}; "
        f"there {_values(there, names)})"
    )


def _values(device: dict[str, object], names: list[str]) -> str:
    # A field that may be missing is the runtime, and then it is torch.
    return ", ".join(str(device.get(name, "torch")) for name in names)


def sample_plan(asked: Asked, cost: Objective) -> Plan:
    """How much there is to do to time a sample: sessions of it, and of the reference alone.

    Where nothing was timed yet the reference is timed more often, with pauses, and on a device
    whose speed is not known often enough to find that.
    """
    budget = asked.spec.budget
    if asked.spec.device_profile is not None:
        return Plan("takes times and predictor from the device profile")
    number = asked.untimed.get(cost.name, budget.latency_samples)
    what = f"{counted(number, 'network')} to time"
    if known := budget.latency_samples - number:
        what += f", {known:,} known"
    parts = timing_parts(asked, cost, number, confirmations=CONFIRMATIONS) if number else []
    if number and cost.name in asked.new_units:
        beside, usual = _beside(asked), sessions_of(asked)
        more, most = UNIT_SESSIONS - usual, MOST_UNIT_SESSIONS - most_sessions(usual)
        unit = timing_unit(cost.name)
        parts.append(Part(unit, max(0, more) * beside, most=max(0, more, most) * beside))
        few_s, most_s = ((n - 1) * UNIT_SPACING_S for n in (UNIT_SESSIONS, MOST_UNIT_SESSIONS))
        even, uneven = (0.0, 0.0) if asked.watched else UNWATCHED
        pauses_s, longer_s = (few_s + share * (most_s - few_s) for share in (even, uneven))
        parts.append(Part(SECOND, pauses_s, most=most_s, uneven=longer_s))
    return Plan(what, tuple(parts))


def timing_parts(
    asked: Asked, cost: Objective, number: float, sessions: int = 0, confirmations: int = 0
) -> list[Part]:
    """What timing so many networks together takes, and waiting for a quiet machine at most.

    Args:
        asked: the request.
        cost: that they are timed for.
        number: of the networks.
        sessions: in which they are timed; as many as usual if 0.
        confirmations: how often at most the few that were not expected are timed again.
    """
    sessions, beside = sessions or sessions_of(asked), _beside(asked)
    longest = most_sessions(sessions)
    most = longest * (number + (1 + confirmations) * beside)
    uneven = (sessions + longest) / 2 * (number + beside)  # half of them are timed to the end
    return [
        Part(timing_unit(cost.name), sessions * (number + beside), most=most, uneven=uneven),
        Part(SECOND, 0.0, most=(1 + confirmations) * patience_s()),
    ]


def sessions_of(asked: Asked) -> int:
    """Sessions in which networks are timed."""
    return wanted_sessions(num_sessions(asked.spec.budget.timing_rounds))


def _beside(asked: Asked) -> int:
    """Calls that a session times beside the networks: copies of the reference and the yardstick."""
    space, rounds = asked.spec.space, session_rounds(asked.spec.budget.timing_rounds)
    return reference_copies(space, space.decode(middle(space))[0], rounds) + YARDSTICK_COPIES


def timing_unit(name: str) -> str:
    """The unit of a calibration that a network's timing for an objective counts in."""
    return f"{TIMING}: {name}"

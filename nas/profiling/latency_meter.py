"""Times networks of a space on this machine, each one once, all in one unit.

Between two sessions a machine gets slower or faster. So every session times a reference network
as well, the first one the profile ever held, and a network's time is its ratio to the reference
times the unit: what the reference takes undisturbed. Later sessions, of whatever was timed on this
machine meanwhile, may find that to be less than the first ones did; then all times of the profile
become shorter by the same factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from latency import acceptance
from latency.acceptance import (
    UNIT_FASTEST,
    Reading,
    SessionTimes,
    Settled,
    Verdict,
    agree,
    calm_ones,
    speed_sessions,
    unit_of,
)
from latency.device import describe_device
from latency.timing import Timing
from latency.timings import (
    TimingHeader,
    TimingJournal,
    default_timings_path,
    open_timings,
    sibling,
)
from latency.workload import Mode
from latency.yardstick import SpeedRecord
from nas.objectives import timed_workload
from nas.objectives.latency_limits import SESSIONS, ConfirmedLatency, Timed, upper_of_median
from nas.profiling.device_profile import DeviceProfile, settings_digest
from nas.profiling.timed_work import (
    num_sessions,
    session_rounds,
    time_session,
    time_until_accepted,
)
from nas.request.spec import SearchSpec
from nas.request.workloads import check_runtime, check_workload
from nas.run.evaluator import use_threads
from nas.search.uniform_networks import middle
from search_spaces.architecture import Architecture
from search_spaces.measurement import Measurement

CONFIRMATIONS = 2
KEPT_READINGS = 100  # of the reference, and its fastest ones


class LatencyMeter:
    """Times networks of a run's space on its device.

    What was timed and accepted is kept in the device's profile in the user's cache folder: a
    network is not timed again by a later run, which is what makes a search with latency repeatable.
    What is doubtful is kept nowhere but in the run that asked for it.

    Args:
        spec: its space's workload is timed on its device.
        device_profile: a profile of this very device, that workload among its own; its networks are
            known, and its reference network sets the unit.
        mode: of the workload that is timed; None for the workload's own.

    Raises:
        UsageError: when the workload is not something the space's networks can do, or the device.
    """

    def __init__(
        self,
        spec: SearchSpec,
        device_profile: DeviceProfile | None = None,
        mode: Mode | None = None,
    ) -> None:
        use_threads(spec)
        self._space = spec.space
        self._device = spec.device
        self._rounds = spec.budget.timing_rounds
        self.workload = timed_workload(spec.space, mode)
        check_workload(spec.space, self.workload)
        check_runtime(self.workload, spec.device)
        self.header = TimingHeader(
            describe_device(spec.device), self.workload, settings_digest(spec.space)
        )
        self._speed = SpeedRecord(self.header.device, self.workload.dtype)
        self._speed.read()  # a damaged file is told before anything is computed
        path = _path(self.header, device_profile)
        self._profile: TimingJournal = open_timings(path, self.header)
        self._in_sessions = open_timings(sibling(path, "held"), self.header)
        self._confirmed = open_timings(sibling(path, "confirmed"), self.header)
        if device_profile is not None and not len(self._profile):
            measured = device_profile.of(self.workload).measured
            known = [(one.architecture, one.latency) for one in measured]
            self._profile.record([pair for pair in known if not pair[1].doubtful])

    def known(self, architecture: Architecture) -> bool:
        """Whether a network needs no timing."""
        return self._profile.get(architecture.id) is not None

    def measure(self, architectures: Sequence[Architecture]) -> Timed[Measurement]:
        """Milliseconds of each network, timing together those not in the profile."""
        return self._measure(self._profile, architectures, num_sessions(self._rounds))

    def confirm(self, architectures: Sequence[Architecture]) -> Timed[Measurement]:
        """Time networks again whose accepted values were not expected.

        Two timings that agree are believed, of up to three. Where no two do the network is
        doubtful, and forgotten. What was confirmed once is not timed again, also by a later run.
        """
        with self._profile.timing():
            self._confirmed.refresh()
            # The reference sets the unit: beside itself it takes what it took.
            asked = [one for one in architectures if one.id != self._reference()[0].id]
            asked = [one for one in asked if self.known(one)]
            unsure = [one for one in asked if self._confirmed.get(one.id) is None]
            said: dict[str, list[Verdict]] = {one.id: [] for one in unsure}
            unit_ms = self._reference()[1]
            repeated, waited_s = 0, 0.0
            for _ in range(CONFIRMATIONS):
                if not unsure:
                    break
                settled, _ = self._time(unsure, num_sessions(self._rounds))
                repeated, waited_s = repeated + settled.repeated, waited_s + settled.waited_s
                for network, verdict in zip(unsure, settled.calls, strict=True):
                    said[network.id].append(verdict)
                unsure = [one for one in unsure if _agreeing(self._said(one, said[one.id])) is None]
            doubtful = self._settle_confirmed(asked, said)
            shorter = self._shorter(unit_ms)
        others = [one for one in architectures if one.id not in doubtful]
        # Those among them are timed that another process has just forgotten.
        timed = self.measure(others)
        known = dict(zip((one.id for one in others), timed.values, strict=True)) | doubtful
        return Timed(
            tuple(known[one.id] for one in architectures),
            repeated + timed.repeated,
            waited_s + timed.waited_s,
            shorter * timed.shorter,
        )

    def in_sessions(self, architectures: Sequence[Architecture]) -> Timed[ConfirmedLatency]:
        """Time each network in several short sessions, unless that was done before."""
        self.measure([])  # there must be a reference
        timed = self._measure(self._in_sessions, architectures, SESSIONS)
        values = tuple(
            ConfirmedLatency(one.value, one.value + one.spread, one.count, one.doubtful)
            for one in timed.values
        )
        return Timed(values, timed.repeated, timed.waited_s, timed.shorter)

    def time_afresh(
        self, architectures: Sequence[Architecture], sessions: int
    ) -> list[list[float]]:
        """Milliseconds of each network in each calm one of some new sessions, which are not kept.

        Returns:
            For each network one value a session, in the unit of the profile.
        """
        with self._profile.timing():
            settled, unit_ms = self._time(architectures, sessions)
        return [[ratio * unit_ms for ratio in one.ratios] for one in settled.calls]

    def forget(self) -> None:
        """Time everything of this device, workload and space anew from now on.

        Raises:
            NasError: when another process that times it takes too long.
        """
        with self._profile.timing():
            for profile in (self._profile, self._in_sessions, self._confirmed):
                profile.refresh()
                profile.drop(list(profile.entries))

    # -- timing -----------------------------------------------------------------------------

    def _measure(
        self, profile: TimingJournal, architectures: Sequence[Architecture], sessions: int
    ) -> Timed[Measurement]:
        """What a profile has of the networks; what it lacks is timed, and kept if accepted."""
        if not _missing(profile, architectures) and len(self._profile):
            return Timed(self._values(profile, architectures, {}))
        with self._profile.timing():
            profile.refresh()
            missing, before_ms = _missing(profile, architectures), self._reference()[1]
            settled, unit_ms = self._time(missing, sessions)
            doubtful = self._keep(profile, missing, settled, unit_ms)
            shorter = self._shorter(before_ms)
            slower = settled.unit.own_ms / unit_ms if before_ms is None else 1.0
        values = self._values(profile, architectures, doubtful)
        return Timed(values, settled.repeated, settled.waited_s, shorter, slower)

    def _values(
        self,
        profile: TimingJournal,
        architectures: Sequence[Architecture],
        doubtful: Mapping[str, Measurement],
    ) -> tuple[Measurement, ...]:
        values = [doubtful.get(one.id) or profile.get(one.id) for one in architectures]
        return tuple(value for value in values if value is not None)

    def _time(self, architectures: Sequence[Architecture], sessions: int) -> tuple[Settled, float]:
        """The networks beside the reference, and what the reference takes in the profile's unit."""
        reference, unit_ms = self._reference()
        rounds = session_rounds(self._rounds)

        def session(numbers: Sequence[int]) -> SessionTimes:
            asked = [architectures[number] for number in numbers]
            return time_session(self._space, reference, asked, self.workload, self._device, rounds)

        settled = time_until_accepted(
            session, len(architectures), self._device, sessions, unit_ms, self._speed.read()
        )
        speed = self._speed.add(speed_sessions(settled.reference.readings))
        if unit_ms is not None:
            return settled, self._faster_unit(settled, reference, unit_ms, speed.quiet_ms)
        unit_ms, verdict = settled.unit.ms, settled.reference
        if verdict.doubt:
            return settled.doubting(f"the reference network: {verdict.doubt}"), unit_ms
        every = [ms for one in verdict.counted for ms in one.reference_ms]
        value = Timing(tuple(every)).measurement(self.header.device.label)
        unit = replace(value, value=unit_ms)
        self._profile.record([(reference, unit)], {reference.id: verdict.readings})
        return settled, unit_ms

    def _faster_unit(
        self, settled: Settled, reference: Architecture, unit_ms: float, quiet_ms: float | None
    ) -> float:
        """The unit after some more sessions, to which everything that was timed is brought."""
        calm = calm_ones((*self._profile.readings(reference.id), *settled.reference.readings))
        if len(calm) < UNIT_FASTEST:
            return unit_ms
        faster_ms = unit_of(calm, quiet_ms, acceptance.TOLERANCES).ms
        if unit_ms / faster_ms - 1 > acceptance.TOLERANCES.gain:
            for profile in (self._profile, self._in_sessions, self._confirmed):
                profile.rescale(faster_ms / unit_ms)
            unit_ms = faster_ms
        value = self._profile.get(reference.id)
        assert value is not None
        fastest = sorted(calm, key=lambda one: one.took_ms)[:UNIT_FASTEST]
        kept = [one for one in calm[:-KEPT_READINGS] if one in fastest]
        self._profile.replace([(reference, value, [*kept, *calm[-KEPT_READINGS:]])])
        return unit_ms

    def _shorter(self, before_ms: float | None) -> float:
        """Today's unit as a share of an earlier one; 1 where there was none."""
        unit_ms = self._reference()[1]
        return 1.0 if before_ms is None or unit_ms is None else unit_ms / before_ms

    def _reference(self) -> tuple[Architecture, float | None]:
        if not len(self._profile):
            return self._space.decode(middle(self._space))[0], None
        architecture, measurement = next(iter(self._profile.entries.values()))
        return architecture, measurement.value

    def _keep(
        self,
        profile: TimingJournal,
        architectures: Sequence[Architecture],
        settled: Settled,
        unit_ms: float,
    ) -> dict[str, Measurement]:
        """Put what is accepted into a profile.

        Returns:
            What is doubtful, by id.
        """
        label = self.header.device.label
        accepted: list[tuple[Architecture, Measurement]] = []
        doubtful: dict[str, Measurement] = {}
        readings: dict[str, Sequence[Reading]] = {}
        for network, verdict in zip(architectures, settled.calls, strict=True):
            value = verdict.measurement(unit_ms, label)
            if profile is self._in_sessions:
                values = [ratio * unit_ms for ratio in verdict.ratios]
                margin = max(0.0, upper_of_median(values) - value.value)
                value = replace(value, spread=margin, count=len(values))
            if verdict.doubt:
                doubtful[network.id] = value
            else:
                accepted.append((network, value))
                readings[network.id] = verdict.readings
        profile.record(accepted, readings)
        return doubtful

    # -- confirming -------------------------------------------------------------------------

    def _said(
        self, network: Architecture, verdicts: Sequence[Verdict]
    ) -> list[tuple[Measurement, Sequence[Reading]]]:
        """What the profile has of a network, and what it took since then, in today's unit."""
        value, (_, unit_ms) = self._profile.get(network.id), self._reference()
        assert value is not None and unit_ms is not None
        label = self.header.device.label
        later = [(one.measurement(unit_ms, label), one.readings) for one in verdicts]
        return [(value, self._profile.readings(network.id)), *later]

    def _settle_confirmed(
        self,
        asked: Sequence[Architecture],
        said: Mapping[str, Sequence[Verdict]],
    ) -> dict[str, Measurement]:
        """Keep what two timings agree on, and forget the rest.

        Returns:
            What is doubtful, by id.
        """
        doubtful: dict[str, Measurement] = {}
        for network in asked:
            if network.id not in said:
                continue
            timings = self._said(network, said[network.id])
            value = _agreeing(timings)
            if value is None:
                listed = " ms, ".join(f"{one.value:.3g}" for one, _ in timings)
                doubt = f"it was not expected, and timings of it do not agree: {listed} ms"
                doubtful[network.id] = replace(timings[-1][0], doubtful=doubt)
                self._profile.drop([network.id])
                continue
            readings = [reading for _, part in timings for reading in part]
            self._profile.replace([(network, value, readings)])
            self._confirmed.record([(network, value)])
        return doubtful


def _missing(profile: TimingJournal, architectures: Sequence[Architecture]) -> list[Architecture]:
    distinct = {one.id: one for one in architectures}
    return [one for key, one in distinct.items() if profile.get(key) is None]


def _agreeing(
    timings: Sequence[tuple[Measurement, Sequence[Reading]]],
) -> Measurement | None:
    """The earliest accepted value that the last one agrees with; None where there is none."""
    *earlier, last = [value for value, _ in timings]
    if last.doubtful:
        return None
    for value in earlier:
        if not value.doubtful and agree(value.value, last.value):
            return value
    return None


def _path(header: TimingHeader, device_profile: DeviceProfile | None) -> Path:
    path = default_timings_path(header)
    return (
        path
        if device_profile is None
        else path.with_stem(f"{path.stem}-{device_profile.digest[:16]}")
    )

"""Times networks of a space on this machine, each one once, all in one unit.

Between two sessions a machine gets slower or faster. So every session times a reference network
as well, the first one the profile ever held, and a network's time is its ratio to the reference
times what the reference took at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latency.device import describe_device
from latency.profile import DeviceProfile, ProfileHeader, default_profile_path, open_profile
from latency.timer import Timing
from latency.workload import Workload
from nas.holding import SESSIONS, Held, upper_of_median
from nas.kinds import middle
from nas.profiling.device_profile import CarriedProfile, settings_digest
from nas.profiling.timed_work import SESSION_ROUNDS, time_networks
from nas.profiling.workloads import check_workload
from nas.run.evaluator import use_threads
from nas.run.spec import SearchSpec
from search_spaces.architecture import Architecture
from search_spaces.measurement import Measurement


class LatencyMeter:
    """Times networks of a run's space on its device.

    What was timed is kept in the device's profile in the user's cache folder: a network is not
    timed again by a later run, which is what makes a search with latency repeatable.

    Args:
        spec: its space's workload is timed on its device.
        carried: a profile of this very device, with that workload alone; its networks are known,
            and its reference network sets the unit.

    Raises:
        UsageError: when the workload is not something the space's networks can do.
    """

    def __init__(self, spec: SearchSpec, carried: CarriedProfile | None = None) -> None:
        use_threads(spec)
        self._space = spec.space
        self._device = spec.device
        self._rounds = spec.budget.timing_rounds
        self.workload = Workload.from_mapping(spec.space.workload)
        check_workload(spec.space, self.workload)
        self.header = ProfileHeader(
            describe_device(spec.device), self.workload, settings_digest(spec.space)
        )
        path = _path(self.header, carried)
        self._profile: DeviceProfile = open_profile(path, self.header)
        self._held = open_profile(path.with_suffix(".held.jsonl"), self.header)
        if carried is not None and not len(self._profile):
            (workload,) = carried.workloads
            self._profile.record([(one.architecture, one.latency) for one in workload.measured])

    def known(self, architecture: Architecture) -> bool:
        """Whether a network needs no timing."""
        return self._profile.get(architecture.id) is not None

    def measure(self, architectures: Sequence[Architecture]) -> list[Measurement]:
        """Median milliseconds of each network, timing together those not in the profile."""
        if len(self._profile):
            return self._profile.measure(architectures, self._time)
        reference = self._space.decode(middle(self._space))[0]
        return self._profile.measure([reference, *architectures], self._time)[1:]

    def hold(self, architectures: Sequence[Architecture]) -> list[Held]:
        """Time each network in several short sessions, unless that was done before."""
        self.measure([])  # there must be a reference
        measured = self._held.measure(architectures, self._time_in_sessions)
        return [Held(one.value, one.value + one.spread, one.count) for one in measured]

    def time_afresh(
        self, architectures: Sequence[Architecture], sessions: int
    ) -> list[list[float]]:
        """Milliseconds of each network in each of some new sessions, which are not kept.

        Returns:
            For each network one value a session, in the unit of the profile.
        """
        reference, unit_ms = self._reference()
        rounds = min(SESSION_ROUNDS, self._rounds)
        values: list[list[float]] = [[] for _ in architectures]
        for _ in range(sessions):
            beside, timings = time_networks(
                self._space, reference, architectures, self.workload, self._device, rounds
            )
            for network, timing in zip(values, timings, strict=True):
                network.append(timing.ratio(beside) * unit_ms)
        return values

    def _reference(self) -> tuple[Architecture, float]:
        architecture, measurement = next(iter(self._profile.entries.values()))
        return architecture, measurement.value

    def _time(self, architectures: list[Architecture]) -> list[Measurement]:
        label, known = self.header.device.label, len(self._profile) > 0
        reference = self._reference()[0] if known else architectures[0]
        others = architectures if known else architectures[1:]
        beside, timings = time_networks(
            self._space, reference, others, self.workload, self._device, self._rounds
        )
        unit_ms = self._reference()[1] if known else beside.median_ms
        measured = [relative(timing, beside, unit_ms, label) for timing in timings]
        return measured if known else [beside.measurement(label), *measured]

    def _time_in_sessions(self, architectures: list[Architecture]) -> list[Measurement]:
        label = self.header.device.label
        found = []
        for values in self.time_afresh(architectures, SESSIONS):
            middle_ms = float(np.median(values))
            margin = upper_of_median(values) - middle_ms
            found.append(Measurement("latency_ms", middle_ms, margin, len(values), "ms", label))
        return found


def relative(timing: Timing, reference: Timing, unit_ms: float, device: str) -> Measurement:
    """A network's latency in a unit other than that of its session.

    Args:
        timing: of the network.
        reference: timed in the same rounds.
        unit_ms: what the reference takes in that unit.
        device: the label of the device's fingerprint.
    """
    value = timing.ratio(reference) * unit_ms
    return Measurement("latency_ms", value, timing.spread * value, timing.count, "ms", device)


def _path(header: ProfileHeader, carried: CarriedProfile | None) -> Path:
    path = default_profile_path(header)
    return path if carried is None else path.with_stem(f"{path.stem}-{carried.digest[:16]}")

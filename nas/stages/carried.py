"""Latency from a device profile that the search was given."""

from __future__ import annotations

from collections.abc import Iterator

from latency.device import DeviceFingerprint
from latency.profile import open_profile
from nas.profiling.device_profile import CarriedProfile
from nas.run.events import Event, Note, Progress
from nas.run.layout import PREDICTOR_FILE, PROFILE_FILE
from nas.stages.base import Run


def take_profile(run: Run, carried: CarriedProfile) -> Iterator[Event]:
    """Leave the profile's measurements and its predictor where a timed run leaves its own."""
    (workload,) = carried.workloads
    path = run.folder.path / PROFILE_FILE
    path.unlink(missing_ok=True)
    measured = [(one.architecture, one.latency) for one in workload.measured]
    open_profile(path, carried.header(workload.workload)).record(measured)
    run.folder.write_json(PREDICTOR_FILE, workload.latency.to_json())
    if run.elsewhere is not None:
        why = _difference(carried, run.executor.device(run.spec))
        yield Note("latency", f"latency is predicted for {run.elsewhere} and not measured: {why}")
    report = workload.latency.report
    message = f"{len(measured)} from the profile, {report.chosen}, error {report.mape:.1%}"
    yield Progress("latency", len(measured), len(measured), message)


def _difference(carried: CarriedProfile, device: DeviceFingerprint | None) -> str:
    if device is None:
        return "no worker offers its device for timing"
    here, there = device.to_json(), carried.device.to_json()
    names = [name for name in here | there if here.get(name) != there.get(name)]
    return (
        f"this device differs in {', '.join(names)} (here {_values(here, names)}; "
        f"there {_values(there, names)})"
    )


def _values(device: dict[str, object], names: list[str]) -> str:
    # A field that may be missing is the runtime, and then it is torch.
    return ", ".join(str(device.get(name, "torch")) for name in names)

"""Times networks on a machine of a Ray cluster that offers its device for that.

Such a machine has the resource ``nas_latency_cpu`` or ``nas_latency_cuda``, of which one timing
takes all there is, together with all CPUs of the machine and a GPU. So nothing else that Ray knows
of runs there meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from latency.turns import waiting
from nas.executors.attempts import sentence
from nas.executors.base import TRIES, latency_resource
from nas.executors.board import Board
from nas.executors.ray_cluster import RayCluster
from nas.executors.ray_nodes import LOOK_EVERY_S
from nas.executors.ray_worker import DeviceWorker, Place, WorkOrder
from search_spaces.errors import ExecutorError, NasError
from search_spaces.wording import mark

if TYPE_CHECKING:
    from latency.timings import TimingHeader
    from latency.workload import Mode
    from nas.objectives.latency_limits import ConfirmedLatency, Timed
    from nas.profiling.device_profile import DeviceProfile
    from search_spaces.architecture import Architecture
    from search_spaces.measurement import Measurement

NAME = "device"
FREE_TIMEOUT_S = 900.0


class Device:
    """A worker on a reserved device; it is made when it is first asked for something.

    Args:
        cluster: where to look for the device.
        order: makes what the worker has to know.
        board: is told what it does.
    """

    def __init__(self, cluster: RayCluster, order: Callable[[], WorkOrder], board: Board) -> None:
        self._cluster, self._order, self._board = cluster, order, board
        self._actor: Any = None

    def offered(self, device: str) -> bool:
        """Whether a machine of the cluster offers its device."""
        return self._node(device) is not None

    def call(self, device: str, method: str, *arguments: object) -> Any:
        """Let the worker do something; once more if it is lost over it.

        Raises:
            ExecutorError: when no machine offers the device, it does not become free, or it is
                lost again and again.
            NasError: the worker's own.
        """
        for tries in range(1, TRIES + 1):
            try:
                self._actor = self._actor or self._new(device)
                self._board.change(NAME, doing="timing")
                with waiting():
                    told = getattr(self._actor, method).remote(*arguments)
                    while not ray.wait([told], timeout=LOOK_EVERY_S)[0]:
                        self._board.tick()
                    return ray.get(told)
            except RayTaskError as error:
                raise _own(error) from error
            except GetTimeoutError as error:
                raise ExecutorError(
                    f"the device on which networks are timed was not free for {FREE_TIMEOUT_S:g} "
                    "s; see with ray status what runs there, and resume when it has ended"
                ) from error
            except RayError as error:
                self._board.log(NAME, [f"lost: {sentence(error)}"])
                self.release()
                if tries == TRIES or not isinstance(error, RayActorError):
                    raise ExecutorError(
                        f"the worker that times networks was lost: {sentence(error)}; see to the "
                        "cluster and resume"
                    ) from error
            finally:
                if self._actor is not None:
                    self._board.change(NAME, doing="idle")
        raise AssertionError

    def release(self) -> None:
        """End the worker; the device is free."""
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None
            self._board.change(NAME, doing="ended")

    def _node(self, device: str) -> dict[str, Any] | None:
        self._cluster.connect()
        name = latency_resource(device)
        alive = [node for node in ray.nodes() if node["Alive"]]
        offers = [node for node in alive if node["Resources"].get(name)]
        return offers[0] if offers else None

    def _new(self, device: str) -> Any:
        node, name = self._node(device), latency_resource(device)
        if node is None:
            raise ExecutorError(
                f"no machine of the Ray cluster offers its device for timing: start one of the "
                f"kind that counts with ray start --resources='{{\"{name}\": 1}}', or search with "
                f"{mark('device_profile')}, made there by nas profile"
            )
        offer = node["Resources"]
        worker = ray.remote(DeviceWorker).options(
            num_cpus=offer.get("CPU", 0),
            num_gpus=0 if device == "cpu" else 1,
            resources={name: offer[name]},
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        self._board.change(NAME, doing="starting")
        return self._ready(worker.remote())

    def _ready(self, actor: Any) -> Any:
        """A worker that has been told what it has to know; it ends if it cannot be had."""
        try:
            with waiting():
                place: Place = ray.get(actor.prepare.remote(self._order()), timeout=FREE_TIMEOUT_S)
        except RayError:
            ray.kill(actor)
            raise
        self._board.log(NAME, [f"started on {place.host}, process {place.pid}"])
        self._board.change(NAME, doing="idle", host=place.host, pid=place.pid)
        return actor


class RayMeter:
    """Times networks through a `Device`; see `nas.executors.base.Meter`.

    Args:
        device: where.
        kind: ``cpu`` or ``cuda``.
        device_profile: see `nas.profiling.latency_meter.LatencyMeter`.
        mode: see there.
    """

    def __init__(
        self, device: Device, kind: str, device_profile: DeviceProfile | None, mode: Mode | None
    ) -> None:
        self._device, self._kind, self._mode = device, kind, mode
        self._device_profile = device_profile
        self.header: TimingHeader = self._call("header")

    def known(self, architecture: Architecture) -> bool:
        """See `Meter.known`."""
        known: bool = self._call("known", architecture)
        return known

    def measure(self, architectures: Sequence[Architecture]) -> Timed[Measurement]:
        """See `Meter.measure`."""
        found: Timed[Measurement] = self._call("measure", architectures)
        return found

    def confirm(self, architectures: Sequence[Architecture]) -> Timed[Measurement]:
        """See `Meter.confirm`."""
        found: Timed[Measurement] = self._call("confirm", architectures)
        return found

    def in_sessions(self, architectures: Sequence[Architecture]) -> Timed[ConfirmedLatency]:
        """See `Meter.in_sessions`."""
        found: Timed[ConfirmedLatency] = self._call("in_sessions", architectures)
        return found

    def forget(self) -> None:
        """See `Meter.forget`."""
        self._call("forget")

    def _call(self, method: str, *arguments: object) -> Any:
        return self._device.call(self._kind, method, self._device_profile, self._mode, *arguments)


def _own(error: RayTaskError) -> NasError:
    """The worker's own error, if it was one of ours."""
    cause = error.cause
    if isinstance(cause, NasError):
        return cause
    return ExecutorError(f"networks could not be timed: {sentence(cause or error)}")

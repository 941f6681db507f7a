"""A connection to a Ray cluster, or a Ray of one's own that ends with the run."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import ray

from nas.executors.base import ExecutorSettings
from search_spaces.errors import ExecutorError

# A node that may time networks offers one of these: ray start --resources='{"nas_latency_cpu": 1}'.
LATENCY_RESOURCE = "nas_latency_{device}"
# What a Ray of our own keeps in shared memory; more goes to the disk.
OBJECT_STORE_BYTES = 512 * 2**20
CONNECT_TIMEOUT_S = 20.0
TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def latency_resource(device: str) -> str:
    """The resource that reserves a device for timing, for ``cpu``, ``cuda`` or ``cuda:N``."""
    return LATENCY_RESOURCE.format(device=device.partition(":")[0])


class RayCluster:
    """Connects when it is first asked to, and ends only what it began.

    A process that is connected to Ray already, whoever did that, stays connected.

    Args:
        settings: which cluster.
        cpus: CPUs a Ray of one's own has to have at least; it has those of the machine if they are
            more.
    """

    def __init__(self, settings: ExecutorSettings, cpus: int = 1) -> None:
        self._settings, self._cpus = settings, cpus
        self._begun = False
        self._folder: str | None = None

    def connect(self) -> None:
        """Connect, unless that was done.

        Raises:
            ExecutorError: when there is no such cluster.
        """
        if ray.is_initialized():
            return
        os.environ |= {name: value for name, value in QUIET.items() if name not in os.environ}
        try:
            with own_signals():
                self._init()
        except (OSError, RuntimeError, ValueError) as error:
            raise ExecutorError(self._refused(error)) from error
        self._begun = True

    def _init(self) -> None:
        address = self._settings.ray_address
        if address is not None:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            return
        self._folder = own_folder()
        with own_token():
            ray.init(
                address="local",
                _temp_dir=self._folder,
                num_cpus=max(self._cpus, os.cpu_count() or 1),
                resources={latency_resource(device): 1 for device in ("cpu", "cuda")},
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    def _refused(self, error: Exception) -> str:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        address = self._settings.ray_address
        if address is None:
            return f"Ray could not be started on this machine: {reason}"
        return (
            f"there is no Ray cluster to be had at {address} ({reason}); start one with "
            "ray start --head, give the address it prints, or leave --ray-address out"
        )

    def close(self) -> None:
        """Disconnect, and end a Ray of one's own."""
        if self._begun:
            self._begun = False
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _knock(address: str) -> None:
    """See that somebody answers: Ray would wait for a head that is not there without an end.

    Raises:
        OSError: when nobody does.
    """
    if address == "auto":  # as Ray finds it; where there is nothing to be found it says so itself
        file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        known = file.read_text("utf-8").strip() if file.is_file() else ""
        address = os.environ.get("RAY_ADDRESS") or known
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


def own_folder() -> str:
    """A folder for the files of a Ray of one's own.

    In Ray's usual one it would take the place of a cluster that runs on this machine, for all who
    look for that by ``auto``. Sockets lie in it, whose paths may not be long.
    """
    return tempfile.mkdtemp(prefix="nas-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)


@contextmanager
def own_token() -> Iterator[None]:
    """Start a Ray of one's own with a token that only its processes know.

    Ray would write one into the user's home, and a cluster that is started by hand later would ask
    for that on all of its hosts. What the user has named in the environment is taken instead.
    """
    before = {name: os.environ.get(name) for name in TOKEN_VARIABLES}
    if not (before["RAY_AUTH_TOKEN"] or before["RAY_AUTH_TOKEN_PATH"]):
        os.environ["RAY_AUTH_TOKEN"] = _token()
    try:
        yield
    finally:  # Ray's processes have it, and so does the library in this one
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@cache
def _token() -> str:
    """One for all that this process starts, because Ray reads it once."""
    return secrets.token_hex(32)


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep what SIGTERM does, which Ray would change."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

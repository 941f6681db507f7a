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
from functools import cache, partial
from pathlib import Path

import ray
from ray.exceptions import RayError

from latency.device import granted_cores
from nas.executors.base import ExecutorSettings, latency_resource
from search_spaces.errors import ExecutorError

# What a Ray of our own keeps in shared memory; more goes to the disk.
OBJECT_STORE_BYTES = 512 * 2**20
CONNECT_TIMEOUT_S = 20.0
# How often, once a second, Ray tries to speak to a head; 20 times where this is not set.
TRIES_VARIABLE = "RAY_gcs_server_port_wait_time_s"
TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# RFC 9113, sections 3.4, 4.1 and 6.5: what a client says first, and the head of any frame.
FRAME_HEAD_BYTES, FRAME_TYPE, SETTINGS = 9, 3, b"\x04"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayCluster:
    """Connects when it is first asked to, and ends only what it began.

    A process that is connected to Ray already, whoever did that, stays connected.

    Args:
        settings: which cluster.
        cpus: CPUs a Ray of one's own has to have at least; it has those of the machine if they are
            more.
        alternative: whether a Ray of one's own would do as well, which a refusal then tells.
    """

    def __init__(self, settings: ExecutorSettings, cpus: int = 1, alternative: bool = True) -> None:
        self._settings, self._cpus, self._alternative = settings, cpus, alternative
        self._begun = False
        self._folder: str | None = None

    def connect(self) -> None:
        """Connect, unless that was done.

        Raises:
            ExecutorError: when there is no such cluster, or it asks for a token that this machine
                does not have.
        """
        if ray.is_initialized():
            return
        os.environ |= {name: value for name, value in QUIET.items() if name not in os.environ}
        try:
            with own_signals():
                self._init()
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise ExecutorError(self._refused(error)) from error
        self._begun = True

    def _init(self) -> None:
        address = self._settings.ray_address
        if address is not None:
            _knock(address)
            _join(address)
            return
        self._folder = own_folder()
        with own_token():
            ray.init(
                address="local",
                _temp_dir=self._folder,
                num_cpus=max(self._cpus, granted_cores()),
                resources={latency_resource(device): 1 for device in ("cpu", "cuda")},
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    def _refused(self, error: Exception) -> str:
        address = self._settings.ray_address
        if address is None:
            return f"Ray could not be started on this machine: {_reason(error)}"
        if _wants_token(error):
            return (
                f"this machine and the Ray cluster at {address} do not share a token: "
                f"{_token_fault()}"
            )
        place = "on this machine" if address == "auto" else f"at {address}"
        other = ", or leave --ray-address out" if self._alternative else ""
        return (
            f"there is no Ray cluster to be had {place} ({_reason(error)}); start one with "
            f"ray start --head, {'' if other else 'or '}give the address it prints{other}"
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
    """See that a Ray answers: it would wait for one that is not there for many minutes.

    Its head speaks gRPC, and so HTTP/2, in which both sides begin with a frame of settings.

    Raises:
        OSError: when nobody answers, or something else.
    """
    if address == "auto":  # as Ray finds it; where there is nothing to be found it says so itself
        file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        known = file.read_text("utf-8").strip() if file.is_file() else ""
        address = os.environ.get("RAY_ADDRESS") or known
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S) as line:
            if os.environ.get("RAY_USE_TLS", "0") not in ("0", "false", "False"):
                return
            line.sendall(HTTP2_GREETING)
            if line.recv(FRAME_HEAD_BYTES)[FRAME_TYPE:][:1] != SETTINGS:
                raise ConnectionError("what listens there is something else")


def _join(address: str) -> None:
    """Connect to a cluster whose head answers.

    A head that asks for a token refuses each of Ray's tries alike, so there is one at first.
    """
    join = partial(ray.init, address, log_to_driver=False, logging_level=logging.ERROR)
    if TRIES_VARIABLE in os.environ:
        join()
        return
    os.environ[TRIES_VARIABLE] = "1"
    try:
        join()
        return
    except ConnectionError as error:
        if _wants_token(error):
            raise
    finally:
        del os.environ[TRIES_VARIABLE]
    join()


def _wants_token(error: BaseException | None) -> bool:
    """Whether it came of a token that is missing or another one."""
    while error is not None:
        # Where Ray tries again it keeps no more than the text of what came before.
        if "AuthenticationError" in f"{type(error).__name__}: {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def _token_fault() -> str:
    """What this machine lacks to be let in, and how to get it."""
    own = Path.home() / ".ray" / "auth_token"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    copy = f"copy ~/.ray/auth_token of the cluster's head to {own} here"
    mode = "export RAY_AUTH_MODE=token"
    if os.environ.get("RAY_AUTH_TOKEN"):
        source = "the variable RAY_AUTH_TOKEN"
    elif named:
        source = named
        if not (Path(named).is_file() and Path(named).stat().st_size):
            return f"RAY_AUTH_TOKEN_PATH names {named}, which is not there or empty; name its file"
    elif own.is_file():
        source = str(own)
    else:
        return f"it has none; {copy}, or set RAY_AUTH_TOKEN to it, and {mode}"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return f"it does not send the one in {source}; {mode}"
    return f"the one in {source} is another; {copy}, or name the right one there"


def _reason(error: BaseException) -> str:
    """An error's first sentence, without what Ray advises; all lines where one announces others."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines) if lines[0].endswith(":") else lines[0].partition(". ")[0]


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

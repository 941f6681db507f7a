"""Hosts for studies and tests: what ``docker/hosts`` makes, for as long as this process lives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from search_spaces.errors import ExecutorError

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "docker" / "hosts"
TOOLS = ("unshare", "nsenter", "ip", "flock", "mount", "hostname")
OWN_FOLDERS = ("/tmp", "/dev/shm")  # of which each host has one of its own, empty
SWITCH, SWITCH_ADDRESS = "switch", "10.83.0.254"


@cache
def missing() -> str | None:
    """Why no hosts can be made here; None where they can."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    for needed in (ROOT, Path(sys.executable)):
        if any(needed.is_relative_to(own) for own in OWN_FOLDERS):
            return f"{needed} is not to be seen on hosts, whose {' and '.join(OWN_FOLDERS)} are own"
    if os.geteuid() != 0:
        return "hosts made of namespaces need root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"hosts made of namespaces need {', '.join(lacking)}"
    trial = "ip link add hosts type bridge && ip link add one type veth peer name other"
    words = ["unshare", "--fork", "--pid", "--net", "--mount", "--mount-proc", "sh", "-c", trial]
    return _refusal(words, "namespaces with a network cannot be made here")


def _refusal(command: Sequence[str], what: str) -> str | None:
    tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode == 0:
        return None
    return f"{what}: {' '.join(tried.stderr.split()) or tried.returncode}"


class Hosts:
    """Hosts that are up, with names ``host-0``, ``host-1`` and so on.

    Args:
        folder: where ``docker/hosts`` keeps what it knows; it is made if it is not there.
        count: how many.

    Attributes:
        shared: a folder in there that all hosts see under the same path.
        addresses: of each host, by name.

    Raises:
        ExecutorError: when they cannot be made.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.shared = folder / "shared"
        self._environment = {**os.environ, "NAS_HOSTS_DIR": str(folder)}
        self._process = subprocess.Popen(
            [SCRIPT, "hold", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            text=True,
        )
        assert self._process.stdout is not None
        self.addresses: dict[str, str] = {}
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
            address, name = line.split()
            self.addresses[name] = address
        self.close()
        raise ExecutorError(f"{SCRIPT} made no hosts: code {self._process.returncode}")

    def start(
        self,
        host: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, or on the switch between them."""
        return subprocess.Popen(
            [SCRIPT, "exec", host, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment | dict(environment or {}),
            cwd=ROOT,
        )

    def run(
        self,
        host: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; what it printed is kept.

        Raises:
            ExecutorError: when it fails and `check` is set.
        """
        done = subprocess.run(
            [SCRIPT, "exec", host, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment | dict(environment or {}),
            cwd=ROOT,
        )
        if check and done.returncode:
            raise ExecutorError(f"{host}: {' '.join(command)}: {done.stderr[-2000:]}")
        return done

    def cut(self, host: str) -> None:
        """Take a host's network away."""
        self._do("cut", host)

    def join(self, host: str) -> None:
        """Give it back."""
        self._do("join", host)

    def slow(self, host: str, delay: str, loss: str = "0%") -> None:
        """Delay what is sent to a host, by ``50ms`` for example, and lose so much of it.

        ``0ms`` ends it.
        """
        self._do("slow", host, delay, loss)

    def _do(self, *words: str) -> None:
        subprocess.run([SCRIPT, *words], check=True, env=self._environment)

    def close(self) -> None:
        """End the hosts and whatever runs there."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[Hosts]:
    """Hosts for a while."""
    made = Hosts(folder, count)
    try:
        yield made
    finally:
        made.close()


def leaf(pid: int) -> int:
    """The last of a process's descendants that each have one child: what ``exec`` started.

    A signal to ``nsenter`` does not reach the command behind it.
    """
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            return pid
        pid = int(children[0])

"""A Ray cluster on hosts that ``docker/hosts`` makes, begun with ``ray start`` as users do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.hosts import ROOT, Hosts

HEAD = "host-0"
PORT = 6379
ADDRESS = f"{HEAD}:{PORT}"
OBJECT_STORE_BYTES = 100 * 2**20
RAY = (sys.executable, "-m", "ray.scripts.scripts")
NAS = (sys.executable, "-m", "nas.console.app")
# In front of all else that Python finds; each host has one of its own, which may stay empty.
OWN_PACKAGES = "/tmp/packages"


def environment(**more: str) -> dict[str, str]:
    """What every command on a host is given."""
    before = os.environ.get("PYTHONPATH", "")
    paths = [OWN_PACKAGES, str(ROOT), *filter(None, [before])]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    return {"PYTHONPATH": os.pathsep.join(paths), **quiet, **more}


class RayHosts:
    """A head on `HEAD`, and a node on every other host.

    Args:
        hosts: on which.
        cpus: of each host.
        head_cpus: of the head, where it is to offer others.
        resources: more that hosts offer, by host.
        only: the hosts on which it is begun, the head first; all if not given.
        more: variables, for Ray and for commands.

    Attributes:
        hosts: the same.
        environment: of commands on them.
    """

    def __init__(
        self,
        hosts: Hosts,
        cpus: int = 1,
        head_cpus: int | None = None,
        resources: Mapping[str, Mapping[str, float]] | None = None,
        only: Sequence[str] | None = None,
        **more: str,
    ) -> None:
        self.hosts, self._cpus = hosts, cpus
        self._head_cpus = cpus if head_cpus is None else head_cpus
        self._resources = resources or {}
        self.environment = environment(**more)
        for host in only or hosts.addresses:
            self.start(host, self._resources.get(host, {}))

    def start(self, host: str, resources: Mapping[str, float] | None = None) -> None:
        """Have a host belong to the cluster.

        Raises:
            ExecutorError: when it cannot.
        """
        place = ("--head", f"--port={PORT}", "--include-dashboard=false")
        offers = (
            f"--num-cpus={self._head_cpus if host == HEAD else self._cpus}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--resources={json.dumps(dict(resources or {}))}",
        )
        joined = place if host == HEAD else (f"--address={ADDRESS}",)
        words = [*RAY, "start", *joined, *offers, "--disable-usage-stats"]
        self.hosts.run(host, words, self.environment)

    def stop(self, host: str, *options: str) -> None:
        """End Ray on a host, which takes its leave of the others; with ``--force`` it does not."""
        self.hosts.run(host, [*RAY, "stop", *options], self.environment, check=False)

    def nas(self, host: str, *arguments: str, **more: str) -> tuple[int, str, str]:
        """Code, output and errors of a command of ours on a host."""
        words = [*NAS, *arguments]
        done = self.hosts.run(host, words, self.environment | more, check=False)
        return done.returncode, done.stdout, done.stderr

    def check(self, *options: str) -> dict[str, Any]:
        """What ``nas cluster check`` finds, asked on the head."""
        _, output, _ = self.nas(HEAD, "cluster", "check", "--json", *options)
        found: dict[str, Any] = json.loads(output)
        return found

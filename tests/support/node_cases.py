"""A Ray cluster's nodes without Ray, for what a run is told of them."""

from __future__ import annotations

from typing import Any

from nas.executors.ray_nodes import Nodes


class Cluster:
    """Nodes that come and go, and a clock that is turned."""

    def __init__(self, **cpus: int) -> None:
        self.cpus, self.reasons, self.now = dict(cpus), dict.fromkeys(cpus, 0), 0.0
        self.asked = 0

    def nodes(self) -> list[dict[str, Any]]:
        self.asked += 1
        return [
            {
                "NodeID": f"id of {name}",
                "NodeManagerHostname": name.replace("_", "-"),
                "Alive": not self.reasons[name],
                "DeathReason": self.reasons[name],
                "Resources": {"CPU": float(count)} if count else {},
            }
            for name, count in self.cpus.items()
        ]

    def watch(self, cpus: int = 1, gpus: int = 0) -> Nodes:
        return Nodes(cpus, gpus, self.nodes, lambda: self.now, lambda: "head:6379")

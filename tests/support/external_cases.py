"""A space of genes and evaluators of its networks, good ones and others."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nas.run.folder import RunFolder

# 144 networks.
GENES = """
[space]
name = "mine"

[genes.width]
integer = [16, 32, 64, 128]

[genes.layers]
integer = { from = 1, to = 2 }

[genes.ratio]
integer = [1, 2, 4]
per_layer = "layers"

[genes.norm]
category = ["layer", "rms"]

[genes.eps]
real = [1e-6, 1e-5]
when = { norm = ["rms"] }
"""
NUMBERS = {
    "observations": "20",
    "rounds.first": "10",
    "rounds.batch": "5",
    "evolution.population": "16",
    "evolution.generations": "3",
    "verified": "4",
}
CALLS = "NAS_TEST_CALLS"


def size(network: dict[str, Any]) -> float:
    return float(network["width"] * sum(network["ratio"]))


def loss(network: dict[str, Any]) -> float:
    found = 2.0 + 40 / size(network) - 0.2 * (network["norm"] == "rms")
    return found + 1e4 * network.get("eps", 0.0)


def ms(network: dict[str, Any]) -> float:
    return 1.0 + size(network) / 100 + network["layers"]


class Good:
    """Tells loss and milliseconds, and keeps a journal of its calls where there is one."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def evaluate(self, networks: Sequence[dict[str, Any]]) -> list[Any]:
        return [self._told(network) for network in networks]

    def _told(self, network: dict[str, Any]) -> Any:
        assert type(network) is dict
        self.asked.append(network)
        if CALLS in os.environ:
            with open(os.environ[CALLS], "a", encoding="utf-8") as file:
                file.write(json.dumps(network) + "\n")
        return self.answer(network)

    def answer(self, network: dict[str, Any]) -> Any:
        return {"quality": loss(network), "std": 0.01, "costs": {"ms": ms(network)}}


class Exact(Good):
    """Tells milliseconds of any network, in batches."""

    batch = 4

    def answer(self, network: dict[str, Any]) -> Any:
        return loss(network)

    def costs(self, networks: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
        return {"ms": [ms(network) for network in networks]}


class Accuracy(Good):
    """Of which more is better: it tells what is below 0."""

    def answer(self, network: dict[str, Any]) -> Any:
        return {"quality": loss(network) - 10, "costs": {"ms": ms(network)}}


class Wrong(Good):
    """Does what it should not for the networks of one width."""

    def __init__(self, how: str, width: int | None = 16) -> None:
        super().__init__()
        self.how, self.width = how, width

    def answer(self, network: dict[str, Any]) -> Any:
        if self.width not in (None, network["width"]):
            return super().answer(network)
        match self.how:
            case "raises":
                raise ValueError("no such layer\nand more")
            case "exits":
                raise SystemExit(3)
            case "nan":
                return float("nan")
            case "no cost":
                return 1.0
            case "bad cost":
                return {"quality": 1.0, "costs": {"ms": 0.0}}
            case "hangs":
                while True:
                    time.sleep(0.01)
        raise AssertionError(self.how)


class Short(Good):
    """Gives one answer too few."""

    def evaluate(self, networks: Sequence[dict[str, Any]]) -> list[Any]:
        return super().evaluate(networks)[1:]


def calls(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def asked_twice(networks: Sequence[dict[str, Any]]) -> list[str]:
    counts = Counter(json.dumps(network, sort_keys=True) for network in networks)
    return [network for network, count in counts.items() if count > 1]


def failed_lines(folder: RunFolder) -> list[dict[str, Any]]:
    names = ("observations.jsonl", "verification.jsonl")
    return [line for name in names for line in folder.read_journal(name) if "failed" in line]

"""Where one kind of attention becomes faster than another on a device, as sequences get longer.

A profile times networks of one shape with one kind of attention throughout; with workloads of
several lengths they make one line for each kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latency.workload import Workload
from nas.profiling.device_profile import DeviceProfile, MeasuredNetwork, WorkloadProfile
from nas.search.uniform_networks import kind_of
from search_spaces.architecture import Architecture


@dataclass(frozen=True)
class Crossing:
    """Where a kind overtakes softmax.

    Attributes:
        kind: ``linear`` or ``omni``.
        length: tokens from which on it is faster, interpolated between two measured lengths; None
            where it is not within the measured ones.
        faster: whether it is faster than softmax at the longest measured length.
        ever: whether it is at any measured length.
    """

    kind: str
    length: float | None
    faster: bool
    ever: bool


@dataclass(frozen=True)
class LatencyByLength:
    """Lines of one shape.

    Attributes:
        workload: what all lengths have in common; its own length is the first one's.
        architecture: a network of the shape.
        lengths: source lengths in tokens, ascending.
        latency_ms: kind → a value for each length.
    """

    workload: Workload
    architecture: Architecture
    lengths: tuple[int, ...]
    latency_ms: Mapping[str, tuple[float, ...]]

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        """Where the other kinds overtake softmax; empty without softmax."""
        softmax = self.latency_ms.get("softmax")
        if softmax is None:
            return ()
        return tuple(
            Crossing(
                kind,
                crossing_length(self.lengths, softmax, line),
                faster=line[-1] < softmax[-1],
                ever=any(ms < slow for ms, slow in zip(line, softmax, strict=True)),
            )
            for kind, line in sorted(self.latency_ms.items())
            if kind != "softmax"
        )


def crossing_length(
    lengths: Sequence[int], slow: Sequence[float], fast: Sequence[float]
) -> float | None:
    """The length from which on `fast` stays below `slow`.

    Between two lengths the ratio is taken as a power of the length.

    Args:
        lengths: ascending.
        slow: milliseconds at each.
        fast: milliseconds at each.

    Returns:
        None where `fast` is below at no or at all lengths, or not at the last one.
    """
    ratios = [math.log(f / s) for f, s in zip(fast, slow, strict=True)]
    above = [index for index, ratio in enumerate(ratios) if ratio >= 0]
    if not above or above[-1] == len(ratios) - 1:
        return None
    last = above[-1]
    share = ratios[last] / (ratios[last] - ratios[last + 1])
    return math.exp(math.log(lengths[last]) * (1 - share) + math.log(lengths[last + 1]) * share)


def latencies_by_length(profile: DeviceProfile) -> list[LatencyByLength]:
    """The lines that the workloads of a profile make.

    Returns:
        One for each set of workloads that differ in nothing but their length, of which there have
        to be two or more; empty where the space offers one kind of attention.
    """
    groups: dict[str, list[WorkloadProfile]] = {}
    for one in profile.workloads:
        groups.setdefault(json.dumps(_without_length(one.workload)), []).append(one)
    found = (_lines(sorted(g, key=lambda o: o.workload.source_length)) for g in groups.values())
    return [lines for lines in found if lines is not None]


def _lines(group: Sequence[WorkloadProfile]) -> LatencyByLength | None:
    """Lines of the slowest shape that was timed in most kinds at every length."""
    shapes = [_pure_networks(one) for one in group]
    common = set(shapes[0]).intersection(*shapes[1:])
    kinds_of = {s: set(shapes[0][s]).intersection(*(o[s] for o in shapes[1:])) for s in common}
    complete = {shape: kinds for shape, kinds in kinds_of.items() if len(kinds) > 1}
    if len(group) < 2 or not complete:
        return None

    def size(shape: str) -> tuple[int, float]:
        slowest = max(one.latency.value for one in shapes[-1][shape].values())
        return len(complete[shape]), slowest

    shape = max(complete, key=size)
    lines = {
        kind: tuple(networks[shape][kind].latency.value for networks in shapes)
        for kind in sorted(complete[shape])
    }
    lengths = tuple(one.workload.source_length for one in group)
    example = next(iter(shapes[0][shape].values())).architecture
    return LatencyByLength(group[0].workload, example, lengths, lines)


def _pure_networks(one: WorkloadProfile) -> dict[str, dict[str, MeasuredNetwork]]:
    """Shape → kind → the network of that shape and kind."""
    found: dict[str, dict[str, MeasuredNetwork]] = {}
    for network in one.measured:
        kind = kind_of(network.architecture)
        if kind is not None:
            found.setdefault(_shape(network.architecture), {})[kind] = network
    return found


def _shape(architecture: Architecture) -> str:
    return json.dumps(_without_kinds(architecture.to_json()), sort_keys=True)


def _without_kinds(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: part for key, part in value.items() if not key.endswith("attention")}
        return {key: _without_kinds(part) for key, part in kept.items()}
    return [_without_kinds(part) for part in value] if isinstance(value, list) else value


def _without_length(workload: Workload) -> dict[str, Any]:
    """A target as long as the source grows with it."""
    rest = workload.to_json()
    source = rest.pop("source")
    if rest.get("target") == source:
        rest["target"] = "source"
    return rest

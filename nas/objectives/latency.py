"""Latency: milliseconds of a network's work on the device."""

from __future__ import annotations

from nas.objectives.base import Objective

OBJECTIVE = Objective(
    "latency_ms",
    "latency_ms",
    unit="ms",
    label="latency",
    head="ms",
    symbol="ms",
    timed=True,
    stage="latency",
    std_name="latency_std_ms",
    upper_name="latency_upper_ms",
)

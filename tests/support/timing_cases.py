"""A machine whose times are planted, in place of the timer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from latency import acceptance
from latency.acceptance import SessionTimes
from latency.machine import MachineState
from latency.timing import Timing
from nas.profiling import latency_meter, profile_device
from search_spaces.architecture import Architecture

QUIET, BURNT = MachineState(1.0, 0.0, 0.0), MachineState(1.0, 2.0, 0.5)


def planted_ms(architecture: Architecture) -> float:
    """What a network takes."""
    assert architecture.encoder is not None
    layers = architecture.encoder.layers
    return 1.0 + len(layers) + 0.01 * sum(layer.ffn_dim for layer in layers)


class Machine:
    """Takes milliseconds that are planted, and more when it is `disturbed(session number)`.

    `spikes` says what a network takes in a session beside that, `slow` by what all calls of a
    session, the reference's too, are slower than they need be. A yardstick takes half a millisecond
    where there is one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disturbed: Callable[[int], bool] = lambda n: False
        self.spikes: Callable[[int, str], float] = lambda n, network_id: 1.0
        self.slow: Callable[[int], float] = lambda n: 1.0
        self.yardstick = False
        self.sessions: list[list[str]] = []
        monkeypatch.setattr(latency_meter, "time_session", self)
        monkeypatch.setattr(profile_device, "time_session", self)
        monkeypatch.setattr(acceptance, "TOLERANCES", acceptance.Tolerances())

    ms = staticmethod(planted_ms)

    def __call__(
        self, space: Any, reference: Architecture, networks: Sequence[Architecture], *_: Any
    ) -> SessionTimes:
        number = len(self.sessions)
        self.sessions.append([network.id for network in networks])
        usual = self.slow(number)
        slow = usual * (9.0 if self.disturbed(number) else 1.0)
        times = [slow * self.ms(one) * self.spikes(number, one.id) for one in networks]
        return SessionTimes(
            Timing((usual * self.ms(reference),) * 5),
            0.0,
            tuple(Timing((ms,) * 5) for ms in times),
            BURNT if self.disturbed(number) else QUIET,
            float(number),
            Timing((0.5 * usual,) * 5) if self.yardstick else None,
        )

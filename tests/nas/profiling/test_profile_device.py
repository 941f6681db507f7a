"""A profile is told in what the machine needs at its fastest, as later searches on it are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latency.device import describe_device
from latency.timing import HostShare
from latency.yardstick import KNOWN_SESSIONS, SpeedRecord
from nas.profiling import profile_device as profile_module
from nas.profiling.device_profile import DeviceProfile, read_device_profile
from nas.profiling.profile_device import ProfileRequest, profile_device
from nas.profiling.timed_work import time_session, timed_call
from nas.search.uniform_networks import middle
from search_spaces.variation import sample_distinct
from tests.support.profile_cases import SPACE, WORKLOAD
from tests.support.timing_cases import Machine

pytestmark = pytest.mark.usefixtures("few_regressors")


def profiled(out: Path) -> DeviceProfile:
    *_, made = profile_device(ProfileRequest(SPACE, "cpu", None, (WORKLOAD,), 8, threads=1), out)
    assert isinstance(made, DeviceProfile)
    assert made.to_json() == read_device_profile(out).to_json()
    return made


@pytest.mark.parametrize("known", [True, False])
def test_slow_spells_do_not_set_the_unit_of_a_machine_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    machine = Machine(monkeypatch)
    machine.yardstick, machine.slow = True, lambda n: 1.3 + 0.2 * (n % 4)
    torch.set_num_threads(1)
    record = SpeedRecord(describe_device("cpu"), "float32")
    if known:
        record.add([(0.5, 0.0)] * KNOWN_SESSIONS)
    (workload,) = profiled(tmp_path / "board.json").workloads
    for one in workload.measured:
        expected = machine.ms(one.architecture) * (1.0 if known else 1.3)
        assert one.latency.value == pytest.approx(expected)
    assert record.read().sessions >= len(machine.sessions)
    assert record.read().quiet_ms == pytest.approx(0.5 if known else 0.65)


@pytest.mark.parametrize(
    ("device", "runtime", "told"),
    [("cuda", "torch", True), ("cpu", "torch", False), ("cuda", "onnxruntime", False)],
)
def test_the_share_of_the_host_is_that_of_a_card(
    monkeypatch: pytest.MonkeyPatch, device: str, runtime: Any, told: bool
) -> None:
    share, asked = HostShare(1.0, 2.0), list[str]()

    def measured(space: Any, network: Any, workload: Any, device: str) -> HostShare:
        asked.append(network.id)
        return share

    monkeypatch.setattr(profile_module, "network_host_share", measured)
    request = ProfileRequest(SPACE, device, None, (WORKLOAD,), 8, runtime=runtime)
    assert profile_module._host(request, WORKLOAD) == (share if told else None)
    assert asked == [SPACE.decode(middle(SPACE))[0].id] * told


def test_the_yardstick_stands_beside_torch_alone() -> None:
    networks = SPACE.decode(sample_distinct(SPACE, np.random.default_rng(0), 3))
    timed = time_session(SPACE, networks[0], networks[1:], WORKLOAD, "cpu", 2)
    assert timed.yardstick is not None and timed.yardstick.count == 2
    assert len(timed.calls) == 2 and all(one.count == 2 for one in timed.calls)
    calls = [timed_call(SPACE, one, WORKLOAD, "cpu") for one in networks]
    other = time_session(
        SPACE, networks[0], [], WORKLOAD, "cpu", 1, lambda one: calls[networks.index(one)]
    )
    assert other.yardstick is None and other.calls == ()

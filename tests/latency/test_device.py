"""Device fingerprints: stable, comparable, and refused where there is no such device."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from latency.device import (
    CardState,
    DeviceFingerprint,
    _cpu_clock_mhz,
    _cpu_name,
    card_state,
    clock_mhz,
    describe_device,
    granted_cores,
)
from search_spaces.errors import DataError, UsageError

DEVICE = DeviceFingerprint("cpu", "Some Processor", 4, 2, "2.13.0+cpu", "Linux-x86_64")


def test_the_cpu_describes_itself_twice_the_same() -> None:
    first = describe_device("cpu")
    assert first == describe_device("cpu")
    assert first.kind == "cpu" and first.name and first.cores >= 1
    assert first.threads == torch.get_num_threads()


def test_another_number_of_threads_is_another_device() -> None:
    before, threads = describe_device("cpu"), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert describe_device("cpu").digest != before.digest
    finally:
        torch.set_num_threads(threads)


def test_a_card_with_other_kernels_is_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    card = SimpleNamespace(name="Card", multi_processor_count=3)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: card)
    monkeypatch.setattr("latency.device.version", lambda name: "0.6.0")
    found = describe_device("cuda")
    assert found.torch_version == f"{torch.__version__}, fla-core 0.6.0"
    assert describe_device("cpu").torch_version == str(torch.__version__)


@pytest.mark.parametrize(
    "name", ["", "gpu", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:0\n"]
)
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="use cpu, cuda or cuda:N"):
        describe_device(name)


def test_cuda_without_a_card_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="use --device cpu"):
        describe_device("cuda")


@pytest.mark.gpu
def test_a_card_that_is_there_is_described() -> None:
    card = describe_device("cuda")
    assert card.kind == "cuda" and torch.cuda.get_device_name(0) in card.name
    assert describe_device("cuda:0") == card


@pytest.mark.gpu
def test_a_card_number_too_high_is_refused() -> None:
    with pytest.raises(UsageError, match="the last one here is cuda:"):
        describe_device("cuda:999")


def test_json_gives_the_same_device_back() -> None:
    assert DeviceFingerprint.from_json(DEVICE.to_json()) == DEVICE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cores": "4"}, "cores: .*integer, given '4'"),
        ({"threads": True}, "threads: .*integer, given True"),
        ({"name": None}, "name: .*string"),
        ({"kind": "tpu"}, "'cpu' or 'cuda'"),
        ({"colour": "red"}, "colour: unexpected"),
    ],
)
def test_damaged_json_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DeviceFingerprint.from_json({**DEVICE.to_json(), **change})


@pytest.mark.parametrize("data", [None, [], {}])
def test_json_of_another_kind_is_refused(data: object) -> None:
    with pytest.raises(DataError):
        DeviceFingerprint.from_json(data)


@pytest.mark.parametrize("field", ["name", "cores", "threads", "torch_version", "platform"])
def test_every_field_changes_the_digest(field: str) -> None:
    value = getattr(DEVICE, field)
    other = replace(DEVICE, **{field: value + 1 if isinstance(value, int) else value + "x"})
    assert other.digest != DEVICE.digest


def test_a_runtime_makes_another_device() -> None:
    other = replace(DEVICE, runtime="onnxruntime 1.31.1")
    assert other.digest != DEVICE.digest and DeviceFingerprint.from_json(other.to_json()) == other
    assert other.label == "cpu: Some Processor, 2 threads, onnxruntime 1.31.1"


def test_torch_is_left_out_so_that_old_files_keep_their_digest() -> None:
    assert "runtime" not in DEVICE.to_json()


def test_label_counts_the_threads() -> None:
    assert DEVICE.label == "cpu: Some Processor, 2 threads"
    assert replace(DEVICE, threads=1).label.endswith("1 thread")


def test_the_processor_is_named_with_and_without_its_file(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor : 0\nmodel name\t: Fast One  \nmodel name\t: Fast One\n")
    assert _cpu_name(listing) == "Fast One"
    assert _cpu_name(tmp_path / "missing")


ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n"


@pytest.mark.parametrize(
    ("cpuinfo", "board", "name"),
    [
        ("model name\t: Fast One\n", "Some Board\0", "Fast One"),
        (ARM, "Some Board\0", "Some Board"),
        (ARM, None, "CPU implementer 0x41, part 0xd0b"),
        (ARM, "\0", "CPU implementer 0x41, part 0xd0b"),
        (ARM + ARM.replace("0xd0b", "0xd05"), None, "CPU implementer 0x41, part 0xd05 and 0xd0b"),
        ("processor\t: 0\n", None, "machine"),
    ],
)
def test_processors_without_a_name_are_told_apart(
    cpuinfo: str, board: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "machine")
    listing, model = tmp_path / "cpuinfo", tmp_path / "model"
    listing.write_text(cpuinfo)
    if board is not None:
        model.write_text(board)
    assert _cpu_name(listing, model) == name


def test_the_clock_is_the_mean_of_the_cores_or_unknown(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("cpu MHz\t\t: 2000.000\nbogus MHz: 9\ncpu MHz\t\t: 3000.5\n")
    assert _cpu_clock_mhz(listing) == 2500.2
    listing.write_text("model name: none\n")
    assert _cpu_clock_mhz(listing) is None
    assert _cpu_clock_mhz(tmp_path / "missing") is None
    assert clock_mhz("cpu") is None or clock_mhz("cpu") > 0  # type: ignore[operator]


class RefusedError(Exception):
    """As the driver's library says no."""


def card(monkeypatch: pytest.MonkeyPatch, reasons: int, name: str, celsius: Any = 71) -> None:
    """A card whose driver tells these reasons by a function of that name."""
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError, nvml.nvmlInit = RefusedError, lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: {"GPU-12-ab": "handle"}[uuid]
    setattr(nvml, name, lambda handle: {"handle": reasons}[handle])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = SimpleNamespace(uuid="12-ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "temperature", lambda device: celsius)


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [
        (0x0, ""),
        (0x1, ""),  # nothing to do
        (0x2 | 0x4 | 0x10 | 0x100, ""),  # what was set, its power limit
        (0x4 | 0x20, "sw thermal slowdown"),
        (0x8 | 0x40, "hw slowdown, hw thermal slowdown"),
        (0x80, "hw power brake slowdown"),
    ],
)
@pytest.mark.parametrize("word", ["Throttle", "Event"])
def test_a_card_that_is_slower_than_as_a_rule_throttles(
    monkeypatch: pytest.MonkeyPatch, word: str, reasons: int, throttled: str
) -> None:
    card(monkeypatch, reasons, f"nvmlDeviceGetCurrentClocks{word}Reasons")
    assert card_state("cuda") == CardState(71.0, throttled)


def test_what_a_card_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card_state("cpu") == CardState()

    def refuse(*_: Any) -> None:
        raise RefusedError("not supported")

    card(monkeypatch, 0, "nvmlDeviceGetSomethingElse")
    assert card_state("cuda") == CardState(71.0, None)
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", refuse)
    for name in ("temperature", "clock_rate"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert card_state("cuda") == CardState() and clock_mhz("cuda") is None


@pytest.mark.gpu
def test_the_state_of_a_card_is_told_or_unknown() -> None:
    state = card_state("cuda")
    assert state.celsius is None or 0 < state.celsius < 120
    assert state.throttled is None or "idle" not in state.throttled


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 3),
        ({"cpu.max": "900000 100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({}, 3),
    ],
)
def test_a_containers_quota_counts(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 5}, raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert granted_cores(tmp_path) == cores

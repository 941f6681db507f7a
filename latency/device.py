"""Which device a measurement was taken on, described well enough to know it again."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from search_spaces.errors import DataError, UsageError
from search_spaces.json_text import read_as
from search_spaces.wording import mark

T = TypeVar("T")
DeviceKind = Literal["cpu", "cuda"]
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, slots=True)
class DeviceFingerprint:
    """Everything about a device that changes how long a network takes on it.

    The version of the operating system's kernel and the host's name are left out, so that an
    update or an equal machine keeps its measurements.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        name: the processor's model name, or what stands in for it on ARM; for CUDA the graphics
            card's, followed by the host processor's, because small networks wait for the host to
            launch their kernels.
        cores: cores this process may use, or multiprocessors of the graphics card.
        threads: threads torch computes with on the host.
        torch_version: with its build suffix, for example ``2.13.0+cpu``; of a card with that of
            the kernels which take its place there: ``2.13.0+cu130, fla-core 0.6.0``.
        platform: operating system and machine type, for example ``Linux-x86_64``.
        runtime: what runs the networks where it is not torch, with its version, for example
            ``onnxruntime 1.31.1``; `threads` are then its threads.
    """

    kind: DeviceKind
    name: str
    cores: int
    threads: int
    torch_version: str
    platform: str
    runtime: str | None = None

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @property
    def digest(self) -> str:
        """sha256 of the sorted JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def label(self) -> str:
        """Text for people: ``cpu: Some Processor, 4 threads``, and the runtime if it is another."""
        by = f", {self.runtime}" if self.runtime else ""
        return f"{self.kind}: {self.name}, {self.threads} thread{'s' * (self.threads != 1)}{by}"

    def to_json(self) -> dict[str, Any]:
        """The JSON form; a runtime that is torch is left out, as it always was."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read the JSON form.

        Raises:
            DataError: naming the field that is missing, unknown or of a wrong type.
        """
        try:
            return read_as(cls, data)
        except ValueError as error:
            raise DataError(f"no device: {error}") from error


def describe_device(device: str) -> DeviceFingerprint:
    """Describe a device of this machine as it is used now.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        UsageError: for another name, or a CUDA device that is not there.
    """
    if _DEVICE.fullmatch(device) is None:
        raise UsageError(f"unknown device {device!r}; use cpu, cuda or cuda:N")
    # Imported here so that reading a profile needs no torch.
    import torch

    name, cores = _cpu_name(), usable_cores()
    if device != "cpu":
        if not torch.cuda.is_available():
            raise UsageError(f"this machine has no CUDA device; use {mark('device')} cpu")
        number, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
        if number >= count:
            raise UsageError(f"no device {device!r}; the last one here is cuda:{count - 1}")
        card = torch.cuda.get_device_properties(number)
        name, cores = f"{card.name} (host {name})", card.multi_processor_count
    return DeviceFingerprint(
        kind="cpu" if device == "cpu" else "cuda",
        name=name,
        cores=cores,
        threads=torch.get_num_threads(),
        torch_version=", ".join(
            (str(torch.__version__), *(_card_kernels() if device != "cpu" else ()))
        ),
        platform=f"{platform.system()}-{platform.machine()}",
    )


def _card_kernels() -> tuple[str, ...]:
    """The package that brings kernels of linear attention for cards, with its version."""
    try:
        return (f"fla-core {version('fla-core')}",)
    except PackageNotFoundError:
        return ()


def clock_mhz(device: str) -> float | None:
    """The clock frequency a device runs at now in MHz, or None where it cannot be read.

    Of a processor with several cores it is the mean.
    """
    if device == "cpu":
        return _cpu_clock_mhz()
    import torch

    return _from_driver(lambda: float(torch.cuda.clock_rate(device)))


@dataclass(frozen=True, slots=True)
class CardState:
    """What slows a graphics card down, each None where it cannot be read.

    Attributes:
        celsius: its temperature.
        throttled: why it runs slower than its clocks and its power limit allow, ``hw thermal
            slowdown``; several with commas, empty where nothing does that.
    """

    celsius: float | None = None
    throttled: str | None = None


# Bits of nvml's reasons that make a card slower than it is as a rule: heat, or a supply that does
# not give the power it should. The other ones are how it always works: nothing to do, clocks or a
# power limit that were set, which large products reach on a card in order.
THROTTLING = {
    0x08: "hw slowdown",
    0x20: "sw thermal slowdown",
    0x40: "hw thermal slowdown",
    0x80: "hw power brake slowdown",
}


def card_state(device: str) -> CardState:
    """Temperature and throttling of a graphics card now; nothing is known of a processor."""
    if device == "cpu":
        return CardState()
    import torch

    celsius = _from_driver(lambda: float(torch.cuda.temperature(device)))
    return CardState(celsius, _from_driver(lambda: _throttled(device)))


def _throttled(device: str) -> str:
    import torch

    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    card = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(card))
    return ", ".join(text for bit, text in THROTTLING.items() if reasons & bit)


def _from_driver(read: Callable[[], T]) -> T | None:
    """What the driver of a graphics card tells; None where it does not, or nobody can ask it."""
    refused: list[type[Exception]] = [RuntimeError, ImportError, AttributeError]
    if "pynvml" in sys.modules or importlib.util.find_spec("pynvml") is not None:
        refused.append(importlib.import_module("pynvml").NVMLError)
    try:
        return read()
    except tuple(refused):
        return None


def _cpu_clock_mhz(cpuinfo: Path = Path("/proc/cpuinfo")) -> float | None:
    text = _told(cpuinfo)
    found = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", text, re.MULTILINE)]
    return round(sum(found) / len(found), 1) if found else None


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def granted_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores whose time this process may use up: `usable_cores`, or fewer by a container's quota.

    Args:
        cgroup: where the kernel tells the quota of a container, of version 2 or 1.
    """
    cores = usable_cores()
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / name).read_text("utf-8") for name in names).split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal():  # without a quota it is "max", or -1
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


def _cpu_name(
    cpuinfo: Path = Path("/proc/cpuinfo"), board: Path = Path("/proc/device-tree/model")
) -> str:
    """The model's name; of processors that have none, as ARM's, the board's or their numbers."""
    text = _told(cpuinfo)
    if found := re.search(r"^model name\s*:\s*(\S.*)$", text, flags=re.MULTILINE):
        return found[1].strip()
    if name := _told(board).strip("\0 \n"):
        return name
    maker = re.search(r"^CPU implementer\s*:\s*(\S+)", text, flags=re.MULTILINE)
    parts = sorted(set(re.findall(r"^CPU part\s*:\s*(\S+)", text, flags=re.MULTILINE)))
    if maker and parts:
        return f"CPU implementer {maker[1]}, part {' and '.join(parts)}"
    return platform.processor() or platform.machine()


def _told(file: Path) -> str:
    """What a file of the kernel says; nothing where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

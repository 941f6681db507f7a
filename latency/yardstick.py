"""How fast a machine is at its fastest: a small fixed network, timed beside all others.

What a millisecond is should be a fact of the machine and not of the minute in which somebody timed
something on it. The *yardstick* depends on no space, so that every session of the timer, of any
search on any day, tells how fast the machine was just then; the fastest sessions are kept in the
cache folder, in one file for each device and data type. `latency.acceptance.unit_of` tells what is
made of them. Importing this module does not import torch.

B: batch; N: positions; D: width; H: heads.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from latency.device import DeviceFingerprint
from latency.locking import cache_dir, file_lock, write_lock
from latency.workload import Dtype
from search_spaces.errors import DataError, NasError
from search_spaces.files import write_json

SCHEMA = 1
VERSION = 2  # of the network and how it is timed: another one begins other files
BATCH, LENGTH, WIDTH, HEADS, FFN_WIDTH, LAYERS = 4, 32, 64, 4, 256, 2

FASTEST = 3  # agreeing sessions that tell what a machine can do
AGREE = 0.10  # relative
KEPT = 12
KNOWN_SESSIONS = 60


@dataclass(frozen=True, slots=True)
class Speed:
    """What is known of a machine's speed.

    Attributes:
        fastest: milliseconds of the yardstick and when, in seconds since 1970, in the fastest calm
            sessions of the timer, ascending; at most 12.
        sessions: calm ones that there were in all.
    """

    fastest: tuple[tuple[float, float], ...] = ()
    sessions: int = 0

    @property
    def quiet_ms(self) -> float | None:
        """What the yardstick takes undisturbed; None before three sessions agreed.

        The mean of the three fastest that agree: one that is far faster than all others is a
        mistake.
        """
        times = [ms for ms, _ in self.fastest]
        for start in range(len(times) - FASTEST + 1):
            taken = times[start : start + FASTEST]
            if taken[-1] <= (1 + AGREE) * taken[0]:
                return float(np.mean(taken))
        return None

    @property
    def known(self) -> bool:
        """Whether the machine was watched long enough to have been fast now and then."""
        return self.sessions >= KNOWN_SESSIONS and self.quiet_ms is not None

    def plus(self, sessions: Iterable[tuple[float, float]]) -> Speed:
        """The same after some more calm sessions: milliseconds, and when they began."""
        added = list(sessions)
        fastest = sorted([*self.fastest, *added])[:KEPT]
        return Speed(tuple(fastest), self.sessions + len(added))

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return {"fastest": [list(one) for one in self.fastest], "sessions": self.sessions}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it is something else.
        """
        fastest = tuple(sorted((float(ms), float(began)) for ms, began in data["fastest"]))
        sessions = int(data["sessions"])
        if sessions < len(fastest) or not all(
            0 < ms < math.inf and math.isfinite(began) for ms, began in fastest
        ):
            raise ValueError("no times and numbers of sessions")
        return cls(fastest, sessions)


@dataclass(frozen=True, slots=True)
class SpeedRecord:
    """The file in which a machine's speed is kept.

    Attributes:
        device: with its threads; whose runtime is torch.
        dtype: in which the yardstick computes.
    """

    device: DeviceFingerprint
    dtype: Dtype

    @property
    def path(self) -> Path:
        """Where it lies in the cache folder."""
        text = json.dumps(self._header(), sort_keys=True)
        return speeds_dir() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def read(self) -> Speed:
        """What is known so far.

        Raises:
            DataError: for a damaged file.
        """
        return read_speed(self.path)[1] if self.path.exists() else Speed()

    def add(self, sessions: Iterable[tuple[float, float]]) -> Speed:
        """Keep some more calm sessions, on disk before it returns.

        Raises:
            DataError: for a damaged file, or a cache folder that cannot be written.
        """
        added = list(sessions)
        if not added:
            return self.read()
        with file_lock(write_lock(self.path)):
            speed = self.read().plus(added)
            write_json(self.path, self._header() | speed.to_json())
        return speed

    def _header(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "yardstick": VERSION,
            "device": self.device.to_json(),
            "dtype": self.dtype,
        }


def read_speed(path: Path) -> tuple[SpeedRecord, Speed]:
    """Read a file of `SpeedRecord`.

    Raises:
        DataError: when it cannot be read or is none.
    """
    try:
        data = json.loads(path.read_bytes())
        device = DeviceFingerprint.from_json(data["device"])
        return SpeedRecord(device, data["dtype"]), Speed.from_json(data)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, NasError) as error:
        raise DataError(
            f"{path}, which holds how fast this machine has been, is damaged ({error!r}); "
            f"nas cache clear {path.stem} removes it, and it is made anew"
        ) from error


def speeds_dir() -> Path:
    """The folder of all of them in the user's cache."""
    return cache_dir() / "speed"


def yardstick_call(device: str) -> Callable[[], object]:
    """The yardstick at its work: a transformer of two layers on the same random numbers always.

    Written with nothing but torch, whose version is part of the device: what changes in this
    package's layers must not change it.

    Args:
        device: where.
    """
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    x_BND = random(BATCH, LENGTH, WIDTH)
    sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, FFN_WIDTH), (FFN_WIDTH, WIDTH))
    layers = [[random(*size) / size[0] ** 0.5 for size in sizes] for _ in range(LAYERS)]

    def call() -> torch.Tensor:
        y_BND = x_BND
        for to_qkv, to_out, up, down in layers:
            normed = functional.layer_norm(y_BND, (WIDTH,))
            heads = (normed @ to_qkv).view(BATCH, LENGTH, 3, HEADS, -1)
            q_BHND, k_BHND, v_BHND = heads.permute(2, 0, 3, 1, 4)
            scores = q_BHND @ k_BHND.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
            mixed = (torch.softmax(scores, -1) @ v_BHND).transpose(1, 2)
            y_BND = y_BND + mixed.reshape(BATCH, LENGTH, WIDTH) @ to_out
            normed = functional.layer_norm(y_BND, (WIDTH,))
            y_BND = y_BND + functional.gelu(normed @ up) @ down
        return y_BND

    return call

"""What a process on each host of a cluster looks at.

This module is sent to the hosts as it stands, by value, and answers in plain values. So it imports
nothing of ours, and at its top nothing but Python's own: a host that lacks this package, or has
another version of it, is to be found, not to be failed on.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DISTRIBUTION = "nas-service"
PACKAGES = ("search_spaces", "supernet", "latency", "nas")
SHARED_MEMORY = Path("/dev/shm")
# Of a digest that people compare.
DIGEST_LETTERS = 8


class Probe:
    """Looks at the host it runs on, and tells the time there.

    Args:
        order: ``run``, the run folder, with ``marker`` and ``content``, a file that was written
            into it; ``data``, the data, with ``manifest``, the name of a prepared folder's list of
            its files. A folder that is None is not looked at.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order

    def facts(self) -> dict[str, Any]:
        """What is here, as JSON values; see `nas.executors.cluster_faults.Answer`."""
        order = self._order
        versions, cuda_devices = _torch()
        return {
            "versions": {**_versions(), **versions},
            "token": os.environ.get("RAY_AUTH_MODE", "").lower() == "token",
            "shared_memory": _shared_memory(),
            "cuda_devices": cuda_devices,
            "run": order["run"]
            and run_sight(Path(order["run"]), order["marker"], order["content"]),
            "data": order["data"] and data_sight(Path(order["data"]), order["manifest"]),
        }

    def clock(self) -> float:
        """Seconds since 1970 by the clock of this host."""
        return time.time()


def run_sight(folder: Path, marker: str, content: str) -> str:
    """What is seen of a run folder into which a file was written just now.

    Args:
        folder: its path.
        marker: name of the file.
        content: of the file.
    """
    if not folder.is_dir():
        return "missing"
    try:
        if (folder / marker).read_text("utf-8") != content:
            return "another"
    except FileNotFoundError:
        return "another"
    except OSError:
        return "unreadable"
    own = folder / f"{marker}.{platform.node()}.{os.getpid()}"
    try:
        own.write_text(content, "utf-8")
        own.unlink()
    except OSError:
        return "not writable"
    return "same"


def data_sight(path: Path, manifest: str) -> dict[str, Any] | None:
    """What is seen of data; see `nas.executors.cluster_faults.DataSight`."""
    if not path.exists():
        return None
    shown = [path]
    if path.is_dir():
        shown = [one for one in path.iterdir() if not one.name.startswith(".")]
    digest, damaged = _manifest(path / manifest)
    return {
        "manifest": digest,
        "damaged": damaged,
        "entries": len(shown),
        "size": sum(one.stat().st_size for one in shown if one.is_file()),
    }


def _manifest(file: Path) -> tuple[str | None, str | None]:
    """The digest of a manifest, and the first file that is not as it says."""
    if not file.is_file():
        return None, None
    text = file.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    try:
        sizes = {name: one["size"] for name, one in json.loads(text)["files"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return digest, file.name
    for name, size in sizes.items():
        one = file.parent / name
        if not one.is_file() or one.stat().st_size != size:
            return digest, name
    return digest, None


def _versions() -> dict[str, Any]:
    import ray

    package = code = None
    if importlib.util.find_spec("nas") is not None:
        code = _code_digest()
        try:
            package = importlib.metadata.version(DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError:
            package = "not installed"
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "package": package,
        "code": code,
        "ray": ray.__version__,
    }


def _code_digest() -> str:
    """Of names and contents of all that is ours; a version may be of many states."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        folders = (spec.submodule_search_locations if spec else None) or ()
        for folder in sorted(map(Path, folders)):
            for file in sorted(one for one in folder.rglob("*") if one.suffix in (".py", ".toml")):
                digest.update(f"{package}/{file.relative_to(folder).as_posix()}".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:DIGEST_LETTERS]


def _torch() -> tuple[dict[str, str | None], int]:
    """Version and build of torch, or why it cannot be imported; how many CUDA devices it sees."""
    try:
        import torch
    except Exception as error:  # whatever a broken installation raises
        lines = str(error).strip().splitlines() or [""]
        problem = f"{type(error).__name__}: {lines[0][:300]}"
        return {"torch": None, "torch_cuda": None, "torch_problem": problem}, 0
    versions = {"torch": str(torch.__version__), "torch_cuda": torch.version.cuda}
    return {**versions, "torch_problem": None}, torch.cuda.device_count()


def _shared_memory() -> int | None:
    """Bytes of shared memory, free or not."""
    if not SHARED_MEMORY.is_dir():
        return None
    found = os.statvfs(SHARED_MEMORY)
    return found.f_blocks * found.f_frsize

"""What every test gets: one thread, a cache of its own, repeatable examples, marks that skip."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from latency import acceptance

# Before the first import of torch or numpy: tests run one process a core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

# Not while everything is imported and collected; `_little_garbage` lets it go on.
gc.disable()

# The same examples in every run, on however slow a machine.
settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

OPT_IN = ("slow", "e2e")

_numbers = itertools.count()


def _no_cuda() -> str | None:
    # torch is a heavy import; only a run that meets a gpu test pays for it.
    import torch

    return None if torch.cuda.is_available() else "this machine has no CUDA device"


def _no_postgres() -> str | None:
    named = os.environ.get("NAS_TEST_POSTGRES_URL")
    return None if named else "NAS_TEST_POSTGRES_URL does not name a server"


def _no_hosts() -> str | None:
    from experiments import hosts

    return hosts.missing()


def _not_installed(package: str) -> Callable[[], str | None]:
    def reason() -> str | None:
        found = importlib.util.find_spec(package)
        return None if found else f"the package {package} is not installed"

    return reason


MISSING: dict[str, Callable[[], str | None]] = {
    "gpu": _no_cuda,
    "postgres": _no_postgres,
    "export": _not_installed("onnxruntime"),
    "ray": _not_installed("ray"),
    "fairseq": _not_installed("fairseq"),
    "hosts": _no_hosts,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark in OPT_IN:
        parser.addoption(f"--run-{mark}", action="store_true", help=f"run {mark} tests as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    present = {mark.name for item in items for mark in item.iter_markers()}
    reasons = {mark: _opt_out(config, mark) for mark in OPT_IN}
    reasons |= {mark: missing() for mark, missing in MISSING.items() if mark in present}
    for item in items:
        for mark, reason in reasons.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _opt_out(config: pytest.Config, mark: str) -> str | None:
    """Why tests of that mark do not run; a mark named in -m is left to -m."""
    named = re.search(rf"\b{mark}\b", config.option.markexpr or "")
    if named or config.getoption(f"--run-{mark}"):
        return None
    return f"{mark} test; add --run-{mark} to run it"


@pytest.fixture(scope="session")
def _cache_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session", autouse=True)
def _own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of locks for this process: tests beside it compute while these time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAS_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_disks() -> Iterator[None]:
    """No test outlives a power cut: a file that is synced is asked after, and not waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def own_cache(_cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that no other test sees; made only if the test writes to it."""
    folder = _cache_root / str(next(_numbers))
    monkeypatch.setenv("NAS_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def every_timing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share their cores with each other: nothing they time would ever be accepted.

    Processes that they start do not wait for a quiet machine, and may find timings doubtful.
    """
    monkeypatch.setenv("NAS_TIMING_PATIENCE_S", "0")
    monkeypatch.setattr(acceptance, "TOLERANCES", acceptance.Tolerances(*[math.inf] * 8))


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    """What is imported stays; the collector, which every timing calls, need not go through it."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def few_regressors() -> Iterator[None]:
    """See `tests.support.profile_cases.few_regressors`."""
    from tests.support import profile_cases

    with profile_cases.few_regressors():
        yield


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A small Ray on this machine, for all tests of a process that ask for it."""
    from tests.support.ray_cases import started

    with started():
        yield

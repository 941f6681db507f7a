"""Processes of a run let torch use memory that lies apart, unless they were told otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from supernet.card_environment import use_expandable_segments

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def set_up(monkeypatch: pytest.MonkeyPatch, **before: str) -> list[str | None]:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # put back behind the test, whatever was there
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    use_expandable_segments()
    return [os.environ.get(name) for name in NAMES]


def test_old_and_new_versions_of_torch_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_up(monkeypatch) == ["expandable_segments:True"] * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["max_split_size_mb:64", ""])
def test_what_the_user_has_set_stays(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert set_up(monkeypatch, **{name: value}) == [value if one == name else None for one in NAMES]


@pytest.mark.parametrize("module", ["service.worker.job_process", "nas.executors.attempts"])
def test_it_is_so_when_torch_is_imported(module: str) -> None:
    """Whatever process it is, and whatever it begins with."""
    code = (
        f"import os, sys\nimport {module}\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['PYTORCH_ALLOC_CONF'])"
    )
    bare = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "expandable_segments:True"

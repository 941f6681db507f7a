"""A Ray of one's own leaves nothing behind in the user's home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

# More than once, because Ray remembers in a process which token it has read.
WORK = """
import os, ray, sys
from nas.executors.base import ExecutorSettings
from nas.executors.ray_cluster import TOKEN_VARIABLES, RayCluster

@ray.remote
def mode():
    from ray._private.authentication.authentication_utils import get_authentication_mode_name
    from ray._raylet import get_authentication_mode
    return get_authentication_mode_name(get_authentication_mode())

before = {name: os.environ.get(name) for name in TOKEN_VARIABLES}
for _ in range(int(sys.argv[1])):
    cluster = RayCluster(ExecutorSettings("ray"))
    cluster.connect()
    try:
        print(ray.get(mode.remote()))
        assert {name: os.environ.get(name) for name in TOKEN_VARIABLES} == before
    finally:
        cluster.close()
"""


@pytest.mark.parametrize(
    ("given", "times"),
    [
        ({}, 2),
        pytest.param({"RAY_AUTH_MODE": "token"}, 1, marks=pytest.mark.slow),
        pytest.param({"RAY_AUTH_TOKEN": "a" * 64}, 1, marks=pytest.mark.slow),
    ],
)
def test_no_token_is_written_into_the_home(
    tmp_path: Path, given: dict[str, str], times: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(times)],
        env=known | given | {"HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["token"] * times  # strangers on this machine are kept out
    assert not list(home.rglob("*"))

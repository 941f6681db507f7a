"""What a refusal by a cluster is told as; Ray itself is not asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nas.executors.base import ExecutorSettings
from search_spaces.errors import ExecutorError

pytestmark = pytest.mark.ray

REFUSED = "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken"


def refuse(raised: Exception) -> Callable[..., None]:
    def init(*_: object, **__: object) -> None:
        raise raised

    return init


def no_tries(*_: object, **__: object) -> None:
    """As Ray does it: only the text of what it met in its tries is left."""
    try:
        raise RuntimeError(f"Failed to connect to GCS. Last connection error: {REFUSED}")
    except RuntimeError as error:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379") from error


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """What the command says when Ray's connection does something."""
    from nas.executors import ray_cluster

    for name in (*ray_cluster.TOKEN_VARIABLES, "RAY_ADDRESS", ray_cluster.TRIES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "_knock", lambda address: None)

    def connect(init: Callable[..., None], address: str = "10.0.0.1:6379", **how: Any) -> str:
        monkeypatch.setattr(ray_cluster.ray, "init", init)
        with pytest.raises(ExecutorError) as caught:
            ray_cluster.RayCluster(ExecutorSettings("ray", address), **how).connect()
        assert ray_cluster.TRIES_VARIABLE not in os.environ
        return str(caught.value)

    return connect


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["it has none", "copy ~/.ray/auth_token", "export RAY_AUTH_MODE=token"]),
        ({"RAY_AUTH_TOKEN": "a" * 64}, ["does not send the one in the variable RAY_AUTH_TOKEN"]),
        (
            {"RAY_AUTH_TOKEN": "a" * 64, "RAY_AUTH_MODE": "token"},
            ["the one in the variable RAY_AUTH_TOKEN is another"],
        ),
        ({"RAY_AUTH_TOKEN_PATH": "gone"}, ["RAY_AUTH_TOKEN_PATH names gone, which is not there"]),
    ],
)
def test_a_token_that_is_not_the_clusters(
    told: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    words: list[str],
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    said = told(no_tries)
    assert said.startswith("this machine and the Ray cluster at 10.0.0.1:6379 do not share a token")
    assert [word for word in words if word not in said] == []


def test_the_file_in_the_home_is_named(
    told: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("a" * 64)
    assert f"does not send the one in {file}; export RAY_AUTH_MODE=token" in told(no_tries)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert f"the one in {file} is another; copy" in told(no_tries)


def test_the_library_itself_may_miss_the_token(
    told: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import AuthenticationError

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    missing = AuthenticationError("Token authentication is enabled but no token was found")
    assert "do not share a token: it has none" in told(refuse(missing))


def test_only_a_head_that_asks_for_no_token_is_tried_again(told: Callable[..., str]) -> None:
    from nas.executors.ray_cluster import TRIES_VARIABLE

    tries: list[str | None] = []

    def counted(init: Callable[..., None]) -> Callable[..., None]:
        def counting(*_: object, **__: object) -> None:
            tries.append(os.environ.get(TRIES_VARIABLE))
            init()

        return counting

    slow = refuse(ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379"))
    assert "(Failed to connect to Ray cluster at 10.0.0.1:6379)" in told(counted(slow))
    assert tries == ["1", None]
    tries.clear()
    told(counted(no_tries))
    assert tries == ["1"]


def test_a_refusal_says_why_in_one_sentence(told: Callable[..., str]) -> None:
    mismatch = "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\nand this with:\n"
    said = told(refuse(RuntimeError(mismatch)))
    assert "(Version mismatch: The cluster was started with: Ray: 2.59.0 and this with:)" in said
    nowhere = ConnectionError("Could not find any running Ray instance. Please set `--address`.")
    said = told(refuse(nowhere), "auto")
    assert "no Ray cluster to be had on this machine (Could not find any running Ray" in said
    assert "--address`" not in said and said.endswith("or leave --ray-address out")
    assert told(refuse(nowhere), "auto", alternative=False).endswith(
        "or give the address it prints"
    )

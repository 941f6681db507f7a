"""Compose's file as its users type it: built, started, a job and a search on its cluster done."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

from service.client import Client
from service.jobs.states import State
from tests.docker.test_files import DOCKER, DOCKERFILE, EXAMPLE, SERVICES
from tests.docker.test_health import PASSWORD, free_port

SMOKE = {"space": "digits", "preset": "smoke", "objectives": ["quality", "params"]}
SEARCH = (
    "nas search --space digits --preset smoke --objectives quality,params"
    " --executor ray --ray-address auto --out /data/runs/digits"
)

pytestmark = pytest.mark.slow


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)


def has_image(name: str) -> bool:
    return any(docker(*words, name).returncode == 0 for words in (("image", "inspect"), ("pull",)))


class Compose:
    """A project of its own, with the settings that a user has made.

    Args:
        folder: for them.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        given = {"POSTGRES_PASSWORD": f"'{PASSWORD}'", "NAS_PUBLISHED_PORT": str(self.port)}
        settings = folder / "env"
        settings.write_text(EXAMPLE + "".join(f"{k}={v}\n" for k, v in given.items()))
        self._words = (
            *("--project-name", f"nas-test-{uuid.uuid4().hex[:8]}", "--env-file", str(settings)),
            *("--file", str(DOCKER / "compose.yml")),
        )

    def __call__(self, *words: str) -> str:
        """What a command of it prints."""
        done = docker("compose", *self._words, *words)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"docker compose {' '.join(words)}: {said[-3000:]}"
        return done.stdout

    @cached_property
    def token(self) -> str:
        """The first one, which stands in the API's log."""
        found = re.search(r"nas_[\w-]{43}", self("logs", "api"))
        assert found is not None
        return found[0]


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    if shutil.which("docker") is None or docker("info").returncode or docker("compose").returncode:
        pytest.skip("needs Docker, its daemon and its plugin compose")
    base = re.findall(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    if lacking := [one for one in (*base, SERVICES["database"]["image"]) if not has_image(one)]:
        pytest.skip(f"needs the image {' and '.join(lacking)}, and no registry gives it")
    made = Compose(tmp_path_factory.mktemp("compose"))
    try:
        made("up", "--build", "--detach", "--wait", "--scale", "worker=2")
        yield made
    finally:
        made("--profile", "ray", "down", "--volumes", "--timeout", "5")


def does_a_job(compose: Compose) -> None:
    with Client(f"http://localhost:{compose.port}", compose.token) as client:
        job = client.submit(**SMOKE)
        assert client.watch(job).state == State.succeeded
        assert len(client.front(job)) > 1


def test_a_job_is_done(compose: Compose) -> None:
    with Client(f"http://localhost:{compose.port}", compose.token) as client:
        assert client.duration(space="digits", preset="smoke").seconds > 0
    does_a_job(compose)


def test_a_cluster_searches_and_does_the_jobs_of_its_worker(compose: Compose) -> None:
    compose(
        *("--profile", "ray", "up", "--detach", "--wait"),
        *("--scale", "ray-node=2", "--scale", "worker=0"),
    )
    checked = compose("exec", "-T", "ray-head", "nas", "cluster", "check", "--run", "/data")
    assert "4 hosts" in checked
    compose("exec", "-T", "ray-head", *SEARCH.split())
    assert "pareto.json" in compose("exec", "-T", "ray-head", "ls", "/data/runs/digits")
    does_a_job(compose)

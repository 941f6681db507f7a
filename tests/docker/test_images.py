"""The images: built by whatever builds images here, as small as they should be, and at work.

Nothing is fetched but packages: the base is ``NAS_TEST_BASE_IMAGE``, or what `docker/local-base`
makes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.client import Client
from service.jobs.states import State
from tests.docker.test_files import DOCKER, ROOT, SERVICES
from tests.docker.test_health import PASSWORD, command_of, environment_of, free_port
from tests.support.service_cases import postgres_url

MOST_MB = {"worker": 1400, "api": 450, "ray": 1400}
"""Uncompressed, with the base."""
UID = 10001
HOME = "/shared"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("buildah") is None or os.geteuid() != 0, reason="needs root and buildah"
    ),
]


def buildah(*words: str, **options: object) -> str:
    """What a call of buildah prints."""
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"buildah {words[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return str(done.stdout).strip()


def of_pip() -> list[str]:
    """What lets pip in a build reach what it reaches here: its settings, and folders they name."""
    told = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(re.findall(r"^[\w:]*?\.?([\w-]+)='(.*)'$", told, re.MULTILINE))
    words = [f"--env=PIP_{k.upper().replace('-', '_')}={v}" for k, v in settings.items()]
    named = " ".join(settings.values()).split()
    # An index on the disk names files beside it.
    folders = {Path(one.removeprefix("file://")).parent for one in named if one[:5] == "file:"}
    folders |= {Path(one) for one in named if one.startswith("/") and Path(one).exists()}
    return words + [f"--volume={one}:{one}:ro" for one in sorted(folders)]


@pytest.fixture(scope="module")
def base() -> str:
    """The image that all begin with."""
    if given := os.environ.get("NAS_TEST_BASE_IMAGE"):
        return given
    if shutil.which("debootstrap") is None:
        pytest.skip("needs debootstrap, or NAS_TEST_BASE_IMAGE")
    name = "nas-test-base"
    subprocess.run([DOCKER / "local-base", name], check=True, stdout=subprocess.DEVNULL)
    return name


@pytest.fixture(scope="module")
def images(base: str) -> Mapping[str, str]:
    """Target → image."""
    options = ("--format", "docker", "--isolation", "chroot", "--layers", "--build-arg")
    found = {}
    for target in MOST_MB:
        name = f"nas-test-{target}"
        what = ("--file", str(DOCKER / "Dockerfile"), "--target", target, "--tag", name)
        buildah("bud", *of_pip(), *options, f"BASE_IMAGE={base}", *what, str(ROOT))
        found[target] = name
    return found


def megabytes(image: str) -> float:
    """Of an image's layers."""
    listed = json.loads(buildah("images", "--json", image))
    number, unit = str(listed[0]["size"]).split()
    return float(number) * {"MB": 1, "GB": 1000}[unit]


@pytest.mark.parametrize("target", list(MOST_MB))
def test_an_image_is_small(target: str, images: Mapping[str, str]) -> None:
    size = megabytes(images[target])
    print(f"{target}: {size:,.0f} MB")
    assert size <= MOST_MB[target]


class Container:
    """A container of an image that sees this machine's network."""

    def __init__(self, image: str, home: Path, environment: Mapping[str, str]) -> None:
        self.name = buildah("from", image)
        given = [f"--env={key}={value}" for key, value in environment.items()]
        # Not at /data: a run of buildah's has an own volume wherever the image names one.
        given += [f"--volume={home}:{HOME}", f"--env=NAS_HOME={HOME}"]
        self._words = ["buildah", "run", "--isolation", "chroot", *given]

    def starts(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Runs a command, as its image would."""
        return subprocess.Popen(
            [*self._words, self.name, "--", *command],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def does(self, command: Sequence[str]) -> tuple[int, str]:
        """The exit status of a command, and what it printed."""
        process = self.starts(command)
        out, _ = process.communicate()
        return process.returncode, out


@contextmanager
def container(image: str, home: Path, environment: Mapping[str, str]) -> Iterator[Container]:
    """One that is removed afterwards."""
    made = Container(image, home, environment)
    try:
        yield made
    finally:
        buildah("rm", made.name)


@contextmanager
def at_work(one: Container, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A command of a container, ended afterwards with all that it began."""
    process = one.starts(command)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def healthy(one: Container, check: Sequence[str]) -> bool:
    """Asked after as often as compose asks."""
    return any(one.does(check)[0] == 0 or time.sleep(1.0) for _ in range(60))


def told_token(lines: Iterator[str]) -> str:
    """The first token, which stands once in the API's log."""
    for line in lines:
        if found := re.search(r"nas_[\w-]{43}", line):
            return found[0]
    raise AssertionError("no token was told")


@pytest.mark.postgres
def test_a_job_is_served_by_one_image_and_done_by_another(
    images: Mapping[str, str], tmp_path: Path
) -> None:
    """With the environment of compose, its health checks, and a database of its own."""
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    os.chown(home, UID, UID)
    with postgres_url() as url:
        place = urlsplit(url)
        given = {
            name: environment_of(name, POSTGRES_PASSWORD=PASSWORD)
            | {"NAS_DATABASE_URL": url, "NAS_PORT": str(port), "PGUSER": place.username or ""}
            for name in ("api", "worker", "helper")
        }
        helped = SERVICES["helper"]
        with (
            container(images["api"], home, given["api"]) as api,
            container(images["worker"], home, given["worker"]) as worker,
            container(images["worker"], home, given["helper"]) as helper,
            at_work(api, command_of("api")) as served,
            at_work(helper, helped["command"]),
        ):
            assert served.stdout is not None
            token = told_token(iter(served.stdout))
            check = [word.replace(":8321", f":{port}") for word in command_of("api", "HEALTHCHECK")]
            assert healthy(api, check)
            assert healthy(helper, helped["healthcheck"]["test"][1:])
            assert worker.does(["id", "-u"]) == (0, f"{UID}\n")
            with at_work(worker, command_of("worker")):
                assert healthy(worker, command_of("worker", "HEALTHCHECK"))
                costs = ["quality", "params"]
                with Client(f"http://127.0.0.1:{port}", token) as client:
                    assert client.duration(space="digits", preset="smoke").seconds > 0
                    job = client.submit(space="digits", preset="smoke", objectives=costs)
                    assert client.watch(job).state == State.succeeded
                    assert len(client.front(job)) > 1
            assert api.does(["python3", "-c", "import torch"])[0] != 0

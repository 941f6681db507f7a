"""The environment of docker/compose.yml and its health checks, tried on a service that runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.jobs.database import DatabaseAwayError
from service.jobs.store import open_store
from service.settings import PREFIX, Settings, read_settings
from tests.docker.test_files import DOCKERFILE, EXAMPLE, SERVICES
from tests.support.service_cases import postgres_url

PASSWORD = "p@ss:w/rd #% ?"
TRIES = 60  # of a check that takes about a second; compose tries again as well
_CODE = "from service.commands import {0}; import typer; typer.run({0})"


class MissingVariableError(Exception):
    """What compose says when a variable has to be set and is not."""


def filled(text: str, variables: Mapping[str, str]) -> str:
    """A value of compose.yml as compose fills it in."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == ":?":
            raise MissingVariableError(rest)
        return str(rest)

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, text)


def environment_of(name: str, **changed: str) -> dict[str, str]:
    """The environment of a container, with what a user has set in a copy of .env.example."""
    example = dict(re.findall(r"^(\w+)=(.*)$", EXAMPLE, re.MULTILINE)) | changed
    return {k: filled(str(v), example) for k, v in SERVICES[name]["environment"].items()}


def stage(name: str) -> str:
    """The part of the Dockerfile that makes one image."""
    return DOCKERFILE.partition(f"AS {name}\n")[2].partition("\nFROM")[0]


def command_of(name: str, key: str = "CMD") -> list[str]:
    """What an image runs, or for HEALTHCHECK how its health is asked after."""
    after = re.search(rf"^{key}\b(?:.*\\\n)?(?:\s*CMD)?\s*(\[.*\])$", stage(name), re.MULTILINE)
    assert after is not None, stage(name)
    return list(json.loads(after[1]))


def here(command: list[str], port: int) -> list[str]:
    """A command of a container with the programs and the port of this test."""
    first, *rest = [word.replace(":8321", f":{port}") for word in command]
    if first == "nas":
        return [sys.executable, "-c", _CODE.format(rest[0]), *rest[1:]]
    return [{"python3": sys.executable}[first], *rest]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def passes(command: list[str], environment: dict[str, str]) -> bool:
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def database() -> Iterator[str | None]:
    """On PostgreSQL, as in compose, where there is a server; else SQLite's file."""
    if "NAS_TEST_POSTGRES_URL" not in os.environ:
        yield None
        return
    with postgres_url() as url:
        yield url


def around(environment: dict[str, str], home: Path, port: int, url: str | None) -> dict[str, str]:
    """An environment of compose's in this machine's, with a database that is at hand."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
    given = {**environment, "NAS_HOME": str(home), "NAS_PORT": str(port)}
    del given["NAS_DATABASE_URL"]
    return {**ours, **given, **({"NAS_DATABASE_URL": url} if url else {})}


def test_health_checks_pass_as_compose_asks_them(tmp_path: Path, database: str | None) -> None:
    port = free_port()
    api, worker = (
        around(environment_of(name, POSTGRES_PASSWORD=PASSWORD), tmp_path, port, database)
        for name in ("api", "worker")
    )
    check, other = (here(command_of(name, "HEALTHCHECK"), port) for name in ("api", "worker"))
    assert not passes(check, api)
    with running(here(command_of("api"), port), api) as served:
        assert served.stderr is not None and served.stderr.readline().startswith("Serving")
        assert passes(check, api)
        refused = httpx.get(f"http://127.0.0.1:{port}/readyz", headers={"Host": "nas.example"})
        assert refused.status_code == 421
        assert not passes(other, worker)
        with running(here(command_of("worker"), port), worker):
            assert any(passes(other, worker) for _ in range(TRIES))


def test_all_health_checks_of_our_own_are_these() -> None:
    """In compose as well, for images in OCI's format have none."""
    own = {"api": "api", "worker": "worker", "ray-worker": "worker"}
    for name, image in own.items():
        assert SERVICES[name]["healthcheck"]["test"] == ["CMD", *command_of(image, "HEALTHCHECK")]
    assert DOCKERFILE.count("HEALTHCHECK") == 2
    assert shlex.join(command_of("api", "HEALTHCHECK")).count("http://127.0.0.1:8321/readyz") == 1


@pytest.mark.parametrize("name", ["api", "worker", "ray-worker"])
def test_a_copy_of_the_example_is_enough_but_for_the_password(name: str) -> None:
    with pytest.raises(MissingVariableError, match=r"^set POSTGRES_PASSWORD in docker/\.env,"):
        environment_of(name)
    with pytest.raises(MissingVariableError, match=r"a copy of docker/\.env\.example"):
        filled(SERVICES["database"]["environment"]["POSTGRES_PASSWORD"], {})
    settings = read_settings(environment_of(name, POSTGRES_PASSWORD=PASSWORD))
    assert settings.allowed_hosts == ("localhost",) and settings.trusted_proxies == ()
    assert settings.url == "postgresql+psycopg://nas@database:5432/nas"


# -- the password ---------------------------------------------------------------------------------


class Database:
    """Asks who connects for a password, in the clear, and takes none: enough of PostgreSQL."""

    def __init__(self) -> None:
        self.port = 0
        self.user = self.password = ""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, connection.makefile("rwb") as stream:
            while True:
                (size,) = struct.unpack("!i", stream.read(4))
                message = stream.read(size - 4)
                if message[:4] in (struct.pack("!i", 80877103), struct.pack("!i", 80877104)):
                    stream.write(b"N")  # neither TLS nor GSSAPI
                    stream.flush()
                    continue
                break
            self.user = message[4:].split(b"\0")[1].decode()
            stream.write(b"R" + struct.pack("!ii", 8, 3))
            stream.flush()
            assert stream.read(1) == b"p"
            (size,) = struct.unpack("!i", stream.read(4))
            self.password = stream.read(size - 4).rstrip(b"\0").decode()

    def close(self) -> None:
        self._thread.join(30)
        self._socket.close()


@pytest.mark.parametrize("password", [PASSWORD, "plain", "$HOME'\"\\"])
def test_a_password_of_any_characters_reaches_the_database(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Database()
    given: dict[str, Any] = environment_of("api", POSTGRES_PASSWORD=password)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    url = given["NAS_DATABASE_URL"].replace("@database:5432", f"@127.0.0.1:{there.port}")
    store = open_store(Settings(database_url=url).url)
    with pytest.raises(DatabaseAwayError):
        store.database.ping()
    there.close()
    assert (there.user, there.password) == ("nas", password)

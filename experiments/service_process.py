"""Starts a service as its users do, and asks it over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REQUEST = {"space": "digits", "preset": "smoke", "seed": 1}
PATIENCE_S = 60.0


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection is given.

    A client that keeps asking for a port of the second kind, while nobody listens there, ends up
    connected to itself, and the service cannot have the port back.
    """
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(12_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Api:
    """One client with one connection, which is made anew when it breaks and ends with it."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of one request.

        Raises:
            OSError: when nobody answers.
            HTTPException: when the answer breaks off.
        """
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        data = None if body is None else json.dumps(body)
        try:
            sent = {**self._headers, **(headers or {})}
            self._connection.request(method, f"/api/v1{path}", data, sent)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def close(self) -> None:
        """End the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def __del__(self) -> None:
        self.close()

    def surely(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON of an answer, asked for again while nobody answers.

        Raises:
            RuntimeError: when it is refused, or nobody answers for long.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                status, text = self.ask(method, path, body, headers)
                if status < 500:
                    break
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, repr(error).encode()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{method} {path}: {status} {text[:200]!r}")
            time.sleep(0.1)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {text[:200]!r}")
        return json.loads(text)


class Service:
    """Processes of one service in one home folder.

    Args:
        home: its folder.
        within: a command that is given each command of the service as its arguments, to run it
            within limits.
        environment: its settings.
    """

    def __init__(self, home: Path, within: Sequence[str] = (), /, **environment: str) -> None:
        self.home = home
        self._within = within
        self.port = free_port()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "NAS_HOME": str(home),
            "NAS_REQUESTS_PER_MINUTE": "10000000",
            "NAS_JOBS_PER_OWNER": "1000",
            "NAS_MAX_LOSSES": "100000",
            **environment,
        }
        self.log_file = home.parent / "service.log"
        self.token = self.new_token("load", "admin")

    def new_token(self, name: str, role: str) -> str:
        """The secret of a token that is made."""
        return self.command("token", "create", "--name", name, "--role", role).splitlines()[-1]

    def command(self, *arguments: str, **environment: str) -> str:
        """What a command that ends by itself prints.

        Raises:
            CalledProcessError: when it fails.
        """
        return subprocess.run(
            self._run(*arguments),
            env=self._environment | environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def api(self) -> Api:
        """A client."""
        return Api(self.port, self.token)

    def serve(self, workers: int) -> subprocess.Popen[bytes]:
        """Start the API and workers beside it."""
        options = ("--port", str(self.port), "--workers", str(workers))
        return self.start("serve", *options)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of the service."""
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                self._run(*arguments), env=self._environment, stdout=log, stderr=log
            )

    def answers(self) -> bool:
        """Whether the API answers at this moment."""
        with suppress(OSError, http.client.HTTPException):
            return self.api().ask("GET", "/jobs?limit=1")[0] == 200
        return False

    def wait_until_ready(self) -> None:
        """Wait for the API to answer."""
        self.api().surely("GET", "/jobs?limit=1")

    def _run(self, *arguments: str) -> list[str]:
        return [*self._within, sys.executable, "-m", "nas.console.app", *arguments]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and see to it."""
    process.send_signal(signal.SIGTERM)
    process.wait(30)

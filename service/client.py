"""Talks to a service over its API."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from search_spaces.errors import NasError, UsageError

PREFIX = "/api/v1"
TIMEOUT_S = 30.0
SILENCE_S = 60.0  # a stream says at least that often that it is still there
CHECK_S = 300.0  # for a checkpoint to be read by the service
PIECE = 2**20  # bytes
AGAIN_S = 1.0
TRIES = 30


class Client:
    """The API of a service as functions.

    Args:
        server: its address, for example ``http://127.0.0.1:8321``.
        token: None where the service asks for none.
    """

    def __init__(self, server: str, token: str | None) -> None:
        if not server.startswith(("http://", "https://")):
            raise UsageError(
                f"--server, or NAS_SERVER, is an address such as http://127.0.0.1:8321; "
                f"given {server!r}"
            )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._server = server.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self._server + PREFIX, headers=headers, timeout=TIMEOUT_S
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise UsageError(f"--server or --token cannot be used: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Ask for something; the answer's JSON.

        Raises:
            UsageError: when the service refuses, with its words.
            NasError: when it does not answer, or fails.
        """
        answer = self.answer(method, path, **options)
        return answer.json() if answer.content else None

    def answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask for something; see `ask`."""
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._silent(error) from None
        if answer.is_error:
            raise _refusal(answer)
        return answer

    def upload(self, name: str, files: Mapping[str, Path]) -> dict[str, Any]:
        """Upload a checkpoint; of one that is refused, or not sent to its end, nothing stays.

        Args:
            name: for the checkpoint.
            files: name in the checkpoint → the file.

        Returns:
            What the service tells of the checkpoint.

        Raises:
            UsageError: when the service refuses it, with its words.
            NasError: when it does not answer, or a file was changed meanwhile.
        """
        sizes = {one: file.stat().st_size for one, file in files.items()}
        begun = self.ask("POST", "/uploads", json={"name": name, "files": sizes})
        place = f"/uploads/{begun['id']}"
        try:
            for one, file in files.items():
                self._send(f"{place}/files/{quote(one)}", file, sizes[one])
            made: dict[str, Any] = self.ask("POST", f"{place}/finish", timeout=CHECK_S)
        except BaseException:
            with suppress(NasError):
                self.ask("DELETE", place)
            raise
        return made

    def _send(self, path: str, file: Path, size: int) -> None:
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
            content = _pieces(stream, size, digest.update)
            sent = self.ask("PUT", path, content=content, headers=headers)
        if sent["sha256"] != digest.hexdigest():
            raise NasError(f"{file} arrived as something else; send it again")

    def follow(self, job: str) -> Iterator[dict[str, Any]]:
        """Everything that happens to a job until it ends, also over lost connections.

        Yields:
            Events as the service tells them; the last one is ``{"state": …}``.
        """
        last, failures = 0, 0
        while True:
            try:
                for number, data in self._stream(job, last):
                    last, failures = number or last, 0
                    yield data
                    if number is None:
                        return
            except httpx.TransportError as error:
                failures += 1
                if failures >= TRIES:
                    raise self._silent(error) from None
                time.sleep(AGAIN_S)

    def _stream(self, job: str, last: int) -> Iterator[tuple[int | None, dict[str, Any]]]:
        headers = {"Last-Event-ID": str(last)}
        path = f"/jobs/{job}/events"
        with self._http.stream("GET", path, headers=headers, timeout=SILENCE_S) as answer:
            if answer.is_error:
                answer.read()
                raise _refusal(answer)
            if answer.status_code == 204:
                yield None, {"state": self.ask("GET", f"/jobs/{job}")["state"]}
                return
            yield from _messages(answer.iter_lines())

    def _silent(self, error: Exception) -> NasError:
        return NasError(
            f"{self._server} does not answer ({error}); is the service running there? "
            "nas serve starts one here"
        )


def _pieces(stream: BinaryIO, size: int, note: Callable[[bytes], None]) -> Iterator[bytes]:
    """So many bytes of a file, piece by piece."""
    while size:
        piece = stream.read(min(PIECE, size))
        if not piece:
            raise NasError(f"{stream.name} was cut while it was sent; begin anew")
        note(piece)
        size -= len(piece)
        yield piece


def _messages(lines: Iterator[str]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The numbers and data of a stream's messages; the last one has no number."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            number = fields.get("id")
            yield None if number is None else int(number), json.loads(fields["data"])
            fields = {}
        else:
            fields = {}


def _refusal(answer: httpx.Response) -> NasError:
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, LookupError, TypeError):
        detail = "it gave no reason"
    text = f"the service refused ({answer.status_code}): {detail}"
    if answer.status_code == 401:
        text += "; give the token with --token or in NAS_TOKEN"
    return NasError(text) if answer.is_server_error else UsageError(text)

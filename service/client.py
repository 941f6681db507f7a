"""A service's API from Python; the commands use the same client.

::

    from service.client import Client

    with Client() as client:  # NAS_SERVER and NAS_TOKEN, like the commands
        job = client.submit(space="digits", preset="smoke", title="Table 2", tags=["paper"])
        client.watch(job, print)
        front = client.front(job)  # a pandas DataFrame
        client.download(job, "report.html", "report.html")
        client.export(job, "network", pick="knee", format="onnx")
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from nas.request.architectures import read_architecture
from nas.request.fields import first_problem
from nas.request.protected_choices import NONE
from nas.request.spec import PLAIN
from search_spaces.errors import NasError, UsageError
from search_spaces.files import building_folder
from search_spaces.toml.source import read_text
from service.api.schemas import (
    ArtifactOut,
    CheckpointOut,
    DurationOut,
    ExportRequest,
    JobEdit,
    JobOut,
    JobPage,
    JobQuery,
    JobRequest,
    NetworkRequest,
    WebhookOut,
    WebhookSecretOut,
)
from service.jobs.states import State
from service.settings import API_PREFIX, DEFAULT_SERVER

if TYPE_CHECKING:
    from pandas import DataFrame

M = TypeVar("M", bound=BaseModel)

TIMEOUT_S = 30.0
SILENCE_S = 60.0  # a stream says at least that often that it is still there
CHECK_S = 400.0  # for a checkpoint to be read by the service
PIECE = 2**20  # bytes
CALIBRATED_S = 270.0  # the first answer for a space takes its time
CHECKED_S = 330.0  # the server takes sums of a large checkpoint
FILE_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=CHECKED_S)  # of a large file as well
AGAIN_S = 1.0
TRIES = 30
SEND_AGAIN_S = (1.0, 5.0)  # before the same is asked again
LAST_PORT = 65_535
# Of what a token may not hold, what gets into one by mistake: from a file's end, or a copy.
STRAY = {"\n": "a line feed", "\r": "a carriage return", "\t": "a tab", " ": "a space"}
AWAY = (502, 503, 504)  # what servers and proxies answer that have no time, or nobody to ask


class AwayError(NasError):
    """A service does not answer, or not now: the same may be asked again."""


class Client:
    """The API of a service as functions; what they take and give is that of `service.api.schemas`.

    Whatever the service refuses is a `UsageError` with its words; a `NasError` when it does not
    answer, or fails. A job is named by its id, or by what another function has told of it.

    Args:
        server: its address; that of ``NAS_SERVER``, or of this machine, unless given.
        token: that of ``NAS_TOKEN`` unless given; none where the service asks for none.
    """

    def __init__(self, server: str | None = None, token: str | None = None) -> None:
        server = server or os.environ.get("NAS_SERVER") or DEFAULT_SERVER
        token = token or os.environ.get("NAS_TOKEN")
        if not re.match(r"https?://[^/:?#]", server):
            raise UsageError(
                f"--server, or NAS_SERVER, is an address such as http://127.0.0.1:8321; "
                f"given {server!r}"
            )
        headers = {"Authorization": f"Bearer {_checked(token)}"} if token else {}
        self._server = server.rstrip("/")
        try:
            address = httpx.URL(self._server + API_PREFIX)
        except httpx.InvalidURL as error:
            raise UsageError(f"--server, or NAS_SERVER, cannot be used: {error}") from None
        if address.port is not None and not 0 < address.port <= LAST_PORT:
            raise UsageError(
                f"--server, or NAS_SERVER, names port {address.port}: give one from 1 to "
                f"{LAST_PORT}"
            )
        self._http = httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @staticmethod
    def path(job: str | JobOut) -> str:
        """Where a job is found in the API.

        Raises:
            UsageError: when it is no job's id.
        """
        identity = job if isinstance(job, str) else job.id
        if len(identity) != 20 or not set(identity) <= set("0123456789abcdef"):
            raise UsageError(f"{identity!r} is no job's id; nas jobs lists them")
        return f"/jobs/{identity}"

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Ask for something; the answer's JSON.

        Raises:
            UsageError: when the service refuses, with its words.
            NasError: when it does not answer, or fails; when something else answers.
        """
        answer = self.answer(method, path, **options)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise self._other() from None

    def answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask for something; see `ask`."""
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._silent(error) from None
        _check(answer)
        return answer

    def submit(self, request: JobRequest | None = None, **fields: Any) -> JobOut:
        """Submit a search, once, however often it has to be sent.

        Args:
            request: what to search; or its fields:
            **fields: of `JobRequest`, as the options of ``nas submit``; ``space`` may be a TOML
                file of one's own, and ``baseline`` the file of an architecture.
        """
        return self._begin("/jobs", _asked(request, fields), CHECKED_S)

    def _begin(self, path: str, asked: dict[str, Any], timeout_s: float = TIMEOUT_S) -> JobOut:
        """Add a job; the service knows by its key whether it has it already."""
        key = {"Idempotency-Key": str(uuid.uuid4())}
        send = partial(self.ask, "POST", path, json=asked, headers=key, timeout=timeout_s)
        return JobOut(**_persistently(send))

    def duration(self, request: JobRequest | None = None, **fields: Any) -> DurationOut:
        """How long a search would take on the machine of the service; arguments as of `submit`."""
        asked = _asked(request, fields)
        return DurationOut(**self.ask("POST", "/duration", json=asked, timeout=CALIBRATED_S))

    def jobs(self, query: JobQuery | None = None, **fields: Any) -> JobPage:
        """List jobs; the next page begins ``before`` the `next` of this one.

        Args:
            query: which, in which order; or its fields:
            **fields: of `JobQuery`, as the options of ``nas jobs``.
        """
        asked = (query or _made(JobQuery, fields)).model_dump(mode="json", exclude_defaults=True)
        return JobPage(**self.ask("GET", "/jobs", params=asked))

    def job(self, job: str | JobOut) -> JobOut:
        """A job as it is now."""
        return JobOut(**self.ask("GET", self.path(job)))

    def edit(self, job: str | JobOut, **words: Any) -> JobOut:
        """Change title, tags or notes of a job."""
        asked = _made(JobEdit, words).model_dump(exclude_none=True)
        return JobOut(**self.ask("PATCH", self.path(job), json=asked))

    def cancel(self, job: str | JobOut) -> JobOut:
        """Cancel a job; what it has done is kept, and a retry goes on from there."""
        return JobOut(**self.ask("POST", f"{self.path(job)}/cancel"))

    def retry(self, job: str | JobOut) -> JobOut:
        """Let a failed or cancelled job go on where it stopped."""
        return JobOut(**self.ask("POST", f"{self.path(job)}/retry"))

    def delete(self, job: str | JobOut) -> None:
        """Delete an ended job; with a search its files and all jobs about its networks."""
        self.ask("DELETE", self.path(job))

    def watch(
        self, job: str | JobOut, show: Callable[[dict[str, Any]], object] | None = None
    ) -> JobOut:
        """Wait for a job to end.

        Args:
            job: which.
            show: called with everything that happens to it.

        Returns:
            The job as it ended: look at `state` and `error`.
        """
        for event in self.follow(job):
            if show is not None:
                show(event)
        return self.job(job)

    def front(self, job: str | JobOut) -> DataFrame:
        """The Pareto front of a search, as far as it is known: a row for each network.

        The index is the network's id. Columns are what was measured, ``predicted_…``, and in
        ``doubtful`` the names of values that should not be believed.
        """
        import pandas

        types = {"id": str, "doubtful": str}
        table = pandas.read_csv(StringIO(self.front_csv(job)), index_col="id", dtype=types)
        return table.fillna({"doubtful": ""})

    def front_csv(self, job: str | JobOut) -> str:
        """The same as CSV."""
        answer = self.answer("GET", f"{self.path(job)}/front", params={"format": "csv"})
        return self._of_type(answer, "text/csv").text

    def front_json(self, job: str | JobOut) -> dict[str, Any]:
        """The same with architectures, objectives and baselines: what `FrontOut` describes."""
        found: dict[str, Any] = self.ask("GET", f"{self.path(job)}/front")
        return found

    def artifacts(self, job: str | JobOut) -> list[ArtifactOut]:
        """The files of a job's run."""
        return [ArtifactOut(**one) for one in self.ask("GET", f"{self.path(job)}/artifacts")]

    def download(self, job: str | JobOut, name: str, to: str | Path) -> Path:
        """Download a file of a job's run, which is there as a whole or not at all.

        Args:
            job: which.
            name: of the file, as `artifacts` tells it.
            to: a file, or a folder that is there.

        Raises:
            UsageError: when it is no file of a run.
            NasError: when it arrives as something else, or as a part.
        """
        if {"", ".", ".."} & set(name.split("/")):  # which an address leaves out
            raise UsageError(f"{name!r} is no file of a run; artifacts tells their names")
        target = Path(to)
        if target.is_dir():
            target /= Path(name).name
        part = target.with_name(f"{target.name}.part")
        try:
            _persistently(partial(self._receive, f"{self.path(job)}/artifacts/{quote(name)}", part))
            return part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def _receive(self, path: str, part: Path) -> None:
        digest = hashlib.sha256()
        try:
            with (
                part.open("wb") as stream,
                self._http.stream("GET", path, timeout=FILE_TIMEOUT) as answer,
            ):
                _check(answer)
                for chunk in answer.iter_bytes():
                    digest.update(chunk)
                    stream.write(chunk)
        except httpx.TransportError as error:
            raise self._silent(error) from None
        sum_of = base64.b64encode(digest.digest()).decode()
        if "repr-digest" not in answer.headers:
            raise self._other()
        if answer.headers["repr-digest"] != f"sha-256=:{sum_of}:":
            raise NasError(f"{path} arrived as something else; download it again")

    def retrain(self, job: str | JobOut, pick: str = "best", **fields: Any) -> JobOut:
        """Train a network of a finished search from scratch: a job of its own.

        Args:
            job: the search.
            pick: which network.
            **fields: further ones of `NetworkRequest`.
        """
        asked = _made(NetworkRequest, {"pick": pick, **fields}).model_dump(mode="json")
        return self._begin(f"{self.path(job)}/retrain", asked)

    def export(self, job: str | JobOut, to: str | Path, pick: str = "best", **fields: Any) -> Path:
        """Write a network of a finished search as a folder that works without the run.

        The service writes it in a job of its own, which this waits for, and then sends its files.

        Args:
            job: the search.
            to: the folder, which is there as a whole or not at all.
            pick: which network.
            **fields: ``format`` and ``weights``, see `ExportRequest`.

        Returns:
            The folder.

        Raises:
            UsageError: when there is something at `to` already.
            NasError: when the export fails, with its reason.
        """
        folder = Path(to)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is there already; name a folder that is not, or is empty")
        asked = _made(ExportRequest, {"pick": pick, **fields})
        begun = self._begin(f"{self.path(job)}/export", asked.model_dump(mode="json"))
        ended = self.watch(begun)
        if ended.state is not State.succeeded:
            raise NasError(
                f"the export {ended.id} has {ended.state}: {ended.error or 'by request'}"
            )
        inside = f"export/{ended.pick}/{asked.format}/"
        with building_folder(folder, replace=False) as building:
            for one in self.artifacts(job):
                if one.path.startswith(inside):
                    file = building / one.path.removeprefix(inside)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    self.download(job, one.path, file)
        return folder

    def webhook(self) -> WebhookOut:
        """Your webhook, and the last messages with their answers."""
        return WebhookOut(**self.ask("GET", "/webhook"))

    def set_webhook(self, url: str) -> WebhookSecretOut:
        """Be told of your jobs that end, by a POST there; the secret is told once."""
        return WebhookSecretOut(**self.ask("PUT", "/webhook", json={"url": url}))

    def remove_webhook(self) -> None:
        """Be told no more."""
        self.ask("DELETE", "/webhook")

    def checkpoints(self) -> list[CheckpointOut]:
        """The checkpoints that a search may begin with."""
        found = self.ask("GET", "/checkpoints", timeout=CHECKED_S)
        return [CheckpointOut(**one) for one in found]

    def delete_checkpoint(self, name: str, owner: str | None = None) -> None:
        """Delete a checkpoint that was uploaded; of another owner, as an administrator."""
        params = {} if owner is None else {"owner": owner}
        self.ask("DELETE", f"/checkpoints/{quote(name, safe='')}", params=params)

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
            finish = partial(self.ask, "POST", f"{place}/finish", timeout=CHECK_S)
            made: dict[str, Any] = _persistently(finish)
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
            sent = self.ask("PUT", path, content=content, headers=headers, timeout=FILE_TIMEOUT)
        if sent["sha256"] != digest.hexdigest():
            raise NasError(f"{file} arrived as something else; send it again")

    def follow(self, job: str | JobOut) -> Iterator[dict[str, Any]]:
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
            time.sleep(AGAIN_S)  # also where it was cut off between two messages

    def _stream(self, job: str | JobOut, last: int) -> Iterator[tuple[int | None, dict[str, Any]]]:
        headers = {"Last-Event-ID": str(last)}
        path = f"{self.path(job)}/events"
        with self._http.stream("GET", path, headers=headers, timeout=SILENCE_S) as answer:
            if answer.is_server_error:  # it is started anew, or has no thread for one more
                raise httpx.RemoteProtocolError(f"it answers {answer.status_code}")
            _check(answer)
            if answer.status_code == 204:
                yield None, {"state": str(self.job(job).state)}
                return
            yield from _messages(self._of_type(answer, "text/event-stream").iter_lines())

    def _silent(self, error: Exception) -> AwayError:
        return AwayError(
            f"{self._server} does not answer ({error}); is the service running there? "
            "nas serve starts one here"
        )

    def _of_type(self, answer: httpx.Response, kind: str) -> httpx.Response:
        """An answer, if it is what our service would answer with."""
        if not answer.headers.get("content-type", "").startswith(kind):
            raise self._other()
        return answer

    def _other(self) -> NasError:
        return NasError(
            f"something else than a nas service answers at {self._server}; name the address of the "
            "service with --server or in NAS_SERVER"
        )


def _checked(token: str) -> str:
    """A token that can be sent in a header; what is wrong with another is told without it.

    Raises:
        UsageError: when it holds what none has.
    """
    stray = next((character for character in token if not "!" <= character <= "~"), None)
    if stray is not None:
        what = STRAY.get(stray, "a control character, or one beyond ASCII")
        raise UsageError(
            f"the token holds {what}, which none has: give it with --token or in NAS_TOKEN as nas "
            "token create printed it"
        )
    return token


def _asked(request: JobRequest | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A search as the service takes it, with the files of one's own that it names."""
    asked = (request or _made(JobRequest, fields)).model_dump(mode="json", exclude_defaults=True)
    name = str(asked.get("space"))
    if name.endswith(".toml") or "/" in name:  # a file of one's own, which the server has not
        asked |= {"space": None, "space_toml": read_text(Path(name))}
    own = asked.get("baseline", NONE)
    if isinstance(own, str) and own not in (PLAIN, NONE):
        asked |= {"baseline": read_architecture(own).to_json()}
    return asked


def _made(model: type[M], fields: Mapping[str, Any]) -> M:
    try:
        return model(**fields)
    except ValidationError as error:
        raise UsageError(first_problem(error, model)) from error


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


def _persistently(ask: Callable[[], Any]) -> Any:
    """The answer to what may be asked more than once, of a service that may be away a moment."""
    for wait_s in SEND_AGAIN_S:
        with suppress(AwayError):
            return ask()
        time.sleep(wait_s)
    return ask()


def _check(answer: httpx.Response) -> None:
    """See that what was asked for was done.

    Raises:
        UsageError: when the service refuses, or is elsewhere.
        NasError: when it fails; `AwayError` when it may do so later.
    """
    if answer.is_success:
        return
    if answer.next_request is not None:
        place = str(answer.next_request.url).partition(API_PREFIX)[0]
        raise UsageError(
            f"the service redirects to {place}: give the address where it is with --server or in "
            "NAS_SERVER"
        )
    answer.read()
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, LookupError, TypeError):
        detail = "it gave no reason"
    text = f"the service refused ({answer.status_code}): {detail}"
    if answer.status_code == 401:
        text += "; give the token with --token or in NAS_TOKEN"
    if answer.status_code in AWAY:
        raise AwayError(text)
    raise NasError(text) if answer.is_server_error else UsageError(text)

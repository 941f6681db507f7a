"""A file that changes while it is sent comes as it was, or breaks off; never with a traceback."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from service.api import files
from service.api.files import CHUNK, Download, find_artifact
from service.api.problems import ProblemError
from tests.support import dashboard_cases
from tests.support.service_cases import Server

server, done = dashboard_cases.server, dashboard_cases.done
CONTENT = bytes(range(256)) * (4 * CHUNK // 256)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(CONTENT)
    return path


def request(**headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "headers": given, "asgi": {}})


def sent(download: Download, meanwhile: Callable[[], Any] = lambda: None) -> list[dict[str, Any]]:
    """The messages of a response; `meanwhile` happens after the first part of the body."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if len(messages) == 2:
            meanwhile()

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    asyncio.run(download(scope, receive, send))
    return messages


def etag_of(file: Path) -> str:
    download = Download(request(), file, "a/b")
    sent(download)  # which closes the file
    return download.headers["etag"]


def body(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


def test_what_goes_while_files_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "going").mkdir()
    for name in ("first.json", "last.json", "going/more.json", ".hidden"):
        (tmp_path / name).write_text("{}")

    def going(folder: Path, name: str) -> Path | None:
        found = find_artifact(folder, name)
        shutil.rmtree(tmp_path / "going", ignore_errors=True)
        if name == "last.json":
            (tmp_path / name).unlink()
        return found

    monkeypatch.setattr(files, "find_artifact", going)
    assert [one.path for one in files.list_artifacts(tmp_path)] == ["first.json"]


def test_what_is_appended_meanwhile_is_not_sent(file: Path) -> None:
    def append() -> None:
        with file.open("ab") as stream:
            stream.write(b"more" * CHUNK)

    download = Download(request(), file, "text/plain")
    messages = sent(download, append)
    assert body(messages) == CONTENT
    assert not messages[-1]["more_body"]
    assert download.headers["content-length"] == str(len(CONTENT))


def test_what_takes_its_name_meanwhile_is_not_sent(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"other")
    assert body(sent(Download(request(), file, "a/b"), lambda: other.replace(file))) == CONTENT


def test_a_file_that_is_cut_breaks_off(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        messages = sent(Download(request(), file, "a/b"), lambda: os.truncate(file, CHUNK + 10))
    assert CONTENT.startswith(body(messages))
    assert len(body(messages)) < len(CONTENT)
    assert messages[-1]["more_body"]  # so that nobody takes it for the whole
    assert [record.getMessage() for record in caplog.records] == [
        "a file was cut while it was sent"
    ]


def test_the_checksum_is_that_of_what_is_sent(file: Path) -> None:
    first = etag_of(file)
    file.write_bytes(b"x" + CONTENT[1:])
    os.utime(file, ns=(0, 0))
    assert etag_of(file) != first


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-", 200, slice(None)),
        ("bytes=10-19", 206, slice(10, 20)),
        ("bytes=10-10", 206, slice(10, 11)),
        (f"bytes=10-{10**17}", 206, slice(10, None)),
        ("bytes=-5", 206, slice(-5, None)),
        (f"bytes=-{10**17}", 200, slice(None)),
        ("bytes=20-10", 200, slice(None)),
        ("bytes=-", 200, slice(None)),
        ("bytes=0-1,5-6", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
        (f"bytes={'9' * 5000}-", 200, slice(None)),
    ],
)
def test_ranges(file: Path, asked: str, status: int, part: slice) -> None:
    download = Download(request(range=asked), file, "a/b")
    messages = sent(download)
    assert (messages[0]["status"], body(messages)) == (status, CONTENT[part])
    assert int(download.headers["content-length"]) == len(CONTENT[part])
    assert ("content-range" in download.headers) == (status == 206)


@pytest.mark.parametrize("asked", [f"bytes={len(CONTENT)}-", "bytes=-0"])
def test_a_range_that_is_not_there(file: Path, asked: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Download(request(range=asked), file, "a/b")
    assert caught.value.status == 416
    assert caught.value.headers == {"Content-Range": f"bytes */{len(CONTENT)}"}


def test_a_range_of_another_version_is_the_whole(file: Path) -> None:
    etag = etag_of(file)
    asked = {"range": "bytes=1-2"}
    assert body(sent(Download(request(**asked, if_range=etag), file, "a/b"))) == CONTENT[1:3]
    assert body(sent(Download(request(**asked, if_range='"x"'), file, "a/b"))) == CONTENT


def test_a_file_that_has_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="deleted just now"):
        Download(request(), tmp_path / "gone", "a/b")


def test_an_empty_file_is_sent(file: Path) -> None:
    file.write_bytes(b"")
    assert body(sent(Download(request(), file, "a/b"))) == b""


def test_a_file_grows_and_shrinks_while_a_server_sends_it(server: Server, done: str) -> None:
    client = server.client("alice")
    path = f"/jobs/{done}/artifacts/grown.bin"
    file = server.settings.runs / done / "grown.bin"
    whole = os.urandom(32 << 20)  # more than the sockets hold
    file.write_bytes(whole)
    with client.stream("GET", path) as answer:
        with file.open("ab") as stream:
            stream.write(b"more")
        assert hashlib.sha256(answer.read()).digest() == hashlib.sha256(whole).digest()
    with client.stream("GET", path) as answer:
        os.truncate(file, 10)
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
            answer.read()
    assert client.get(path).content == whole[:10]

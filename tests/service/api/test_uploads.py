"""Checkpoints that clients upload: over HTTP, read by the checkpoint's own reader."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api import connections, space_reader
from service.api.bounds import brings_file
from service.api.problems import ProblemError
from service.api.routes import uploads as routes
from service.api.space_reader import SpaceReader
from service.auth import Role
from service.settings import Settings
from tests.service.api.test_connections import connect, rest, status_of, told
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import sentence_encoder
from tests.support.service_cases import Server, problem
from tests.support.start_cases import NUMBERS, write_llama
from tests.support.tokenizer_cases import byte_level, prepared_stream

pytestmark = pytest.mark.export

BODY = 2_000  # bytes of other requests; weights have more


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def llama(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(hub, tmp_path_factory.mktemp("made") / "llama")


@pytest.fixture(scope="module")
def server(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(llama, home / "checkpoints" / "served")
    prepared_stream(home / "made", byte_level(marked=True))
    (home / "data").mkdir()
    shutil.move(home / "made" / "data", home / "data" / "texts")
    with Server(home, max_body_bytes=BODY, requests_per_minute=100_000) as running:
        yield running


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    """Who has no checkpoint when a test begins."""
    client = server.client("alice")
    yield client
    for one in client.get("/checkpoints").json():
        if one["owner"] == "alice":
            assert client.delete(f"/checkpoints/{one['name']}").status_code == 204


def files_of(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_bytes() for name, path in found.items() if path.is_file()}


def begin(client: httpx.Client, name: str, files: dict[str, bytes]) -> httpx.Response:
    sizes = {file: len(data) for file, data in files.items()}
    return client.post("/uploads", json={"name": name, "files": sizes})


def sent(client: httpx.Client, name: str, files: dict[str, bytes]) -> str:
    answer = begin(client, name, files)
    assert answer.status_code == 201, answer.text
    upload = str(answer.json()["id"])
    for file, data in files.items():
        answer = client.put(f"/uploads/{upload}/files/{file}", content=data)
        assert answer.status_code == 200, answer.text
        sha256 = hashlib.sha256(data).hexdigest()
        assert answer.json() == {"name": file, "bytes": len(data), "sha256": sha256}
    return upload


def uploaded(client: httpx.Client, name: str, files: dict[str, bytes]) -> httpx.Response:
    return client.post(f"/uploads/{sent(client, name, files)}/finish")


def seen(client: httpx.Client) -> dict[str, Any]:
    return {one["name"]: one for one in client.get("/checkpoints").json()}


def unfinished(server: Server) -> list[str]:
    place = server.settings.uploads
    return [path.name for path in place.rglob(".*") if path.name not in (".lock", ".finishing")]


def test_what_was_uploaded_is_listed_searched_and_deleted(
    server: Server, alice: httpx.Client, llama: Path
) -> None:
    files = files_of(llama)
    answer = uploaded(alice, "mine", files)
    assert answer.status_code == 201, answer.text
    facts = {"name": "mine", "family": "llama", "task": "language_modelling", "problem": None}
    facts |= {"owner": "alice", "bytes": sum(map(len, files.values()))}
    assert answer.json() == facts == seen(alice)["mine"]
    assert seen(alice)["served"]["owner"] is None
    asked = {"start": "mine", "data": "texts", "preset": "smoke", "settings": NUMBERS}
    asked |= {"objectives": ["quality", "kv_cache_mb"], "threads": 1}
    job = alice.post("/jobs", json=asked)
    assert (job.status_code, job.json().get("space")) == (201, "mine"), job.text
    assert "needs the checkpoint mine" in problem(alice.delete("/checkpoints/mine"), 409)
    alice.post(f"/jobs/{job.json()['id']}/cancel")
    assert alice.delete("/checkpoints/mine").status_code == 204
    assert "mine" not in seen(alice)
    problem(alice.delete("/checkpoints/mine"), 404)
    problem(alice.delete("/checkpoints/served"), 404)  # the server's owner put it there
    assert "there is no checkpoint" in problem(alice.post("/jobs", json=asked), 422, "/start")


def test_a_folder_of_sentence_transformers_keeps_its_pooling(
    alice: httpx.Client, hub: Any, tmp_path: Path
) -> None:
    files = files_of(sentence_encoder(hub, tmp_path / "encoder"))
    assert "1_Pooling/config.json" in files
    assert uploaded(alice, "encoder", files).json()["task"] == "embedding"
    asked = {"start": "encoder", "dataset": "synthetic", "preset": "smoke"}
    told = problem(alice.post("/jobs", json=asked), 422, "/dataset")
    assert "the data synthetic have none: name your own texts with dataset" in told


def test_others_see_nothing_of_it(server: Server, alice: httpx.Client, llama: Path) -> None:
    files = files_of(llama)
    assert uploaded(alice, "mine", files).status_code == 201
    bob, admin = server.client("bob"), server.client("root", Role.admin)
    asked = {"data": "texts", "preset": "smoke", "settings": NUMBERS}
    for name in ("mine", "alice/mine", "bob/../alice/mine", "../uploads/alice/mine"):
        told_bob = problem(bob.post("/jobs", json={**asked, "start": name}), 422, "/start")
        assert "there is no checkpoint" in told_bob and "there are served)" in told_bob
    assert seen(bob).keys() == {"served"} and seen(admin).keys() == {"served", "mine"}
    for client, given in ((bob, {}), (bob, {"owner": "alice"}), (admin, {})):
        problem(client.delete("/checkpoints/mine", params=given), 404)
    job = admin.post("/jobs", json={**asked, "start": "alice/mine"})
    assert job.status_code == 201, job.text
    admin.post(f"/jobs/{job.json()['id']}/cancel")
    upload = begin(alice, "second", files).json()["id"]
    problem(bob.put(f"/uploads/{upload}/files/config.json", content=b"x"), 404)
    problem(bob.post(f"/uploads/{upload}/finish"), 404)
    problem(bob.delete(f"/uploads/{upload}"), 404)
    assert alice.delete(f"/uploads/{upload}").status_code == 204
    assert admin.delete("/checkpoints/mine", params={"owner": "alice"}).status_code == 204


def test_it_takes_a_submitter(server: Server, llama: Path) -> None:
    upload = f"/uploads/{'0' * 20}"
    for client, status in ((server.client_of(None), 401), (server.client("r", Role.reader), 403)):
        problem(begin(client, "mine", files_of(llama)), status)
        problem(client.put(f"{upload}/files/config.json", content=b"x" * 5000), status)
        problem(client.post(f"{upload}/finish"), status)
        problem(client.delete(upload), status)
        problem(client.delete("/checkpoints/mine"), status)
    assert server.client("r", Role.reader).get("/checkpoints").status_code == 200


# -- what is wrong with files ---------------------------------------------------------------------


class Evil:
    """Leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


def _config(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    values = {**json.loads(files["config.json"]), **changes}
    return {**files, "config.json": json.dumps(values).encode()}


WEIGHTS = "model.safetensors"


def _without_numbers(files: dict[str, bytes]) -> dict[str, bytes]:
    from safetensors.torch import load, save

    tensors = load(files[WEIGHTS])
    tensors["lm_head.weight"][-1, -1] = float("nan")
    return {**files, WEIGHTS: save(tensors, {"format": "pt"})}


WRONG: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "cut off": (lambda f: {**f, WEIGHTS: f[WEIGHTS][:5000]}, "no whole safetensors file"),
    "a pickle": (lambda f: {**f, WEIGHTS: pickle.dumps(Evil())}, "is a pickle, not a safetensors"),
    "a zip": (
        lambda f: {**f, WEIGHTS: b"PK\x03\x04" + bytes(26) + b"PK\x05\x06" + bytes(18)},
        "is a zip archive",
    ),
    "nothing": (lambda f: {**f, WEIGHTS: b""}, "no whole safetensors file"),
    "no numbers": (_without_numbers, "lm_head.weight holds NaN or infinity"),
    "code": (lambda f: _config(f, auto_map={"AutoModel": "evil.Evil"}), "asks for code of its own"),
    "unknown": (lambda f: _config(f, model_type="mamba"), "known families are"),
    "too large": (lambda f: _config(f, num_hidden_layers=900), "too few for 900 layers"),
    "deep": (lambda f: {**f, "config.json": b"[" * 1_000_000}, "is no JSON"),
    "no text": (lambda f: {**f, "config.json": b"\xff\xfe{}"}, "is no JSON"),
    "tokenizer": (lambda f: _config(f, vocab_size=100), "model.embed_tokens.weight"),
    "a missing shard": (
        lambda f: {
            "config.json": f["config.json"],
            "model-1.safetensors": f[WEIGHTS],
            "model.safetensors.index.json": b'{"weight_map": {"a": "model-2.safetensors"}}',
        },
        "model-2.safetensors is missing",
    ),
    "shards elsewhere": (
        lambda f: {
            "config.json": f["config.json"],
            "model-1.safetensors": f[WEIGHTS],
            "model.safetensors.index.json": b'{"weight_map": {"a": "../../b.safetensors"}}',
        },
        "shards are safetensors files beside it",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_the_reader_refuses_is_gone(
    server: Server, alice: httpx.Client, llama: Path, what: str
) -> None:
    change, words = WRONG[what]
    text = problem(uploaded(alice, "wrong", change(files_of(llama))), 422)
    assert words in text and "\n" not in text and str(server.settings.home) not in text
    assert text.startswith("this checkpoint cannot be used: ")
    assert seen(alice).keys() == {"served"} and unfinished(server) == []
    assert not Path("unpickled").exists()


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "../x.safetensors", "a/b.safetensors", "x.py"]
)
def test_other_names_are_refused_before_a_byte_comes(
    server: Server, alice: httpx.Client, llama: Path, name: str
) -> None:
    answer = begin(alice, "wrong", {**files_of(llama), name: b"x"})
    assert "is no file of a checkpoint" in problem(answer, 422, "/files")
    assert unfinished(server) == []


@pytest.mark.parametrize(
    "body",
    [
        {"name": "../up", "files": {"config.json": 1}},
        {"name": "up", "files": {"config.json": 1.5}},
        {"name": "up", "files": {"config.json": True}},
        {"name": "up", "files": {f"{n}.safetensors": 1 for n in range(201)}},
        {"name": "up", "files": ["config.json"]},
        {"name": "up"},
        {"name": "up", "files": {}, "more": 1},
    ],
)
def test_an_announcement_has_its_form(server: Server, alice: httpx.Client, body: Any) -> None:
    problem(alice.post("/uploads", json=body), 422 if len(json.dumps(body)) < BODY else 413)
    assert unfinished(server) == []


def test_names_of_the_servers_checkpoints_are_taken(alice: httpx.Client, llama: Path) -> None:
    text = problem(begin(alice, "served", files_of(llama)), 409, "/name")
    assert "the server has a checkpoint named served" in text


def test_of_two_at_once_one_has_the_name(server: Server, alice: httpx.Client, llama: Path) -> None:
    files = files_of(llama)
    first, second = (sent(alice, "mine", files) for _ in range(2))
    assert alice.post(f"/uploads/{first}/finish").status_code == 201
    assert "already" in problem(alice.post(f"/uploads/{second}/finish"), 409)
    assert "already" in problem(begin(alice, "mine", files), 409, "/name")
    assert unfinished(server) == []


# -- what is wrong with requests ------------------------------------------------------------------


def test_other_bytes_than_announced_are_no_file(
    server: Server, alice: httpx.Client, llama: Path
) -> None:
    upload = begin(alice, "mine", files_of(llama)).json()["id"]
    place = f"/uploads/{upload}/files/config.json"
    size = (llama / "config.json").stat().st_size
    large = b"x" * (3 * routes.PIECE)
    assert "more than the" in problem(alice.put(place, content=large), 413)
    assert "more than the" in problem(alice.put(place, content=iter([large])), 413)
    assert f"announced are {size}" in problem(alice.put(place, content=b"x"), 422)
    assert "have not come" in problem(alice.post(f"/uploads/{upload}/finish"), 409)
    assert not [name for name in unfinished(server) if name.startswith(".part")]
    alice.delete(f"/uploads/{upload}")


@pytest.mark.parametrize(
    "name",
    ["..%2fconfig.json", "%2e%2e/config.json", "../config.json", "/config.json", "config.json%00"],
)
def test_no_path_leads_elsewhere(
    server: Server, alice: httpx.Client, llama: Path, name: str
) -> None:
    upload = begin(alice, "mine", files_of(llama)).json()["id"]
    before = sorted(server.settings.home.rglob("*"))
    secret = alice.headers["authorization"]
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as raw:
        path = f"/api/v1/uploads/{upload}/files/{name}"
        raw.request("PUT", path, body=b"x", headers={"Authorization": secret})
        assert raw.getresponse().status in (404, 405, 422)
    assert sorted(server.settings.home.rglob("*")) == before
    alice.delete(f"/uploads/{upload}")


def test_a_client_that_leaves_leaves_nothing(
    server: Server, alice: httpx.Client, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PIECE", 1)  # what has come is written at once
    upload = begin(alice, "mine", files_of(llama)).json()["id"]
    head = (
        f"PUT /api/v1/uploads/{upload}/files/model.safetensors HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {alice.headers['authorization']}\r\nContent-Length: 100000\r\n\r\n"
    )
    with closing(connect(server)) as mine:
        mine.sendall(head.encode() + b"x" * 1000)
        while not any(name.startswith(".part") for name in unfinished(server)):
            assert alice.get("/checkpoints").status_code == 200
    while any(name.startswith(".part") for name in unfinished(server)):
        assert alice.get("/checkpoints").status_code == 200
    assert "have not come" in problem(alice.post(f"/uploads/{upload}/finish"), 409)
    alice.delete(f"/uploads/{upload}")


def test_a_file_that_comes_too_slowly_is_cut_off(
    server: Server,
    alice: httpx.Client,
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(connections, "BODY_S", 0.5)
    monkeypatch.setattr(connections, "BODY_BYTES", 1000)
    upload = begin(alice, "mine", files_of(llama)).json()["id"]
    head = (
        f"PUT /api/v1/uploads/{upload}/files/model.safetensors HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {alice.headers['authorization']}\r\nContent-Length: 100000\r\n\r\n"
    )
    with caplog.at_level(logging.WARNING), closing(connect(server)) as mine:
        mine.sendall(head.encode() + b"x" * 5000)
        assert status_of(rest(mine)) == 408
        assert told(caplog, "a file came too slowly")
    alice.delete(f"/uploads/{upload}")


def test_only_files_of_uploads_may_be_large(alice: httpx.Client) -> None:
    for path in (
        "/uploads",
        "/jobs",
        f"/uploads/{'0' * 20}/finish",
        f"/uploads/{'g' * 20}/files/a",
    ):
        assert alice.put(path, content=b"x" * (BODY + 1)).status_code == 413
        assert alice.post(path, content=b"x" * (BODY + 1)).status_code == 413
    good = f"/api/v1/uploads/{'0' * 20}/files/config.json"
    assert brings_file({"method": "PUT", "path": good})
    for method, path in (("POST", good), ("PUT", good + "\n"), ("PUT", f"/x{good}")):
        assert not brings_file({"method": method, "path": path})


def test_so_many_files_come_at_once(
    server: Server, alice: httpx.Client, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = server._server.config.app.state  # type: ignore[union-attr]
    places = state.context.receiving
    path = f"/uploads/{'0' * 20}/files/config.json"
    assert places.enter("alice") and places.enter("alice")
    assert "two files of yours" in problem(alice.put(path, content=b"x"), 429)
    problem(server.client("bob").put(path, content=b"x"), 404)
    monkeypatch.setattr(routes, "RECEIVING", 2)
    assert "too many files" in problem(server.client("bob").put(path, content=b"x"), 503)
    places.leave("alice")
    places.leave("alice")
    problem(alice.put(path, content=b"x"), 404)
    assert places.total == 0


# -- the process that reads -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "import service.api.space_reader as p\n"
        "def answer(*_):\n"
        "    while True: pass\n"
        "p.answer, p.CHECK_CPU_S = answer, 0\n"
        "p.main()",
        "import service.api.space_reader as p\n"
        "p.answer = lambda *_: {'found': bytearray(2**33)}\n"
        "p.main()",
    ],
    ids=["time", "memory"],
)
def test_what_takes_too_long_to_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    (tmp_path / "attacked.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(space_reader, "MODULE", "attacked")
    reader = SpaceReader(Settings(home=tmp_path))
    with pytest.raises(ProblemError, match="took more than 20 s or 1024 MB") as caught:
        reader.check_upload(tmp_path, 10)
    assert caught.value.status == 422 and reader._idle == []


def test_large_weights_have_room_to_be_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2**28
    head = {"a": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(head).encode()
    with (tmp_path / WEIGHTS).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + size)  # the file system keeps no zeros
    (tmp_path / "narrow.py").write_text(
        "from pathlib import Path\n"
        "import service.api.space_reader as p\n"
        "def answer(kind, given, _):\n"
        "    from supernet.pretrained.tensors import check_numbers, stored_tensors\n"
        "    check_numbers(stored_tensors(Path(given['folder'])))\n"
        "    return {'found': {'family': 'llama', 'task': 'language_modelling'}}\n"
        "p.answer, p.CHECK_MEMORY_MB = answer, 64\n"
        "p.main()"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(space_reader, "MODULE", "narrow")
    with closing(SpaceReader(Settings(home=tmp_path))) as reader:
        assert reader.check_upload(tmp_path, size)[0] == "llama"

"""Searches on a server that begin with one of its checkpoints."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from search_spaces.errors import NasError, UsageError
from service import client as client_module
from service.checkpoint_commands import app as commands
from service.checkpoint_commands import checkpoint_files
from service.client import AwayError, Client
from tests.service.test_data_uploads import ended, put
from tests.service.test_processes import Service
from tests.support.dashboard_cases import browser, said
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import change_config, sentence_encoder
from tests.support.service_cases import Server, problem
from tests.support.start_cases import NUMBERS, write_llama
from tests.support.tokenizer_cases import byte_level, prepared_stream

pytestmark = pytest.mark.export

ASKED = {
    "start": "llama",
    "data": "texts",
    "preset": "smoke",
    "objectives": ["quality", "kv_cache_mb"],
    "settings": NUMBERS,
    "threads": 1,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server's home with a checkpoint, some that are none, and texts."""
    found = hub_without_net(tmp_path_factory)
    hub, home = next(found), tmp_path_factory.mktemp("home")
    place = home / "checkpoints"
    write_llama(hub, place / "llama")
    sentence_encoder(hub, place / "encoder")
    for name in ("damaged", "code", "linked"):
        shutil.copytree(place / "llama", place / name)
    weights = place / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    change_config(place / "code", auto_map={"AutoModel": "evil.Evil"})
    outside = home / "outside"
    shutil.copytree(place / "llama", outside)
    os.symlink(outside, place / "elsewhere")
    (place / "linked" / "config.json").unlink()
    os.symlink(outside / "config.json", place / "linked" / "config.json")
    (home / "data").mkdir()
    larger = byte_level()
    larger.add_special_tokens([f"<{number}>" for number in range(99)])
    for name, tokenizer in (
        ("texts", byte_level(marked=True)),
        ("unmarked", byte_level()),
        ("larger", larger),
    ):
        prepared_stream(home / "made", tokenizer)
        shutil.move(home / "made" / "data", home / "data" / name)
    yield home
    found.close()


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with Server(home) as found:
        yield found


@pytest.fixture
def alice(server: Server) -> httpx.Client:
    return server.client()


def test_checkpoints_are_listed_with_what_is_wrong(alice: httpx.Client, home: Path) -> None:
    found = {one["name"]: one for one in alice.get("/checkpoints").json()}
    assert found.keys() == {"llama", "encoder", "damaged", "code", "linked"}
    assert found["llama"] == {
        "name": "llama",
        "family": "llama",
        "task": "language_modelling",
        "problem": None,
        "owner": None,
        "bytes": None,
    }
    assert "no whole safetensors file" in found["damaged"]["problem"]
    assert "asks for code of its own" in found["code"]["problem"]
    assert "config.json lies elsewhere" in found["linked"]["problem"]
    assert str(home) not in json.dumps(found)


def test_a_search_may_name_one(alice: httpx.Client) -> None:
    answer = alice.post("/jobs", json=ASKED)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["space"], job["request"]["start"]) == ("llama", "llama")
    alice.post(f"/jobs/{job['id']}/cancel")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lama", "there is no checkpoint named 'lama' on this server"),
        ("elsewhere", "there is no checkpoint named 'elsewhere'"),
        ("../outside", "there is no checkpoint named '../outside'"),
        ("damaged", "the checkpoint damaged cannot be used"),
        ("code", "asks for code of its own"),
        ("linked", "config.json lies elsewhere"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(
    alice: httpx.Client, home: Path, name: str, words: str
) -> None:
    told = problem(alice.post("/jobs", json={**ASKED, "start": name}), 422, "/start")
    assert words in told and "\n" not in told and str(home) not in told


@pytest.mark.parametrize("name", ["unmarked", "larger"])
def test_data_of_another_tokenizer_are_refused(alice: httpx.Client, home: Path, name: str) -> None:
    """Also where their vocabulary is too large, which no other size would mend."""
    told = problem(alice.post("/jobs", json={**ASKED, "data": name}), 422, "/data")
    assert told == (
        f"{name} was prepared with another tokenizer than that of the checkpoint llama: prepare it "
        "anew with tokenizer naming that checkpoint"
    )


TEXTS = b"".join(b"the cat sat on mat %d and dogs run\n" % number for number in range(300))


@pytest.mark.parametrize(
    ("start", "task", "content"),
    [("llama", "language_modelling", "stream"), ("encoder", "embedding", "embeddings")],
)
def test_texts_are_uploaded_for_one(
    server: Server, alice: httpx.Client, home: Path, start: str, task: str, content: str
) -> None:
    how = {"task": task, "tokenizer": start}
    announced = {"name": f"for-{start}", "file": "texts.txt", "bytes": len(TEXTS)}
    made = alice.post("/data", json={**announced, **how})
    assert made.status_code == 201, made.text
    place = f"/data/{made.json()['id']}"
    put(alice, place, TEXTS)
    assert alice.post(f"{place}/finish").status_code == 202
    assert ended(alice, place) is None
    (found,) = (one for one in alice.get("/data").json()["data"] if one["name"] == f"for-{start}")
    assert (found["task"], found["content"]) == (task, content)
    asked = {**ASKED, "start": start, "dataset": f"for-{start}", "settings": {}}
    asked |= {"data": None, "objectives": ["quality", "params"]}
    job = alice.post("/jobs", json=asked)
    assert job.status_code == 201, job.text
    alice.post(f"/jobs/{job.json()['id']}/cancel")


def test_of_texts_without_their_checkpoint_one_sentence_is_told(
    server: Server, alice: httpx.Client, home: Path
) -> None:
    announced = {"name": "for-none", "file": "texts.txt", "bytes": len(TEXTS), "task": "embedding"}
    lost = problem(alice.post("/data", json={**announced, "tokenizer": "lama"}), 422, "/tokenizer")
    assert "there is no checkpoint named 'lama'" in lost
    for more, words in (
        ({}, "tokenizer"),
        ({"tokenizer": "llama"}, "checkpoint"),
        ({"tokenizer": "damaged"}, "the checkpoint damaged"),
    ):
        place = f"/data/{alice.post('/data', json=announced | more).json()['id']}"
        put(alice, place, TEXTS)
        alice.post(f"{place}/finish")
        told = ended(alice, place)
        assert told is not None and told["state"] == "failed"
        assert words in told["note"] and str(home) not in told["note"], told["note"]
        assert "nas search" not in told["note"] and "\n" not in told["note"]
        assert alice.delete(place).status_code == 204


def test_a_space_that_does_not_fit_is_refused(alice: httpx.Client, home: Path) -> None:
    told = problem(alice.post("/jobs", json={**ASKED, "space": "digits"}), 422, "/space")
    assert "cannot inherit from llama" in told and str(home) not in told


def test_the_form_offers_them(server: Server) -> None:
    with browser(server, server.token("form")) as client:
        page = client.get("/new").text
        form = {"space": "digits", "objective": ["quality", "kv_cache_mb"], "preset": "smoke"}
        made = client.post("/new", data={**form, "start": "llama", "data": "texts"})
    assert made.status_code == 303 or "/jobs/" in str(made.url), made.text
    assert 'name="start"' in page and "<option >llama</option>" in page


def test_beginning_again_says_which_choices_the_form_cannot_show(
    server: Server, alice: httpx.Client
) -> None:
    kept = {"decoder.self_attention": ["softmax", "linear"]}
    job = alice.post("/jobs", json={**ASKED, "restrict": kept})
    assert job.status_code == 201, job.text
    with browser(server, server.token()) as client:
        asked = {"again": job.json()["id"], "space": "python-source"}
        page = client.get("/new", params=asked).text
    assert "Not taken over: the choices of decoder.self_attention." in page
    ticks = re.findall(r'name="gene:decoder\.self_attention" value="[^"]+" (\w*)', page)
    assert len(ticks) > 2 and {*ticks} == {"checked"}
    alice.post(f"/jobs/{job.json()['id']}/cancel")


def test_the_command_uploads_one(
    server: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nas(*arguments: str) -> Result:
        return CliRunner().invoke(commands, arguments)

    monkeypatch.setenv("NAS_SERVER", server.url)
    monkeypatch.setenv("NAS_TOKEN", server.token("carol"))
    folder = shutil.copytree(home / "checkpoints" / "llama", tmp_path / "mine")
    for name in ("README.md", "pytorch_model.bin", "modeling.py"):
        (folder / name).write_text("x")
    done = nas("upload", str(folder))
    assert (done.exit_code, done.stdout) == (0, "mine\n"), done.stderr
    assert "Left out: README.md, modeling.py, pytorch_model.bin." in done.stderr
    assert "llama, language_modelling" in done.stderr
    kept = server.settings.uploads / "carol" / "mine"
    for file in kept.iterdir():
        assert file.name == "upload.json" or file.read_bytes() == (folder / file.name).read_bytes()
    assert not (kept / "pytorch_model.bin").exists()
    listed = json.loads(nas("list", "--json").stdout)
    assert {"mine", "llama"} <= {one["name"] for one in listed}
    assert "the server" in nas("list").stdout
    again = nas("upload", str(folder), "--name", "mine")
    assert isinstance(again.exception, UsageError) and "already" in str(again.exception)
    cut = folder / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:1000])
    damaged = nas("upload", str(folder), "--name", "cut")
    assert "no whole safetensors file" in str(damaged.exception)
    assert nas("delete", "mine").stdout == "deleted mine\n"
    assert "no checkpoint" in str(nas("delete", "mine").exception)
    assert {path.name for path in kept.parent.iterdir()} == {".lock", ".finishing"}
    for wrong in (tmp_path, tmp_path / "nowhere"):
        assert isinstance(nas("upload", str(wrong)).exception, UsageError)


def test_an_upload_whose_answer_was_lost_has_succeeded(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = checkpoint_files(home / "checkpoints" / "llama")
    real, lost = Client.ask, list[Any]()

    def losing(self: Client, method: str, path: str, **options: Any) -> Any:
        answer = real(self, method, path, **options)
        if path.endswith("/finish") and not lost:
            lost.append(answer)
            raise AwayError("the connection was reset")
        return answer

    monkeypatch.setattr(client_module, "SEND_AGAIN_S", (0.0, 0.0))
    with Client(server.url, server.token("gina")) as client:
        monkeypatch.setattr(client, "ask", partial(losing, client))
        assert client.upload("mine", files) == lost[0]
        assert "mine" in [one.name for one in client.checkpoints()]


def test_a_file_that_is_cut_while_it_is_sent_leaves_nothing(
    server: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(home / "checkpoints" / "llama", tmp_path / "mine")
    files, _ = checkpoint_files(folder)
    real = Client.ask

    def cutting(self: Client, method: str, path: str, **options: Any) -> Any:
        if path == "/uploads":
            (folder / "model.safetensors").write_bytes(b"")
        return real(self, method, path, **options)

    with Client(server.url, server.token("dora")) as client:
        monkeypatch.setattr(client, "ask", partial(cutting, client))
        with pytest.raises(NasError, match=r"model.safetensors was cut while it was sent"):
            client.upload("mine", files)
    place = server.settings.uploads / "dora"
    assert [path.name for path in place.iterdir()] == [".lock"]


def test_the_page_lists_deletes_and_offers_them(server: Server, home: Path) -> None:
    files, _ = checkpoint_files(home / "checkpoints" / "llama")
    with Client(server.url, server.token("erin")) as client:
        client.upload("mine", files)
    with browser(server, server.token("erin")) as erin, browser(server, server.token("f")) as other:
        page = said(erin.get("/checkpoints"))
        assert "Delete mine" in page and "the server" in page and "webkitdirectory" in page
        assert "<option >mine</option>" in said(erin.get("/new"))
        assert "selected>mine</option>" in said(erin.get("/new", params={"start": "mine"}))
        assert "mine" not in said(other.get("/checkpoints"))
        assert "<option >mine</option>" not in said(other.get("/new"))
        named = {"owner": "erin", "name": "mine"}
        assert other.post("/checkpoints/delete", data=named).status_code == 404
        foreign = {"Origin": "http://elsewhere.example"}
        assert erin.post("/checkpoints/delete", data=named, headers=foreign).status_code == 403
        assert erin.post("/checkpoints/delete", data={"name": "../mine"}).status_code == 422
        gone = erin.post("/checkpoints/delete", data=named)
        assert gone.status_code == 303 and "Delete mine" not in said(erin.get("/checkpoints"))


def test_a_killed_service_lists_nothing_half(home: Path, tmp_path: Path) -> None:
    service = Service(tmp_path, "--workers", "0")
    files, _ = checkpoint_files(home / "checkpoints" / "llama")
    asked = {"name": "mine", "files": {name: file.stat().st_size for name, file in files.items()}}
    upload = service.client.post("/uploads", json=asked).json()["id"]
    place = f"/uploads/{upload}/files"
    for name, file in files.items():
        if name != "model.safetensors":
            service.client.put(f"{place}/{name}", content=file.read_bytes())

    def half() -> Iterator[bytes]:
        whole = files["model.safetensors"].read_bytes()
        yield whole[: len(whole) // 2]
        service.process.kill()
        service.process.wait()
        yield whole[len(whole) // 2 :]

    with pytest.raises(httpx.TransportError):
        service.client.put(f"{place}/model.safetensors", content=half())
    service.process.communicate()
    service.client.close()
    service.start()
    assert service.client.get("/checkpoints").json() == []
    assert "have not come yet" in service.client.post(f"/uploads/{upload}/finish").text
    whole = files["model.safetensors"].read_bytes()  # the upload goes on where it was
    assert service.client.put(f"{place}/model.safetensors", content=whole).status_code == 200
    assert service.client.post(f"/uploads/{upload}/finish").status_code == 201
    assert [one["name"] for one in service.client.get("/checkpoints").json()] == ["mine"]
    kept = {path.name for path in (tmp_path / "uploads" / "admin" / "mine").iterdir()}
    assert kept == {*files, "upload.json"}
    service.kill(signal.SIGTERM)


@pytest.mark.slow
def test_from_the_request_to_the_folder(home: Path, tmp_path: Path) -> None:
    for name in ("checkpoints", "data"):
        shutil.copytree(home / name, tmp_path / name, symlinks=True)
    service = Service(tmp_path)
    job = service.submit(**ASKED)
    ended: dict[str, Any] = service.until(job, lambda now: now["state"] in ("succeeded", "failed"))
    assert ended["state"] == "succeeded", ended
    asked = {"pick": "1.5x", "format": "huggingface"}
    made = service.client.post(f"/jobs/{job}/export", json=asked).json()
    ended = service.until(made["id"], lambda now: now["state"] in ("succeeded", "failed"))
    assert ended["state"] == "succeeded", ended
    (facts,) = (tmp_path / "runs").glob("*/export/*/huggingface/export.json")
    assert "stock llama" in json.loads(facts.read_text())["family"]
    service.kill(signal.SIGTERM)

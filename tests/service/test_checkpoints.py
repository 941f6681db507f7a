"""Searches on a server that begin with one of its checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.test_processes import Service
from tests.support.dashboard_cases import browser
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import change_config
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
    prepared_stream(home / "made", byte_level(marked=True))
    (home / "data").mkdir()
    shutil.move(home / "made" / "data", home / "data" / "texts")
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
    assert found.keys() == {"llama", "damaged", "code", "linked"}
    assert found["llama"] == {
        "name": "llama",
        "family": "llama",
        "task": "language_modelling",
        "problem": None,
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


@pytest.mark.slow
def test_from_the_request_to_the_folder(home: Path, tmp_path: Path) -> None:
    for name in ("checkpoints", "data"):
        shutil.copytree(home / name, tmp_path / name, symlinks=True)
    service = Service(tmp_path)
    job = service.submit(**ASKED)
    ended: dict[str, Any] = service.until(job, lambda now: now["state"] in ("succeeded", "failed"))
    assert ended["state"] == "succeeded", ended
    asked = {"pick": "best", "format": "huggingface"}
    made = service.client.post(f"/jobs/{job}/export", json=asked).json()
    ended = service.until(made["id"], lambda now: now["state"] in ("succeeded", "failed"))
    assert ended["state"] == "succeeded", ended
    (facts,) = (tmp_path / "runs").glob("*/export/*/huggingface/export.json")
    assert "stock llama" in json.loads(facts.read_text())["family"]
    service.kill(signal.SIGTERM)

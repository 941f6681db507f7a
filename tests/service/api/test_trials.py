"""Trained networks that are asked over the API, by a process that may be lost."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.api import space_reader
from service.api.trials import ask_network
from service.auth import Role
from tests.nas.stages.test_prepared_search import (
    IMAGE_SPACE,
    TEXT_SPACE,
    prepare_images,
    prepare_texts,
)
from tests.support import service_api_cases
from tests.support.prepare_cases import pictures, png
from tests.support.service_cases import Server, problem, submission
from tests.support.trained_cases import trained

server, alice = service_api_cases.server, service_api_cases.alice


@pytest.fixture(scope="module")
def asked(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that asks a network about pictures."""
    data = prepare_images(tmp_path_factory.mktemp("data"))
    job, _ = server.store.jobs.submit(submission())
    run = trained(server.settings.runs / job.run, IMAGE_SPACE, dataset="pets", data=str(data))
    network = next(path.name for path in (run.path / "retrained").iterdir())
    yield f"/jobs/{job.id}/architectures/{network}/predict"


def picture() -> dict[str, str]:
    return {"picture": base64.b64encode(png(pictures(1)[0][0])).decode()}


def test_a_picture_is_answered(alice: httpx.Client, asked: str) -> None:
    answer = alice.post(asked, json=picture())
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["warning"] is None and sum(found["chances"].values()) == pytest.approx(1.0)
    assert found["answer"] == max(found["chances"], key=found["chances"].__getitem__)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text": "a cat"}, "reads pictures"),
        ({}, "either a text or a picture"),
        ({"picture": base64.b64encode(b"GIF").decode()}, "the picture"),
        ({"picture": "%"}, "the picture"),
        ({"text": "x", "tokens": 0}, "tokens"),
    ],
)
def test_what_cannot_be_answered_is_said(
    server: Server, alice: httpx.Client, asked: str, body: dict[str, object], said: str
) -> None:
    told = problem(alice.post(asked, json=body), 422)
    assert said.lower() in told.lower() and str(server.settings.home) not in told


def test_who_may_not_and_what_is_not_there(server: Server, alice: httpx.Client, asked: str) -> None:
    reader = server.client("alice", Role.reader)
    problem(reader.post(asked, json=picture()), 403)
    problem(server.client("bob").post(asked, json=picture()), 404)
    other = asked.replace(asked.split("/")[4], "0" * 12)
    assert "retrain it first" in problem(alice.post(other, json=picture()), 409)


def test_a_machine_that_is_too_busy_to_answer_says_so(
    alice: httpx.Client, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_reader, "TRY_WALL_S", 0.0)
    answer = alice.post(asked, json=picture())
    assert "the machine is busy" in problem(answer, 503) and answer.headers["retry-after"]
    monkeypatch.undo()
    assert alice.post(asked, json=picture()).status_code == 200


def test_a_text_that_was_cut_is_told_of(tmp_path: Path) -> None:
    data = prepare_texts(tmp_path, max_length=6)
    run = trained(tmp_path / "run", TEXT_SPACE, dataset="mails", data=str(data))
    network = next(path.name for path in (run.path / "retrained").iterdir())
    given = {"folder": str(run.path), "network": network, "picture": None, "tokens": 1}
    whole, cut = (ask_network({**given, "text": "y" * length}) for length in (6, 7))
    assert (whole["cut_at"], whole["note"]) == (None, None)
    told = "The text was cut at 6 tokens: the network read nothing behind them."
    assert (cut["cut_at"], cut["note"]) == (6, told)


def test_uploaded_data_that_were_deleted_or_are_others_are_told_with_what_to_do(
    server: Server, alice: httpx.Client, tmp_path: Path
) -> None:
    data = server.settings.uploaded_data / "alice" / "cats"
    shutil.copytree(prepare_images(tmp_path), data)
    job, _ = server.store.jobs.submit(submission())
    run = trained(server.settings.runs / job.run, IMAGE_SPACE, dataset="cats", data=str(data))
    network = next(path.name for path in (run.path / "retrained").iterdir())
    place = f"/jobs/{job.id}/architectures/{network}/predict"
    assert alice.post(place, json=picture()).status_code == 200
    shutil.rmtree(data)
    again = "upload the same file under that name again, with the options that it had"
    told = problem(alice.post(place, json=picture()), 422)
    assert told == f"the data set cats was deleted: {again}"
    shutil.copytree(prepare_texts(tmp_path), data)
    told = problem(alice.post(place, json=picture()), 422)
    assert "cats is not the one that this run was made with" in told
    assert told.endswith(f"delete it, and {again}")


def test_data_that_are_gone_are_told_of_without_paths(
    server: Server, alice: httpx.Client, tmp_path: Path
) -> None:
    data = prepare_images(tmp_path)
    job, _ = server.store.jobs.submit(submission())
    run = trained(server.settings.runs / job.run, IMAGE_SPACE, dataset="pets", data=str(data))
    network = next(path.name for path in (run.path / "retrained").iterdir())
    data.rename(tmp_path / "elsewhere")
    told = problem(
        alice.post(f"/jobs/{job.id}/architectures/{network}/predict", json=picture()), 422
    )
    assert "are not there" in told

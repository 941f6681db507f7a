"""Searches of genes on a server, which runs only evaluators that its administrator registered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from nas.run.folder import RunFolder
from search_spaces.errors import NasError, UsageError
from service.jobs.states import Job
from service.serving import serve
from service.settings import Settings, read_settings
from service.worker import job_process
from service.worker.runner import Child, Outcome
from tests.support.dashboard_cases import browser
from tests.support.external_cases import GENES, NUMBERS
from tests.support.service_cases import Done, InstantRunner, Server, problem

RIG = "tests.support.external_cases:Good"
ASKED = {
    "space_toml": GENES,
    "evaluator": "rig",
    "objectives": ["quality", "ms"],
    "settings": NUMBERS,
}


@dataclass
class HonestRunner(InstantRunner):
    """Does searches in this process, as a job's own process does them."""

    def start(self, job: Job, folder: Path) -> Child:
        orders = {"executor": "local", "ray_address": None}
        try:
            for _ in job_process.work(RunFolder.open(folder), job.kind, job.pick, orders):
                pass
        except NasError as error:
            return Done(Outcome(ok=False, error=str(error)))
        return Done(Outcome(ok=True))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home"), evaluators=(f"rig={RIG}",)) as made:
        made.runner = HonestRunner()
        made.worker._runner = made.runner
        yield made


def test_evaluators_that_a_request_may_name_are_listed(server: Server) -> None:
    assert server.client("alice").get("/evaluators").json() == [{"name": "rig"}]
    assert server.client_of(None).get(f"{server.url}/api/v1/evaluators").status_code == 401


def test_a_search_with_a_registered_evaluator(server: Server) -> None:
    client = server.client("alice")
    job = server.finished(client, **{"space": None, "dataset": None, **ASKED})
    front = client.get(f"/jobs/{job}/front").json()
    assert front["final"] and [one["name"] for one in front["objectives"]] == ["quality", "ms"]
    one = front["front"][0]
    assert one["architecture"].keys() >= {"width", "layers", "ratio", "norm"}
    assert "ms" in client.get(f"/jobs/{job}/front", params={"format": "csv"}).text
    known = client.get(f"/jobs/{job}/architectures/{one['id']}").json()
    assert known["on_front"] and known["measured"]["ms"] == one["measured"]["ms"]
    assert client.get(f"/jobs/{job}/report").status_code == 200
    for what in ("retrain", "attention", "export"):
        refused = client.post(f"/jobs/{job}/{what}", json={"pick": one["id"], **_more(what)})
        assert "known to its evaluator alone" in problem(refused, 409)
    with browser(server, server.token("alice")) as pages:
        _check_pages(pages, job, one["id"])


def _check_pages(pages: httpx.Client, job: str, network: str) -> None:
    for path in (f"/jobs/{job}", f"/jobs/{job}/networks?id={network}", "/"):
        page = pages.get(path)
        assert page.status_code == 200, page.text
    assert "width" in pages.get(f"/jobs/{job}/networks?id={network}").text
    whole = pages.get(f"/jobs/{job}").text
    linked = re.findall(r'href="#([^"]*)"', whole.partition('aria-label="Sections"')[2])
    assert "ranker" in linked and all(f'id="{one}"' in whole for one in linked)


def _more(what: str) -> dict[str, str]:
    return {"format": "torch"} if what == "export" else {}


@pytest.mark.parametrize("name", [RIG, "os:getcwd", "command:id", "table:/etc/passwd:x", "other"])
def test_others_are_refused(server: Server, name: str) -> None:
    answer = server.client("alice").post("/jobs", json={**ASKED, "evaluator": name})
    assert "no evaluator named" in problem(answer, 422, "/evaluator")


def test_a_space_whose_name_no_folder_can_begin_with_is_refused(server: Server) -> None:
    text = GENES.replace('"mine"', '"../mine"')
    answer = server.client("alice").post("/jobs", json={**ASKED, "space_toml": text})
    assert "found '../mine', allowed are 1 to 64 letters" in problem(answer, 422, "/space_toml")


def test_without_a_setting_there_is_none(tmp_path: Path) -> None:
    with Server(tmp_path / "home") as bare:
        answer = bare.client("alice").post("/jobs", json=ASKED)
        assert "no evaluator named 'rig'" in problem(answer, 422, "/evaluator")


def test_one_whose_file_has_gone_fails_those_alone_who_name_it(tmp_path: Path) -> None:
    table = tmp_path / "rig.csv"
    both = (f"rig=table:{table}:loss", f"good={RIG}")
    with Server(tmp_path / "home", evaluators=both) as bare:
        alice = bare.client("alice")
        bare.finished(alice)
        told = problem(alice.post("/jobs", json=ASKED), 422, "/evaluator")
        assert told.startswith("the evaluator rig cannot be used") and str(table) not in told
        assert alice.post("/jobs", json={**ASKED, "evaluator": "good"}).status_code == 201


def test_a_service_that_lacks_one_does_not_begin(tmp_path: Path) -> None:
    def tell(*_: object) -> None:
        raise AssertionError("it has begun")

    settings = Settings(home=tmp_path / "home", port=0, evaluators=("rig=table:absent.csv:loss",))
    with pytest.raises(UsageError, match="there is no such file"):
        serve(settings, 0, tell)
    assert not settings.home.exists()  # nor a token in it that nobody was told


def test_a_space_of_genes_needs_an_evaluator(server: Server) -> None:
    asked = {name: value for name, value in ASKED.items() if name != "evaluator"}
    answer = server.client("alice").post(
        "/jobs", json={**asked, "objectives": ["quality", "flops"]}
    )
    assert answer.status_code == 422


@pytest.mark.parametrize("text", ["rig", "=a:B", "rig=", "rig=table:absent.csv:loss"])
def test_wrong_settings_are_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        Settings(home=tmp_path, evaluators=(text,)).check_evaluators()


def test_signs_of_life_come_more_often_than_they_are_missed() -> None:
    read_settings({"NAS_HEARTBEAT_S": "10"})
    with pytest.raises(UsageError, match="NAS_HEARTBEAT_S is 11, and NAS_STALE_S 20"):
        read_settings({"NAS_HEARTBEAT_S": "11"})


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    found = read_settings({"NAS_HOME": str(tmp_path), "NAS_EVALUATORS": f"a={RIG}, b=x:Y"})
    found.check_evaluators()
    assert {name: one.place for name, one in found.registered.items()} == {"a": RIG, "b": "x:Y"}

"""What the dashboard's pages show, and what they load."""

from __future__ import annotations

import csv
import html
import re
import shutil
import threading
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from nas.request.spec import Start
from nas.results.training_curve import training_curve
from nas.run.events import Progress, StageStarted
from nas.run.folder import RunFolder
from nas.search.front import read_front
from service.auth import Role
from service.dashboard.pages import size
from service.jobs.states import Job
from service.worker.runner import Child, Outcome
from service.worker.worker import Worker
from tests.support import dashboard_cases, run_fixture
from tests.support.dashboard_cases import browser, front_of, said
from tests.support.service_cases import SMOKE, Done, Server, problem, submission

server, done, alice = dashboard_cases.server, dashboard_cases.done, dashboard_cases.alice


# -- style and scripts ----------------------------------------------------------------------------


def test_scripts_come_from_here_and_are_kept_long(alice: httpx.Client, done: str) -> None:
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', alice.get(f"/jobs/{done}").text)
    assert len(addresses) == 4
    for address in addresses:
        answer = alice.get(address)
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
    assert alice.get("/static/dashboard-0123.js").status_code == 404


def test_files_are_sent_plain_to_those_who_unpack_nothing(alice: httpx.Client) -> None:
    address = re.findall(r'href="(/static/[^"]+)"', alice.get("/").text)[0]
    plain = alice.get(address, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == alice.get(address).text


# -- jobs -----------------------------------------------------------------------------------------


def test_jobs_are_listed_with_what_they_cost(alice: httpx.Client, done: str) -> None:
    text = said(alice.get("/"))
    assert f'href="/jobs/{done}"' in text and "succeeded" in text and "1.5" in text
    assert "first &lt;b&gt;one" in text and "<b>one" not in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        *(("text=first", True), ("text=second", False), ("kind=search", True)),
        *(("space=digits", True), ("space=wmt14", False)),
        *(("state=failed", False), ("state=succeeded&text=one", True)),
    ],
)
def test_jobs_are_filtered(alice: httpx.Client, done: str, query: str, found: bool) -> None:
    text = said(alice.get(f"/?{query}"))
    assert (f'href="/jobs/{done}"' in text) is found
    assert ("No job fits" in text) is (not found)


@pytest.mark.parametrize("query", ["state=happy", "kind=x", "before=..", "text=%00"])
def test_other_filters_are_refused(alice: httpx.Client, query: str) -> None:
    said(alice.get(f"/?{query}"), 422)


def test_what_the_form_has_no_control_for_is_asked_again(alice: httpx.Client, done: str) -> None:
    text = said(alice.get(f"/?run={done}&limit=7&space=mine"))
    form = text[text.index('role="search"') :]
    assert f'type="hidden" name="run" value="{done}"' in form
    assert 'type="hidden" name="limit" value="7"' in form and "<option selected>mine<" in form
    plain = said(alice.get("/"))
    assert 'type="hidden"' not in plain[plain.index('role="search"') :].partition("</form>")[0]


def test_a_tag_that_no_job_has_stays_in_the_form(tmp_path: Path) -> None:
    with Server(tmp_path) as server, browser(server, server.token("alice")) as client:
        assert "<option selected>old</option>" in said(client.get("/?tag=old"))
        server.store.jobs.submit(submission(tags=("new",)))
        text = said(client.get("/?tag=old"))
        assert "<option selected>old</option>" in text and ">new</option>" in text
        assert ">old</option>" not in said(client.get("/?tag=new"))


def test_moments_say_their_zone(alice: httpx.Client) -> None:
    assert "Times and days are UTC." in said(alice.get("/"))


def test_older_jobs_are_on_the_next_page(tmp_path: Path) -> None:
    with Server(tmp_path) as server, browser(server, server.token("alice")) as client:
        for number in range(26):
            server.store.jobs.submit(submission(title=f"job {number}."))
        first = said(client.get("/?space=digits"))
        older = re.search(r'href="(/\?[^"]*before=[^"]*)"', first)
        assert older and "job 25." in first and "job 0." not in first
        assert "job 0." in said(client.get(older[1].replace("&amp;", "&")))


def test_words_are_changed_in_the_list(server: Server, alice: httpx.Client) -> None:
    job = server.client("alice").post("/jobs", json=SMOKE).json()["id"]
    given = {"title": "<i>new", "tags": "a, b  c", "notes": "one\r\ntwo"}
    headers = {"Referer": f"{server.url}/?kind=search"}
    answer = alice.post(f"/jobs/{job}/words", data=given, headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?kind=search")
    text = said(alice.get("/?kind=search&tag=b&sort=work&backwards=true"))
    assert "&lt;i&gt;new" in text and "one\ntwo" in text and 'aria-sort="ascending"' in text
    assert 'href="/?kind=search&amp;tag=c&amp;sort=work&amp;backwards=True"' in text
    assert alice.post(f"/jobs/{job}/words", data=given).headers["location"] == "/"
    said(alice.post(f"/jobs/{job}/words", data={"tags": "ä"}), 422)
    wrong = {"title": "kept", "tags": ".x", "notes": "long\r\nthoughts"}
    text = said(alice.post(f"/jobs/{job}/words", data=wrong, headers=headers), 422)
    assert 'value="kept"' in text and 'value=".x"' in text and "long\nthoughts" in text
    assert 'name="back" value="/?kind=search"' in text
    mended = {**wrong, "tags": "x", "back": "/?kind=search"}
    there = {"Referer": f"{server.url}/jobs/{job}/words"}
    answer = alice.post(f"/jobs/{job}/words", data=mended, headers=there)
    assert answer.headers["location"] == "/?kind=search"
    alice.post(f"/jobs/{job}/words", data={"notes": "\r\nthree"})
    assert ">\n\nthree</textarea>" in said(alice.get("/"))  # browsers drop the first line break
    with browser(server, server.token("alice", Role.reader)) as reader:
        assert "/words" not in said(reader.get("/"))
        said(reader.post(f"/jobs/{job}/words", data=given), 403)


def test_a_browser_takes_the_tags_that_the_service_takes(alice: httpx.Client, done: str) -> None:
    pattern = re.search(r'name="tags"[^>]* pattern="([^"]*)"', said(alice.get("/")))
    assert pattern is not None
    for text, good in (("a, b  v1.5", True), ("", True), (".x", False), ("x" * 33, False)):
        assert bool(re.fullmatch(html.unescape(pattern[1]), text)) is good


def test_the_curve_is_a_picture(alice: httpx.Client, done: str) -> None:
    answer = alice.get(f"/jobs/{done}/curve.svg")
    assert answer.headers["content-type"].startswith("image/svg+xml")
    root = ElementTree.fromstring(answer.text)
    assert "hypervolume" in str(root.findtext("{http://www.w3.org/2000/svg}title"))


# -- a job ----------------------------------------------------------------------------------------


def test_a_job_shows_its_run(server: Server, alice: httpx.Client, done: str) -> None:
    text = said(alice.get(f"/jobs/{done}"))
    for identity in front_of(server, done):
        assert f'data-network="{identity}"' in text
    for part in ("report card", "What decides", "What pruning cut", "Train the supernet"):
        assert part in text
    assert "#checkpoint" not in text and 'id="exchange"' in text
    for part in ("pareto.json", "Another kind in one layer"):
        assert part in text
    assert "queued → running" in text and "pareto.json" in text and "Report" in text
    assert "data-follow" not in text


def test_a_waiting_job_says_so_and_is_followed(server: Server, alice: httpx.Client) -> None:
    job = server.client("alice").post("/jobs", json=SMOKE).json()["id"]
    text = said(alice.get(f"/jobs/{job}"))
    assert "has not begun" in text and f'data-follow="/api/v1/jobs/{job}/events"' in text
    assert alice.post(f"/jobs/{job}/cancel").headers["location"] == f"/jobs/{job}"
    text = said(alice.get(f"/jobs/{job}"))
    assert "cancelled" in text and "Retry" in text
    assert alice.post(f"/jobs/{job}/retry").status_code == 303
    assert "queued" in said(alice.get(f"/jobs/{job}"))
    assert "retried" in said(alice.post(f"/jobs/{job}/retry"), 409)
    alice.post(f"/jobs/{job}/cancel")


def test_a_failed_job_tells_why(server: Server, alice: httpx.Client) -> None:
    server.work()
    server.runner.outcome = Outcome(ok=False, error="no <memory> left")
    job = server.client("alice").post("/jobs", json=SMOKE).json()["id"]
    server.work()
    server.runner.outcome = Outcome(ok=True)
    for path in ("/", f"/jobs/{job}"):
        assert "no &lt;memory&gt; left" in said(alice.get(path))
    assert alice.post(f"/jobs/{job}/delete").headers["location"] == "/"
    said(alice.get(f"/jobs/{job}"), 404)


LATE = ("verify", "baseline", "front", "exchange", "halve")


class Failing:
    """Does searches that fail while they measure the best."""

    def start(self, job: Job, folder: Path) -> Child:
        run = RunFolder.open(folder)
        run_fixture.fill(run)
        for name in ("pareto.json", *(f"stages/{stage}.json" for stage in LATE)):
            (folder / name).unlink(missing_ok=True)
        run.log(StageStarted("verify", "Measure the best", 2))
        return Done(Outcome(ok=False, error="no memory left"))


def test_of_a_job_that_has_failed_nothing_is_to_come(server: Server, alice: httpx.Client) -> None:
    job = server.client("alice").post("/jobs", json=SMOKE).json()["id"]
    waiting = said(alice.get(f"/jobs/{job}"))
    assert "work so far" in waiting
    Worker(server.store, server.settings, Failing(), "worker-2").work_once(threading.Event())
    text = said(alice.get(f"/jobs/{job}"))
    assert "the front of what was measured before the search failed" in text
    assert "so far" not in text and "to come" not in text and " yet" not in text
    stages = re.findall(
        r'<li class="stage-(\w+)"><span>([^<]*)</span>.*?<span.*?>(.*?)<', text, re.S
    )
    assert ("stopped", "Measure the best", "failed here") in stages
    assert ("open", "Find the Pareto front", "not reached") in stages


def test_a_front_so_far_is_shown(server: Server, alice: httpx.Client) -> None:
    job = server.finished(server.client("alice"))
    (server.settings.runs / job / "pareto.json").unlink()
    text = said(alice.get(f"/jobs/{job}"))
    assert "the front of what was measured" in text and 'data-network="' in text


def test_a_damaged_run_has_a_page_that_says_so(server: Server, alice: httpx.Client) -> None:
    job = server.finished(server.client("alice"))
    (server.settings.runs / job / "pruning.json").write_text("{", "utf-8")
    text = said(alice.get(f"/jobs/{job}"), 409)
    assert "damaged" in text and str(server.settings.home) not in text


# -- networks -------------------------------------------------------------------------------------


def test_networks_stand_side_by_side(server: Server, alice: httpx.Client, done: str) -> None:
    first, second = front_of(server, done)[:2]
    text = said(alice.get(f"/jobs/{done}/networks", params={"id": [first, second, first]}))
    assert text.count("<svg") == 2 and "heads" in text
    assert text.index(f"network-{first}") < text.index(f"network-{second}")


@pytest.mark.parametrize("identity", ["0" * 12, "<script>", "../.."])
def test_unknown_networks_are_not_there(alice: httpx.Client, done: str, identity: str) -> None:
    text = said(alice.get(f"/jobs/{done}/networks", params={"id": identity}), 404)
    assert "<script>'" not in text


def test_a_network_has_a_page_of_its_own(server: Server, alice: httpx.Client) -> None:
    job = server.finished(server.client("alice"), title="net")
    folder = RunFolder.open(server.settings.runs / job)
    entry = read_front(folder).entries[0]
    path = f"/jobs/{job}/networks/{entry.id}"
    text = said(alice.get(path))
    assert "not trained from scratch yet" in text and "encoder.0.ffn" in text
    assert f"{int(entry.measured['params']):,}" in text and "retrain it" in text
    run_fixture.retrain(folder, entry)
    stage = f"retrain-{entry.id}"
    for number, loss in ((1, 3.0), (2, 2.0), (2, 1.5)):  # the second epoch was done again
        folder.log(Progress(stage, number, 2, "", {"loss": loss, "validation_loss": loss / 2}))
    weights = folder.path / "retrained" / entry.id / "weights.pt"
    weights.write_bytes(b"")
    run_fixture.export(folder, entry.id, "torch")
    text = said(alice.get(path))
    assert [one.train_loss for one in training_curve(folder, entry.id)] == [3.0, 1.5]
    assert 'id="chart-curve"' in text and 'class="try"' in text and "model.safetensors" in text
    most = server.settings.max_body_bytes * 7 // 10
    assert f'data-most="{most}"' in text and f"PNG or JPEG of at most {size(most)}" in text
    assert f'href="{path}"' in said(alice.get(f"/jobs/{job}"))
    said(alice.get(f"/jobs/{job}/networks/{'0' * 12}"), 404)


def test_of_a_search_with_a_checkpoint_networks_are_fine_tuned(
    server: Server, alice: httpx.Client, tmp_path: Path
) -> None:
    api = server.client("alice")
    job = server.finished(api, title="begun")
    start = Start(folder="/models/tiny", digest="0" * 64)
    spec = run_fixture.empty_run(tmp_path / "begun", start=start).path / "spec.json"
    shutil.copy(spec, server.settings.runs / job)
    folder = RunFolder.open(server.settings.runs / job)
    entry = read_front(folder).entries[0]
    text = said(alice.get(f"/jobs/{job}/networks/{entry.id}"))
    assert "answers once it was fine-tuned: retrain it" in text
    asked = api.post(f"/jobs/{job}/architectures/{entry.id}/predict", json={"text": "x"})
    assert "is not fine-tuned: retrain it first" in problem(asked, 409)
    given = {"pick": entry.id, "format": "torch", "weights": "trained"}
    assert "is not fine-tuned" in problem(api.post(f"/jobs/{job}/export", json=given), 409)
    run_fixture.retrain(folder, entry)
    (folder.path / "retrained" / entry.id / "weights.pt").write_bytes(b"")
    text = said(alice.get(f"/jobs/{job}/networks/{entry.id}"))
    assert "and was fine-tuned" in text and "test accuracy, fine-tuned" in text
    assert "from scratch" not in text


def test_an_address_that_leads_nowhere_is_told_of_in_a_sentence(alice: httpx.Client) -> None:
    text = said(alice.get("/jobs/nonsense"), 404)
    assert "There is nothing at" in text and "/jobs/nonsense" in text and "match" not in text


# -- comparing ------------------------------------------------------------------------------------


def test_fronts_are_compared(server: Server, alice: httpx.Client, done: str) -> None:
    other = server.finished(server.client("alice"), seed=2, title="other")
    asked = {"job": [done, other]}
    text = said(alice.get("/compare", params=asked))
    assert "1. first" in text and "2. other" in text and 'id="chart-compare-latency_ms"' in text
    assert "one box" in text and 'id="chart-coordinates"' in text
    assert all(f"/jobs/{job}/networks/{front_of(server, job)[0]}" in text for job in (done, other))
    assert f'href="/compare?job={other}" aria-label="leave out first' in text
    few = said(alice.get("/compare", params={**asked, "where": "latency_ms<=1.1"}))
    assert 'value="latency_ms&lt;=1.1"' in few and few.count("/networks/") < text.count(
        "/networks/"
    )
    add = few[few.index('action="/compare"') : few.index("Add a job by its id")]
    assert 'name="where" value="latency_ms&lt;=1.1"' in add and "retrained" not in add
    trained = said(alice.get("/compare", params={**asked, "retrained": "true"}))
    add = trained[trained.index('action="/compare"') : trained.index("Add a job by its id")]
    assert 'name="retrained" value="true"' in add and "where" not in add
    assert "No network meets" in said(alice.get("/compare", params={**asked, "where": "params<=1"}))
    wrong = said(alice.get("/compare", params={**asked, "where": "latency<=1"}), 422)
    assert "No &#39;latency&#39; is measured" in wrong and "2. other" in wrong


def test_a_comparison_is_downloaded(server: Server, alice: httpx.Client, done: str) -> None:
    other = server.finished(server.client("alice"), seed=2, title="=other")
    asked = {"job": [done, other], "where": "params<=1e6"}
    answer = alice.get("/compare.csv", params=asked)
    lines = list(csv.DictReader(answer.text.splitlines()))
    found = alice.get("/compare.json", params=asked).json()
    assert [one["id"] for one in found["networks"]] == [line["id"] for line in lines] != []
    assert found["objectives"] == ["quality", "latency_ms"] and found["difference"] is None
    assert [one["job"] for one in found["fronts"]] == [done, other]
    assert all(0 < one["hypervolume"] <= 1 for one in found["fronts"])
    said(alice.get("/compare.xlsx", params=asked), 404)
    said(alice.get("/compare.csv", params={**asked, "where": "x"}), 422)


def test_fronts_without_a_common_cost_share_no_chart(server: Server, alice: httpx.Client) -> None:
    api = server.client("alice")
    jobs = [server.finished(api, objectives=["quality", cost]) for cost in ("params", "flops")]
    text = said(alice.get("/compare", params={"job": jobs}))
    assert "no cost in common" in text and "different objectives" in text and "one box" not in text


def test_fronts_of_unlike_qualities_share_no_chart(
    server: Server, alice: httpx.Client, done: str
) -> None:
    other = server.finished(server.client("alice"), quality="accuracy")
    text = said(alice.get("/compare", params={"job": [done, other]}))
    assert "measure quality differently, so their fronts share no chart" in text
    assert "different measures of quality" in text and "so it has no column here" in text
    heads = text[text.index('<section id="networks">') :].partition("</thead>")[0]
    assert "latency" in heads and "loss" not in heads and "error" not in heads


def test_what_has_no_front_is_left_out(server: Server, alice: httpx.Client, done: str) -> None:
    waiting = server.client("alice").post("/jobs", json=SMOKE).json()["id"]
    asked = {"job": [waiting, "0" * 20, done]}
    text = said(alice.get("/compare", params=asked))
    assert "it has not begun" in text
    assert f"<code>{'0' * 20}</code> is left out: it is not there, or not yours." in text
    assert "1. first" in text and f"/jobs/{'0' * 20}" not in text
    lines = csv.DictReader(alice.get("/compare.csv", params=asked).text.splitlines())
    assert {line["job"] for line in lines} == {done}
    assert "no front to draw" in said(alice.get("/compare"))
    alice.post(f"/jobs/{waiting}/cancel")


@pytest.mark.parametrize("jobs", [["x"], [f"{n:020x}" for n in range(7)]])
def test_other_comparisons_are_refused(alice: httpx.Client, jobs: list[str]) -> None:
    said(alice.get("/compare", params={"job": jobs}), 422)


# -- beside the pages -----------------------------------------------------------------------------


def test_pages_are_no_part_of_the_api(server: Server) -> None:
    paths = server.client("alice").get("/openapi.json").json()["paths"]
    assert all(path.startswith(("/api/v1/", "/healthz", "/readyz", "/metrics")) for path in paths)
    problem(server.client("alice").get("/nothing"), 404)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nope", 404), ("/logout", 405), ("/data/finish", 405), ("/jobs/0/words", 405)],
)
def test_where_no_page_is_browsers_get_one_and_programs_none(
    alice: httpx.Client, path: str, status: int
) -> None:
    answer = alice.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    text = said(answer, status)
    assert "There is no such page" in text and path in text
    assert answer.headers.get("allow") == (None if status == 404 else "POST")
    problem(alice.get(path), status)
    problem(alice.get("/api/v1/nope", headers={"Accept": "text/html"}), 404)


def test_the_api_is_described_for_people(server: Server, alice: httpx.Client) -> None:
    text = said(alice.get("/docs"))
    document = server.client("alice").get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in text
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in text
    assert 'href="/docs"' in said(alice.get("/"))
    lead = text.partition("<h2>")[0]
    for path, operations in document["paths"].items():
        apart = not path.startswith("/api/v1/") or any(
            "security" not in one for one in operations.values()
        )
        short = re.sub(r"{.*", "…", path)
        assert apart == (f"<code>{short}</code>" in lead), path


def test_what_should_not_happen_has_a_page_too(
    server: Server, alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: float) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(server.store.workers, "alive", broken)
    text = said(alice.get("/"), 500)
    assert "should not have happened" in text and "secret detail" not in text

"""The dashboard's pages over HTTP: who sees them, what they say, and what their forms do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from nas.front import read_front
from nas.omni_views import sees_several_layers
from nas.run.folder import RunFolder
from service.access import COOKIE
from service.auth import Role
from service.runner import Outcome
from service.store.listing import Filter
from tests.service_cases import SMOKE, Server, submission
from tests.test_layering import loaded
from tests.test_service_api import problem

INLINE = re.compile(r"<script(?![^>]*(?:src=|application/json))|<[^>]*\son[a-z]+=")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def done(server: Server) -> str:
    return server.finished(server.client("alice"), title="first <b>one</b>")


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    with browser(server, server.token("alice")) as client:
        yield client


@contextmanager
def browser(server: Server, secret: str | None) -> Iterator[httpx.Client]:
    """A client that has logged in and names its origin, as browsers do when they send forms."""
    headers = {"Origin": server.url}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        if secret is not None:
            assert client.get("/", params={"token": secret}).status_code == 303
        yield client


def said(answer: httpx.Response, status: int = 200) -> str:
    """The text of a page, which keeps to the rules of all pages."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    scripts = re.search(r"script-src ([^;]*)", answer.headers["content-security-policy"])
    assert scripts and scripts[1] == "'self'"
    assert not INLINE.search(answer.text)
    return answer.text


def front_of(server: Server, job: str) -> list[str]:
    return [entry.id for entry in read_front(RunFolder.open(server.settings.runs / job)).entries]


# -- logging in -----------------------------------------------------------------------------------

PAGES = ["/", "/new", "/compare", "/jobs/ID", "/jobs/ID/networks", "/jobs/ID/curve.svg"]


@pytest.mark.parametrize("path", PAGES)
def test_nobody_sees_a_page_without_logging_in(server: Server, done: str, path: str) -> None:
    with browser(server, None) as nobody:
        text = said(nobody.get(path.replace("ID", done)), 401)
    assert "Log in" in text and done not in text


def test_the_link_logs_in(server: Server) -> None:
    secret = server.token("alice")
    answer = httpx.get(f"{server.url}/", params={"token": secret})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/"))
    with browser(server, secret) as client:
        assert "alice (submitter)" in said(client.get("/"))


@pytest.mark.parametrize(("scheme", "kept"), [("https", True), ("http", False)])
def test_behind_tls_the_cookie_is_kept_to_it(server: Server, scheme: str, kept: bool) -> None:
    headers, params = {"X-Forwarded-Proto": scheme}, {"token": server.token("alice")}
    cookie = httpx.get(f"{server.url}/", params=params, headers=headers).headers["set-cookie"]
    assert ("secure" in cookie.lower()) is kept


def test_a_wrong_link_does_not(server: Server) -> None:
    answer = httpx.get(f"{server.url}/", params={"token": "nas_guess"})
    said(answer, 401)
    assert "set-cookie" not in answer.headers


def test_a_link_on_another_site_does_not(server: Server) -> None:
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = httpx.get(f"{server.url}/", params={"token": server.token()}, headers=headers)
    assert "address bar" in said(answer, 403)
    assert "set-cookie" not in answer.headers


def test_a_token_can_be_typed_in(server: Server) -> None:
    with browser(server, None) as client:
        assert "not good" in said(client.post("/login", data={"token": "nas_guess"}), 401)
        assert client.post("/login", data={"token": server.token()}).status_code == 303
        said(client.get("/"))


def test_logging_out_forgets(alice: httpx.Client) -> None:
    assert alice.post("/logout").status_code == 303
    said(alice.get("/"), 401)


def test_a_revoked_token_ends_the_login(tmp_path: Path) -> None:
    with (
        Server(tmp_path, token_cache_s=0) as server,
        browser(server, server.token("carol")) as client,
    ):
        said(client.get("/"))
        for token in server.store.tokens.list():
            server.store.tokens.revoke(token.id)
        said(client.get("/"), 401)


def test_without_authentication_there_is_no_login(tmp_path: Path) -> None:
    with Server(tmp_path, no_auth=True) as server, browser(server, None) as client:
        text = said(client.get("/"))
    assert "There are no jobs yet" in text and "Log out" not in text


# -- other sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}])
@pytest.mark.parametrize("path", ["/jobs/ID/delete", "/new", "/login", "/api/v1/jobs"])
def test_a_cookie_changes_nothing_for_other_pages(
    server: Server, done: str, path: str, headers: dict[str, str]
) -> None:
    cookies = {COOKIE: server.token("alice")}
    with httpx.Client(base_url=server.url, cookies=cookies, headers=headers) as client:
        body: dict[str, Any] = {"json": SMOKE} if "api" in path else {"data": {"space": "digits"}}
        assert client.post(path.replace("ID", done), **body).status_code == 403


@pytest.mark.parametrize("names", [{"Origin": "URL"}, {"Sec-Fetch-Site": "same-origin"}])
def test_a_cookie_opens_the_api_to_our_pages(server: Server, names: dict[str, str]) -> None:
    headers = {name: value.replace("URL", server.url) for name, value in names.items()}
    cookies = {COOKIE: server.token("alice")}
    with httpx.Client(base_url=server.url, cookies=cookies, headers=headers) as client:
        assert client.post("/api/v1/spaces/check", json={"space": "digits"}).status_code == 200
        assert client.get("/api/v1/jobs").status_code == 200


def test_browsers_name_our_pages_as_the_origin_of_forms(alice: httpx.Client) -> None:
    assert alice.get("/").headers["referrer-policy"] == "same-origin"


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


def test_pages_do_not_load_torch() -> None:
    assert "torch" not in loaded("-c", "import service.dashboard.front_comparison")


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


def test_older_jobs_are_on_the_next_page(tmp_path: Path) -> None:
    with Server(tmp_path) as server, browser(server, server.token("alice")) as client:
        for number in range(26):
            server.store.jobs.submit(submission(title=f"job {number}."))
        first = said(client.get("/?space=digits"))
        older = re.search(r'href="(/\?[^"]*before=[^"]*)"', first)
        assert older and "job 25." in first and "job 0." not in first
        assert "job 0." in said(client.get(older[1].replace("&amp;", "&")))


def test_jobs_of_others_are_not_there(server: Server, done: str) -> None:
    with browser(server, server.token("bob")) as bob:
        assert done not in said(bob.get("/"))
        for path in ("", "/networks", "/curve.svg"):
            said(bob.get(f"/jobs/{done}{path}"), 404)
        said(bob.post(f"/jobs/{done}/delete"), 404)
        said(bob.get("/compare", params={"job": done}), 404)


def test_administrators_see_all(server: Server, done: str) -> None:
    with browser(server, server.token("root", Role.admin)) as root:
        assert done in said(root.get("/?text=first"))


def test_readers_are_shown_no_buttons(server: Server, done: str) -> None:
    with browser(server, server.token("alice", Role.reader)) as reader:
        text = said(reader.get(f"/jobs/{done}")) + said(reader.get("/"))
        assert "Retrain the ticked" not in text and "New search" not in text
        said(reader.post(f"/jobs/{done}/retrain", data={"id": "best"}), 403)
        said(reader.get("/new"), 403)


def test_the_curve_is_a_picture(alice: httpx.Client, done: str) -> None:
    answer = alice.get(f"/jobs/{done}/curve.svg")
    assert answer.headers["content-type"].startswith("image/svg+xml")
    root = ElementTree.fromstring(answer.text)
    assert "hypervolume" in str(root.findtext("{http://www.w3.org/2000/svg}title"))


# -- a new search ---------------------------------------------------------------------------------


def test_the_form_shows_the_genes_and_counts(alice: httpx.Client) -> None:
    text = said(alice.get("/new"))
    assert "29,356,740" in text and 'name="gene:encoder.ffn_dim" value="64"' in text
    kept = {"gene:encoder.num_layers": "1", "gene:encoder.attention": ["omni", "linear"]}
    some = {"gene:encoder.num_heads": "1", "gene:encoder.ffn_dim": "4"}
    less = said(alice.get("/new", params={**kept, **some, "gene:encoder.embed_dim": ["4", "8"]}))
    assert "<strong>4</strong> networks remain" in less


@pytest.mark.parametrize("space", ["wmt14", "multi30k", "wikitext103-xl", "listops"])
def test_every_space_has_a_form(alice: httpx.Client, space: str) -> None:
    text = said(alice.get("/new", params={"space": space}))
    assert "networks remain" in text and text.count('type="checkbox"') > 10


def test_an_unknown_space_has_none(alice: httpx.Client) -> None:
    assert "no space named" in said(alice.get("/new", params={"space": "../x"}), 404)


def whole_form(client: httpx.Client) -> dict[str, list[str]]:
    """Every field of the form as a browser would send it untouched."""
    found = re.findall(r'name="(gene:[^"]+)" value="([^"]+)"', client.get("/new").text)
    form: dict[str, list[str]] = {"space": ["digits"], "objective": ["quality", "params"]}
    for name, value in found:
        form.setdefault(name, []).append(value)
    return form | {"preset": ["smoke"], "seed": ["7"], "title": ["by form"]}


def request_of(server: Server, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 303, answer.text
    job = answer.headers["location"].rpartition("/")[2]
    return dict(server.client("alice").get(f"/jobs/{job}").json()["request"])


def test_the_form_submits_a_search(server: Server, alice: httpx.Client) -> None:
    form = whole_form(alice)
    expected = {"space": "digits", "preset": "smoke", "seed": 7, "title": "by form"}
    expected |= {"objectives": ["quality", "params"]}  # type: ignore[dict-item]
    assert request_of(server, alice.post("/new", data=form)) == expected
    form["gene:encoder.ffn_dim"] = ["8", "16"]
    form["limit:params"] = ["20000"]
    asked = request_of(server, alice.post("/new", data=form))
    assert asked["restrict"] == {"encoder.ffn_dim": [8, 16]}
    assert asked["limits"] == {"params": 20000.0}


@pytest.mark.parametrize(
    ("name", "values", "said_"),
    [
        ("seed", ["x"], "seed is a number"),
        ("seed", ["-1"], "seed"),
        ("preset", ["huge"], "preset"),
        ("dataset", ["/etc/passwd"], "dataset"),
        ("limit:params", ["1"], "params"),
        ("limit:params", ["nan"], "params is a number"),
        ("gene:encoder.ffn_dim", [], "FFN size: tick at least one"),
        ("gene:encoder.ffn_dim", ["9"], "FFN size: tick at least one"),
    ],
)
def test_what_is_wrong_is_said_and_the_form_kept(
    alice: httpx.Client, name: str, values: list[str], said_: str
) -> None:
    form = {**whole_form(alice), name: values}
    text = said(alice.post("/new", data=form), 422)
    assert said_ in text and 'value="by form"' in text


def test_what_is_no_form_is_refused(alice: httpx.Client) -> None:
    said(alice.post("/new", content=b"\xff\xfe"), 422)
    said(alice.post("/new", content=b"a=1&" * 4000), 422)


# -- a job ----------------------------------------------------------------------------------------


def test_a_job_shows_its_run(server: Server, alice: httpx.Client, done: str) -> None:
    text = said(alice.get(f"/jobs/{done}"))
    for identity in front_of(server, done):
        assert f'data-network="{identity}"' in text
    for part in ("report card", "What decides", "What pruning cut", "train the supernet"):
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


def test_a_front_so_far_is_shown(server: Server, alice: httpx.Client) -> None:
    job = server.finished(server.client("alice"))
    (server.settings.runs / job / "pareto.json").unlink()
    text = said(alice.get(f"/jobs/{job}"))
    assert "the front so far" in text and 'data-network="' in text


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


def test_chosen_networks_are_retrained(server: Server, alice: httpx.Client, done: str) -> None:
    chosen = front_of(server, done)[:2]
    answer = alice.post(f"/jobs/{done}/retrain", data={"id": chosen})
    assert answer.headers["location"] == f"/jobs/{done}"
    server.work()
    text = said(alice.get(f"/jobs/{done}"))
    assert "On the same run" in text
    one = alice.post(f"/jobs/{done}/retrain", data={"id": chosen[:1]}).headers["location"]
    server.work()
    text = said(alice.get(one))
    assert "97.5" in text and f'href="/jobs/{done}"' in text


@pytest.mark.parametrize("chosen", [[], ["x y"], ["0" * 12]])
def test_retraining_nothing_is_refused(alice: httpx.Client, done: str, chosen: list[str]) -> None:
    said(alice.post(f"/jobs/{done}/retrain", data={"id": chosen}), 422)


# -- comparing ------------------------------------------------------------------------------------


def test_fronts_are_compared(server: Server, alice: httpx.Client, done: str) -> None:
    other = server.finished(server.client("alice"), seed=2, title="other")
    text = said(alice.get("/compare", params={"job": [done, other]}))
    assert "1. first" in text and "2. other" in text and 'id="chart-compare-latency_ms"' in text
    assert "do not compare" not in text


def test_fronts_without_a_common_cost_share_no_chart(server: Server, alice: httpx.Client) -> None:
    api = server.client("alice")
    jobs = [server.finished(api, objectives=["quality", cost]) for cost in ("params", "flops")]
    assert "no cost in common" in said(alice.get("/compare", params={"job": jobs}))


def test_what_has_no_front_is_left_out(server: Server, alice: httpx.Client, done: str) -> None:
    waiting = server.client("alice").post("/jobs", json=SMOKE).json()["id"]
    text = said(alice.get("/compare", params={"job": [waiting, done]}))
    assert "is left out" in text and "1. first" in text
    assert "no front to draw" in said(alice.get("/compare"))
    alice.post(f"/jobs/{waiting}/cancel")


@pytest.mark.parametrize("jobs", [["x"], [f"{n:020x}" for n in range(7)]])
def test_other_comparisons_are_refused(alice: httpx.Client, jobs: list[str]) -> None:
    said(alice.get("/compare", params={"job": jobs}), 422)


def test_pages_are_no_part_of_the_api(server: Server) -> None:
    paths = server.client("alice").get("/openapi.json").json()["paths"]
    assert all(path.startswith(("/api/v1/", "/healthz", "/readyz", "/metrics")) for path in paths)
    problem(server.client("alice").get("/nothing"), 404)


def test_what_should_not_happen_has_a_page_too(
    server: Server, alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: float) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(server.store.workers, "alive", broken)
    text = said(alice.get("/"), 500)
    assert "should not have happened" in text and "secret detail" not in text


# -- jobs about single networks -------------------------------------------------------------------


@pytest.fixture
def finished(server: Server) -> str:
    """A search whose front has networks with and without omni layers to look into."""
    return server.finished(server.client("alice"), title="omni")


def deep_and_flat(server: Server, job: str) -> tuple[str, str]:
    folder = RunFolder.open(server.settings.runs / job)
    span = folder.spec.space.model.omni_span
    entries = read_front(folder).entries
    deep = {sees_several_layers(one.architecture, span): one.id for one in entries}
    return deep[True], deep[False]


def jobs_of(server: Server, run: str) -> list[str]:
    return sorted(str(job.kind) for job in server.store.jobs.list(Filter(run=run), 50))


def test_omni_layers_are_looked_into_and_shown(
    server: Server, alice: httpx.Client, finished: str
) -> None:
    deep, flat = deep_and_flat(server, finished)
    shown = said(alice.get(f"/jobs/{finished}/networks", params={"id": [deep, flat]}))
    assert shown.count("Look into its omni layers") == 1
    path = f"/jobs/{finished}/attention"
    said(alice.post(path, data={"id": [deep, flat]}), 422)
    assert jobs_of(server, finished) == ["search"]  # all or none
    made = alice.post(path, data={"id": deep})
    server.work()
    for page in (made.headers["location"], f"/jobs/{finished}/networks?id={deep}"):
        assert f'id="omni-{deep}"' in said(alice.get(page))
    again = said(alice.get(f"/jobs/{finished}/networks", params={"id": deep}))
    assert "Look into its omni layers" not in again


def test_networks_are_exported_and_their_files_linked(
    server: Server, alice: httpx.Client, finished: str
) -> None:
    deep, flat = deep_and_flat(server, finished)
    weights = server.settings.runs / finished / "retrained" / deep / "weights.pt"
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.write_bytes(b"")
    path = f"/jobs/{finished}/export"
    said(alice.post(path, data={"id": [deep, flat], "format": "torch"}), 409)
    said(alice.post(path, data={"id": deep, "format": "pickle"}), 422)
    assert jobs_of(server, finished) == ["search"]
    made = alice.post(path, data={"id": deep, "format": "torch", "weights": "trained"})
    server.work()
    shown = said(alice.get(made.headers["location"]))
    assert f"export {deep} as torch" in shown
    assert f"artifacts/export/{deep}/torch/model.safetensors" in shown


def test_a_reader_sees_no_button_and_a_form_from_elsewhere_does_nothing(
    server: Server, finished: str
) -> None:
    deep, _ = deep_and_flat(server, finished)
    with browser(server, server.token("alice", Role.reader)) as reader:
        assert "<button>Export" not in said(reader.get(f"/jobs/{finished}/networks?id={deep}"))
        said(reader.post(f"/jobs/{finished}/attention", data={"id": deep}), 403)
    with browser(server, server.token("alice")) as client:
        there = {"Origin": "http://elsewhere"}
        answer = client.post(f"/jobs/{finished}/export", data={"id": deep}, headers=there)
        assert answer.status_code == 403
    assert jobs_of(server, finished) == ["search"]

"""The API tells what there is: spaces, data sets and profiles, its health, and itself."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from latency.timings import TimingHeader, open_timings
from latency.workload import Workload
from search_spaces import load_space
from search_spaces.loading import dump_space
from search_spaces.measurement import Measurement
from search_spaces.variation import largest, smallest
from service.auth import Role
from service.jobs.database import DatabaseAwayError
from tests.support import service_api_cases
from tests.support.run_fixture import DEVICE
from tests.support.service_cases import SMOKE, Server, problem

server, alice, done = service_api_cases.server, service_api_cases.alice, service_api_cases.done


# -- spaces, data sets, profiles ------------------------------------------------------------------


def test_spaces_are_listed_and_shown(alice: httpx.Client) -> None:
    listed = {space["name"]: space for space in alice.get("/spaces").json()}
    shown = alice.get("/spaces/digits").json()
    assert listed["digits"]["size"] == shown["size"] == str(load_space("digits").size)
    assert (listed["digits"]["genes"], len(shown["genes"])) == ([], 14)
    problem(alice.get("/spaces/nothing"), 404)


def test_a_smaller_space_is_counted(alice: httpx.Client) -> None:
    given = {"space": "digits", "restrict": {"encoder.num_layers": [1]}}
    smaller = alice.post("/spaces/check", json=given).json()
    assert smaller["size"] == str(load_space("digits").restrict({"encoder.num_layers": [1]}).size)


def test_the_servers_own_spaces_have_names_too(server: Server, alice: httpx.Client) -> None:
    folder = server.settings.home / "spaces"
    folder.mkdir(exist_ok=True)
    text = dump_space(load_space("digits")).replace('name = "digits"', 'name = "ours"')
    (folder / "ours.toml").write_text(text)
    (folder / "broken.toml").write_text("[space")
    assert "ours" in [space["name"] for space in alice.get("/spaces").json()]
    assert alice.post("/jobs", json={**SMOKE, "space": "ours"}).status_code == 201
    problem(alice.post("/jobs", json={**SMOKE, "space": "broken"}), 422, "/space")


def test_data_sets_are_listed(alice: httpx.Client) -> None:
    names = {one["name"]: one["kind"] for one in alice.get("/datasets").json()}
    assert names == {
        "digits": "built-in",
        "listops": "built-in",
        "recall": "built-in",
        "synthetic": "generated",
    }


def profile_text(folder: Path) -> str:
    space = load_space("digits")
    networks = space.decode(smallest(space)) + space.decode(largest(space))
    profile = open_timings(folder / "p", TimingHeader(DEVICE, Workload(32, 16), "settings"))
    profile.record([(n, Measurement("latency_ms", 1.5, unit="ms")) for n in networks])
    return (folder / "p").read_text()


def test_profiles_are_carried_here(server: Server, alice: httpx.Client, tmp_path: Path) -> None:
    text, kind = profile_text(tmp_path), {"Content-Type": "text/plain"}
    admin = server.client("root", Role.admin)
    problem(alice.post("/profiles", content=text, headers=kind), 403)
    first, again = (admin.post("/profiles", content=text, headers=kind) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["networks"] == 2
    assert first.json() in alice.get("/profiles").json()
    broken = admin.post("/profiles", content=text.replace("1.5", "-1"), headers=kind)
    assert "line 2" in problem(broken, 422, "/")


def test_device_profiles_that_a_request_may_name_are_listed(
    server: Server, alice: httpx.Client
) -> None:
    folder = server.settings.home / "profiles"
    folder.mkdir(exist_ok=True)
    (folder / "phone").write_text("{}")
    assert {"name": "phone"} in alice.get("/device-profiles").json()


# -- health ---------------------------------------------------------------------------------------


def test_health_needs_no_token(server: Server) -> None:
    nobody = server.client_of(None)
    assert nobody.get(server.url + "/healthz").json() == {"status": "ok"}
    assert nobody.get(server.url + "/readyz").json()["status"] == "ok"
    problem(nobody.get(server.url + "/metrics"), 401)


@pytest.mark.parametrize(
    ("error", "status"), [(DatabaseAwayError("secret place"), 503), (KeyError("secret place"), 500)]
)
def test_what_goes_wrong_inside_stays_inside(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(server.store.database, "ping", fail)
    answer = server.client_of(None).get(server.url + "/readyz")
    assert "secret" not in problem(answer, status)
    assert ("retry-after" in answer.headers) == (status == 503)
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_numbers_for_prometheus(server: Server, alice: httpx.Client, done: str) -> None:
    text = alice.get(server.url + "/metrics").text
    assert 'nas_jobs{state="succeeded"}' in text
    assert 'route="/api/v1/jobs/{job_id}"' in text and 'route="/jobs/{job_id}"' not in text
    assert done not in text
    alice.get(f"{server.url}/jobs/{done}")
    alice.get("/openapi.json")
    text = alice.get(server.url + "/metrics").text
    assert 'route="/jobs/{job_id}"' in text and 'route="/api/v1/openapi.json"' in text
    assert 'route="/metrics"' in text and "/api/v1/api/v1" not in text


def test_head_is_get_without_a_body(server: Server, alice: httpx.Client, done: str) -> None:
    places = (
        f"/jobs/{done}",
        f"/jobs/{done}/events",
        f"/jobs/{done}/artifacts/report.html",
        f"/jobs/{'0' * 20}",
        server.url + "/",
        server.url + "/healthz",
    )
    for place in places:
        got, told = alice.get(place), alice.head(place)
        assert told.status_code == got.status_code and told.content == b"", place
        ours = ("content-type", "content-length", "repr-digest", "content-security-policy")
        for name in ours:
            assert told.headers.get(name) == got.headers.get(name), (place, name)
    with server.client("alice").stream("GET", f"/jobs/{done}/events") as stream:
        assert stream.status_code == 200  # the places of the streams were given back
    assert "nas_event_streams 0.0" in alice.get(server.url + "/metrics").text
    assert alice.head("/spaces/check/more").status_code == 404
    assert (
        problem(alice.put("/jobs"), 405) and alice.head(f"/jobs/{done}/cancel").status_code == 405
    )
    assert "head" not in {
        method for one in alice.get("/openapi.json").json()["paths"].values() for method in one
    }


def test_the_api_describes_itself(alice: httpx.Client) -> None:
    document = alice.get("/openapi.json").json()
    assert "/api/v1/jobs/{job_id}/events" in document["paths"]
    assert document["components"]["schemas"]["JobRequest"]["examples"] == [SMOKE]
    timings = document["paths"]["/api/v1/profiles"]["get"]["description"]
    assert "not the device profiles that a request may name" in " ".join(timings.split())
    submit = document["paths"]["/api/v1/jobs"]["post"]["responses"]
    assert list(submit["4XX"]["content"]) == ["application/problem+json"]

"""Every field of a request is where people give it: command, REST, form and reference page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from nas.console.app import app
from nas.request import reference
from nas.request.fields import bounds_of, option_of, shown
from nas.request.presets import PRESETS
from nas.request.resolve import resolve
from nas.request.spec import FAMILIES, SearchRequest, SearchSpec, SearchTerms, build_spec
from nas.run.folder import RunFolder
from nas.run.layout import DEVICE_PROFILE_FILE
from search_spaces.errors import NasError, UsageError
from service.api.catalog import Catalog
from service.api.schemas import JobRequest
from service.client_commands import submit
from service.worker.runner import Outcome
from tests.support import dashboard_cases
from tests.support.dashboard_cases import said
from tests.support.pipeline_cases import TINY
from tests.support.profile_cases import made_profile
from tests.support.service_cases import Server

server, alice = dashboard_cases.server, dashboard_cases.alice
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide"
PAGE, SERVING = GUIDE / "request.md", GUIDE / "serving.md"


def options(command: str) -> dict[str, Any]:
    """Option → what is known of it."""
    single = typer.Typer()
    single.command()(submit)
    found: Any = typer.main.get_command(single if command == "submit" else app)
    chosen = found if command == "submit" else found.commands[command]
    return {name: one for one in chosen.params for name in one.opts}


CONTROL = r'<(?:input|select|textarea) name="%s"'
BOUND = r'\b(min|max|maxlength)="([^"]+)"'


def test_all_fields_are_walked_over() -> None:
    """`JobRequest` could leave one of a request out, or have one twice in other words."""
    for name, field in SearchRequest.model_fields.items():
        of_job = JobRequest.model_fields[name]
        assert (of_job.description, of_job.default) == (field.description, field.default)


@pytest.mark.parametrize("name", JobRequest.model_fields)
def test_every_field_is_everywhere(name: str, server: Server, alice: httpx.Client) -> None:
    field = JobRequest.model_fields[name]
    how, option = shown(field), option_of(JobRequest, name)
    for command in ("search", "submit") if name in SearchRequest.model_fields else ("submit",):
        if not option:
            assert how.apart  # the reason
            continue
        known = options(command)[option]
        assert known.help.startswith(field.description)
    schemas = server.client("alice").get("/openapi.json").json()["components"]["schemas"]
    assert schemas["JobRequest"]["properties"][name]["description"] == field.description
    form = said(alice.get("/new", params={"space": "multi30k"}))
    for control in re.findall(CONTROL % name + "[^>]*>", form):
        if not control.startswith("<select") and not how.many:
            told = {key: float(value) for key, value in re.findall(BOUND, control)}
            assert told == bounds_of(JobRequest, name)
    assert re.search(CONTROL % name, form) or how.apart
    if name in SearchRequest.model_fields:
        assert f"| `{name}` |" in PAGE.read_text("utf-8")
    else:
        assert f"`{name}`" in SERVING.read_text("utf-8")


def test_the_reference_page_is_that_of_the_fields() -> None:
    assert PAGE.read_text("utf-8") == reference.page()
    same = SearchRequest.model_fields.keys() <= SearchSpec.model_fields.keys()
    assert ("spec.json" in reference.HEAD) == same


@pytest.mark.parametrize("page", ["guide/checkpoints.md", "guide/spaces.md"])
def test_the_families_that_are_told_are_those_that_are_read(page: str) -> None:
    from supernet.pretrained.families import FAMILIES as KNOWN

    assert set(FAMILIES) == KNOWN.keys()
    text = (GUIDE.parent / page).read_text("utf-8")
    assert all(f"`{name}`" in text for name in KNOWN)


def test_a_spec_has_what_a_request_says_and_presets_have_one_list() -> None:
    assert SearchTerms.model_fields.keys() <= SearchRequest.model_fields.keys()
    assert set(SearchTerms.model_json_schema()["properties"]["preset"]["enum"]) == set(PRESETS)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"limit": {}}, "there is no field 'limit'; did you mean 'limits'?"),
        ({"qqq": 1}, "there is no field 'qqq'"),
        ({"budget": {"observation": 9}}, "there is no field 'budget.observation'"),
    ],
)
def test_a_field_that_there_is_not_is_told(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_spec(space_toml=TINY, dataset="digits", **values)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"settings": {"supernet.epochs": "x"}}, "settings"),
        ({"keep": {"encoder.ffn": ["1"]}}, "keep"),
        ({"workload": "batch"}, "workload"),
        ({"restrict": {"encoder.ffn_dim": [5]}}, "restrict"),
        ({"device_profile": "none.json"}, "device_profile"),
        ({"data": "nowhere"}, "data"),
    ],
)
def test_an_error_names_its_field(server: Server, values: dict[str, Any], field: str) -> None:
    with pytest.raises(NasError) as caught:
        resolve(SearchRequest(space="digits", **values), Catalog(server.settings))
    assert caught.value.field == field


def test_a_device_profile_of_the_server_is_attached_to_the_run(server: Server) -> None:
    from nas.profiling.device_profile import read_device_profile, write_device_profile

    folder = server.settings.home / "profiles"
    folder.mkdir()
    write_device_profile(folder / "board.json", made_profile())
    asked = {"space_toml": TINY, "dataset": "digits", "device_profile": "board.json"}
    client = server.client("alice")
    server.runner.outcome = Outcome(ok=False)  # the folder is made before
    job = client.post("/jobs", json=asked).json()["id"]
    server.work()
    run = RunFolder.open(server.settings.runs / job)
    copy = read_device_profile(run.path / DEVICE_PROFILE_FILE)
    assert copy.digest == run.spec.device_profile
    refused = client.post("/jobs", json={**asked, "objectives": ["quality", "flops"]})
    assert refused.status_code == 422 and "name latency_ms" in refused.json()["detail"]
    server.runner.outcome = Outcome(ok=True)
    (folder / "board.json").unlink()
    with pytest.raises(NasError, match="no device profile named"):
        Catalog(server.settings).attached({"device_profile": "board.json"}, run.spec)


def test_the_form_takes_what_the_command_takes(server: Server, alice: httpx.Client) -> None:
    form = {
        "space": "digits",
        "objective": ["quality", "flops"],
        "pick": "cheapest",
        "searcher": "random",
        "settings": "supernet.epochs=3\nverified=2",
        "keep": "encoder.attention=omni",
        "workload": "batch=2",
        "threads": "1",
        "data": "synthetic",
        "executor": "local",
    }
    made = alice.post("/new", data=form)
    assert made.status_code == 303, made.text
    job = made.headers["location"].rpartition("/")[2]
    request = server.client("alice").get(f"/jobs/{job}").json()["request"]
    assert request["settings"] == {"supernet.epochs": "3", "verified": "2"}
    assert (request["keep"], request["threads"]) == ({"encoder.attention": ["omni"]}, 1)
    assert (request["pick"], request["searcher"]) == ("cheapest", "random")
    wrong = said(alice.post("/new", data={**form, "settings": "many"}), 422)
    assert "“Settings” takes NAME=VALUE" in wrong and "encoder.attention=omni" in wrong

"""What the dashboard's forms do: searches, and jobs about single networks."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from nas.request.fields import shown
from nas.run.folder import RunFolder
from nas.search.front import read_front
from search_spaces.loading import dump_space, load_space, parse_space
from search_spaces.omni import omni_layers
from service.api.schemas import DurationOut, JobRequest, StageDurationOut
from service.api.space_reader import SpaceReader
from service.auth import Role
from service.dashboard.data import _options
from service.dashboard.submission import GROUPS, Chosen, _lost, form_of, genes, read_form
from service.jobs.listing import Filter
from tests.support import dashboard_cases
from tests.support.cli_fakes import SMALL
from tests.support.dashboard_cases import browser, front_of, said
from tests.support.external_cases import GENES
from tests.support.prepare_cases import pairs_on_server
from tests.support.service_cases import Server

server, done, alice = dashboard_cases.server, dashboard_cases.done, dashboard_cases.alice


# -- a new search ---------------------------------------------------------------------------------


def test_the_form_shows_the_genes_and_counts(alice: httpx.Client) -> None:
    text = said(alice.get("/new"))
    assert "29,356,740" in text and 'name="gene:encoder.ffn_dim" value="64"' in text
    kept = {"gene:encoder.num_layers": "1", "gene:encoder.attention": ["omni", "linear"]}
    some = {"gene:encoder.num_heads": "1", "gene:encoder.ffn_dim": "4"}
    less = said(alice.get("/new", params={**kept, **some, "gene:encoder.embed_dim": ["4", "8"]}))
    assert "<strong>4</strong> networks remain" in less
    kept["gene:encoder.attention"] = "omni"
    one = said(alice.get("/new", params={**kept, **some, "gene:encoder.embed_dim": "4"}))
    assert "<strong>1</strong> network remains" in one


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
        ("seed", ["x"], "“Seed” is "),
        ("seed", ["-1"], "“Seed”"),
        ("preset", ["huge"], "“Preset”"),
        ("dataset", ["/etc/passwd"], "dataset"),
        ("limit:params", ["1"], "params"),
        ("limit:params", ["nan"], "“Limits” params is "),
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


def test_what_keeps_a_job_out_for_now_leaves_the_form_as_it_was(tmp_path: Path) -> None:
    with (
        Server(tmp_path, queued_per_owner=1) as server,
        browser(server, server.token("alice")) as client,
    ):
        form = whole_form(client) | {"notes": ["much to say"]}
        assert client.post("/new", data=form).status_code == 303
        answer = client.post("/new", data=form)
        text = said(answer, 429)
    assert answer.headers["retry-after"] == "60" and 'value="by form"' in text
    assert "much to say" in text and 'class="search"' in text


def checked(client: httpx.Client, form: dict[str, list[str]]) -> dict[str, Any]:
    answer = client.post("/new/check", data=form)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_form_tells_how_long_its_search_would_take(
    alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [StageDurationOut(label=n, what="", seconds=s) for n, s in (("A", 1), ("B", 90))]
    told = DurationOut(seconds=91.0, stages=stages, about="", reason="")
    monkeypatch.setattr(SpaceReader, "duration", lambda *_: told)
    form = whole_form(alice)
    words = alice.post("/new/duration", data=form).json()["duration"].split()
    assert " ".join(words) == (
        "About 1 min 31 s (B 1 min 30 s, A 1.0 s, …), as fast as this service's machine."
    )
    wrong = alice.post("/new/duration", data=form | {"seed": ["x"]})
    assert wrong.json() == {"duration": ""}
    some = [*stages, StageDurationOut(label="C", what="", seconds=None)]
    monkeypatch.setattr(
        SpaceReader, "duration", lambda *_: told.model_copy(update={"stages": some})
    )
    lacking = alice.post("/new/duration", data=form).json()["duration"]
    assert lacking.endswith("machine; not told: C.")
    busy = told.model_copy(update={"warning": "the machine is busy now"})
    monkeypatch.setattr(SpaceReader, "duration", lambda *_: busy)
    warned = alice.post("/new/duration", data=form).json()["duration"]
    assert warned.endswith("as fast as this service's machine. The machine is busy now.")
    untold = told.model_copy(update={"reason": "it failed"})
    monkeypatch.setattr(SpaceReader, "duration", lambda *_: untold)
    answer = alice.post("/new/duration", data=form)
    assert answer.json() == {"duration": "No duration is told: it failed."}


def test_a_form_is_checked_as_it_is_typed(alice: httpx.Client) -> None:
    form = whole_form(alice)
    good = {"problem": None, "field": None, "remaining": "29,356,740"}
    assert checked(alice, form) == good
    small = checked(alice, form | {"limit:params": ["1"]})
    assert "smallest it can reach" in small["problem"] and small["field"] == "limits"
    assert checked(alice, form | {"seed": ["x"]})["field"] == "seed"
    gone = checked(alice, form | {"gene:encoder.ffn_dim": ["9"]})
    assert "tick at least one" in gone["problem"] and gone["remaining"] == "0"
    assert "there is no data set" in checked(alice, form | {"dataset": ["x"]})["problem"]


def test_spaces_without_data_are_greyed_out_with_the_reason(alice: httpx.Client) -> None:
    text = said(alice.get("/new"))
    offers = dict(re.findall(r'<option value="([^"]+)" ([^>]*)>', text))
    assert "disabled" in offers["wmt14"] and "disabled" not in offers["digits"]
    assert "wmt14: needs " in text
    lacking = said(alice.get("/new", params={"space": "wmt14"}))
    assert "which this server does not have" in lacking


def test_a_search_begins_again_with_changes(server: Server, alice: httpx.Client) -> None:
    asked: dict[str, Any] = {
        "space": "digits",
        "preset": "smoke",
        "seed": 5,
        "title": "a, b",
        "tags": ["x", "y"],
        "objectives": ["quality", "params"],
        "notes": "\n one\n\ntwo",
        "limits": {"params": 1234567.0},
        "restrict": {"encoder.ffn_dim": [8, 16]},
        "keep": {"encoder.attention": ["omni"]},
        "settings": {"observations": "50", "supernet.epochs": None},
    }
    job = server.client("alice").post("/jobs", json=asked).json()["id"]
    assert f'href="/new?again={job}"' in said(alice.get(f"/jobs/{job}"))
    text = said(alice.get("/new", params={"again": job}))
    form = sent(text)
    kept = request_of(server, alice.post("/new", data=form))
    before = server.client("alice").get(f"/jobs/{job}").json()["request"]
    assert before["settings"].pop("supernet.epochs") is None  # says as much as nothing
    assert kept == before
    assert request_of(server, alice.post("/new", data=form | {"seed": ["6"]}))["seed"] == 6
    with browser(server, server.token("bob")) as bob:
        said(bob.get("/new", params={"again": job}), 404)


# Field of a request → a value that is not the usual one.
GIVEN: dict[str, Any] = {
    "space": "digits",
    "space_toml": dump_space(load_space("digits")),
    "restrict": {"encoder.num_heads": [1]},
    "preset": "smoke",
    "evaluator": "mine",
    "objectives": ["quality", "flops"],
    "quality": "accuracy",
    "limits": {"params": 100000.0},
    "searcher": "random",
    "device": "cuda",
    "seed": 3,
    "pick": "knee",
    "retrain": 2,
    "baseline": "none",
    "start": "bert",
    "dataset": "digits",
    "data": "synthetic",
    "hours": 2.0,
    "keep": {"encoder.attention": ["omni"]},
    "settings": {"observations": "50"},
    "threads": 2,
    "deterministic": True,
    "workload": "batch=1",
    "device_profile": "board.json",
    "title": "first",
    "tags": ["x", "y"],
    "notes": "much",
    "priority": 3,
    "executor": "local",
}


@pytest.mark.parametrize("name", JobRequest.model_fields)
def test_every_field_comes_again_or_is_named(name: str) -> None:
    space, own = load_space("digits"), GIVEN["space_toml"] if name == "space_toml" else None
    request = {name: GIVEN[name]} if own else {"space": "digits", name: GIVEN[name]}
    form = form_of(request, space)
    again = JobRequest(**read_form(Chosen(space, form, own)))
    lost = list(_lost(request, [gene.name for gene in genes(space, form)]))
    assert lost == ([name] if name in ("evaluator", "hours") else [])
    if name == "deterministic":  # as the settings that it stands for
        assert again.overrides == JobRequest(**request).overrides != {}
    elif not lost:
        assert again.model_dump(mode="json")[name] == GIVEN[name]


def test_what_is_not_taken_over_is_named() -> None:
    request = {"hours": 2.0, "speed": 3, "restrict": {"encoder.num_heads": [1], "decoder.x": [1]}}
    assert list(_lost(request, ["encoder.num_heads"])) == [
        *("the choices of decoder.x", "hours", "speed")
    ]


def test_a_deterministic_search_begins_again_as_one(server: Server, alice: httpx.Client) -> None:
    asked = {"space": "digits", "deterministic": True, "settings": {"observations": 50}}
    job = server.client("alice").post("/jobs", json=asked).json()["id"]
    form = sent(said(alice.get("/new", params={"again": job})))
    kept = request_of(server, alice.post("/new", data=form))
    settings = {"supernet.deterministic": "true", "retrain.deterministic": "true"}
    assert kept["settings"] == {"observations": "50", **settings}


def test_every_control_stands_in_its_group() -> None:
    known = [name for names in GROUPS.values() for name in names]
    fields = {name for name, one in JobRequest.model_fields.items() if not shown(one).apart}
    assert set(known) == fields and len(known) == len(fields)
    assert "retrain" in GROUPS["How good"]


def test_what_is_not_offered_any_more_stays_chosen_until_it_is_changed(
    alice: httpx.Client,
) -> None:
    text = said(alice.get("/new", params={"start": "gone", "device_profile": "lost"}))
    assert "gone: not offered" in text and "lost: not offered" in text
    form = sent(text)
    assert (form["start"], form["device_profile"]) == (["gone"], ["lost"])
    assert "gone" in said(alice.post("/new", data=form), 422)
    assert "not offered" not in said(alice.get("/new"))


def test_with_a_checkpoint_the_space_shown_is_searched_where_that_is_ticked(
    alice: httpx.Client,
) -> None:
    space = load_space("digits")
    form = {"space": ["digits"], "start": ["bert"], "gene:encoder.num_heads": ["1"]}
    for gene in genes(space, {}):
        form.setdefault(f"gene:{gene.name}", [str(one) for one in gene.choices])
    text = said(alice.get("/new", params=form))
    assert "The space around the checkpoint is searched</output>" in text
    assert checked(alice, form)["remaining"] is None
    assert not read_form(Chosen(space, form)).keys() & {"space", "restrict"}
    form["with_space"] = ["true"]
    assert "networks remain</output>" in said(alice.get("/new", params=form))
    made = read_form(Chosen(space, form))
    assert (made["space"], made["restrict"]) == ("digits", {"encoder.num_heads": [1]})
    brought = read_form(Chosen(space, form, toml="text"))
    assert (brought["space_toml"], brought["restrict"]) == ("text", made["restrict"])
    for given, ticked in (
        ({"start": "bert", "space": "digits"}, True),
        ({"start": "bert", "space_toml": "text"}, True),
        ({"start": "bert"}, False),
        ({"space": "digits"}, False),
    ):
        assert ("with_space" in form_of(given, space)) is ticked


def test_another_space_leaves_the_other_fields_as_they_are(
    server: Server, alice: httpx.Client
) -> None:
    form = whole_form(alice) | {"genes_of": ["digits"], "limit:params": ["1234567"]}
    form["gene:encoder.ffn_dim"] = ["8"]
    turned = sent(said(alice.get("/new", params=form | {"space": ["listops"]})))
    assert (turned["space"], turned["genes_of"]) == (["listops"], ["listops"])
    kept = {name: turned[name] for name in ("title", "preset", "seed", "limit:params")}
    assert kept == {name: form[name] for name in kept}
    whole = sent(said(alice.get("/new", params={"space": "listops"})))
    assert [turned[name] for name in whole if name.startswith("gene:")] == [
        whole[name] for name in whole if name.startswith("gene:")
    ]
    # Without scripts the form can be sent before its choices were shown.
    refused = said(alice.post("/new", data=form | {"space": ["listops"]}), 422)
    assert "the choices were those of the space digits" in refused
    again = server.client("alice").post("/jobs", json={"space": "digits", "title": "first"}).json()
    fresh = sent(said(alice.get("/new", params={"again": again["id"], "space": "listops"})))
    assert (fresh["title"], fresh["space"]) == (["first"], ["listops"])
    asked = sent(said(alice.get("/new", params={"dataset": "digits"})))
    assert asked["dataset"] == ["digits"]


def test_a_form_is_for_the_task_of_its_data(
    server: Server, alice: httpx.Client, tmp_path: Path
) -> None:
    form = whole_form(alice)
    with pairs_on_server(server.settings.home, tmp_path) as name:
        begun = sent(said(alice.get("/new", params={"dataset": name})))
        found = checked(alice, form | {"dataset": [name]})
        refused = said(alice.post("/new", data=form | {"dataset": [name]}), 422)
    assert load_space(begun["space"][0]).task == "translation" and begun["dataset"] == [name]
    assert found["field"] == "dataset"
    assert "is for translation" in found["problem"] and "is for translation" in refused
    assert sent(said(alice.get("/new", params={"dataset": "digits"})))["space"] == ["digits"]


def test_the_check_refuses_what_a_submission_would(alice: httpx.Client) -> None:
    form = whole_form(alice)
    ray = checked(alice, form | {"executor": ["ray"]})
    assert "no Ray cluster" in ray["problem"] and ray["field"] == "executor"
    high = checked(alice, form | {"priority": ["9"]})
    assert "for administrators" in high["problem"] and high["field"] == "priority"


def test_tags_are_parted_by_commas_and_blanks(server: Server, alice: httpx.Client) -> None:
    form = whole_form(alice) | {"tags": ["paper  table-2,, draft,\r\nlast"]}
    made = request_of(server, alice.post("/new", data=form))
    assert made["tags"] == ["draft", "last", "paper", "table-2"]


def test_what_a_field_means_stands_beside_it(alice: httpx.Client) -> None:
    text = said(alice.get("/new"))
    for name in re.findall(r'aria-describedby="help-(\w+)"', text):
        assert re.search(rf' id="help-{name}">\w', text), name
    assert text.count("aria-describedby") > 15


def test_a_space_of_genes_says_how_it_is_searched(server: Server, alice: httpx.Client) -> None:
    file = server.settings.home / "spaces" / "rig.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(GENES, encoding="utf-8")
    try:
        assert "rig: is searched with an evaluator" in said(alice.get("/new"))
    finally:
        file.unlink()


def test_a_space_that_came_along_is_searched_again(server: Server, alice: httpx.Client) -> None:
    toml = dump_space(load_space("digits"))
    given = {"space_toml": toml, "preset": "smoke"}
    job = server.client("alice").post("/jobs", json=given).json()["id"]
    form = sent(said(alice.get("/new", params={"again": job})))
    form["gene:encoder.ffn_dim"] = ["8"]
    made = request_of(server, alice.post("/new", data=form))
    slots = parse_space(made["space_toml"], "made").slots
    assert {slot.choices for slot in slots if slot.gene == "ffn_dim"} == {(8,)}


def test_a_baseline_of_ones_own_is_brought_along(server: Server, alice: httpx.Client) -> None:
    given = {"space": "digits", "preset": "smoke", "baseline": SMALL.to_json()}
    job = server.client("alice").post("/jobs", json=given).json()["id"]
    text = said(alice.get("/new", params={"again": job}))
    assert f"<option selected>network {SMALL.id}<" in text
    form = sent(text)
    assert request_of(server, alice.post("/new", data=form)) == given
    assert "network" not in sent(said(alice.get("/new")))["baseline"][0]  # of this job alone
    for other in ("plain", "none"):
        made = request_of(server, alice.post("/new", data=form | {"baseline": [other]}))
        assert made.get("baseline", "plain") == other
    # It stays chosen where something else is wrong with the form.
    wrong = said(alice.post("/new", data=form | {"seed": ["x"]}), 422)
    assert sent(wrong)["baseline"] == [f"network {SMALL.id}"]


def sent(page: str) -> dict[str, list[str]]:
    """What a browser sends of the form of a page, untouched."""
    part = page[page.index('class="search"') :]
    form: dict[str, list[str]] = {}

    def add(name: str, value: str) -> None:
        form.setdefault(name, []).append(html.unescape(value))

    for tag in re.findall(r"<input [^>]*>", part):
        found = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        if found.get("type") != "checkbox" or " checked" in tag:
            add(found["name"], found.get("value", ""))
    for name, text in re.findall(r'<textarea name="(\w+)"[^>]*>([^<]*)</textarea>', part):
        add(name, text.removeprefix("\n"))
    for name, options in re.findall(r'<select name="(\w+)"[^>]*>(.*?)</select>', part, re.DOTALL):
        every = re.findall(r'<option ((?:value="([^"]*)")?[^>]*)>([^<]*)<', options)
        values = [value if "value=" in how else text for how, value, text in every]
        chosen = [v for v, (how, *_) in zip(values, every, strict=True) if "selected" in how]
        add(name, [*chosen, *values, ""][0])
    return form


def test_what_is_no_form_is_refused(alice: httpx.Client) -> None:
    said(alice.post("/new", content=b"\xff\xfe"), 422)
    said(alice.post("/new", content=b"a=1&" * 4000), 422)


# -- data ------------------------------------------------------------------------------------------


def test_of_a_preparation_only_the_fields_of_its_task_count() -> None:
    form = {"image_size": ["28"], "column.label": ["verdict"], "group_by": ["author"]}
    pictures = _options({**form, "task": ["classification"]})
    assert (pictures.image_size, pictures.columns) == (28, {"label": "verdict"})
    pairs = _options({**form, "task": ["translation"]})
    assert (pairs.image_size, pairs.columns, pairs.group_by) == (None, {}, "author")
    given = {**form, "tokenizer": ["llama"]}
    assert _options({**given, "task": ["embedding"]}).tokenizer == "llama"
    assert _options({**given, "task": ["translation"]}).tokenizer is None


# -- retraining -----------------------------------------------------------------------------------


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
    headers = {"Referer": f"{alice.base_url}/jobs/{done}"}
    answer = alice.post(f"/jobs/{done}/retrain", data={"id": chosen}, headers=headers)
    assert f'<a href="/jobs/{done}">Back</a>' in said(answer, 422)


# -- jobs about single networks -------------------------------------------------------------------


@pytest.fixture
def finished(server: Server) -> str:
    """A search whose front has networks with and without omni layers to look into."""
    return server.finished(server.client("alice"), title="omni")


def deep_and_flat(server: Server, job: str) -> tuple[str, str]:
    folder = RunFolder.open(server.settings.runs / job)
    span = folder.spec.space.model.omni_span
    entries = read_front(folder).entries
    deep = {bool(omni_layers(one.architecture, span)): one.id for one in entries}
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

"""No message tells somebody who uses a form, or a program, about options of the commands."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import httpx
import pytest

from nas.request.fields import shown
from nas.run.folder import resuming
from search_spaces.errors import NasError
from search_spaces.wording import OWN_DATA, RESUME, mark
from service.api.routes.data import DataOptions
from service.api.schemas import JobRequest
from service.dashboard.wording import LABELS, for_pages, of_control
from service.wording import COMMAND_ALONE, for_programs, of_field
from service.worker.runner import Outcome
from supernet.data.prepare.plan import PrepareRequest
from tests.support import dashboard_cases
from tests.support.dashboard_cases import said
from tests.support.service_cases import Server

server, alice = dashboard_cases.server, dashboard_cases.alice

# An option may stand in a command that is told as a whole.
OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"nas [a-z]+( [a-z]+)?(,? ?--[a-z-]+( [A-Z0-9{][^ ,;:]*)?)*")
MARKS = re.compile(r"[\x02\x03\x05]")

# Requests of which something is wrong, one for each sentence that used to name an option.
WRONG: dict[str, dict[str, Any]] = {
    "no space": {},
    "data without a space": {"data": "synthetic"},
    "a quality of other tasks": {"space": "digits", "quality": "bleu"},
    "kl without a checkpoint": {"space": "digits", "quality": "kl"},
    "recall without a window": {"space": "multi30k", "quality": "recall_nats"},
    "a pick of what is not timed": {
        "space": "digits",
        "objectives": ["quality", "params"],
        "pick": "latency_ms<=3",
    },
    "a pick that is none": {"space": "digits", "pick": "the good one"},
    "a pick of bleu": {"space": "multi30k", "dataset": "synthetic", "pick": "valid_bleu>=3"},
    "an evaluator beside data": {"space": "digits", "evaluator": "mine", "data": "x"},
    "hours for a space with a name": {"space": "digits", "hours": 2.0},
    "a setting that there is not": {"space": "digits", "settings": {"supernet.epoch": 2}},
    "a setting out of range": {"space": "digits", "settings": {"supernet.epochs": -1}},
    "a choice that there is not": {"space": "digits", "keep": {"encoder.ffn_dim": [1]}},
    "a file as the baseline": {"space": "digits", "baseline": "mine.json"},
    "a device profile that is not there": {"space": "digits", "device_profile": "x.json"},
    "a data set that is not there": {"space": "wmt14"},
    "a limit out of reach": {"space": "digits", "limits": {"params": 1}},
    "a limit on nothing": {"space": "digits", "limits": {"beauty": 1}},
    "a seed that is none": {"space": "digits", "seed": -1},
    "a workload that is none": {"space": "digits", "workload": "batch"},
    "threads twice": {"space": "digits", "threads": 1, "settings": {"threads": 2}},
}


def plain(text: str) -> str:
    """A text for people, in which nothing is left of the words of others."""
    assert not MARKS.search(text), text
    assert not OPTION.search(COMMAND.sub("", text)), text
    return text


@pytest.mark.parametrize("asked", WRONG.values(), ids=list(WRONG))
def test_a_program_is_told_of_fields(server: Server, asked: dict[str, Any]) -> None:
    answer = server.client("alice").post("/jobs", json=asked)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    plain(problem["detail"])
    for one in problem.get("errors", ()):
        plain(one["message"])


# As somebody would fill the form in; a space is chosen there first.
FILLED = {
    name: asked
    for name, asked in WRONG.items()
    if asked and "space" in asked and not {"evaluator", "hours", "limits"} & asked.keys()
}


def form_of(asked: dict[str, Any]) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for name, value in asked.items():
        if isinstance(value, dict):
            form[name] = [
                f"{key}={one[0] if isinstance(one, list) else one}" for key, one in value.items()
            ]
        elif name == "objectives":
            form["objective"] = value
        else:
            form[name] = [str(value)]
    return form


@pytest.mark.parametrize("asked", FILLED.values(), ids=list(FILLED))
def test_somebody_before_the_form_is_told_of_its_labels(
    alice: httpx.Client, asked: dict[str, Any]
) -> None:
    page = alice.get("/new", params={"space": asked["space"]}).text
    form = form_of(asked)
    for name, value in re.findall(r'name="(gene:[^"]+)" value="([^"]+)"', page):
        form.setdefault(name, []).append(value)
    plain(alice.post("/new/check", data=form).json()["problem"])
    text = said(alice.post("/new", data=form), 422)
    warning = re.search(r'<p class="warning"[^>]*>(.*?)</p>', text, re.DOTALL)
    assert warning is not None
    plain(warning[1])


def test_the_error_of_a_job_is_told_in_the_words_of_whoever_looks(
    server: Server, alice: httpx.Client
) -> None:
    broken = NasError(f"spec.json is damaged; {resuming(server.settings.runs / 'x')} makes it anew")
    cpu = NasError(f"this machine has no CUDA device; use {mark('device')} cpu")
    for error, program, reader in (
        (broken, "a retry makes it anew", "“Retry” makes it anew"),
        (cpu, "use device cpu", "use “Device” cpu"),
    ):
        client = server.client("alice")
        server.runner.outcome = Outcome(ok=False, error=error.marked)
        job = client.post("/jobs", json={"space": "digits", "preset": "smoke"}).json()["id"]
        server.work()
        assert program in plain(client.get(f"/jobs/{job}").json()["error"])
        with client.stream("GET", f"/jobs/{job}/events") as stream:
            told = stream.read().decode()
        assert program in told and "\\u0002" not in told
        for path in (f"/jobs/{job}", "/"):
            text = said(alice.get(path))
            assert reader in text and "\x02" not in text
        assert str(server.settings.home) not in text


def test_every_field_has_a_name_on_pages_and_for_programs() -> None:
    prepared = {one.name for one in fields(PrepareRequest)}
    assert prepared - DataOptions.model_fields.keys() - {"source"} == COMMAND_ALONE
    assert LABELS.keys() & prepared == prepared - COMMAND_ALONE - {"task"}
    for name, field in JobRequest.model_fields.items():
        assert of_field(name) == name
        if label := shown(field).label:
            assert of_control(name) == f"“{label}”"
    for name in (RESUME, OWN_DATA, *COMMAND_ALONE, "tokens"):
        for worded in (for_pages, for_programs):
            plain(worded(mark(name, "nas --x")))

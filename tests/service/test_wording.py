"""No message tells somebody who uses a form, or a program, about options of the commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nas.executors.ray_nodes import FULL_S
from nas.executors.retraining.asked import AskedTraining, note_asked
from nas.executors.retraining.stage import _tuning_words
from nas.objectives.latency_limits import Timed
from nas.request.fields import shown
from nas.request.presets import budget_for
from nas.run.duration import Duration, StageDuration
from nas.run.events import DurationTold, Event, Note
from nas.run.folder import RunFolder, resuming
from nas.run.stage_runner import stage_events
from nas.run.stages import Stage
from nas.run.training_memory import parts_text, shortage_text, supernet_text
from nas.search.doubtful import (
    WHAT_TO_DO_THERE,
    disturbances,
    doubtful_sentence,
    predictions_off,
    predictor_off,
    shortfall_and_advice,
    unlike_the_others,
)
from nas.search.front import FrontEntry
from nas.search.pruning.prune import UNKNOWN_ERROR, PruningSettings, _distrust
from nas.search.ranking.report_card import Fidelity, ReportCard
from nas.stages.base import Run
from search_spaces.errors import DamagedRunError, NasError
from search_spaces.loading import load_space
from search_spaces.measurement import Measurement
from search_spaces.wording import OWN_CHECKPOINT, OWN_DATA, RESUME, mark, of_commands
from service.api.routes.data import DataOptions
from service.api.schemas import JobRequest
from service.dashboard.wording import LABELS, for_pages, of_control
from service.wording import COMMAND_ALONE, for_programs, of_field
from service.worker.runner import Outcome
from supernet.data.prepare.plan import PrepareRequest
from tests.support import dashboard_cases, service_cases
from tests.support.cli_fakes import SMALL
from tests.support.dashboard_cases import said
from tests.support.node_cases import Cluster
from tests.support.pipeline_cases import ROOT, tiny
from tests.support.service_cases import Server

server, alice = dashboard_cases.server, dashboard_cases.alice

# An option may stand in a command that is told as a whole.
OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"(?:nas|ray) [a-z]+( [a-z]+)?(,? ?--[a-z-]+( [A-Z0-9{][^ ,;:]*)?)*")
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
    "a setting that changes nothing": {"space": "digits", "settings": {"retrain.stop_tau": 0.5}},
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
    # The service alone says where a table comes from.
    prepared = {one.name for one in fields(PrepareRequest)} - {"pictures_by_path"}
    assert prepared - DataOptions.model_fields.keys() - {"source"} == COMMAND_ALONE
    assert LABELS.keys() & prepared == prepared - COMMAND_ALONE - {"task"}
    for name, field in JobRequest.model_fields.items():
        assert of_field(name) == name
        if label := shown(field).label:
            assert of_control(name) == f"“{label}”"
    for name in (RESUME, OWN_CHECKPOINT, OWN_DATA, *COMMAND_ALONE, "tokens"):
        for worded in (for_pages, for_programs):
            plain(worded(mark(name, "nas --x")))


# -- notes of stages ------------------------------------------------------------------------------

ENTRY = FrontEntry(SMALL.id, SMALL, {"latency_ms": 1.0, "quality": 1.0}, {"latency_ms": 9.0})
# Messages that are put together where the note is made.
HERE = {"nas/executors/ray_group.py: message", "nas/stages/timing.py: text"}


def sites() -> Iterator[tuple[str, ast.expr, list[str]]]:
    """Where stages make notes: the module, the message, and all that the function there says."""
    for file in sorted((ROOT / "nas").rglob("*.py")):
        module = file.relative_to(ROOT).as_posix()
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            nodes = list(_said(function)) if isinstance(function, ast.FunctionDef) else []
            constants = [one.value for one in nodes if isinstance(one, ast.Constant)]
            for call in nodes:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "Note":
                    yield module, call.args[1], [one for one in constants if isinstance(one, str)]


def _said(node: ast.AST) -> Iterator[ast.AST]:
    """What is within; a mark holds what the commands say, and what is raised is no note."""
    yield node
    for child in ast.iter_child_nodes(node):
        marked = isinstance(child, ast.Call) and ast.unparse(child.func) == "mark"
        if not marked and not isinstance(child, ast.Raise):
            yield from _said(child)


def made(folder: Path) -> dict[str, list[str | None]]:
    """What is said where another function makes the message, by module and message."""
    run = tiny(folder / "run")
    note_asked(run, ENTRY.id, AskedTraining(8))
    space, wrong = load_space("digits"), Fidelity(0.1, 0.1, 0.5, 12)
    value = Measurement("latency_ms", 1.0, doubtful="it scattered")
    timed = Timed((value,), repeated=3, waited_s=9.0, shorter=0.5, slower=2.0)
    unlike = unlike_the_others("latency", [(ENTRY.id, 1.0, 9.0)], 2)
    assert unlike is not None
    cluster = Cluster(host_1=1, host_2=1)
    nodes = cluster.watch(cpus=1)
    nodes.told(waits=True)
    cluster.now, cluster.reasons["host_1"] = FULL_S + 1.0, 2
    of_nodes: list[str | None] = [*nodes.told(waits=True)]
    nodes.told(waits=False)
    nodes.told(waits=True)
    cluster.now, cluster.reasons["host_2"] = cluster.now + FULL_S, 2
    of_nodes += nodes.told(waits=True)
    longer = StageDuration("latency", "Time sampled networks", "", 1.0, 9.0)
    return {
        "nas/search/doubtful.py: message": [
            *(note.message for note in disturbances("latency", timed)),
            unlike.message,
            doubtful_sentence([replace(ENTRY, doubtful={"latency_ms": "it scattered"})]),
        ],
        "nas/stages/timing.py: off": [predictor_off(0.9), predictor_off(0.9, WHAT_TO_DO_THERE)],
        "nas/stages/verify.py: off": [predictions_off([ENTRY, ENTRY])],
        "nas/stages/prune.py: result.refused": [
            UNKNOWN_ERROR,
            _distrust(ReportCard("linear", 12, 3, wrong, {}, {}, (), {}), PruningSettings()),
        ],
        "nas/stages/declare.py: supernet_text(run.space, budget.supernet, card, run.checkpoint)": [
            supernet_text(space, budget_for(space, "smoke", {}).supernet, 1)
        ],
        "nas/stages/supernet.py: parts_text(report.parts)": [parts_text(4)],
        "nas/executors/retraining/stage.py: parts_text(report.parts)": [parts_text(4)],
        "nas/executors/retraining/stage.py: shortage": [_shortage(run)],
        "nas/stages/base.py: item": of_nodes,
        "nas/stages/base.py: told": of_nodes,
        "nas/executors/ray_train.py: item.sentence": of_nodes,
        "nas/executors/ray_jobs.py: sentence": of_nodes,
        "nas/stages/telling.py: warning": [Duration((longer,), busy="others worked").warning],
        "nas/executors/retraining/stage.py: _tuning_words(run, network_id)": [
            _tuning_words(SimpleNamespace(folder=run), ENTRY.id)  # type: ignore[arg-type]
        ],
        "nas/executors/retraining/stage.py: problem": [
            shortfall_and_advice(run.spec, ENTRY, 9.0, asked_epochs, "a run")
            for asked_epochs in (None, 7)
        ],
    }


def _shortage(run: RunFolder) -> str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nas.run.training_memory.card_bytes", lambda device: 1)
        return shortage_text(run.spec, SMALL, run.spec.budget.retrain)


def test_no_note_names_an_option_to_those_who_do_not_type_commands(tmp_path: Path) -> None:
    elsewhere = set(HERE)
    for module, message, texts in sites():
        for text in texts:
            plain(text)
        if not isinstance(message, ast.Constant | ast.JoinedStr):
            elsewhere.add(f"{module}: {ast.unparse(message)}")
    found = made(tmp_path)
    assert elsewhere == found.keys() | HERE  # each is among those that are read below
    for text in (text for texts in found.values() for text in texts):
        assert text, found
        for worded in (for_pages, for_programs):
            said_ = plain(worded(text))
            assert "--retime" not in said_ and "--tune" not in said_
        assert not MARKS.search(of_commands(text))
    assert "nas resume RUN --retime" in of_commands(predictor_off(0.9) or "")


def test_a_note_is_told_in_the_words_of_whoever_looks(
    server: Server, alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(_: RunFolder) -> list[Event]:
        cpu = f"this machine has no CUDA device; use {mark('device')} cpu"
        off = predictor_off(0.9)
        assert off is not None
        return [Note("latency", off, loud=True), DurationTold("declare", (), 0.0, reason=cpu)]

    monkeypatch.setattr(service_cases, "told", told)
    monkeypatch.setattr(server.runner, "outcome", Outcome(ok=True))
    client = server.client("alice")
    job = server.finished(client)
    with client.stream("GET", f"/jobs/{job}/events") as stream:
        events = stream.read().decode()
    page = said(alice.get(f"/jobs/{job}"))
    assert "(settings latency_samples=N)" in events and "use device cpu" in events
    assert "(“Settings” latency_samples=N)" in page and "use “Device” cpu" in page
    for text in (events, page):
        assert "have it timed anew (a new search, once" in text
        assert "--retime" not in text and "\x02" not in text and "\\u0002" not in text


def test_what_is_wrong_with_a_file_keeps_its_marks_in_a_note(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    wrong = [DamagedRunError(f"a journal is damaged; {resuming(folder.path)} makes it anew")]

    def work(_: Run) -> Iterator[Event]:
        if wrong:
            raise wrong.pop()
        yield from ()

    events = stage_events(Run(folder), Stage("declare", "Check the request", (), {}), work)
    (note,) = [one.message for one in events if isinstance(one, Note)]
    assert of_commands(note).endswith(
        f"nas resume {folder.path} makes it anew; doing this stage again"
    )
    assert "; “Retry” makes it anew; doing" in plain(for_pages(note))
    assert "; a retry makes it anew; doing" in plain(for_programs(note))

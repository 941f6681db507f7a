"""A network that learnt less from scratch than it showed in the search is told of everywhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.console.commands.results import final_lines
from nas.report.page import render
from nas.results.reader import read_contents
from nas.run.events import Note
from nas.run.folder import RunFolder
from nas.search import doubtful as module
from nas.search.doubtful import shortfall_and_advice
from nas.search.front import FrontEntry, read_front
from nas.stages.retrain import retrain
from search_spaces.architecture import Architecture, EncoderLayer, EncoderStack
from tests.support.pipeline_cases import finished_once
from tests.support.run_fixture import finished_run, rewrite
from tests.support.service_cases import Server

NETWORK = Architecture(encoder=EncoderStack(16, (EncoderLayer("linear", 1, 16),)))
SPEC: Any = SimpleNamespace(start=None)
BLEU = {"quality": 70.0, "valid_loss": 2.0}


@pytest.mark.parametrize(
    ("measured", "loss", "told"),
    [
        ({"quality": 2.0}, 2.3, True),
        ({"quality": 2.0}, 2.2, False),  # the tolerance, to the last digit
        ({"quality": 2.0}, 0.5, False),
        ({"quality": 2.0}, None, False),
        (BLEU, 2.3, True),  # by its loss, not by its quality
        (BLEU, 2.1, False),
        ({"flops": 10.0}, 9.0, False),  # nothing to compare with
    ],
)
def test_who_learnt_less(measured: dict[str, float], loss: float | None, told: bool) -> None:
    entry = FrontEntry(NETWORK.id, NETWORK, measured, {})
    sentence = shortfall_and_advice(SPEC, entry, loss, None, "my run")
    assert (sentence is not None) == told
    if sentence:
        assert f"loss is {loss:.3f} and was 2.000" in sentence
        assert f"nas retrain 'my run' --pick {NETWORK.id} --tune 8" in sentence


def test_epochs_that_were_asked_for_are_not_a_training_that_does_not_suit() -> None:
    entry = FrontEntry(NETWORK.id, NETWORK, {"quality": 2.0}, {})
    sentence = shortfall_and_advice(SPEC, entry, 2.3, 7, "my run")
    assert sentence is not None and sentence.endswith("as many epochs as were asked for, 7")


def test_what_goes_on_from_a_checkpoint_is_not_held_against_the_search() -> None:
    entry = FrontEntry(NETWORK.id, NETWORK, {"quality": 2.0}, {})
    assert shortfall_and_advice(SimpleNamespace(start="one"), entry, 9.0, None, "run") is None  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A finished run; its only network from scratch learnt as much as it showed in the search."""
    return finished_run(tmp_path / "digits-1")


def fail(run: RunFolder) -> str:
    """Let the network have learnt nothing; its id."""
    (file,) = run.path.glob("retrained/*/result.json")
    rewrite(run, str(file.relative_to(run.path)), ["valid_loss"], 9.0)
    return file.parent.name


def test_the_commands_last_lines(run: RunFolder) -> None:
    assert not [line for line in final_lines(run) if "learnt less" in line]
    identity = fail(run)
    (line,) = (line for line in final_lines(run) if "learnt less" in line)
    assert line.startswith(f"Warning network {identity}") and str(run.path) in line


def test_the_report(run: RunFolder) -> None:
    assert "learnt less" not in render(read_contents(run))
    identity = fail(run)
    page = render(read_contents(run))
    assert page.count(f"Network {identity} learnt less") == 1 and "nas retrain digits-1" in page


def test_the_service(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        alice = server.client("alice")
        job = server.finished(alice)
        run = RunFolder.open(server.settings.runs / job)
        (identity,) = (file.parent.name for file in run.path.glob("retrained/*/result.json"))
        network, page = f"/jobs/{job}/architectures/{identity}", f"/jobs/{job}/networks"
        assert alice.get(network).json()["problem"] is None
        fail(run)
        assert alice.get(network).json()["problem"].startswith(f"network {identity} learnt less")
        told = alice.get(f"{server.url}{page}", params={"id": [identity]}).text
        assert told.count(f'<p class="warning">Network {identity} learnt less') == 1


def test_retraining_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_once(tmp_path / "run")
    (trained,) = (file.parent.name for file in run.path.glob("retrained/*/result.json"))
    other = next(entry.id for entry in read_front(run).entries if entry.id != trained)
    monkeypatch.setattr(module, "TOLERANCE", 0.0)
    said = [event for event in retrain(run, other) if isinstance(event, Note)]
    (note,) = (one for one in said if one.stage == f"retrain-{other}")
    assert note.message.startswith(f"network {other} learnt less")

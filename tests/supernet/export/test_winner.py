"""A translation winner, trained for half a minute: every format translates as the run does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nas.results.export import verify_export
from nas.results.networks import open_data, open_network
from nas.run.folder import RunFolder
from supernet.beam_search import BeamSettings
from supernet.tasks.translating import StepwiseTranslator, translate_rows
from tests.support.export_cases import export_to, hub_without_net
from tests.support.export_translators import TRANSLATORS
from tests.support.export_winner import WINNER, trained_winner

pytestmark = [pytest.mark.export, pytest.mark.slow]

SENTENCES = 50


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained_winner(tmp_path_factory.mktemp("winner") / "run")


@pytest.fixture(scope="module")
def rows(run: RunFolder) -> list[list[int]]:
    task = open_data(run, None).task
    found: list[list[int]] = task.source_tokenizer.encode(task.valid.source_lines[:SENTENCES])
    return found


def ours(run: RunFolder, rows: list[list[int]], beam: int) -> list[list[int]]:
    """What `nas translate` writes."""
    network, words = open_network(run, WINNER.id, "cpu"), open_data(run, None)
    model: Any = network.model
    known = words.task.target_tokenizer.vocab_size
    translator = StepwiseTranslator(model, network.architecture, known)
    settings = BeamSettings(beam_size=beam)
    found = translate_rows(translator, rows, settings, max_tokens=20_000, device="cpu")
    return [list(text) for text in found]


def test_the_winner_has_learnt(run: RunFolder) -> None:
    assert run.read_json(f"retrained/{WINNER.id}/result.json")["valid_bleu"] > 60


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("form", list(TRANSLATORS))
def test_every_format_writes_the_same_tokens(
    run: RunFolder, rows: list[list[int]], form: str, beam: int, tmp_path: Path
) -> None:
    exported = export_to(run, form, tmp_path / "out")
    assert exported.facts["scores"]["test_bleu"] > 60
    found = TRANSLATORS[form](tmp_path / "out", rows, beam)
    assert [list(text) for text in found] == ours(run, rows, beam)
    verify_export(tmp_path / "out")

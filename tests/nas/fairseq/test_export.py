"""`nas export --format fairseq`, and a search's commands on binarised data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from nas.fairseq.binarised import FairseqDictionary
from nas.fairseq.checkpoint import read_checkpoint
from nas.results.export import ExportRequest, export_network, verify_export
from search_spaces.errors import DataError, UsageError
from supernet.data.text_files import TokenRows
from supernet.extraction import Supernet
from supernet.tasks import translation
from supernet.tasks.opening import open_task
from supernet.tasks.translation import TranslationTask, split_bleu
from supernet.training.checkpoint import load, save
from tests.support import trained_cases
from tests.support.data_bin_cases import WORDS, small_splits, write_data_bin
from tests.support.pipeline_cases import work
from tests.support.trained_cases import SPACES, TRANSLATION, begun, trained

small_corpus = trained_cases.small_corpus

SMALL_SEARCH = (
    TRANSLATION
    + """
[presets.smoke]
threads = 1
valid_examples = 8
observations = 8
verified = 2
[presets.smoke.supernet]
max_updates = 4
[presets.smoke.retrain]
max_updates = 4
"""
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data_bin(tmp_path / "bin", small_splits())


def request(out: Path) -> ExportRequest:
    return ExportRequest("fairseq", out=out)


def test_an_export_equals_the_runs_model(data: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data=str(data), dataset="bin")
    exported = export_network(run, request(tmp_path / "out"))
    assert exported.facts["difference"] <= 1e-5
    assert verify_export(tmp_path / "out").difference <= 1e-5
    for language in ("source", "target"):
        found = FairseqDictionary.load(tmp_path / "out" / f"dict.{language}.txt")
        assert found.symbols[4:] == tuple(WORDS)
    assert (tmp_path / "out" / "nas_fairseq" / "lib" / "supernet" / "decoder.py").is_file()


def test_words_and_pieces_become_dictionaries(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    export_network(run, request(tmp_path / "out"))
    task = open_task(run.spec.space, "synthetic", None, 0)
    assert isinstance(task, TranslationTask)
    found = FairseqDictionary.load(tmp_path / "out" / "dict.source.txt")
    assert found.symbols == task.source_tokenizer.symbols


def test_a_changed_export_is_found(data: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data=str(data), dataset="bin")
    export_network(run, request(tmp_path / "out"))
    file = tmp_path / "out" / "checkpoint.pt"
    state = read_checkpoint(file)
    state["model"]["network.tables.0.weight"][5] += 1
    save(file, state)
    with pytest.raises(DataError, match=r"checkpoint\.pt was changed"):
        verify_export(tmp_path / "out")


@pytest.mark.parametrize("task", ["classification", "language_modelling"])
def test_networks_that_do_not_translate_are_refused(tmp_path: Path, task: str) -> None:
    run = trained(tmp_path / "run", SPACES[task])
    with pytest.raises(UsageError, match="--format fairseq is for translation"):
        export_network(run, request(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_translate_reads_and_writes_symbols_as_they_are(data: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data=str(data), dataset="bin")
    lines = small_splits()["test"][0]
    text = "".join(f"{line}\n" for line in lines)
    done = CliRunner().invoke(app, ["translate", str(run.path), "--beam", "2"], input=text)
    out = done.stdout.splitlines()
    assert done.exit_code == 0 and len(out) == len(lines)
    assert {word for line in out for word in line.split()} <= {*WORDS, "<unk>"}


def test_bleu_is_counted_on_joined_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["no@@", "where", "to", "go", "at", "all"]
    line = "to no@@ where at all go"
    folder = write_data_bin(
        tmp_path / "bin", {name: ([line], [line]) for name in ("train", "valid")}, words
    )
    run = trained(tmp_path / "run", data=str(folder), dataset="bin")
    task = open_task(run.spec.space, "bin", str(folder), 0)
    assert isinstance(task, TranslationTask)
    monkeypatch.setattr(translation, "StepwiseTranslator", lambda *_: None)
    lines = list(task.valid.source_lines)
    monkeypatch.setattr(translation, "translate_tokens", lambda *_, **__: lines)
    model = torch.nn.Module()
    model.__class__ = translation.TranslationModel  # of which nothing else is asked here
    model.settings = run.spec.space.model  # type: ignore[assignment]
    found = split_bleu(task, _as_supernet(model), None, task.valid, "cpu")  # type: ignore[arg-type]
    assert found.score == pytest.approx(100.0) and found.reference_length == 5


def _as_supernet(model: torch.nn.Module) -> Supernet:
    return model  # type: ignore[return-value]


def test_gaps_count_for_nothing_in_what_a_run_tells(data: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data=str(data), dataset="bin")
    told = run.read_json("data.json")
    words = sum(len(line.split()) for line in small_splits()["train"][0])
    assert told["num_source_tokens"] == words
    assert TokenRows.of([[1, 2], [3]]).num_tokens == 3
    assert load(next(run.path.glob("retrained/*/weights.pt")))["model"]


@pytest.mark.slow
def test_a_search_reads_the_test_split_at_its_very_end(data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in data.glob("test.*"):
        file.rename(moved / file.name)
    run = begun(tmp_path / "run", SMALL_SEARCH, data=str(data), dataset="bin")
    with pytest.raises(DataError, match=r"test\.en-de\.en\.idx is missing"):
        work(run)
    assert (run.path / "pareto.json").exists() and not list(run.path.glob("retrained/*/result*"))
    for file in moved.iterdir():
        file.rename(data / file.name)
    work(run)
    assert len(list(run.path.glob("retrained/*/result.json"))) == 1
